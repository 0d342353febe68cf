"""What a scenario accepts, refuses, and means for each policy."""

from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.sim.run import simulate
from paceline.sim.scenario import POLICIES, StragglerMode, load_scenario
from tests.commands.command_line import paceline
from tests.sim.help.scenes import helped
from tests.sim.scenes import job, scene

ROOT = Path(__file__).parents[2]


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_make_a_whole_scenario(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path, "[[job]]\n"))
    assert scenario.network.rate == 100e9
    assert scenario.expanded_jobs()[0].name == "communication-heavy-0"


def test_quantities_are_read_in_their_units(tmp_path: Path) -> None:
    network = '[network]\nrate = "25 Gbit/s"\ndelay = "2 us"\nqueue = "64 KiB"\n'
    text = network + '[[job]]\narrival = "3 ms"\nsize = "2 MB"\n'
    scenario = load_scenario(written(tmp_path, text))
    read = scenario.network
    assert (read.rate, read.delay, read.queue) == (25e9, 2_000, 65_536)
    assert (scenario.job[0].arrival, scenario.job[0].size) == (3_000_000, 2_000_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[network]\nrrate = "1 Gbit/s"\n[[job]]\n',
            r":2: unknown key 'network.rrate'; did you mean 'rate'\?",
        ),
        ('[network]\nrate = "-1 Gbit/s"\n[[job]]\n', r":2: network.rate: .*above 0"),
        ('[network]\nrate = "1 furlong"\n[[job]]\n', r":2: network.rate: .*no unit of rate"),
        ('[network]\ntopology = "ring"\n[[job]]\n', r":2: network.topology: .*'star' or 'leaf-spine'"),
        ("[network]\n", r"key 'job' is missing"),
        ("[[job]]\nworkers = 0\n", r":2: job.0.workers: .*at least 1"),
        ("[[job]]\nworkers = 3\nhosts = [0, 1]\n", r":1: job.0: hosts names 2 places for 3 workers"),
        ("[[job]]\n[[job]]\njitter = -1\n", r":3: job.1.jitter"),
        ("[[job]]\n[faults]\nloss = 1.0\n", r":3: faults.loss: .*below 1"),
        ("[[job]]\n[[faults.slow]]\njob = 'a'\nworker = 0\nfactor = 0.5\n", r":5: faults.slow.0.factor"),
        ('horizon = "3 h"\n[[job]]\n', r":1: horizon: .*at most 9000 s"),
        ("[[job]]\n[[job]\n", r"not valid TOML"),
        ("policies = ['easy']\n[[job]]\n", r":1: policies.0: .*'esa'"),
        ("[[job]]\n[policy.easy.transport]\nwindow = 3\n", r": policy.easy: .*'esa'"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_scenario(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_two_jobs_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="two jobs are called 'a'"):
        scene(job(), job()).expanded_jobs()


def test_copies_are_jobs_of_their_own_that_arrive_one_after_another() -> None:
    jobs = scene(job(copies=3, arrival="1 ms", stagger="2 ms"), job(name="")).expanded_jobs()
    assert [each.name for each in jobs] == ["a-0", "a-1", "a-2", "communication-heavy-1"]
    assert [each.arrival for each in jobs] == [1_000_000, 3_000_000, 5_000_000, 0]


def test_keys_of_synthetic_models_are_refused_for_real_ones() -> None:
    with pytest.raises(UserError, match=r"'size' is for the synthetic models, not for 'vgg16'"):
        scene(job(model="vgg16", layers=None)).job[0].model_profile(100e9)


def test_a_real_model_is_fused_on_request() -> None:
    plain, fused = (
        scene({"model": "resnet50", "fuse": fuse}).job[0].model_profile(100e9) for fuse in (0, "4 MB")
    )
    assert len(fused.layers) < len(plain.layers)
    assert all(layer.gradient_bytes >= 4_000_000 for layer in fused.layers)
    assert fused.gradient_bytes == plain.gradient_bytes


def test_a_synthetic_model_has_the_ratio_that_was_asked_for() -> None:
    model = scene(job(size="8 MB", ratio=2.0)).job[0].model_profile(10e9)
    send_ns = model.gradient_bytes * 8 / 10e9 * 1e9
    assert send_ns / model.compute_ns() == pytest.approx(2.0, rel=1e-3)


def test_a_policys_own_keys_come_before_the_scenarios() -> None:
    own = {"transport": {"rto_min": "50 us", "window": 7}, "switch": {"stale": "2 ms"}}
    scenario = scene(job(), transport={"window": 99, "ack_every": 4}, policy={"atp": own})
    atp, esa = scenario.for_policy("atp"), scenario.for_policy("esa")
    assert (atp.transport.rto_min, atp.transport.window, atp.transport.ack_every) == (50_000, 7, 4)
    assert atp.switch.stale == 2_000_000
    assert esa.transport.window == 99
    assert esa.switch == scenario.switch


def tuned(policy: str, **sections: Any) -> Any:
    return scene(job(), **sections).for_policy(policy)


def test_tuned_defaults_hold_until_the_scenario_says_otherwise() -> None:
    assert tuned("switchml").transport.congestion == "fixed"
    assert tuned("switchml", transport={"congestion": "aimd"}).transport.congestion == "aimd"
    assert tuned("switchml", transport={"window": 5}).transport.congestion == "fixed"
    assert tuned("ps").custodians.placement == "workers"
    assert tuned("ps", custodians={"placement": "dedicated"}).custodians.placement == "dedicated"


@pytest.mark.parametrize("policy", POLICIES)
def test_settings_of_every_policy_stay_valid(policy: str) -> None:
    scenario = tuned(policy)
    for section in (scenario.transport, scenario.custodians, scenario.switch):
        assert type(section).model_validate(section.model_dump(exclude_unset=True), strict=False)


def test_overrides_from_the_command_line_are_read_in_their_units(tmp_path: Path) -> None:
    path = written(tmp_path, "[[job]]\n")
    scenario = load_scenario(path, ("network.rate=40 Gbit/s", "job.0.workers=3", "faults.loss=0.1"))
    assert (scenario.network.rate, scenario.job[0].workers, scenario.faults.loss) == (40e9, 3, 0.1)
    assert scenario.faults.strikes_packets
    with pytest.raises(UserError, match=r"--set: .*'nonsense' is not KEY=VALUE"):
        load_scenario(path, ("nonsense",))


@pytest.mark.parametrize(
    ("policy", "mode", "message"),
    [
        ("ring", "takeover", "job 'a': straggler = 'takeover' needs in-network aggregation; ring has none"),
        ("ps", "custody", "ps has none"),
        ("switchml", "custody", "needs custodians, and switchml has none; 'takeover' works there"),
        ("switchml", "both", "needs custodians"),
    ],
)
def test_help_that_makes_no_sense_is_refused(policy: str, mode: StragglerMode, message: str) -> None:
    with pytest.raises(UserError, match=message):
        simulate(helped(mode), policy)


def test_takeover_needs_parts_and_company() -> None:
    for sections, message in (
        ({"micro_batches": 1}, "at least 2 micro-batches"),
        ({"workers": 1}, "at least 2 workers"),
    ):
        with pytest.raises(UserError, match=message):
            simulate(helped("takeover", **sections), "esa")  # type: ignore[arg-type]


PROFILE = """\
forward = "1 ms"
backward = "2 ms"
jitter = 0.05
gradient = 3000
layers = [{ name = "out", size = 1000, released = "0.5 ms" }, { name = "in", size = 2000, released = "2 ms" }]
"""


def test_a_measured_profile_stands_for_a_model(tmp_path: Path) -> None:
    (tmp_path / "mlp.toml").write_text(PROFILE)
    path = tmp_path / "s.toml"
    path.write_text('[[job]]\nprofile = "mlp.toml"\nworkers = 2\n')
    (measured,) = load_scenario(path).expanded_jobs()
    assert measured.name == "mlp-0"
    assert measured.jitter == 0.05
    model = measured.model_profile(1e9)
    # In forward order; what was released last comes first.
    assert [layer.name for layer in model.layers] == ["in", "out"]
    assert model.layer_gradient_bytes() == (2000, 1000)
    assert model.backward_ns() == (1_500_000, 500_000)
    assert sum(model.forward_ns()) == 1_000_000
    path.write_text('[[job]]\nprofile = "mlp.toml"\njitter = 0\n')
    assert load_scenario(path).expanded_jobs()[0].jitter == 0
    path.write_text('[[job]]\nprofile = "mlp.toml"\nratio = 2\n')
    with pytest.raises(UserError, match="give either profile or ratio, not both"):
        load_scenario(path).expanded_jobs()


def test_a_mistake_in_a_profile_has_its_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mlp.toml").write_text(PROFILE.replace("3000", "4000"))
    path = tmp_path / "s.toml"
    path.write_text('[[job]]\nprofile = "mlp.toml"\nworkers = 2\n')
    assert paceline(monkeypatch, "simulate", str(path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "mlp.toml" in line
    assert "one is missing or changed" in line
    path.write_text('[[job]]\nworkers = 2\nprofile = "mlp.toml"\nmodel = "vgg16"\n')
    assert paceline(monkeypatch, "simulate", str(path)) == 2
    assert f"{path}:3: give either profile or model, not both" in capsys.readouterr().err
