import json
import sys
from pathlib import Path

import pytest

from tests.commands.command_line import paceline

ROOT = Path(__file__).parents[2]
CLUSTER = str(ROOT / "examples/plan/cluster.toml")
JOBS = str(ROOT / "examples/plan/jobs.toml")


def test_the_example_shows_table_and_gantt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline(monkeypatch, "plan", "--cluster", CLUSTER, "--jobs", JOBS, "--policy", "sjf-bco,ls") == 0
    out = capsys.readouterr().out
    for text in ("policy", "makespan", "gap to bound", "sjf-bco", "ls", "bert-switch", "█ on one server"):
        assert text in out
    assert max(len(line) for line in out.splitlines()) <= 110


def test_json_on_stdout_is_only_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = paceline(
        monkeypatch, "plan", "--cluster", CLUSTER, "--jobs", JOBS, "--policy", "all", "--budget", "0.1",
        "--json", "-", "--what-if", "servers=+2",
    )  # fmt: skip
    assert code == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["policies"]) == 7
    for entry in document["policies"]:
        for key in ("makespan", "avg_jct", "p95_jct", "lower_bound", "gap", "plan_s"):
            assert isinstance(entry[key], float), key
        assert len(entry["placements"]) == 12
    assert {entry["change"] for entry in document["what_if"]} == {"servers=+2"}
    assert document["instance"]["approximation_ratio_holds"] is True


def test_explain_html_and_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, data = tmp_path / "out/plan.html", tmp_path / "out/plan.json"
    code = paceline(
        monkeypatch, "plan", "--cluster", CLUSTER, "--jobs", JOBS, "--policy", "ls", "--explain", "vgg",
        "--html", str(page), "--json", str(data), "--no-gantt",
    )  # fmt: skip
    assert code == 0
    out = capsys.readouterr().out
    assert "Why there: list scheduling" in out
    assert "█" not in out
    assert "<h1>Paceline plan</h1>" in page.read_text()
    assert json.loads(data.read_text())["explanation"][0].startswith("vgg (6 GPUs")


def test_a_trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text("".join(f"{i} {i * 10} 0 500 {g} -1 -1 {g} 9 -1 1 1 1 1 1 -1 -1 -1\n"
                            for i, g in enumerate((1, 4, 99, 2), 1)))  # fmt: skip
    assert (
        paceline(monkeypatch, "plan", "--cluster", CLUSTER, "--trace", f"swf:{path}", "--objective", "jct")
        == 0
    )
    out = capsys.readouterr().out
    assert "3 jobs read; models assigned at random" in out
    assert "1 job left out: more GPUs than the cluster has" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster", CLUSTER], "plan: give either --jobs or --trace"),
        (["--cluster", "none.toml", "--jobs", JOBS], "none.toml: no such file"),
        (["--cluster", CLUSTER, "--jobs", "{tmp}/large.csv"], "large.csv:2: job 'job0' asks for 99 GPUs"),
        (["--cluster", CLUSTER, "--jobs", "{tmp}/empty.csv"], "empty.csv: the list holds no jobs"),
        (["--cluster", CLUSTER, "--jobs", "{tmp}/negative.csv"], "negative.csv:2: gpus:"),
        (["--cluster", CLUSTER, "--jobs", "{tmp}/unknown.toml"], "unknown.toml:2: unknown key 'jobs.0.gpu'"),
        (
            ["--cluster", CLUSTER, "--trace", "helios:{tmp}/large.csv"],
            "large.csv:1: columns are missing: job_id",
        ),
        (["--cluster", CLUSTER, "--jobs", JOBS, "--policy", "best"], "--policy: there is no policy 'best'"),
        (["--cluster", CLUSTER, "--jobs", JOBS, "--explain", "bret"], "did you mean 'bert'?"),
        (["--cluster", CLUSTER, "--jobs", JOBS, "--what-if", "speed"], "--what-if: 'speed' is not KEY=VALUE"),
        (
            ["--cluster", CLUSTER, "--jobs", JOBS, "--policy", "exact"],
            "--policy exact: needs the slotted form",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "large.csv").write_text("gpus,iterations,backward\n99,5,1s\n")
    (tmp_path / "empty.csv").write_text("gpus,iterations,backward\n")
    (tmp_path / "negative.csv").write_text("gpus,iterations,backward\n-1,5,1s\n")
    (tmp_path / "unknown.toml").write_text("[[jobs]]\ngpu = 1\niterations = 4\n")
    assert paceline(monkeypatch, "plan", *(text.replace("{tmp}", str(tmp_path)) for text in arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_help_has_examples_and_imports_no_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import subprocess

    assert paceline(monkeypatch, "plan", "--help") == 0
    assert "paceline plan --cluster" in capsys.readouterr().out
    code = "import sys, paceline.commands.plan; print('numba' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
