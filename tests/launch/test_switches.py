import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.dashboard.run_source import _switch_addresses
from paceline.errors import UserError
from paceline.launch import run as launch
from paceline.launch import switches
from paceline.launch.store import Store
from paceline.ports import free_port
from tests.launch.scenes import Scene, assert_nothing_left, finish, kill, wait_for

RUN = f"abc{os.getpid()}"
METRICS = """# HELP paceline_slots_used aggregators that a job holds
# TYPE paceline_slots_used gauge
paceline_slots_used{job="3",name="a",shard="0"} 5.0
paceline_slots_used{job="3",name="a",shard="1"} 2.0
paceline_preemptions_total{job="3",name="a"} 4.0
paceline_drops_total{job="",name="",reason="tag"} 1.0
paceline_jobs 1.0
nonsense
"""
# A stand-in that answers as the control plane does, where the test is about the process and not the switch.
SERVER = f"""
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = {METRICS!r} if self.path == "/metrics" else "ok"
        self.send_response(200); self.end_headers(); self.wfile.write(body.encode())
    def log_message(self, *_): pass
host, port = sys.argv[1].split(":")
http.server.HTTPServer((host, int(port)), Answer).serve_forever()
"""


def _stand_in(address: str, token_file: Path) -> list[str]:
    assert len(token_file.read_text()) >= 16
    return [sys.executable, "-c", SERVER, address]


def _store(folder: Path) -> Store:
    store = Store.create(folder)
    store.set_meta(run_id=RUN)
    return store


def test_a_switch_is_started_found_again_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switches, "ANSWER_S", 30.0)
    store = _store(tmp_path)
    first = switches.start(store, host="127.0.0.1", command=_stand_in)
    try:
        again = switches.start(store, host="127.0.0.1", command=_stand_in)
        assert (again.address, again.token, again.folder) == (first.address, first.token, first.folder)
        first.poll(1.0, store.event)
        first.poll(1.5, store.event)
        rows = {row["job"]: row for row in store.switch_samples()}
        assert set(rows) == {None, "a"}
        assert (rows["a"]["slots_in_use"], rows["a"]["preemptions"]) == (7.0, 4.0)
        assert rows[None]["figures"] == {"paceline_drops_total,reason=tag": 1.0, "paceline_jobs": 1.0}
    finally:
        first.stop()
    assert_nothing_left(f"{RUN}-switch")
    first.poll(9.0, store.event)
    first.poll(19.0, store.event)
    assert [event["kind"] for event in store.events()] == ["switch"]
    # The next one takes the address and the token that the jobs know.
    later = switches.start(store, host="127.0.0.1", command=_stand_in)
    later.stop()
    assert (later.address, later.token) == (first.address, first.token)
    assert later.folder != first.folder


def test_what_is_held_for_milliseconds_shows_as_an_average(tmp_path: Path) -> None:
    switch = switches.RunSwitch(_store(tmp_path), "127.0.0.1:1", "")
    figures = {"paceline_slots_used,shard=0": 0.0, switches.SLOT_SECONDS: 5.0}
    assert switch._in_use(10.0, "a", figures) == 0.0
    assert switch._in_use(12.0, "a", {**figures, switches.SLOT_SECONDS: 8.0}) == 1.5
    # A switch that was restarted counts from nothing.
    assert switch._in_use(14.0, "a", {**figures, switches.SLOT_SECONDS: 1.0}) == 0.0
    assert switch._in_use(16.0, "a", {"paceline_slots_used,shard=0": 3.0}) == 3.0


def test_a_switch_that_does_not_start_is_told_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did not start: no luck"):
        switches.start(
            _store(tmp_path), host="127.0.0.1", command=lambda *_: ["sh", "-c", "echo no luck; exit 1"]
        )
    assert_nothing_left(f"{RUN}-switch")


