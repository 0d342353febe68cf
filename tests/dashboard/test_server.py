"""The API: snapshots, server-sent events, a job's detail, who may steer, and what is not told to strangers."""

import json
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from paceline.dashboard import run_source
from paceline.dashboard.hub import LISTENERS_MAX
from paceline.dashboard.run_source import RunSource
from paceline.dashboard.switch_source import Health
from paceline.dashboard.views import StragglerView
from paceline.http_limits import IDLE_MAX
from tests.dashboard.scenes import TOKEN, WrittenRun, get, lag_figures, merged, post, served, status_of


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    made = WrittenRun(tmp_path / "run", servers=2, slots=2, racks=2)
    made.job("alpha", [0, 2], rate=5.0)
    made.job("beta", [1])
    made.job("late")
    made.progress("alpha", 12, loss=0.5)
    made.store.event(time.time(), "start", "alpha starts on s0 (1), s1 (1)", job="alpha", reason="room")
    return made


@pytest.fixture
def url(run: WrittenRun) -> Iterator[str]:
    with served([RunSource(run.folder)]) as found:
        yield found


def test_the_snapshot_has_jobs_slots_and_servers(url: str) -> None:
    found = get(f"{url}/api/snapshot")["runs"]["run"]
    alpha = found["jobs"]["alpha"]
    assert (alpha["state"], alpha["servers"], alpha["iteration"]) == ("running", {"s0": 1, "s1": 1}, 12)
    assert alpha["predicted_s"] == 20.0
    assert alpha["measured_s"] == pytest.approx(9.0 + 88 / 5.0, abs=2.0)
    assert alpha["loss"] == 0.5
    assert found["servers"]["s0"]["held"] == {"0": "alpha", "1": "beta"}
    assert {server["rack"] for server in found["servers"].values()} == {"r0", "r1"}
    assert found["bars"]["alpha.1.s1"]["gpus"] == [2]
    assert "end_s" not in found["bars"]["alpha.1.s1"], "what has no value is left out"
    assert found["servers"]["s0"]["load_from"] == "model", "no switch counts the bytes of this run"
    # A ring of two: each link carries the gradient once an iteration, five a second.
    assert found["servers"]["s0"]["load_bps"] == pytest.approx(8 * 1_000_000 * 5.0)
    assert next(iter(found["events"].values()))["text"] == "alpha starts on s0 (1), s1 (1)"


