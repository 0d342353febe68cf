"""The command line itself: help that fits and can be pasted, `--json`, pipes, versions, completion, manual pages."""

import inspect
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_command

from paceline import __version__, cli
from paceline.commands import (
    BENCHMARKS,
    CLUSTERS,
    COMMANDS,
    METRICS,
    PANELS,
    REPRODUCTIONS,
    bench,
    doctor,
    drill,
    metrics,
    models,
    plan,
    reproduce,
    run_view,
    simulate,
)
from paceline.commands.help_text import WIDTH, examples, fitted
from paceline.commands.output import print_table, with_json_target
from paceline.manual import write
from paceline.report import plan as report_plan
from paceline.report import simulation as report_simulation
from paceline.report.columns import meaning_of
from tests.commands.command_line import paceline

GROUPS = {(): COMMANDS, ("reproduce",): REPRODUCTIONS, ("bench",): BENCHMARKS, ("cluster",): CLUSTERS,
          ("metrics",): METRICS}  # fmt: skip


def _all() -> Iterator[tuple[tuple[str, ...], Callable[..., Any]]]:
    for group, commands in GROUPS.items():
        for name, command in commands.items():
            yield (*group, name), command


@pytest.mark.parametrize(
    ("words", "command"), list(_all()), ids=lambda each: "-".join(each) if isinstance(each, tuple) else ""
)
def test_help_fits_eighty_columns_and_its_examples_can_be_pasted(
    words: tuple[str, ...], command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    assert paceline(monkeypatch, *words, "--help") == 0
    out = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    assert not re.search(r"<(bool|str|path|int|float|list)", out), "no names of Python's types"
    assert "\N{HORIZONTAL ELLIPSIS}" not in out, "nothing is cut off"
    assert "100000000" not in out, "bounds against nonsense are not shown"
    usage = next(line for line in out.splitlines() if "Usage:" in line)
    assert not re.search(r"[{}]|\[\[|\.\.\.\]\.\.\.", usage), usage
    shown = " ".join(out.replace("\\\n", " ").split())
    assert examples(command.__doc__), "every command has examples"
    for example in examples(command.__doc__):
        assert example in shown, "an example stands there whole, broken only where a shell goes on"


@pytest.mark.parametrize(
    ("words", "command"), list(_all()), ids=lambda each: "-".join(each) if isinstance(each, tuple) else ""
)
def test_examples_are_understood_as_they_stand(words: tuple[str, ...], command: Any) -> None:
    """Every option of an example exists and takes the value that it is given there."""
    for example in examples(command.__doc__):
        typed = shlex.split(example.partition(" > ")[0])
        if "paceline" not in typed:  # what writes the file that the next one reads
            continue
        given = with_json_target(typed[typed.index("paceline") + 1 :])
        assert given[: len(words)] == list(words), example
        context = get_command(cli.app).make_context("paceline", given)
        for _ in words:
            name, found, rest = context.command.resolve_command(
                context, [*context._protected_args, *context.args]
            )
            context = found.make_context(name, rest, parent=context)


def test_commands_stand_under_headings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline(monkeypatch, "--help") == 0
    out = capsys.readouterr().out
    for panel, names in PANELS.items():
        listed = out.partition(f" {panel} ")[2].partition("\n╰")[0]
        assert [line.split()[1] for line in listed.splitlines()[1:] if line[2] != " "] == list(names)
    assert sorted(name for names in PANELS.values() for name in names) == sorted(
        [*COMMANDS, "reproduce", "bench", "cluster", "metrics"]
    )


def test_a_long_example_is_broken_where_a_shell_goes_on_reading() -> None:
    long = (
        f'  paceline run jobs.toml --cluster {"x" * 40} --sbatch "--partition=gpu --account=me" --policy ff'
    )
    text = fitted(f"One line.\n\nAnother\nparagraph.\n\nExamples:\n\n{long}")
    assert "Another paragraph." in text
    lines = text.split("Examples:\n\n")[1].splitlines()
    assert len(lines) > 1
    assert all(len(line) <= WIDTH for line in lines)
    pasted = subprocess.run(
        ["sh", "-c", "paceline() { printf '%s\\n' \"$@\"; }\n" + "\n".join(lines)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert pasted.stdout.splitlines() == shlex.split(long)[1:]


def test_json_without_a_file_is_standard_output() -> None:
    assert with_json_target(["status", "--json"]) == ["status", "--json", "-"]
    assert with_json_target(["plan", "--json", "--seed", "1"]) == ["plan", "--json", "-", "--seed", "1"]
    assert with_json_target(["models", "--json", "x.json"]) == ["models", "--json", "x.json"]
    assert with_json_target(["models", "--json", "-"]) == ["models", "--json", "-"]
    assert with_json_target(["profile", "--", "x", "--json"]) == ["profile", "--", "x", "--json"]


@pytest.mark.parametrize("width", [60, 80, 110])
def test_a_wide_table_comes_in_parts_on_a_narrow_terminal(width: int) -> None:
    columns = report_simulation.COLUMNS
    rows = [["always-preempt", *(f"{10**k:,}" for k in range(1, len(columns)))] for _ in range(3)]
    console = Console(width=width, file=io.StringIO())
    print_table(console, columns, rows)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in out.splitlines())
    words = out.split()
    for column, cell in zip(columns[1:], rows[0][1:], strict=True):
        assert words.count(cell) == 3, "no number is broken"
        assert column in out
    parts = out.count("policy ")
    assert words.count("always-preempt") == 3 * parts
    assert parts == {60: 4, 80: 3, 110: 2}[width]


NO_DOCUMENT = {"dashboard", "switch", "top"}
"""Commands that go on until they are ended: there is nothing to write down at the end."""
NO_TABLE = {
    "add", "cancel", "dashboard", "logs", "pause", "priority", "profile", "report", "switch", "unpause", "verify",
    "metrics alerts", "metrics grafana", "cluster from-nodes", "cluster from-ray", "cluster from-slurm",
}  # fmt: skip


def test_json_is_the_same_option_everywhere() -> None:
    for words, command in _all():
        parameter = inspect.signature(command).parameters.get("json_file")
        assert (parameter is None) == (" ".join(words) in NO_DOCUMENT), words
        if parameter is not None:
            assert "[FILE|-]" in str(parameter.annotation.__metadata__[0].metavar), words


def test_every_command_that_prints_a_table_explains_its_columns() -> None:
    for words, command in _all():
        assert ("legend" not in inspect.signature(command).parameters) == (" ".join(words) in NO_TABLE), words
    tables = [
        bench.COLUMNS, drill.COLUMNS, metrics.COLUMNS, models.MODEL_COLUMNS, models.LAYER_COLUMNS,
        plan.PACKETS_COLUMNS, report_plan.COLUMNS, report_plan.WHAT_IF_COLUMNS, reproduce.SA_ATP_COLUMNS,
        run_view.SCREEN_COLUMNS, simulate.STRAGGLER_COLUMNS, report_simulation.COLUMNS, doctor.STATES,
    ]  # fmt: skip
    for columns in tables:
        assert not [column for column in columns if not meaning_of(column)]


def test_the_legend_stands_below_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, column in (("models", "gradients"), ("metrics list", "labels"), ("models vgg16", "backward")):
        assert paceline(monkeypatch, *words.split(), "--legend") == 0
        head, _, below = capsys.readouterr().out.partition(f"\n{column}: ")
        assert column in head
        assert below
    assert paceline(monkeypatch, "top", "--legend") == 0
    assert "expected end: " in capsys.readouterr().out


@pytest.mark.parametrize("words", ["metrics list", "metrics alerts", "metrics grafana"])
def test_metrics_are_json_where_that_is_asked(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline(monkeypatch, *words.split(), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert paceline(monkeypatch, *words.split(), "--json", str(tmp_path / "x.json")) == 0
    assert json.loads((tmp_path / "x.json").read_text()) == printed
    assert capsys.readouterr().out, "with a file, both"


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    line = f"{shlex.quote(sys.executable)} -m paceline models"
    for reader in ("head -1", "true"):
        done = subprocess.run(
            ["bash", "-c", f"{line} | {reader}; echo ${{PIPESTATUS[0]}}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == "0"
        assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("logs", "JOB is missing; see paceline logs -h"),
        ("plan", "--cluster is missing; see paceline plan -h"),
        ("priority oak x", "PRIORITY: has to be a number (given 'x'); see paceline priority -h"),
        ("top --every 0", "--every: has to be at least 0.1 (given '0'); see paceline top -h"),
        ("plan --seed 1.5", "--seed: has to be a whole number (given '1.5'); see paceline plan -h"),
        (
            "doctor --launcher pbs",
            "--launcher: 'pbs' is not one of 'local', 'slurm', 'ray'; see paceline doctor -h",
        ),
        (
            "plan --clusters x",
            "there is no option '--clusters'; did you mean '--cluster'?; see paceline plan -h",
        ),
        ("statu", "there is no command 'statu'; did you mean 'status'?"),
        ("metrics lst", "there is no command 'metrics lst'; did you mean 'list'?"),
        ("bench zzz", "there is no command 'bench zzz'; there are: allreduce"),
        ("status a b", "got unexpected extra argument(s) (b); see paceline status -h"),
        ("plan --seed", "option '--seed' requires an argument"),
    ],
)
def test_what_is_typed_wrong_is_one_line_in_our_words(
    words: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline(monkeypatch, *words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"paceline: {told}\n"


@pytest.mark.parametrize("words", ["", "metrics", "bench", "reproduce", "cluster"])
def test_a_group_without_a_command_is_its_help(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert paceline(monkeypatch, *words.split()) == 0
    out = capsys.readouterr().out
    assert "COMMAND [ARGS]..." in out
    assert "<bool>" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_an_interrupted_command_says_so_and_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.launch.control.find_run", interrupted)
    assert paceline(monkeypatch, "status") == 130


def test_the_module_the_version_and_completion() -> None:
    for arguments in (["-V"], ["--version"]):
        done = subprocess.run(
            [sys.executable, "-m", "paceline", *arguments], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"paceline {__version__}\n"
    env = {
        **os.environ,
        "_PACELINE_COMPLETE": "complete_bash",
        "COMP_WORDS": "paceline sta",
        "COMP_CWORD": "1",
    }
    script = "from paceline.cli import app; app(prog_name='paceline')"
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert "status" in done.stdout.split()


def test_manual_pages_are_good_troff(tmp_path: Path) -> None:
    pages = write(tmp_path)
    assert {"paceline.1", "paceline-run.1", "paceline-bench-allreduce.1"} <= {page.name for page in pages}
    text = (tmp_path / "paceline-doctor.1").read_text()
    assert "\\-\\-switch HOST:PORT" in text
    if shutil.which("groff"):
        for page in pages:
            done = subprocess.run(
                ["groff", "-man", "-Tutf8", "-ww", str(page)], capture_output=True, text=True, check=True
            )
            assert done.stderr == ""
