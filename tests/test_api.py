"""`import paceline`: quick, lazy, and the same answers from objects, paths and plain data."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline import api, describe
from paceline.errors import UserError
from paceline.generated import field_texts, rewritten
from tests.docs.pages import ROOT
from tests.report.run_scenes import paceline_run

JOB = {"name": "a", "workers": 2, "size": "32 KiB", "layers": 2, "iterations": 2}
CLUSTER = "examples/plan/small-cluster.toml"
JOBS = "examples/plan/small-jobs.csv"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def _in_a_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_loads_nothing_heavy() -> None:
    heavy = "{'numba', 'numpy', 'torch', 'pydantic', 'pandas', 'paceline.api'} & set(sys.modules)"
    assert _in_a_new_process(f"import sys, paceline; dir(paceline); print({heavy})") == "set()"
    assert _in_a_new_process(f"import sys, paceline; paceline.UserError; print({heavy})") == "set()"


def test_a_star_import_brings_the_names_and_no_more() -> None:
    code = "from paceline import *; print(sorted(name for name in dir() if not name.startswith('__')))"
    assert ast.literal_eval(_in_a_new_process(code)) == sorted(paceline.__all__)


def test_all_names_are_there_and_a_wrong_one_is_not() -> None:
    assert set(paceline.__all__) <= set(dir(paceline))
    for name in paceline.__all__:
        assert getattr(paceline, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        paceline.simulat  # type: ignore[attr-defined]  # noqa: B018


def test_the_stub_says_the_same_names() -> None:
    stub = Path(paceline.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imported = {
        alias.asname
        for node in ast.walk(ast.parse(stub))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == set(paceline.__all__) == set(api.__all__)


def test_a_scenario_may_be_an_object_a_dict_or_a_file(tmp_path: Path) -> None:
    data = {"seed": 5, "policies": ["atp", "esa"], "job": [JOB]}
    path = tmp_path / "scenario.toml"
    values = "".join(f"{key} = {json.dumps(value)}\n" for key, value in JOB.items())
    path.write_text(f'seed = 5\npolicies = ["atp", "esa"]\n[[job]]\n{values}', encoding="utf-8")
    given: list[Any] = [paceline.Scenario.model_validate(data), data, path, str(path)]
    results = [paceline.simulate(scenario, check=True) for scenario in given]
    assert {(result.policy, result.seed, result.avg_jct_s, result.exact) for result in results} == {
        ("atp", 5, results[0].avg_jct_s, True)
    }
    assert paceline.simulate(data, "esa").policy == "esa"
    assert "slots" not in data, "what was given stays as it was"
    more = paceline.simulate(data, seed=9, changes=["job.0.iterations=4"])
    assert (more.seed, more.jobs[0].iterations) == (9, 4)
    assert paceline.simulate(path, changes=["job.0.iterations=4"]).jobs[0].iterations == 4
    assert data["job"] == [JOB]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: paceline.simulate({"job": [{"wrokers": 2}]}), "scenario: unknown key 'job.0.wrokers'"),
        (lambda: paceline.simulate("nowhere.toml"), "nowhere.toml: no such file"),
        (
            lambda: paceline.simulate({"job": [JOB]}, "essa"),
            "policy: there is no policy 'essa'; did you mean",
        ),
        (
            lambda: paceline.simulate({"job": [JOB]}, "quick"),
            "policy: there is no policy 'quick'; known: esa",
        ),
        (
            lambda: paceline.simulate(paceline.Scenario.model_validate({"job": [JOB]}), changes=["seed=1"]),
            "changes: changes are for a file or a dict",
        ),
        (lambda: paceline.plan([{"gpsu": 1}], CLUSTER), "jobs[0]: unknown key 'gpsu'"),
        (lambda: paceline.plan([], CLUSTER), "jobs: the list holds no jobs"),
        (lambda: paceline.plan(JOBS, {"servers": []}), "cluster: servers"),
        (lambda: paceline.plan(JOBS, CLUSTER, "best"), "there is no policy 'best'"),
        (lambda: paceline.Cluster.uniform(2, 4, racks=3), "2 servers with 4 GPUs in 3 racks are no cluster"),
        (lambda: paceline.read_run("src"), "src: holds no run"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_place(call: Any, told: str) -> None:
    with pytest.raises(paceline.UserError) as caught:
        call()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_jobs_and_cluster_may_be_objects_dicts_or_files() -> None:
    jobs = [paceline.Job("a", 2, 100, 1_000_000, backward_s=0.1), paceline.Job("b", 1, 50, backward_s=0.2)]
    as_dicts = [
        {"name": "a", "gpus": 2, "iterations": 100, "gradient": "1 MB", "backward": "0.1 s"},
        {"name": "b", "gpus": 1, "iterations": 50, "backward": "0.2 s"},
    ]
    cluster = paceline.Cluster.uniform(2, 2)
    as_dict = {"servers": [{"name": "s", "gpus": 2, "count": 2}]}
    results = [
        paceline.plan(given, where, "sjf-bco")
        for given in (jobs, iter(jobs), as_dicts)
        for where in (cluster, as_dict)
        if not (given is not jobs and where is as_dict and not isinstance(given, list))
    ]
    assert {result.makespan_s for result in results} == {results[0].makespan_s}
    assert [placement.job for placement in results[0].placements] == ["a", "b"]
    from_files = paceline.plan(JOBS, Path(CLUSTER), "ff")
    assert from_files.policy == "ff"
    assert paceline.plan("paper:1", "paper:1", "ff").problem.cluster.gpus_total > 0


def test_a_policy_may_be_an_object() -> None:
    from paceline.schedule.policies.first_fit import FirstFit

    assert (
        paceline.plan(JOBS, CLUSTER, FirstFit()).placements == paceline.plan(JOBS, CLUSTER, "ff").placements
    )


@pytest.mark.parametrize("name", paceline.POLICIES["simulate"])
def test_every_policy_of_simulate_runs(name: str) -> None:
    assert paceline.simulate({"job": [JOB]}, name).failed is None


@pytest.mark.parametrize("name", paceline.POLICIES["plan"])
def test_every_policy_of_plan_plans(name: str) -> None:
    if name == "exact":
        pytest.importorskip("ortools")
    jobs = [paceline.Job(f"j{i}", 1 + i, 10, backward_s=0.1) for i in range(3)]
    model = {"time": "slotted", "slot": "10 s", "contention": "paper"}
    slotted = {"servers": [{"gpus": 2, "count": 2}], "model": model}
    assert paceline.plan(jobs, slotted, name, budget_s=0.1).makespan_s > 0


def test_exact_says_that_it_knows_the_papers_model_only() -> None:
    slotted = {"servers": [{"gpus": 2}], "model": {"time": "slotted", "slot": "10 s"}}
    with pytest.raises(UserError, match="paper's model only"):
        paceline.plan([paceline.Job("a", 1, 10, backward_s=0.1)], slotted, "exact")


def test_racks_of_a_uniform_cluster_are_blocks() -> None:
    assert paceline.Cluster.uniform(4, 8, racks=2).rack_of.tolist() == [0, 0, 1, 1]
    assert paceline.Cluster.uniform(3, 1, racks=2).rack_of.tolist() == [0, 0, 1]


def test_results_are_readable_and_plain() -> None:
    result = paceline.simulate({"job": [JOB]}, "esa", seed=3, check=True)
    assert repr(result).startswith("<RunResult esa, seed 3: 1 jobs, average JCT ")
    assert repr(result).endswith("sums exact>")
    assert json.loads(json.dumps(result.to_dict()))["jobs"][0]["name"] == "a"
    schedule = paceline.plan(JOBS, CLUSTER, "ff")
    assert repr(schedule).startswith("<Schedule ff: 7 jobs on 10 GPUs, makespan ")
    document = json.loads(json.dumps(schedule.to_dict()))
    assert document["makespan"] == schedule.makespan_s
    assert {row["job"] for row in document["placements"]} == {job.name for job in schedule.problem.jobs}


def test_a_run_is_read(tmp_path: Path) -> None:
    folder = paceline_run(tmp_path / "run1")
    run = paceline.read_run(str(folder))
    assert repr(run).startswith("<RunData ")
    assert f"of {len(run.jobs)} jobs done" in repr(run)
    document = run.to_dict()
    assert document["name"] == run.name
    assert document["jobs"] == run.jobs
    assert document["makespan_s"] == run.makespan_s
    with pytest.raises(paceline.UserError, match="there is no table 'job'"):
        run.to_dataframe("job")


def test_results_as_data_frames(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    result = paceline.simulate({"job": [{**JOB, "copies": 2}]}, "esa", seed=3)
    frame = result.to_dataframe()
    assert frame[["policy", "seed", "name"]].to_numpy().tolist() == [["esa", 3, "a-0"], ["esa", 3, "a-1"]]
    assert frame["jct_s"].mean() == pytest.approx(result.avg_jct_s)
    schedule = paceline.plan(JOBS, CLUSTER, "ff")
    frame = schedule.to_dataframe()
    assert np.allclose(frame["jct"], schedule.jct_s)
    assert frame["end"].max() == schedule.makespan_s
    run = paceline.read_run(paceline_run(tmp_path / "run1"))
    frame = run.to_dataframe()
    assert frame["name"].tolist() == [job["name"] for job in run.jobs]
    assert frame["jct_s"].mean() == pytest.approx(run.avg_jct_s)
    assert len(run.to_dataframe("events")) == len(run.events)


def test_without_pandas_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(paceline.UserError, match="needs pandas: pip install pandas"):
        paceline.plan(JOBS, CLUSTER, "ff").to_dataframe()


def test_the_page_is_current() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert rewritten(page, describe.sections()) == page, "run `make docs`"


def test_every_field_of_the_page_says_what_it_is() -> None:
    for kind in (api.Job, api.Cluster, *describe.RESULTS):
        assert set(kind.__dataclass_fields__) == set(field_texts(kind)), kind.__name__


def test_the_map_has_every_module_once() -> None:
    found, rooms = [], [""]
    for depth, name, meaning in describe.tree():
        assert meaning, f"{name} does not say what it is"
        rooms[depth + 1 :] = [rooms[depth] + name]
        found.append(rooms[depth] + (f"{name}__init__.py" if name.endswith("/") else name))
    there = {str(path.relative_to(describe.PACKAGE)) for path in describe.PACKAGE.rglob("*.py")}
    assert sorted(found) == sorted(there - {"__init__.py"})
