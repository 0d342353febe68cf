"""The page in a real browser: what is drawn, clicked, changed by itself, and how long drawing takes with many jobs."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from paceline.dashboard.run_source import RunSource
from paceline.dashboard.switch_source import SwitchSource, health_of
from paceline.live.switch_client import ControlPlane
from tests.dashboard import browser as chromium
from tests.dashboard.browser import Browser
from tests.dashboard.scenes import TOKEN, WrittenRun, free_address, lag_figures, served
from tests.launch.scenes import Scene, finish, until

pytestmark = pytest.mark.skipif(bool(chromium.missing()), reason=chromium.missing())


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with chromium.opened() as opened:
        yield opened


class RealSwitch:
    """`paceline switch` in a process of its own, to be killed or held."""

    def __init__(self, address: str) -> None:
        call = "from paceline.cli import main; main()"
        self.address = address
        self.process = subprocess.Popen(
            [sys.executable, "-c", call, "switch", "--listen", address, "--memory", "1MiB"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + 300.0
        while health_of(address).state != "ok":
            assert time.monotonic() < until, "the switch did not start"
            assert self.process.poll() is None, "the switch ended"
            time.sleep(0.1)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    made = WrittenRun(tmp_path / "run", servers=4, slots=2, racks=2)
    made.job("alpha", [0, 2])
    made.job("beta", [4, 5])
    made.job("late")
    made.progress("alpha", 12, loss=0.5)
    for second in range(1, 7):
        lags = {0: (100.0 * second, 0.0), 1: (100.0 * second, 15.0 * second)}
        figures = lag_figures(lags, preemptions=0.0, fallbacks=2.0)
        made.switch_look(float(second), {"alpha": {"held": 40.0, "figures": figures}})
    return made


def test_everything_is_drawn_and_changes_come_by_themselves(page: Browser, run: WrittenRun) -> None:
    with served([RunSource(run.folder)]) as url:
        page.open(f"{url}/")
        page.wait(lambda: page.count("#jobs tbody tr") == 3, "three jobs")
        page.wait(lambda: page.text("#connection") == "live", "the sign of life")
        row = page.text('#jobs tr[data-key="alpha"]')
        for word in ("running", "s0:1 s1:1", "12/100", "5.00/s", "switch"):
            assert word in row
        assert page.count("#cluster .rack") == 2
        assert page.count("#cluster .slot") == 8
        assert page.count("#cluster .slot.held") == 4
        assert page.count("#gantt .bars rect") == 3, "a bar for each server of an attempt"
        page.wait(lambda: page.count("#memory .areas path") == 1, "the switch's memory")
        shown = "return getComputedStyle(document.querySelector('#jobs th:nth-child(9)')).display"
        assert page.js(shown) == "table-cell", "preemptions"
        assert "s1" in page.text("#stragglers tr.slow") or page.count("#stragglers tbody tr") == 2
        run.progress("alpha", 57)
        run.store.event(time.time(), "server", "server s3 is down", reason="it does not answer")
        run.store.update_server("s3", "down", "it does not answer")
        page.wait(lambda: "57/100" in page.text('#jobs tr[data-key="alpha"]'), "the new iteration")
        page.wait(lambda: "server s3 is down" in page.text("#events li"), "the event")
        page.wait(lambda: "Server s3 is down" in page.text("#alarms"), "the alarm")
        assert page.count("#cluster .server.down") == 1
        assert page.js(
            "return performance.getEntriesByType('resource').every((e) => e.name.startsWith(location.origin))"
        )


def test_events_before_the_clock_starts_keep_their_order(page: Browser, run: WrittenRun) -> None:
    run.store.event(run.began + 4.0, "switch", "the run's switch answers")
    with served([RunSource(run.folder)]) as url:
        page.open(f"{url}/")
        page.wait(lambda: page.text("#events li:first-child time") == "4.0 s", "the event")
        # The clock starts anew once the switch is there and jobs can start.
        run.store.set_meta(began=run.began + 6.0)
        page.wait(lambda: page.text("#events li:first-child time") == "-2.0 s", "the time before the start")
        assert page.text("#figure-waiting span") == "waiting; 0 done, 0 failed or stopped"


def test_what_explains_a_failure_is_not_cut_off(page: Browser, run: WrittenRun) -> None:
    folder = run.folder / "attempts" / "broken.1"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text("/bin/sh: 1: no-such-program: not found\n")
    run.job("broken", [6], state="failed", attempt=1, reason="rank 0 ended with 127")
    cell = '#jobs tr[data-key="broken"] td:nth-child(3)'
    with served([RunSource(run.folder)]) as url:
        page.open(f"{url}/")
        page.wait(lambda: "no-such-program: not found" in page.text(cell), "the last line of its log")
        assert page.js(
            "const c = document.querySelector(arguments[0]); return c.scrollWidth <= c.clientWidth", cell
        )
        assert "%" not in page.text('#jobs tr[data-key="broken"]'), "a failure is no error of the plan"
        page.click('#jobs tr[data-key="broken"]')
        page.wait(lambda: "Why it failed" in page.text("#detail"), "the reason")
        page.click("#close-detail")


@pytest.mark.parametrize(("age_s", "unit"), [(212.0, "s"), (1500.0, "min"), (30_000.0, "h")])
def test_an_axis_of_time_has_one_unit_and_whole_numbers(
    page: Browser, run: WrittenRun, age_s: float, unit: str
) -> None:
    run.store.set_meta(began=run.began - age_s)
    with served([RunSource(run.folder)]) as url:
        page.open(f"{url}/")
        page.wait(lambda: page.count("#gantt .ticks text") > 2, "the axis")
        ticks = page.js(
            "return [...document.querySelectorAll('#gantt .ticks text')].map((t) => t.textContent)"
        )
        assert all(tick.split()[1] == unit and tick.split()[0].isdigit() for tick in ticks), ticks


def test_a_click_opens_a_job_and_the_filter_narrows(page: Browser, run: WrittenRun) -> None:
    folder = run.folder / "attempts" / "alpha.1"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text("epoch 3\n<b>not bold</b>\n")
    (folder / "rank-1.log").write_text("I am rank 1\n")
    with served([RunSource(run.folder)]) as url:
        page.open(f"{url}/")
        page.wait(lambda: page.count("#jobs tbody tr") == 3, "three jobs")
        page.click('#jobs tr[data-key="alpha"]')
        page.wait(lambda: "epoch 3" in page.text("#detail pre"), "the log")
        assert page.count("#detail pre b") == 0, "a log is text"
        assert "the fewest servers with room" in page.text("#detail [data-part=why]")
        assert page.count("#detail svg[data-part=loss] path") == 1
        assert "attempt 1 on s0, s1: runs, " in page.text("#detail [data-part=attempts]")
        page.js(
            "const s = document.querySelector('#detail select'); s.value = '1'; s.dispatchEvent(new Event('change'))"
        )
        page.wait(lambda: "I am rank 1" in page.text("#detail pre"), "the other rank's log")
        with (folder / "rank-1.log").open("a") as log:
            log.write("and on it goes\n")
        page.wait(lambda: "and on it goes" in page.text("#detail pre"), "the log's new line")
        assert page.js("return document.querySelector('#detail [data-part=actions]').hidden"), "read-only"
        page.click("#close-detail")
        assert page.js("return document.getElementById('detail').hidden")
        page.click("#gantt .bars g[data-key='beta.1.s2.0'] rect")
        page.wait(lambda: "beta" in page.text("#detail h2"), "the bar's job")
        page.click("#close-detail")
        page.type("#filter", "running s2")
        page.wait(lambda: page.count("#jobs tbody tr") == 1, "only the job on s2")
        assert "beta" in page.text("#jobs tbody")


def test_with_the_token_a_job_is_cancelled_paused_and_added(page: Browser, run: WrittenRun) -> None:
    def asked() -> list[tuple[str, str | None]]:
        return [(row["kind"], row["job"]) for row in run.store.commands()]

    with served([RunSource(run.folder)]) as url:
        page.open(f"{url}/#token={TOKEN}")
        page.wait(lambda: page.count("#jobs tbody tr") == 3, "three jobs")
        assert TOKEN not in str(page.js("return location.href")), "the token does not stay in the address"
        page.click('#jobs tr[data-key="alpha"]')
        page.wait(
            lambda: not page.js("return document.querySelector('[data-part=actions]')?.hidden ?? true"),
            "actions",
        )
        priority = "return document.querySelector('#detail [data-part=priority]').placeholder"
        assert page.js(priority) == "now 1", "what it is, before it is changed"
        page.click("#cancel-job")
        page.accept()
        page.wait(lambda: asked() == [("cancel", "alpha")], "the command")
        page.wait(lambda: "no planner" in page.text("#said"), "its outcome")
        page.click("#close-detail")
        page.click("#pause")
        page.wait(lambda: ("pause", None) in asked(), "the pause")
        page.click("#add")
        page.js(
            "document.getElementById('add-text').value = arguments[0]",
            '[[jobs]]\nname = "new"\ngpus = 1\niterations = 3\nbackward = "1 ms"\ncommand = "true"\n',
        )
        page.click("#add-send")
        page.wait(lambda: ("add", None) in asked(), "the job")
        page.js("sessionStorage.clear()")


def test_a_run_that_goes_on_is_steered_by_clicks(page: Browser, tmp_path: Path) -> None:
    """A planner of its own, its dashboard as `--dashboard` serves it, and nothing but the mouse and the keys."""
    gate = tmp_path / "gate"
    scene = Scene(tmp_path / "scene", {"s0": 2}).job("long", 1, until(gate)).job("next", 2, "true")
    planner = scene.new_planner("--dashboard")
    assert planner.stderr is not None
    lines = iter(planner.stderr.readline, "")
    url = next(found[1] for line in lines if (found := re.search(r"to steer: +(\S+)", line)))

    def said(text: str) -> None:
        page.wait(lambda: text in page.text("#said"), text)

    def state(job: str) -> str:
        return page.text(f'#jobs tr[data-key="{job}"] .state')

    page.open(url)
    page.wait(lambda: state("long") == "running", "the first job", 120.0)
    page.click("#pause")
    said("the queue is paused")
    page.wait(lambda: page.text("#pause") == "Let the queue go on", "the button's other meaning")
    assert page.text("#figure-state b") == "paused"
    page.click('#jobs tr[data-key="next"]')
    page.wait(lambda: page.count("#set-priority") == 1, "the job")
    page.type("#detail [data-part=priority]", "5")
    page.click("#set-priority")
    said("the priority of next goes from 1 to 5")
    page.click("#close-detail")
    page.click("#add")
    page.js("document.getElementById('add-text').value = ''")
    job = '[[jobs]]\nname = "more"\ngpus = 1\niterations = 3\nbackward = "1 ms"\ncommand = "true"\n'
    page.type("#add-text", job)
    page.click("#add-send")
    said("more added")
    page.click('#jobs tr[data-key="long"]')
    page.wait(lambda: page.text("#detail h2").startswith("long"), "the job")
    page.click("#cancel-job")
    page.accept()
    said("long is asked to end")
    page.wait(lambda: state("long") == "cancelled", "its end")
    assert (state("next"), state("more")) == ("waiting", "waiting"), "a paused queue starts nothing"
    page.click("#close-detail")
    page.click("#pause")
    page.wait(
        lambda: "does not answer" in page.text("#connection"), "the end of the run, and of its page", 60.0
    )
    page.js("sessionStorage.clear()")
    code, _, err = finish(planner)
    assert code == 0, err
    assert scene.states() == {"long": "cancelled", "next": "done", "more": "done"}


NOTE_ALARM = """
window.seen = 0;
const alarms = document.getElementById("alarms");
const look = () => { if (/has not answered/.test(alarms.textContent)) window.seen ||= Date.now(); };
new MutationObserver(look).observe(alarms, {childList: true, subtree: true, characterData: true});
"""


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_dead_switch_is_shown_after_a_few_looks_and_so_is_its_return(
    page: Browser, tmp_path: Path, how: str
) -> None:
    address = free_address()
    run = WrittenRun(tmp_path / "run", switch=address)
    run.job("alpha", [0, 2])
    switch = RealSwitch(address)
    try:
        with served([RunSource(run.folder)], [SwitchSource(address)]) as url:
            ControlPlane.parse(address).admit("alpha/0", 2)
            page.open(f"{url}/")
            page.wait(lambda: page.text("#figure-switch b") == "ok", "a switch that answers")
            page.js(NOTE_ALARM)
            died = time.time()
            switch.signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            page.wait(lambda: "has not answered" in page.text("#alarms"), "the alarm")
            late_s = page.js("return window.seen") / 1e3 - died
            print(f"a switch that was {how}: shown after {late_s:.2f} s")
            # Two seconds on a machine of its own; a busy one may take several times as long, but not a minute.
            assert late_s < 20.0
            if how == "killed":
                switch.close()
                switch = RealSwitch(address)
            else:
                switch.signal(signal.SIGCONT)
            page.wait(lambda: "has not answered" not in page.text("#alarms"), "no alarm")
            page.click(f"#tabs button[data-key='{address}']")
            name = "alpha/0" if how == "frozen" else "0 of"
            page.wait(lambda: name in page.text("body"), "the switch's own page")
    finally:
        switch.close()


def test_a_dashboard_that_ends_is_noticed_by_the_page(page: Browser, run: WrittenRun) -> None:
    with served([RunSource(run.folder)]) as url:
        page.open(f"{url}/")
        page.wait(lambda: page.text("#connection") == "live", "the first snapshot")
    page.wait(lambda: "does not answer" in page.text("#connection"), "the silence")


def test_two_hundred_jobs_are_updated_in_place(page: Browser, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", servers=32, slots=8, racks=4)
    for i in range(200):
        run.job(f"job{i:03d}", [i])
    with served([RunSource(run.folder)]) as url:
        page.open(f"{url}/")
        page.wait(lambda: page.count("#jobs tbody tr") == 200, "all jobs")
        page.js("for (const row of document.querySelectorAll('#jobs tbody tr')) row.mine = true")
        # The first drawing makes everything; from now on only what changes is counted.
        page.js("Object.assign(window.paceline.perf, {updates: 0, total_ms: 0, max_ms: 0, long_tasks: 0})")
        for step in range(4):
            with run.store.transaction():
                for i in range(200):
                    run.store.update_job(f"job{i:03d}", iteration=float(step + i % 7), rate=5.0)
            last = f"{step + 199 % 7}/100"
            page.wait(lambda text=last: text in page.text('#jobs tr[data-key="job199"]'), "the update")
        assert page.js("return [...document.querySelectorAll('#jobs tbody tr')].every((row) => row.mine)"), (
            "kept rows"
        )
        assert page.count("#gantt .bars rect") == 200
        shown = "return getComputedStyle(document.querySelector('#jobs th:nth-child(9)')).display"
        assert page.js(shown) == "none", "no preemptions without a switch"
        assert page.count("#cluster .slot.held") == 200
        perf = page.js("return window.paceline.perf")
        # Each change is drawn once, and every one of them.
        assert 4 <= perf["updates"] <= 200
        mean_ms = perf["total_ms"] / perf["updates"]
        print(f"200 jobs: {mean_ms:.1f} ms a drawing on average, {perf['max_ms']:.1f} ms at most, {perf}")


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)])
def test_nothing_is_wider_than_the_screen(page: Browser, run: WrittenRun, width: int, height: int) -> None:
    run.progress("beta", 1.0, rate=1000.0)
    with served([RunSource(run.folder)]) as url:
        page.open(f"{url}/", width, height)
        page.wait(lambda: page.count("#jobs tbody tr") == 3, "three jobs")
        assert page.js("return document.documentElement.scrollWidth <= window.innerWidth")
        cells = "document.querySelectorAll('#jobs tr td:nth-child(4)')"
        alpha, beta, *_ = page.js(f"return [...{cells}].map((cell) => cell.getBoundingClientRect().left)")
        assert alpha == beta, "figures of one kind stand below each other"
        page.click('#jobs tr[data-key="alpha"]')
        page.wait(lambda: page.count("#detail svg[data-part=rate] text") == 4, "the job")
        assert page.js(
            "return document.getElementById('detail').getBoundingClientRect().width <= window.innerWidth"
        )
        height, left = page.js(
            "const box = (node) => node.getBoundingClientRect();"
            "const chart = document.querySelector('#detail svg[data-part=rate]');"
            "const labels = [...chart.querySelectorAll('text')];"
            "return [box(labels[0]).height, Math.min(...labels.map((label) => box(label).left - box(chart).left))]"
        )
        assert height > 10, "labels of the size that they have elsewhere"
        assert left >= 0, "and none is cut off"


def test_dark_is_dark(page: Browser, run: WrittenRun) -> None:
    with served([RunSource(run.folder)]) as url:
        page.open(f"{url}/")
        page.wait(lambda: page.count("#jobs tbody tr") == 3, "three jobs")
        shade = "return getComputedStyle(document.body).backgroundColor"
        light = page.js(shade)
        page.click("#theme")
        assert page.js(shade) != light
        page.click("#theme")
        assert page.js(shade) == light
        page.devtools(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        )
        page.js("localStorage.clear(); delete document.documentElement.dataset.theme")
        assert page.js(shade) != light, "as the system asks"
        page.devtools("Emulation.setEmulatedMedia", {"features": []})
