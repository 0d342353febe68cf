"""`paceline simulate` as a user meets it: tables, JSON, pages, exit codes and one-line errors."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from paceline.sim.scenario import POLICIES, Scenario
from tests.commands.command_line import paceline

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples/simulate").glob("*.toml"))
SMALL = """name = "small"
[switch]
slots = 16
[transport]
window = 16
[[job]]
name = "a"
workers = 3
size = "20 kB"
layers = 3
jitter = 0.2
copies = 2
"""

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def run(patch: Patch, *arguments: str) -> int:
    return paceline(patch, "simulate", *arguments)


def refusal(patch: Patch, captured: Captured, *arguments: str) -> str:
    """The one line of a user's mistake."""
    assert run(patch, *arguments) == 2
    streams = captured.readouterr()
    assert streams.out == ""
    lines = streams.err.splitlines()
    assert len(lines) == 1, streams.err
    assert lines[0].startswith("paceline: ")
    return lines[0].removeprefix("paceline: ")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("switch.slots=1000000000000", "not enough memory for what is asked: Unable to allocate"),
        ("job.0.copies=1000000000", "has to be at most 65535"),
        ("job.0.layers=1000000000", "has to be at most 100000"),
        ("network.hosts=1000000000", "has to be at most 1e+06"),
    ],
)
def test_what_no_machine_could_hold_is_one_line(
    given: str, told: str, monkeypatch: Patch, capsys: Captured, small: str
) -> None:
    assert told in refusal(monkeypatch, capsys, small, "--policy", "esa", "--set", given)


def test_the_table_has_a_row_for_each_policy_and_the_jobs_times(
    monkeypatch: Patch, capsys: Captured, small: str
) -> None:
    assert run(monkeypatch, small, "--policy", "all", "--check") == 0
    streams = capsys.readouterr()
    for text in (
        "avg JCT",
        "makespan",
        "vs best",
        "preemptions",
        "fallbacks",
        "exact",
        "1.00x",
        "a-0",
        "a-1",
    ):
        assert text in streams.out
    rows = [line.split()[0] for line in streams.out.splitlines() if line.endswith(" yes")]
    assert rows == list(POLICIES)
    assert max(len(line) for line in streams.out.splitlines()) <= 140
    assert "\x1b" not in streams.err


def test_a_narrow_terminal_gets_the_table_in_two_parts_and_every_figure_whole(
    monkeypatch: Patch, capsys: Captured, small: str
) -> None:
    from rich.console import Console

    monkeypatch.setattr(Console, "is_terminal", property(lambda _: True))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    assert run(monkeypatch, small, "--policy", "all", "--check") == 0
    out = capsys.readouterr().out
    assert "In the switches:" in out
    assert "…" not in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert len([line for line in out.splitlines() if line.startswith("switchml ")]) == 2


def test_without_check_nothing_is_said_about_exactness(
    monkeypatch: Patch, capsys: Captured, small: str
) -> None:
    assert run(monkeypatch, small, "--policy", "esa,atp", "--policy", "esa") == 0
    out = capsys.readouterr().out
    assert "exact" not in out
    assert len([line for line in out.splitlines() if line.startswith("esa ")]) == 1


def test_json_on_stdout_is_only_json_and_complete(monkeypatch: Patch, capsys: Captured, small: str) -> None:
    assert run(monkeypatch, small, "--policy", "esa", "--policy", "ring", "--seed", "5", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["scenario"], document["seed"]) == ("small", 5)
    assert list(document["policies"]) == ["esa", "ring"]
    for entry in document["policies"].values():
        for key in ("avg_jct_s", "makespan_s", "wall_s"):
            assert entry[key] > 0, key
        for key in ("traffic_bytes", "events", "packets"):
            assert isinstance(entry[key], int), key
        assert entry["seed"] == 5
        assert entry["exact"] is None
        assert [set(job) >= {"name", "jct_s", "iterations", "mean_iteration_s"} for job in entry["jobs"]] == [
            True
        ] * 2
        counted = {"utilisation_mean", "completions", "preemptions", "fallbacks", "reminders", "downgrades"}
        assert counted <= entry["switch"].keys()


def test_the_same_command_gives_the_same_figures(monkeypatch: Patch, capsys: Captured, small: str) -> None:
    answers = []
    for _ in range(2):
        assert run(monkeypatch, small, "--policy", "esa", "--set", "faults.loss=0.05", "--json", "-") == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        del document["policies"]["esa"]["wall_s"]
        answers.append(document)
    assert answers[0] == answers[1]