def test_addresses_that_are_none(tmp_path: Path) -> None:
    store = _store(tmp_path)
    with pytest.raises(UserError, match="neither auto, none nor HOST:PORT"):
        switches.attach(store, "sometimes")
    with pytest.raises(UserError, match=r"no switch answers at 127\.0\.0\.1:1"):
        switches.attach(store, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sometimes", "neither auto, none nor HOST:PORT"),
        ("a:1,b", "'b' is neither auto, none nor HOST:PORT"),
        ("auto,a:1", "'auto' is neither"),
        ("a:1,none", "'none' is neither"),
        ("a:1,,b:1", "no address beside it"),
        ("a:1,a:1", "named twice"),
        ("a:1*0", "from 1 to"),
    ],
)
def test_a_list_of_switches_is_checked_before_anything_starts(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as told:
        launch.check(launch.RunRequest(switch=text))
    assert told.value.place == "--switch"


@contextlib.contextmanager
def _two_stand_ins() -> Iterator[list[str]]:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    servers = [subprocess.Popen([sys.executable, "-c", SERVER, address]) for address in addresses]
    try:
        for address in addresses:
            wait_for(lambda address=address: _answers(address), "a stand-in", 60)  # type: ignore[misc]
        yield addresses
    finally:
        for server in servers:
            server.kill()
            server.wait()


def _answers(address: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://{address}/healthz", timeout=5).status == 200)
    except OSError:
        return False


def test_several_switches_that_others_run_are_all_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switches, "ANSWER_S", 30.0)
    monkeypatch.setenv("PACELINE_TOKEN", "secret")
    store = _store(tmp_path)
    with _two_stand_ins() as addresses:
        named = f"{addresses[0]},{addresses[1]}*3"
        found = switches.attach(store, named)
        assert (found.address, found.token) == (named, "secret"), "the jobs are told the weights"
        found.poll(1.0, store.event)
        assert [row["job"] for row in store.switch_samples()].count("a") == 2
        found.stop()
        assert all(map(_answers, addresses)), "they are not ours to stop"
    found.poll(9.0, store.event)
    texts = [event["text"] for event in store.events()]
    assert texts == [f"the switch {address} does not answer" for address in addresses]
    with pytest.raises(UserError, match="no switch answers at"):
        switches.attach(store, named)


@pytest.mark.parametrize("given", ["", "none"])
def test_jobs_get_the_switches_of_the_cluster_file_unless_they_are_not_to(given: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"s0": 1}).job("a", 1, "echo at ${PACELINE_SWITCH:-none}")
    with _two_stand_ins() as addresses:
        listed = "switches = [" + ", ".join(f'"{address}"' for address in addresses) + "]\n"
        scene.cluster_file.write_text(listed + scene.cluster_file.read_text())
        assert scene.run(switch=given) == 0
    wanted = "none" if given else ",".join(addresses)
    assert (scene.run_dir / "attempts/a.1/rank-0.log").read_text().split() == ["at", wanted]
    sources = _switch_addresses(scene.store().meta())
    assert sources == ({} if given else {"switch 1": addresses[0], "switch 2": addresses[1]})


@pytest.mark.skipif(
    importlib.util.find_spec("paceline.commands.switch") is None, reason="there is no `paceline switch` yet"
)
def test_jobs_find_the_runs_own_switch_even_after_the_planner_was_killed(tmp_path: Path) -> None:
    """The real switch: jobs reach it, it outlives the planner, its figures are kept, and it ends with the run.

    Interpreted: nobody waits for a compiler.
    """
    reach = (
        "import os, urllib.request as u; a = os.environ['PACELINE_SWITCH'];"
        "h = {'Authorization': 'Bearer ' + os.environ['PACELINE_TOKEN']};"
        "print(u.urlopen(u.Request('http://' + a + '/v1/jobs', headers=h), timeout=20).status)"
    )
    scene = Scene(tmp_path, {"s0": 1}).job("a", 1, f'sleep 2; {sys.executable} -c "{reach}"')
    interpreted = {"NUMBA_DISABLE_JIT": "1"}
    planner = scene.new_planner("--switch", "auto", env=interpreted)
    wait_for(lambda: scene.starts() == {"a": 1}, "the start", 300)
    kill(planner)
    code, _, err = finish(scene.planner("--resume", str(scene.run_dir), env=interpreted))
    assert code == 0, err
    assert (scene.run_dir / "attempts/a.1/rank-0.log").read_text().split() == ["200"]
    assert scene.starts() == {"a": 1}
    assert len(list((scene.run_dir / "switch").iterdir())) == 1
    assert any("paceline_jobs" in row["figures"] for row in scene.rows("switch_samples"))
    assert_nothing_left(f"{scene.store().meta()['run_id']}-switch")
    address = scene.store().meta()["switch"]["address"]
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{address}/healthz", timeout=2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_planner_ended_while_its_switch_starts_leaves_none(tmp_path: Path, number: signal.Signals) -> None:
    scene = Scene(tmp_path, {"s0": 1}).job("a", 1, "sleep 60")
    planner = scene.new_planner("--switch", "auto", env={"NUMBA_DISABLE_JIT": "1"})
    wait_for((scene.run_dir / "switch/1/claim.json").exists, "a switch that starts", 300)
    os.kill(planner.pid, number)
    code, _, err = finish(planner)
    assert code in (1, 130), err
    assert_nothing_left(f"{scene.store().meta()['run_id']}-switch")
    assert_nothing_left(f"{scene.store().meta()['run_id']}/a/1")


def test_memory_is_for_a_switch_that_the_run_starts() -> None:
    assert switches.default_command("127.0.0.1:1", Path("t"), "1MiB")[-2:] == ["--memory", "1MiB"]
    assert "--memory" not in switches.default_command("127.0.0.1:1", Path("t"))
    launch.check(launch.RunRequest(switch="auto", switch_memory="1MiB"))
    for switch, memory in (("none", "1MiB"), ("auto", "much")):
        with pytest.raises(UserError, match="--switch-memory"):
            launch.check(launch.RunRequest(switch=switch, switch_memory=memory))


def test_a_policy_is_for_a_switch_that_the_run_starts() -> None:
    assert switches.default_command("127.0.0.1:1", Path("t"), policy="atp")[-2:] == ["--policy", "atp"]
    launch.check(launch.RunRequest(switch="auto", switch_policy="atp"))
    for switch, policy in (("none", "atp"), ("auto", "none "), ("auto", "best")):
        with pytest.raises(UserError, match="--switch-policy"):
            launch.check(launch.RunRequest(switch=switch, switch_policy=policy))