def messages(answer: Any, most: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Events of a stream, as they come."""
    name = ""
    for raw in answer:
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
            most -= 1
            if not most:
                return


def test_changes_come_by_themselves_as_small_patches(run: WrittenRun, url: str) -> None:
    with urllib.request.urlopen(f"{url}/api/events", timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        stream = messages(answer, 40)
        name, state = next(stream)
        assert name == "snapshot"
        run.progress("alpha", 13)
        for name, patch in stream:
            assert name == "patch"
            state = merged(state, patch)
            if state["runs"]["run"]["jobs"]["alpha"]["iteration"] == 13:
                break
        else:
            pytest.fail("the change never came")
        assert "servers" not in patch["runs"]["run"], "what stayed the same is not sent"


def test_a_click_tells_why_and_has_the_log_and_the_losses(run: WrittenRun, url: str) -> None:
    folder = run.folder / "attempts" / "alpha.1"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text("".join(f"line {i}\n" for i in range(20_000)))
    (folder / "rank-1.log").write_text("the other\n")
    run.progress("alpha", 14, loss=0.4)
    found = get(f"{url}/api/runs/run/jobs/alpha")
    assert found["why"] == "the fewest servers with room"
    assert found["log"].endswith("line 19999\n")
    assert len(found["log"]) < 40_000
    assert found["log"].startswith("line "), "from the start of a line"
    assert found["curves"]["loss"]["values"] == [0.5, 0.4]
    assert (found["ranks"], found["rank"]) == ([0, 1], 0)
    assert get(f"{url}/api/runs/run/jobs/alpha?rank=1")["log"] == "the other\n"
    assert found["attempts"][0]["servers"] == ["s0", "s1"]


def test_a_failed_job_says_why_with_the_last_line_of_its_log(run: WrittenRun) -> None:
    folder = run.folder / "attempts" / "broken.1"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text("/bin/sh: 1: no-such-program: not found\n")
    run.job("broken", state="failed", attempt=1, reason="rank 0 ended with 127")
    reason = RunSource(run.folder).view().jobs["broken"].reason
    assert reason.startswith("rank 0 ended with 127; rank 0 wrote last: ")
    assert "no-such-program: not found" in reason
    assert "rank-0.log" in reason


def test_losses_are_read_from_the_log_where_the_job_tells_none(run: WrittenRun, url: str) -> None:
    folder = run.folder / "attempts" / "beta.1"
    folder.mkdir(parents=True)
    (folder / "rank-0.log").write_text(
        "step 1  loss 1.5\nloss=0.5 acc 3\n{'loss': 2e-1}\nlossless 7\nloss nan\n"
    )
    found = get(f"{url}/api/runs/run/jobs/beta")
    assert (found["curves"]["loss"]["values"], found["loss_from"]) == ([1.5, 0.5, 0.2], "log")


@pytest.mark.parametrize("path", ["runs/run/jobs/none", "runs/none/jobs/alpha", "history/none", "none"])
def test_what_is_not_there_is_a_line_not_a_crash(url: str, path: str) -> None:
    assert status_of(f"{url}/api/{path}") == 404


@pytest.mark.parametrize("text", ["%C2%B2", "%D9%A3", "9" * 5000, "9" * 400, "-1", "1.5", "%00", ""])
@pytest.mark.parametrize("key", ["rank", "attempt"])
def test_a_number_that_is_none_is_as_if_it_was_not_there(url: str, key: str, text: str) -> None:
    assert get(f"{url}/api/runs/run/jobs/alpha?{key}={text}") == get(f"{url}/api/runs/run/jobs/alpha")


@pytest.mark.parametrize("name", ["x" * 300 + ".css", "%00.css", "\\.css", "%ff.js"])
def test_a_page_that_cannot_be_is_not_there(url: str, name: str) -> None:
    assert status_of(f"{url}/static/{name}") == 404


def test_a_folder_whose_name_is_no_unicode_is_shown(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / os.fsdecode(b"run\xe9"))
    run.job("alpha", [0])
    with served([RunSource(run.folder)]) as url:
        ((name, found),) = get(f"{url}/api/snapshot")["runs"].items()
        assert name.startswith("run")
        assert "alpha" in found["jobs"]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
def test_nobody_steers_without_the_token(run: WrittenRun, url: str, token: str) -> None:
    status, said = post(f"{url}/api/runs/run/commands", {"kind": "cancel", "job": "alpha"}, token)
    assert status == 401
    assert "token" in said["error"]
    assert run.store.commands() == []


def test_with_it_commands_reach_the_run(run: WrittenRun, url: str) -> None:
    status, said = post(f"{url}/api/runs/run/commands", {"kind": "cancel", "job": "alpha"}, TOKEN)
    assert (status, said["state"]) == (200, "asked")
    assert "no planner" in said["outcome"]
    assert [(row["kind"], row["job"]) for row in run.store.commands()] == [("cancel", "alpha")]
    for body in (
        {"kind": "cancel", "job": "nobody"},
        {"kind": "explode"},
        {"kind": "priority", "job": "alpha", "priority": -1},
        {"kind": "priority", "job": "alpha", "priority": "high"},
        {"kind": 7},
        {"kind": "add", "jobs": ""},
        {"kind": "add", "jobs": "[[jobs"},
        {"kind": "add", "jobs": '[[jobs]]\nname = "alpha"\ngpus = 1\niterations = 1\ncommand = "true"'},
        {"kind": "add", "jobs": 3},
        {"kind": "add", "jobs": "\ud800"},
        {"kind": "cancel", "job": "\ud800"},
        {"kind": "\ud800"},
        {"kind": "priority", "job": "alpha", "priority": float("nan")},
        {"kind": "priority", "job": "alpha", "priority": 10**400},
        [],
    ):
        status, said = post(f"{url}/api/runs/run/commands", body, TOKEN)
        assert status == 400, body
        assert said["error"]
    assert len(run.store.commands()) == 1


def test_half_open_connections_make_room_and_keep_nobody_out(url: str) -> None:
    place = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
    half = [socket.create_connection(place, 5.0) for _ in range(IDLE_MAX + 20)]
    try:
        assert get(f"{url}/healthz")["status"] == "ok"
        half[0].settimeout(20.0)
        assert half[0].recv(1) == b"", "the oldest one is closed"
    finally:
        for one in half:
            one.close()


def test_who_listens_without_end_keeps_nobody_else_out(url: str) -> None:
    place = ("127.0.0.1", int(url.rsplit(":", 1)[1]))
    lurking = []
    try:
        for _ in range(LISTENERS_MAX + 20):
            lurking.append(socket.create_connection(place, 5.0))
            lurking[-1].sendall(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            lurking[-1].settimeout(20.0)
            assert lurking[-1].recv(15).startswith(b"HTTP/1.1 200")
        lurking[0].settimeout(5.0)
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            piece = lurking[0].recv(1 << 20)
            assert piece
            got += piece
        assert get(f"{url}/healthz")["status"] == "ok"
    finally:
        for one in lurking:
            one.close()


def test_a_dashboard_without_a_token_takes_no_commands(run: WrittenRun) -> None:
    with served([RunSource(run.folder)], token="") as url:
        assert post(f"{url}/api/runs/run/commands", {"kind": "pause"}, "")[0] == 401
        assert get(f"{url}/api/snapshot")["steering"] is False


def test_a_page_elsewhere_cannot_read_through_a_name_that_means_this_machine(url: str) -> None:
    assert status_of(f"{url}/api/snapshot", Host="evil.example:7080") == 403
    assert get(f"{url}/api/snapshot", Host="localhost:7080")["runs"]


def test_the_page_and_its_parts_come_from_here_alone(url: str) -> None:
    with urllib.request.urlopen(f"{url}/", timeout=10) as answer:
        page = answer.read().decode()
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "http://" not in page.replace("http://www.w3.org", "")
    for name in ("app.js", "charts.js", "tables.js", "detail.js", "dom.js", "style.css", "icon.svg"):
        with urllib.request.urlopen(f"{url}/static/{name}", timeout=10) as answer:
            text = answer.read().decode()
        assert "https://" not in text
        assert text.count("http://") == text.count("http://www.w3.org/")
    for name in ("..%2fserver.py", "server.py", "%2e%2e/views.py"):
        assert status_of(f"{url}/static/{name}") == 404


def test_the_switch_gives_names_scores_loads_and_memory(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", servers=2, slots=1, switch="")
    run.job("alpha", [0, 1], rate=5.0)
    source = RunSource(run.folder)
    for second in range(1, 9):
        lags = {0: (100.0 * second, 0.0), 1: (100.0 * second, 10.0 * second)}
        figures = lag_figures(lags, preemptions=3.0, fallbacks=4.0)
        figures |= {f"paceline_bytes_total,direction={way}": 2e6 * second for way in ("in", "out")}
        run.switch_look(float(second), {"alpha": {"held": 40.0, "figures": figures}})
        view = source.view()
    slow = [each for each in view.stragglers.values() if each.slow]
    assert [(each.name, each.job) for each in slow] == [("s1", "alpha")]
    assert slow[0].lag_s == pytest.approx(0.1)
    assert slow[0].lost_gpu_s > 0
    assert (view.jobs["alpha"].preemptions, view.jobs["alpha"].fallbacks) == (3.0, 4.0)
    assert view.memory is not None
    assert (view.memory.slots, view.memory.held) == (1000, {"alpha": 40.0})
    assert len(source.looks) == 8
    assert view.servers["s0"].load_from == "switch"
    assert view.servers["s0"].load_bps == pytest.approx(8e6)
    source.close()


def test_a_page_that_is_opened_late_knows_who_was_slow_and_what_it_cost(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", servers=2, slots=1)
    run.began = time.time() - 60.0
    run.job("alpha", [0, 1])
    called: list[StragglerView] = []
    watching = RunSource(run.folder, None, called.append, clock=lambda: run.began)
    for second in range(1, 21):
        lags = {0: (5.0 * second, 0.0), 1: (5.0 * second, 0.5 * second)}
        if second % 4 == 1:
            run.store.insert(
                "samples", time=run.began + second, job="alpha", attempt=1, iteration=5.0 * second, rate=5.0,
                path="switch", figures={},
            )  # fmt: skip
        run.switch_look(float(second), {"alpha": {"held": 1.0, "figures": lag_figures(lags)}})
        watching.view()
    run.store.update_job("alpha", state="done", ended=run.began + 20.0, rate=None)
    run.store.set_meta(state="done", ended=run.began + 21.0)
    # The switch goes on to tell of a job that has just ended.
    later = lag_figures({0: (101.0, 0.0), 1: (101.0, 900.0)})
    run.switch_look(20.5, {"alpha": {"held": 1.0, "figures": later}})
    heard: list[StragglerView] = []
    late = RunSource(run.folder, None, heard.append)
    assert late.view().stragglers == watching.view().stragglers
    assert late.view().lost_gpu_s == watching.view().lost_gpu_s == pytest.approx(19 * 5 * 0.1, rel=0.1)
    found = late.view().stragglers["alpha/1"]
    assert (found.name, found.slow, found.lag_s) == ("s1", False, pytest.approx(0.1))
    assert found.score_median == pytest.approx(0.5)
    assert [view.slow for view in called] == [True]
    assert heard == [], "what was long ago is no news"
    watching.close()
    late.close()


def test_switches_that_do_not_answer_are_asked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, three that are frozen would be shown seconds later."""
    together = threading.Barrier(3, timeout=20.0)

    def ask(address: str) -> Health:
        together.wait()
        return Health("silent", address)

    monkeypatch.setattr(run_source, "health_of", ask)
    assert run_source._asked_together({"a", "b", "c"}) == {name: Health("silent", name) for name in "abc"}


def test_switches_of_several_racks_tell_of_one_job(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", servers=4, slots=1, racks=2)
    run.job("alpha", [0, 1, 2, 3], rate=5.0)
    source = RunSource(run.folder)
    for second in range(1, 7):
        at = run.began + second
        for rack in range(2):
            workers = {
                2 * rack + i: (100.0 * second, 10.0 * second * (rack == 1 and i == 1)) for i in range(2)
            }
            figures = lag_figures(workers, fallbacks=2.0 * second)
            figures |= {
                f"paceline_bytes_total,direction={way}": 1e6 * second * (1 + rack) for way in ("in", "out")
            }
            run.store.insert(
                "switch_samples", time=at, job="alpha/0", slots_in_use=10.0, preemptions=0.0, figures=figures
            )
        view = source.view()
    assert view.jobs["alpha"].fallbacks == 24.0
    assert view.servers["s0"].load_bps == pytest.approx(8 * 3e6 / 4)
    assert [each.name for each in view.stragglers.values() if each.slow] == ["s3"]
    assert view.memory is not None
    assert view.memory.held == {"alpha": 20.0}
    source.close()


def test_a_source_that_breaks_is_told_and_the_others_go_on(run: WrittenRun, tmp_path: Path) -> None:
    other = WrittenRun(tmp_path / "other")
    other.job("beta", [0])
    broken = RunSource(other.folder)
    with served([RunSource(run.folder), broken]) as url:
        other.store.update_job("beta", spec={"strange": True}, priority="high")
        broken.view = lambda: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        until = time.monotonic() + 20.0
        while (
            "trouble" not in (found := get(f"{url}/api/snapshot"))["runs"]["other"]
            and time.monotonic() < until
        ):
            time.sleep(0.1)
        assert "division" in found["runs"]["other"]["trouble"]
        run.progress("alpha", 44)
        while get(f"{url}/api/snapshot")["runs"]["run"]["jobs"]["alpha"]["iteration"] != 44:
            assert time.monotonic() < until
            time.sleep(0.1)


def test_what_a_plan_put_into_the_past_comes_now(run: WrittenRun) -> None:
    decision = {"job": "late", "servers": {"s0": 1}, "start_s": 2.0, "end_s": 5.0, "reason": "", "now": False}
    run.store.insert(
        "plans",
        time=run.began,
        policy="p",
        trigger="",
        running={},
        decisions=[decision],
        settings={},
        took_s=0.1,
    )
    source = RunSource(run.folder, clock=lambda: run.began + 1.0)
    assert (source.view().bars["late.0.s0"].start_s, source.view().bars["late.0.s0"].end_s) == (2.0, 5.0)
    source.clock = lambda: run.began + 30.0
    assert (source.view().bars["late.0.s0"].start_s, source.view().bars["late.0.s0"].end_s) == (30.0, 33.0)
    source.close()
