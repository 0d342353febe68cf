"""Input that cannot be misread: what is ambiguous is refused, with the right spellings."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.models import OptionInfo

from paceline.commands import BENCHMARKS, CLUSTERS, COMMANDS, REPRODUCTIONS
from paceline.errors import UserError
from paceline.schedule.inputs.discover import from_nodes
from paceline.schedule.inputs.jobs import load_jobs
from paceline.schedule.inputs.sources import ClusterSource, what_if
from paceline.units import parse_rate_bps, parse_size_bytes
from tests.commands.command_line import paceline

CLUSTER = '[[servers]]\nname = "a"\ngpus = 4\ncount = 3\n[[servers]]\nname = "b"\ngpus = 2\n'
JOBS = "name,gpus,iterations,gradient,forward,backward\n" + "".join(
    f"j{i},{1 + i % 5},{100 + 7 * i},{20 + i} MB,{i} ms,{3 * i + 1} ms\n" for i in range(12)
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "c.toml").write_text(CLUSTER)
    (tmp_path / "j.csv").write_text(JOBS)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "spellings"),
    [
        ("100 GB", ("'100 GB/s'", "'100 Gbit/s'")),
        ("5MiB", ("'5 MiB/s'", "'5 Mibit/s'")),
        ("100", ("'100 Gbit/s'", "'100 Mbit/s'")),
        (100, ("'100 Gbit/s'", "'100 Mbit/s'")),
        (25000, ("'25000 Gbit/s'", "'25000 Mbit/s'")),
        (40.0, ("'40 Gbit/s'", "'40 Mbit/s'")),
        ("100G", ("'100 Gbit/s'", "'100 GB/s'")),
    ],
)
def test_what_is_no_rate_names_the_right_spellings(given: object, spellings: tuple[str, str]) -> None:
    with pytest.raises(ValueError) as error:
        parse_rate_bps(given)
    for spelling in spellings:
        assert spelling in str(error.value)
        parse_rate_bps(spelling.strip("'"))


def test_a_rate_for_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="is a rate, not a size"):
        parse_size_bytes("98 MB/s")


def test_a_size_for_a_rate_in_a_file_names_the_place(folder: Path) -> None:
    (folder / "c.toml").write_text(CLUSTER + '[network]\ninter_server = "100 GB"\n')
    with pytest.raises(UserError, match=r"c.toml:\d+: network.inter_server: '100 GB' is a size, not a rate"):
        ClusterSource.read(str(folder / "c.toml"))


def _float_options() -> list[tuple[str, ...]]:
    """Every option of every command that takes a number with a point."""
    found = []
    groups = (
        ((), COMMANDS),
        (("bench",), BENCHMARKS),
        (("cluster",), CLUSTERS),
        (("reproduce",), REPRODUCTIONS),
    )
    for group, commands in groups:
        for name, command in commands.items():
            for key, parameter in inspect.signature(command).parameters.items():
                kind, *more = get_args(parameter.annotation) or (parameter.annotation,)
                option = any(isinstance(each, OptionInfo) for each in more)
                if option and float in (kind, *get_args(kind)):
                    found.append((*group, name, f"--{key.replace('_', '-')}"))
    return found


@pytest.mark.parametrize("words", _float_options(), ids=" ".join)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400"])
def test_what_is_no_finite_number_is_refused_by_every_command(
    words: tuple[str, ...], value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = {"plan": ["--cluster", "c"]}.get(words[0], [])
    assert paceline(monkeypatch, *words[:-1], *needed, f"{words[-1]}={value}") == 2
    told = capsys.readouterr().err
    assert words[-1] in told
    assert "Traceback" not in told


def test_the_number_options_are_known() -> None:
    assert {words[-2:] for words in _float_options()} >= {("switch", "--lease"), ("run", "--grace")}
    assert len(_float_options()) >= 13


def test_an_mtu_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for mtu in ("100", "575", "70000", "-1"):
        assert paceline(monkeypatch, "switch", "--mtu", mtu) == 2
        assert f"--mtu: {mtu} is no MTU: 576" in capsys.readouterr().err


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_a_list_is_read_whatever_parts_its_fields(folder: Path, separator: str) -> None:
    expected = load_jobs(folder / "j.csv")
    (folder / "s.csv").write_text("\ufeff" + JOBS.replace(",", separator))
    assert load_jobs(folder / "s.csv") == expected
    text = "name,gpus,link\nn0,2,25 Gbit/s\n".replace(",", separator)
    assert from_nodes(text, "nodes").nodes[0].link_bps == 25e9


def test_a_strange_column_of_a_semicolon_list_says_how_it_was_read(folder: Path) -> None:
    (folder / "s.csv").write_text("name;gpu;iterations\na;1;2\n")
    with pytest.raises(UserError, match=r"unknown column 'gpu'.*parted by semicolons"):
        load_jobs(folder / "s.csv")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('gpus = "x"', "gpus: has to be a whole number"),
        ("gpus = 1.5", "gpus: has to be a whole number"),
        ("gpus = 0", "gpus: has to be above 0"),
        ("gpus = 1\nname = 7", "name: has to be a text"),
        ('gpus = 1\nexchange = "tree"', "exchange: has to be 'ring' or 'in-network'"),
        ('gpus = 1\njitter = "much"', "jitter: has to be a number"),
        ("gpus = 1\nenv = 3", "env: has to be a table"),
        ("gpus = 1\nretries = 101", "retries: has to be at most 100"),
    ],
)
def test_messages_are_in_our_words(folder: Path, line: str, message: str) -> None:
    (folder / "j.toml").write_text(f"[[jobs]]\niterations = 1\nbackward = 1\n{line}\n")
    with pytest.raises(UserError) as error:
        load_jobs(folder / "j.toml")
    assert f"jobs.0.{message}" in str(error.value)
    for word in ("Input", "input_", "pydantic", "should be", "valid integer"):
        assert word not in str(error.value)


def test_what_if_takes_servers_away_changes_gpus_and_jobs(folder: Path) -> None:
    source, jobs = ClusterSource.read(str(folder / "c.toml")), load_jobs(folder / "j.csv")

    def sizes(changes: str) -> list[int]:
        return [server.gpus for server in what_if(source, jobs, changes)[0].file.cluster().servers]

    assert sizes("servers=-2") == [4, 4]
    assert sizes("servers=-1") == [4, 4, 4]
    assert sizes("servers=+1,gpus=16") == [16] * 5
    assert [job.name for job in what_if(source, jobs, "without=j3")[1]] == [
        job.name for job in jobs if job.name != "j3"
    ]
    assert what_if(source, jobs, "priority.j2=9,servers=-1")[1][2].priority == 9.0
    for wrong, message in (
        ("servers=-4", "there are 4, and one has to stay"),
        ("servers=2", "servers=-N for N fewer"),
        ("gpus=0", "gpus=N for N in every server"),
        ("without=j33", "did you mean 'j3'"),
        ("priority.j1=-1", "no priority"),
        ("servers", "not KEY=VALUE"),
    ):
        with pytest.raises(UserError, match=message):
            what_if(source, jobs, wrong)


def test_what_if_compares_the_jobs_that_both_have(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    arguments = ("plan", "--cluster", "c.toml", "--jobs", "j.csv", "--policy", "ls,ff", "--no-gantt")
    assert paceline(monkeypatch, *arguments, "--what-if", "without=j11", "--what-if", "servers=-1") == 0
    out = capsys.readouterr().out
    assert "without=j11" in out
    assert "best by makespan (--objective makespan): " in out


def test_a_cap_that_strikes_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    arguments = ("plan", "--cluster", "c.toml", "--jobs", "j.csv", "--policy", "bco-plus", "--no-gantt")
    assert paceline(monkeypatch, *arguments, "--budget", "0") == 0
    assert "the cap of --budget struck after 0 of 2500 evaluations" in capsys.readouterr().out
    assert paceline(monkeypatch, *arguments, "--work", "50") == 0
    assert "struck" not in capsys.readouterr().out


def test_a_seed_gives_one_plan_in_ten_runs_under_load(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    arguments = ("plan", "--cluster", "c.toml", "--jobs", "j.csv", "--policy", "bco-plus", "--seed", "3")
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        plans = []
        for _ in range(10):
            assert paceline(monkeypatch, *arguments, "--work", "300", "--json") == 0
            (policy,) = json.loads(capsys.readouterr().out)["policies"]
            del policy["plan_s"]
            plans.append(policy)
    finally:
        for process in load:
            process.kill()
            process.wait()
    assert all(plan == plans[0] for plan in plans)
    assert plans[0]["settings"]["capped"] is False


def test_workers_that_share_hosts_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.commands.simulate import doubled_up
    from paceline.sim.scenario import load_scenario

    text = 'name = "x"\n[network]\nhosts = 10\n[[job]]\nname = "j"\ncopies = 8\nworkers = 6\nsize = "1 MB"\nratio = 1\n'
    (tmp_path / "s.toml").write_text(text)
    scenario = load_scenario(tmp_path / "s.toml", ())
    assert doubled_up(scenario).startswith("48 workers on 10 hosts: some share a host")
    assert "(8 with 5, 2 with 4)" in doubled_up(scenario)
    assert doubled_up(load_scenario(tmp_path / "s.toml", ("network.hosts=48",))) == ""
