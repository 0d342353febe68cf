from pathlib import Path

import numpy as np
import pytest

from paceline import toml
from paceline.errors import UserError
from paceline.models.catalogue import profile
from paceline.schedule.inputs import generate, sources
from paceline.schedule.inputs.cluster import ClusterFile
from paceline.schedule.inputs.generate import PAPER_MIX, PaperSetting
from paceline.schedule.inputs.jobs import load_jobs
from paceline.schedule.inputs.sources import ClusterSource

CLUSTER = """
[network]
inter_server = "25 Gbit/s"

[[servers]]
name = "big"
gpus = 8
count = 2

[[servers]]
gpus = 4
rack = "r2"
"""


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_cluster_file(tmp_path: Path) -> None:
    cluster = toml.load(write(tmp_path, "c.toml", CLUSTER), ClusterFile).cluster()
    assert [(s.name, s.gpus, s.rack) for s in cluster.servers] == [
        ("big-0", 8, "rack0"), ("big-1", 8, "rack0"), ("s1-0", 4, "r2")
    ]  # fmt: skip
    assert cluster.gpus_total == 20
    assert cluster.inter_bps == 25e9
    assert cluster.first_gpu.tolist() == [0, 8, 16, 20]
    assert cluster.by_server([0, 7, 8, 19]) == {"big-0": 2, "big-1": 1, "s1-0": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("servers = []", r"servers: .*at least 1"),
        ("[[servers]]\ngpus = 0", r"c\.toml:2: servers\.0\.gpus"),
        ("[[servers]]\ngpu = 4", r"c\.toml:2: unknown key 'servers\.0\.gpu'; did you mean 'gpus'\?"),
        (CLUSTER + '\n[[servers]]\ngpus = 1\nname = "big-0"', "two servers are named 'big-0'"),
        (CLUSTER + "\n[model]\nalpha = -1", r"model\.alpha"),
        ("[[servers]\n", "not valid TOML"),
    ],
)
def test_cluster_mistakes_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        ClusterSource.read(str(write(tmp_path, "c.toml", text)))
    assert "\n" not in str(caught.value)


def test_jobs_from_toml_and_csv_are_the_same(tmp_path: Path) -> None:
    table = '[[jobs]]\nname = "a"\ngpus = 2\niterations = 10\ngradient = "98 MB"\nbackward = "12 ms"\n'
    table += 'arrival = "8h"\n\n[[jobs]]\ngpus = 1\niterations = 5\nforward = "1 ms"\nbatch = 4\ncount = 2\n'
    rows = "name,gpus,iterations,gradient,backward,arrival,forward,batch,count\n"
    rows += "a,2,10,98 MB,12 ms,8h,,,\n,1,5,,,,1 ms,4,2\n"
    from_toml = load_jobs(write(tmp_path, "j.toml", table))
    assert from_toml == load_jobs(write(tmp_path, "j.csv", rows))
    assert [job.name for job in from_toml] == ["a", "job1-0", "job1-1"]
    assert from_toml[0].gradient_bytes == 98_000_000
    assert from_toml[0].arrival_s == 28800.0
    assert from_toml[1].compute_s == pytest.approx(0.004)


def test_a_model_by_name_has_its_gradients_and_the_devices_speed(tmp_path: Path) -> None:
    table = '[[jobs]]\nname = "a"\ngpus = 2\niterations = 10\nmodel = "resnet50"\nbatch = 32\n'
    (job,) = load_jobs(write(tmp_path, "j.toml", table), flop_per_s=10e12)
    assert (job,) == load_jobs(
        write(tmp_path, "j.csv", "name,gpus,iterations,model,batch\na,2,10,ResNet-50,32\n"), flop_per_s=10e12
    )
    model = profile("resnet50")
    assert job.gradient_bytes == model.gradient_bytes
    assert job.compute_s == pytest.approx(model.compute_ns(10e12, 32) / 1e9)
    assert sum(size for _, size in job.releases) == job.gradient_bytes
    assert job.releases[0][1] == model.layers[-1].gradient_bytes
    assert job.releases[-1][0] == pytest.approx(job.backward_s)
    # Twice the speed, half the time; the model's own batch unless given.
    (fast,) = load_jobs(write(tmp_path, "j.toml", table.replace("batch = 32\n", "")), flop_per_s=20e12)
    assert fast.batch == model.batch
    assert fast.compute_s == pytest.approx(model.compute_ns(20e12) / 1e9)


