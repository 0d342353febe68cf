import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.launch import probe as probes
from paceline.launch.doctor import Finding, Wanted, examine, to_json
from paceline.launch.probe import probe
from paceline.live.switch_client import ControlPlane
from tests.commands.command_line import paceline
from tests.live.switch.test_daemon import running

TOKEN = "a token of sufficient length"
WHATS = [
    "Python", "torch", "compiled code", "MTU", "UDP buffers", "shared memory", "namespaces", "Slurm", "Ray", "switch",
]  # fmt: skip


def _about(what: str, wanted: Wanted) -> Finding:
    (found,) = [each for each in examine(wanted) if each.what == what]
    return found


def test_every_piece_is_looked_at_and_what_is_not_right_has_a_remedy() -> None:
    findings = list(examine(Wanted()))
    assert [each.what for each in findings] == WHATS
    for each in findings:
        assert each.text
        assert each.todo or each.state in ("ok", "left out")
    assert findings[0].state == "ok"


def test_a_full_packet_goes_by_a_switch_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(token=TOKEN, auth="full", elements=96) as switch:
        where = f"127.0.0.1:{switch.port}"
        echo = probe(ControlPlane.parse(where, TOKEN))
        assert echo.answered, echo.error
        assert echo.payload_bytes == 64 + 4 * 96, "the header, and all elements that the switch serves"
        (tmp_path / "token").write_text(TOKEN + "\n")
        (tmp_path / "token").chmod(0o600)
        code = paceline(
            monkeypatch, "doctor", "--switch", where, "--token-file", str(tmp_path / "token"), "--json"
        )
        found = json.loads(capsys.readouterr().out)
        states = {each["what"]: each["state"] for each in found["findings"]}
        assert (states["switch"], states["token"], states["packets"]) == ("ok", "ok", "ok")
        assert code == (0 if found["ok"] else 1)
        wrong = list(examine(Wanted(where, "another token of that length")))[-1]
        assert (wrong.what, wrong.state) == ("token", "bad")
        assert "--token-file" in wrong.todo
        none = list(examine(Wanted(where)))[-1]
        assert (none.state, none.text) == ("bad", "no token was given, and the switch asks for one")
        assert ControlPlane.parse(where, TOKEN).call("GET", "/v1/jobs")["jobs"] == [], "no job is left behind"


def test_compiling_on_a_fresh_machine_does_not_cost_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], probes._packet

    def slow_at_first(*given: Any) -> bytes:
        if not made:
            time.sleep(6.0)
        made.append(given)
        return real(*given)

    monkeypatch.setattr(probes, "_packet", slow_at_first)
    with running(token=TOKEN, lease_s=4.0, elements=96) as switch:
        echo = probe(ControlPlane.parse(f"127.0.0.1:{switch.port}", TOKEN))
    assert echo.answered, echo.error


def test_a_switch_that_takes_packets_and_gives_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(token=TOKEN, drop=0.999999, elements=96) as switch:
        last = list(examine(Wanted(f"127.0.0.1:{switch.port}", TOKEN)))[-1]
    assert (last.what, last.state) == ("packets", "bad")
    assert "UDP" in last.todo


def test_each_of_several_switches_is_looked_at() -> None:
    with running(token=TOKEN, elements=96) as one, running(token=TOKEN, elements=96) as other:
        named = f"127.0.0.1:{one.port}, 127.0.0.1:{other.port}*2"
        found = [
            each for each in examine(Wanted(named, TOKEN)) if each.what in ("switch", "token", "packets")
        ]
    assert [(each.what, each.state) for each in found] == [
        ("switch", "ok"),
        ("token", "ok"),
        ("packets", "ok"),
    ] * 2
    assert str(other.port) in found[3].text


def test_no_switch_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert paceline(monkeypatch, "doctor", "--switch", where) == 1
    out = capsys.readouterr().out
    assert "does not answer" in out
    assert "to do: start it there: paceline switch --listen" in out


def test_what_a_launcher_needs_is_bad_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert _about("Slurm", Wanted()).state == "left out"
    assert _about("Slurm", Wanted(launcher="slurm")).state == "bad"
    assert _about("Ray", Wanted(launcher="ray", address="127.0.0.1:1")).state == "bad"
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert _about("Ray", Wanted(launcher="ray", address=address)).state == "ok"
    monkeypatch.setitem(sys.modules, "ray", None)


def test_a_tool_that_is_missing_is_no_question_of_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = _about("namespaces", Wanted())
    assert found.text.startswith("no emulated network can be made here: it needs the command")
    assert found.todo == "apt install iproute2 util-linux"


def test_a_cache_that_cannot_be_written_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "/proc/nowhere")
    found = _about("compiled code", Wanted())
    assert (found.state, found.todo) == ("bad", "export PACELINE_CACHE=/a/folder/of/yours")
    assert to_json([found])["ok"] is False


def test_what_is_not_compiled_yet_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    found = _about("compiled code", Wanted())
    assert (found.state, found.todo) == ("worth a look", "python -m paceline.launch.warm")
    assert found.text.startswith("not there yet: planner, switch, agent;")
