import json

from benchmarks import scheduler


def test_rows_have_what_scripts_read() -> None:
    rows = scheduler.measure([(160, 0), (200, 300)], ["ls", "sjf-bco"])
    assert [(row["jobs"], row["policy"]) for row in rows] == [
        (160, "ls"), (160, "sjf-bco"), (200, "ls"), (200, "sjf-bco")
    ]  # fmt: skip
    assert rows[2]["gpus"] == 300
    for row in json.loads(json.dumps(rows)):
        assert row["plan_s"] > 0
        assert row["evaluator_events_per_s"] > 0
    assert rows[1]["times_ls"] > 1.0
    assert "evaluator events/s" in scheduler.table(rows)


def test_built_cases_have_the_size_asked_for() -> None:
    problem = scheduler.build(500, 777)
    assert len(problem.jobs) == 500
    assert problem.cluster.gpus_total == 777