def test_set_changes_the_scenario(monkeypatch: Patch, capsys: Captured, small: str, tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.json"
    code = run(
        monkeypatch, small, "--policy", "esa", "--set", "switch.slots=64", "--set", "job.0.copies=1",
        "--set", "network.rate=10 Gbit/s", "--json", str(target),
    )  # fmt: skip
    assert code == 0
    assert "avg JCT" in capsys.readouterr().out
    entry = json.loads(target.read_text(encoding="utf-8"))["policies"]["esa"]
    assert entry["settings"]["switch"]["slots"] == 64
    assert [job["name"] for job in entry["jobs"]] == ["a"]


def test_the_page_has_figures_settings_and_the_command_to_repeat_it(
    monkeypatch: Patch, capsys: Captured, small: str, tmp_path: Path
) -> None:
    page = tmp_path / "pages" / "run.html"
    code = run(
        monkeypatch, small, "--policy", "esa,switchml,ring", "--seed", "3", "--set", "faults.loss=0.01",
        "--html", str(page),
    )  # fmt: skip
    assert code == 0
    assert f"page: {page}" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    for part in ("Completion time by job", "Switch memory over time", "Preemptions and fallbacks", "Faults",
                 "Settings of each policy", "transport.rto_min", "Repeat this run"):  # fmt: skip
        assert part in text
    for number in (1, 2, 3):
        assert f'id="figure-{number}"' in text
    command = f"paceline simulate {small} --policy esa,switchml,ring --set faults.loss=0.01 --seed 3"
    assert command in text
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=", text), "the page needs the network"


def test_a_page_of_many_jobs_and_of_hosts_alone(
    monkeypatch: Patch, capsys: Captured, small: str, tmp_path: Path
) -> None:
    page = tmp_path / "run.html"
    code = run(
        monkeypatch, small, "--policy", "ring", "--set", "job.0.copies=30", "--set", "job.0.size=2 kB",
        "--html", str(page),
    )  # fmt: skip
    assert code == 0
    text = page.read_text(encoding="utf-8")
    assert "Share of the 30 jobs" in text
    assert "Switch memory over time" not in text
    assert "a-29" not in capsys.readouterr().out


def test_a_failed_run_is_told_and_ends_with_1(
    monkeypatch: Patch, capsys: Captured, small: str, tmp_path: Path
) -> None:
    page = tmp_path / "failed.html"
    code = run(
        monkeypatch, small, "--policy", "switchml", "--policy", "esa", "--check", "--html", str(page),
        "--set", "faults.switch_dies=[{time = '8 us'}]", "--set", "transport.resends_max=4",
    )  # fmt: skip
    assert code == 1
    out = capsys.readouterr().out
    assert "switchml failed: a-0: switch 0 died, and switchml has no fallback host" in out
    assert "switchml failed" in page.read_text(encoding="utf-8")


def test_a_wrong_sum_ends_with_1(monkeypatch: Patch, capsys: Captured, small: str) -> None:
    from dataclasses import replace

    from paceline.sim import batch as module

    real = module.simulate

    def spoilt(*arguments: Any, **options: Any) -> Any:
        return replace(real(*arguments, **options), exact=False, wrong=1)

    monkeypatch.setattr(module, "simulate", spoilt)
    assert run(monkeypatch, small, "--policy", "esa", "--check") == 1
    assert "esa: 1 of " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("slots", "slot"), r":3: unknown key 'switch\.slot'; did you mean 'slots'\?"),
        (("[switch]", "[network]\nrate = '-5 Gbit/s'\n[switch]"), r":3: network\.rate: .*above 0"),
        (("[switch]", "[network]\nhosts = 2\n[switch]"),
         r":8: job 'a-0': has 3 workers, but there are only 2 hosts"),
        (('name = "a"', 'name = "it\'s"\nhosts = [0, 1, 99]'), r":6: job \"it's-0\": host 99 does not exist"),
        (('name = "a"', 'name = "a"\nmodel = "vgg17"'), r":8: unknown model 'vgg17'; did you mean 'vgg16'\?"),
        (("slots = 16", "slots = 3"), r":3: switch\.slots: 3 slots are too few: 2 jobs need two each"),
        (("[switch]", "[faults]\nslow = [{job = 'b', worker = 0, factor = 2.0}]\n[switch]"),
         r":3: faults\.slow: there is no job 'b'"),
        (("copies = 2", "copies = 2\n[[job]]\nname = 'a-1'"), r": job: two jobs are called 'a-1'"),
        (("[[job]]", "[[jobs]]"), r":6: unknown key 'jobs'; did you mean 'job'\?"),
        (("[switch]", "[switch"), r"not valid TOML"),
        (("[switch]", "policies = []\n[switch]"), r"policies: the scenario lists no policy"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_one_line_with_its_place(
    monkeypatch: Patch, capsys: Captured, small: str, change: tuple[str, str], message: str
) -> None:
    path = Path(small)
    path.write_text(SMALL.replace(*change), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != SMALL
    line = refusal(monkeypatch, capsys, small)
    assert re.search(message, line), line
    assert line.startswith((small, "policies"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "eas"), r"--policy: unknown policy 'eas'; did you mean 'esa'\?"),
        (("--policy", "esa,zzzz"), r"--policy: unknown policy 'zzzz'; known: esa-plus, esa, "),
        (("--set", "switch.slots"), r"--set: 'switch.slots' is not KEY=VALUE"),
        (("--set", "switch.slits=3"), r"--set: unknown key 'switch.slits'; did you mean 'slots'\?"),
        (("--set", "network.rate=-3"), r"--set: network.rate: .*above 0"),
        (("--set", "job.7.workers=2"), r"--set: there is no 7 to set in 'job.7.workers'"),
        (("--set", "switch.slots=2"), r"--set: switch.slots: 2 slots are too few"),
        (("--set", "job.0.model=vgg17"), r"--set: unknown model 'vgg17'"),
        (("--html", "/"), r"/: is a directory, not a file"),
        (("--json", "/dev/null/x.json"), r"/dev/null/x.json: cannot be written"),
    ],
)
def test_a_mistake_in_the_options_is_one_line(
    monkeypatch: Patch, capsys: Captured, small: str, arguments: tuple[str, ...], message: str
) -> None:
    line = refusal(monkeypatch, capsys, small, *arguments)
    assert re.search(message, line), line


