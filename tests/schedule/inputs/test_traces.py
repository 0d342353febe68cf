import json
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.schedule.inputs import traces
from paceline.schedule.inputs.generate import CATALOGUE
from paceline.schedule.inputs.traces import TraceJob


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, object]:
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{k}" for k in range(n)]} for i, n in enumerate(gpus)]
    return {"start_time": start, "end_time": end, "detail": detail}


def philly_job(name: str, submitted: str | None, *attempts: dict[str, object]) -> dict[str, object]:
    return {"status": "Pass", "vc": "v", "jobid": name, "user": "u", "submitted_time": submitted,
            "attempts": list(attempts)}  # fmt: skip


def test_philly(tmp_path: Path) -> None:
    path = tmp_path / "cluster_job_log"
    day = "2017-10-09 "
    listed = [
        philly_job("two-attempts", day + "10:00:00", attempt(day + "10:05:00", day + "10:10:00", 1),
                   attempt(day + "10:20:00", day + "11:20:00", 2, 2)),
        philly_job("early", day + "09:00:00", attempt(day + "09:30:00", day + "09:31:00", 8)),
        philly_job("never-ran", day + "12:00:00"),
        philly_job("half", day + "12:00:00", attempt(day + "12:01:00", None, 1),
                   attempt(day + "12:05:00", day + "12:06:00", 1)),
        philly_job("no-gpus", day + "12:00:00", attempt(day + "12:01:00", day + "12:02:00")),
        philly_job("no-date", "None", attempt(day + "12:01:00", day + "12:02:00", 1)),
    ]  # fmt: skip
    path.write_text(json.dumps(listed))
    trace = traces.read_trace(f"philly:{path}")
    assert [(job.name, job.gpus, job.run_s) for job in trace.jobs] == [
        ("early", 8, 60.0), ("two-attempts", 4, 3900.0), ("half", 1, 60.0)
    ]  # fmt: skip
    assert trace.jobs[1].submit_s - trace.jobs[0].submit_s == 3600.0
    assert dict(trace.left_out) == {
        "no attempt with a start and an end": 1,
        "no GPUs recorded": 1,
        "no submission time": 1,
    }
    assert dict(trace.assumed) == {"attempts without a start or an end were not counted": 1}


HELIOS = (
    "job_id,user,vc,jobname,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
)


def test_helios(tmp_path: Path) -> None:
    path = tmp_path / "cluster_log.csv"
    day = "2020-04-01 "
    rows = [
        f"1,u,v,n,8,64,1,COMPLETED,{day}00:00:10,{day}00:01:00,{day}01:01:00,3600,50",
        f"2,u,v,n,0,64,1,COMPLETED,{day}00:00:20,{day}00:01:00,{day}01:01:00,3600,40",
        f"3,u,v,n,4,16,1,CANCELLED,{day}00:00:30,None,None,0,0",
        f"4,u,v,n,1,4,1,FAILED,{day}00:00:00,{day}00:00:00,{day}00:00:30,30,0",
    ]
    path.write_text("\n".join([HELIOS, *rows]) + "\n")
    trace = traces.read_trace(f"helios:{path}")
    assert [(job.name, job.gpus, job.run_s) for job in trace.jobs] == [("4", 1, 30.0), ("1", 8, 3600.0)]
    assert dict(trace.left_out) == {"no GPUs (a CPU job)": 1, "no run time": 1}


def test_pai(tmp_path: Path) -> None:
    tasks = [
        "a,worker,4,Terminated,100,400,600,29,100,V100",
        "a,ps,1,Terminated,90,400,600,29,,",
        "b,tensorflow,1,Terminated,50,80,600,29,50,T4",
        "c,evaluator,2,Running,60,,600,29,25,T4",
        "d,worker,1,Terminated,60,70,600,29,,MISC",
    ]
    (tmp_path / "pai_task_table.csv").write_text("\n".join(tasks) + "\n")
    (tmp_path / "pai_job_table.csv").write_text("a,i1,u,Terminated,40,400\n")
    trace = traces.read_trace(f"pai:{tmp_path}")
    assert trace.jobs == [TraceJob("a", 4, 40.0, 300.0), TraceJob("b", 1, 50.0, 30.0)]
    assert dict(trace.left_out) == {"no run time": 1, "no GPUs planned": 1}
    assert dict(trace.assumed) == {
        "a fraction of a GPU was rounded up": 1,
        "no submission time; the first task's launch was taken": 1,
    }