def test_the_cluster_file_has_the_devices_speed(tmp_path: Path) -> None:
    text = "[device]\nflop_rate = 12e12\n[[servers]]\ngpus = 4\n"
    source = sources.ClusterSource.read(str(write(tmp_path, "c.toml", text)))
    assert source.file.device.flop_rate == 12e12
    assert source.with_changes("flop_rate=3e12").file.device.flop_rate == 3e12


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "j.csv",
            "gpus,iterations,model\n1,1,resnet51\n",
            "j.csv:2: unknown model 'resnet51'; did you mean 'resnet50'",
        ),
        (
            "j.csv",
            "gpus,iterations,model,gradient\n1,1,vgg16,5\n",
            "j.csv:2: give either model or gradient, not both",
        ),
        (
            "j.toml",
            '[[jobs]]\ngpus = 1\niterations = 1\nmodel = "gpt2"\nprofile = "p"',
            "either profile or model",
        ),
        ("j.toml", "jobs = []", "j.toml: the list holds no jobs"),
        ("j.csv", "gpus,iterations\n", "j.csv: the list holds no jobs"),
        ("j.csv", "", "j.csv:1: column 'gpus' is missing"),
        ("j.csv", "gpus,iterations,colour\n1,1,red\n", "j.csv:1: unknown column 'colour'"),
        ("j.csv", "gpus,iterations,backward\n1,1,1s\n-2,1,1s\n", r"j.csv:3: gpus: .*above 0"),
        ("j.csv", "gpus,iterations,backward\n1,1,1s,9\n", "j.csv:2: more fields than the 3 columns"),
        ("j.csv", "gpus,iterations\n1,5\n", "j.csv:2: job 'job0' takes no time"),
        (
            "j.csv",
            "name,gpus,iterations,backward\na,1,5,1s\na,1,5,1s\n",
            "j.csv:3: job 'a' was already named",
        ),
        ("j.toml", '[[jobs]]\ngpus = 2\niterations = 1\ngradient = "-3 MB"', r"j.toml:4: jobs\.0\.gradient"),
        ("j.toml", "[[jobs]]\ngpus = 2\niteration = 1", "j.toml:3: unknown key 'jobs.0.iteration'"),
        ("none.toml", None, "none.toml: no such file"),
        ("none.csv", None, "none.csv: no such file"),
    ],
)
def test_job_mistakes_name_the_place(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    path = tmp_path / name if text is None else write(tmp_path, name, text)
    with pytest.raises(UserError, match=message) as caught:
        load_jobs(path)
    assert "\n" not in str(caught.value)


def test_what_if_changes_the_cluster(tmp_path: Path) -> None:
    source = ClusterSource.read(str(write(tmp_path, "c.toml", CLUSTER)))
    assert source.with_changes("servers=+3").file.cluster().gpus_total == 20 + 3 * 4
    assert source.with_changes("inter_server=100 Gbit/s").file.network.inter_server == 100e9
    both = source.with_changes("model.alpha=0.7, servers.0.gpus=16").file
    assert both.model.alpha == 0.7
    assert both.cluster().gpus_total == 36
    assert source.file.cluster().gpus_total == 20


@pytest.mark.parametrize(
    "change", ["servers=4", "speed=3", "inter_server", "alpha=-1", "servers.7.gpus=1", "inter_server=fast"]
)
def test_what_if_mistakes(tmp_path: Path, change: str) -> None:
    source = ClusterSource.read(str(write(tmp_path, "c.toml", CLUSTER)))
    with pytest.raises(UserError, match=r"^--what-if: "):
        source.with_changes(change)


def test_the_paper_mix() -> None:
    jobs = generate.paper_jobs(3, PaperSetting())
    sizes, counts = np.unique([job.gpus for job in jobs], return_counts=True)
    assert dict(zip(sizes.tolist(), counts.tolist(), strict=True)) == PAPER_MIX
    assert all(1000 <= job.iterations <= 6000 and 0.01 <= job.compute_s <= 0.05 for job in jobs)
    assert jobs == generate.paper_jobs(3, PaperSetting())
    assert jobs != generate.paper_jobs(4, PaperSetting())


def test_the_paper_share_is_reached_at_the_reference() -> None:
    setting = PaperSetting(share=0.2, slotted=False)
    problem = generate.paper_problem(0, setting)
    j = next(i for i, job in enumerate(problem.jobs) if job.gpus == 8)
    tau = problem._tau(problem.jobs[j], setting.reference_p, setting.reference_p)
    share = 1 - problem.jobs[j].compute_s / tau
    assert share == pytest.approx(0.2, abs=0.05)


def test_philly_like_arrivals() -> None:
    jobs = generate.philly_like(1, jobs=300, hours=48)
    arrivals = [job.arrival_s for job in jobs]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0
    assert arrivals[-1] <= 48 * 3600
    assert 0.6 < np.mean([job.gpus == 1 for job in jobs]) < 0.9
    assert jobs == generate.philly_like(1, jobs=300, hours=48)


@pytest.mark.parametrize("text", ["paper:", "paper:x", "paper:1:2", "philly-like:1:0", "philly-like:1:2:3:4"])
def test_generators_refuse_nonsense(text: str) -> None:
    with pytest.raises(UserError, match="--jobs"):
        sources.read_jobs(text)
