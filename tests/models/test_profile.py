"""Profiles: what was measured is read back, what is broken is one line with its place."""

from pathlib import Path

import pytest

from paceline.models.profile import Measured, entry_text, exchange_of, load_profile
from tests.commands.command_line import paceline

STEPS_S = [0.010 + 0.0001 * i for i in range(101)]
SEEN = Measured(
    "a test", 4, 8, [(0.002, [0.001, 0.004])], ["out", "in"], [1000, 2000],
    exchange=(exchange_of("gloo", STEPS_S, 4, 2), exchange_of("switch", [0.008] * 10, 4, 2)),
)  # fmt: skip


def test_steps_by_exchange_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(entry_text(SEEN))
    seen = load_profile(path)
    gloo, switch = seen.exchange_by("gloo"), seen.exchange_by("switch")
    assert gloo is not None
    assert switch is not None
    assert (gloo.step, gloo.workers, gloo.cores) == (pytest.approx(0.015), 4, 2)
    # Evenly spread over 10 ms.
    assert gloo.spread * gloo.step == pytest.approx(0.010 / 12**0.5, rel=0.02)
    assert switch.spread == 0.0


def test_overhead_is_the_processor_time_of_one_worker(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(entry_text(SEEN))
    # 9 ms more than the passes, while four workers share two cores.
    assert load_profile(path).overhead_s("gloo") == pytest.approx(0.0045)
    assert load_profile(path).overhead_s("switch") == pytest.approx(0.001)
    path.write_text(entry_text(SEEN).partition("\n[[exchange]]")[0])
    assert load_profile(path).overhead_s("switch") == 0.0


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "switch"', 'name = "gloo"', "twice"),
        ('name = "switch"', 'name = "token-ring"', "gloo"),
        ("cores = 2", "cores = 0", "has to be above 0"),
        ('step = "8000.000 us"', 'step = "0 us"', "has to be above 0"),
        ('name = "in"\nsize = 2000', 'name = "in"\nsize = 1999', "one is missing or changed"),
    ],
)
def test_a_broken_profile_is_one_line_with_its_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    told: str,
) -> None:
    text = entry_text(SEEN)
    assert old in text
    (tmp_path / "p.toml").write_text(text.replace(old, new))
    scenario = tmp_path / "s.toml"
    scenario.write_text('[[job]]\nprofile = "p.toml"\nworkers = 2\n')
    assert paceline(monkeypatch, "simulate", str(scenario)) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert "p.toml" in err
    assert told in err