SWF = """; Version: 2.2
; Computer: test
1 0 10 100 4 -1 -1 4 200 -1 1 1 1 1 1 -1 -1 -1
2 5 10 -1 4 -1 -1 4 200 -1 0 1 1 1 1 -1 -1 -1
3 7 10 50 -1 -1 -1 8 200 -1 1 1 1 1 1 -1 -1 -1
4 9 10 50 -1 -1 -1 -1 200 -1 1 1 1 1 1 -1 -1 -1
"""


def test_swf(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text(SWF)
    trace = traces.read_trace(f"swf:{path}")
    assert trace.jobs == [TraceJob("swf1", 4, 0.0, 100.0), TraceJob("swf3", 8, 7.0, 50.0)]
    assert dict(trace.left_out) == {"no run time": 1, "no processors": 1}
    assert trace.remarks()[-1] == "1 job: allocated processors unknown; the requested ones were taken"


ODD_JOB = '[{"jobid": "a", "submitted_time": "2017-10-09 10:00:00", "attempts": '
ODD_RUN = '{"start_time": "2017-10-09 10:00:00", "end_time": "2017-10-09 11:00:00", "detail": '


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        (
            "helios",
            "log.csv",
            "job_id,gpu_num\n1,2\n",
            r"log\.csv:1: columns are missing: submit_time, start_time",
        ),
        ("helios", "log.csv", HELIOS + "\n1,2\n", r"log\.csv:2: has 2 columns, not 13"),
        ("helios", "log.csv", "", r"log\.csv:1: columns are missing"),
        ("helios", "log.csv", HELIOS + "\n", r"log\.csv: holds no usable job \(the file is empty\)"),
        ("swf", "x.swf", "1 2 3\n", r"x\.swf:1: has 3 fields, not 18"),
        ("swf", "x.swf", "1 0 1 1 x -1 -1 1 1 1 1 1 1 1 1 1 1 1\n", r"x\.swf:1: .*not a number"),
        ("philly", "log", "[{", r"log:1: not valid JSON"),
        ("philly", "log", "{}", r"log: is not a list of jobs"),
        ("philly", "log", '[{"jobid": "a"}]', r"log: job 0: key 'submitted_time' is missing"),
        ("philly", "log", "[" * 100_000, r"log: not valid JSON: nested too deep"),
        ("philly", "log", "9" * 5000, r"log: not valid JSON"),
        (
            "philly",
            "log",
            ODD_JOB + "7}]",
            r"log: job 0: 'attempts' is not a list of tables",
        ),
        (
            "philly",
            "log",
            ODD_JOB + "[7]}]",
            r"log: job 0: 'attempts' is not a list of tables",
        ),
        (
            "philly",
            "log",
            ODD_JOB + "[" + ODD_RUN + "[1]}]}]",
            r"log: job 0: 'detail' is not a list of tables",
        ),
        (
            "philly",
            "log",
            ODD_JOB + "[" + ODD_RUN + '[{"gpus": 4}]}]}]',
            r"log: job 0: 'gpus' is not a list",
        ),
        ("swf", "x.swf", "1 0 1 1 0.1 -1 -1 0.2 1 1 1 1 1 1 1 1 1 1\n", r"no processors"),
        ("helios", "log.csv", "x" * 200_000 + "\n", r"log\.csv:1: columns are missing"),
        ("pai", "pai_task_table.csv", "a,b,c\n", r"pai_task_table\.csv:1: has 3 columns, not 10"),
    ],
)
def test_malformed_traces_name_the_place(
    tmp_path: Path, kind: str, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        traces.read_trace(f"{kind}:{path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["borg:x", "swf", "swf:", ""])
def test_unknown_formats(text: str) -> None:
    with pytest.raises(UserError, match="FORMAT:PATH"):
        traces.read_trace(text)


def test_names_of_jobs_can_be_shown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    run = attempt("2017-10-09 10:05:00", "2017-10-09 10:10:00", 1)
    path.write_text(json.dumps([philly_job("a\ud800\n\u001b[2J", "2017-10-09 10:00:00", run)]))
    (job,) = traces.with_models(traces.read_trace(f"philly:{path}"), seed=1)
    assert job.name == "a???[2J"


def test_models_are_assigned_by_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text(SWF)
    trace = traces.read_trace(f"swf:{path}")
    jobs = traces.with_models(trace, seed=1)
    assert jobs == traces.with_models(trace, seed=1)
    assert any(traces.with_models(trace, seed=seed) != jobs for seed in range(2, 8))
    assert [job.arrival_s for job in jobs] == [0.0, 7.0]
    profile = next(p for p in CATALOGUE if p.gradient_bytes == jobs[0].gradient_bytes)
    assert jobs[0].iterations == round(100.0 / profile.compute_s)
    assert len(traces.with_models(trace, seed=1, limit=1)) == 1