def test_a_missing_file_is_named(monkeypatch: Patch, capsys: Captured) -> None:
    assert refusal(monkeypatch, capsys, "nowhere.toml") == "nowhere.toml: no such file"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs_exactly(monkeypatch: Patch, capsys: Captured, path: Path) -> None:
    assert run(monkeypatch, str(path), "--check", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["policies"]) == set(Scenario.model_validate(tomllib.loads(path.read_text())).policies)
    assert all(entry["exact"] is True for entry in document["policies"].values())


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"quick", "leaf-spine", "faults"}


def test_the_installed_command_ends_with_2_and_no_traceback() -> None:
    """Through a process of its own, as a user's shell would."""
    done = subprocess.run(
        [sys.executable, "-c", "from paceline.cli import main; main()", "simulate", "nowhere.toml"],
        capture_output=True,
        text=True,
        timeout=120,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "paceline: nowhere.toml: no such file\n"


def test_help_shows_examples_and_loads_no_engine() -> None:
    code = (
        "import sys; sys.argv = ['paceline', 'simulate', '--help']\n"
        "from paceline.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "loaded = {'numba', 'numpy'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    for text in (
        "examples/simulate/quick.toml",
        "--policy",
        "--set",
        "--check",
        "--seed",
        "--json",
        "--html",
    ):
        assert text in done.stdout


def test_several_seeds_have_a_table_and_json_of_their_own(
    monkeypatch: Patch, capsys: Captured, small: str, tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    given = (small, "--policy", "esa,atp", "--seed", "5", "--seeds", "3", "--json", str(file), "--legend")
    assert run(monkeypatch, *given) == 0
    shown = capsys.readouterr().out
    assert "Over the seeds from 5 to 7" in shown
    assert len(re.findall(r"3 of 3", shown)) == 2
    told = json.loads(file.read_text())
    assert list(told["seeds"]) == ["5", "6", "7"]
    first = {name: result["avg_jct_s"] for name, result in told["policies"].items()}
    assert first == {name: result["avg_jct_s"] for name, result in told["seeds"]["5"].items()}
    assert told["seeds"]["5"]["esa"]["avg_jct_s"] != told["seeds"]["6"]["esa"]["avg_jct_s"]


def test_a_profile_counts_every_event_and_has_the_time_of_every_part(
    monkeypatch: Patch, capsys: Captured, small: str, tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    given = (small, "--policy", "esa,ring", "--profile", "--legend", "--json", str(file), "--jobs", "1")
    assert run(monkeypatch, *given) == 0
    shown = capsys.readouterr().out
    assert "Real time of each part" in shown
    assert "building: " in shown
    for result in json.loads(file.read_text())["policies"].values():
        kinds = result["events_by_kind"]
        assert sum(kinds.values()) == result["events"]
        assert kinds["host_up"] > 0
        assert kinds["host_down"] > 0
        assert kinds["timers"] > 0
        assert set(result["parts_s"]) >= {"building", "loading", "events", "figures"}
        assert result["parts_s"]["events"] > 0.0


def test_the_number_of_processes_changes_nothing(monkeypatch: Patch, small: str, tmp_path: Path) -> None:
    found = []
    for jobs in ("1", "3"):
        file = tmp_path / f"{jobs}.json"
        assert run(monkeypatch, small, "--policy", "esa,atp,ring", "--jobs", jobs, "--json", str(file)) == 0
        policies = json.loads(file.read_text())["policies"]
        for result in policies.values():
            del result["wall_s"]
        found.append(policies)
    assert found[0] == found[1]
