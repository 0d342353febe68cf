"""What is asked for survives its way to a rank; ratios are of medians; what the line allows, by hand; sizes."""

from dataclasses import replace

import pytest

from paceline.bench import measurement
from paceline.bench.measurement import (
    ONE,
    OURS,
    PEER,
    SPINNING,
    MeasuredRow,
    Measurement,
    Outcome,
    parse_sizes,
)
from paceline.errors import UserError

MEASUREMENT = Measurement(workers=8, sizes=(25_000_000,), backends=(OURS, PEER), rate_bps=200e6, spin=True)


def row(backend: str, *times_us: float, wrong: int = 0) -> MeasuredRow:
    return MeasuredRow(backend, 25_000_000, 6_250_000, "float32", 8, times_us, wrong)


def test_a_measurement_comes_back_as_it_was() -> None:
    assert Measurement.from_json(MEASUREMENT.to_json()) == MEASUREMENT


def test_with_spin_every_backend_is_measured_twice() -> None:
    assert MEASUREMENT.variants() == (OURS, PEER, OURS + SPINNING, PEER + SPINNING)


def test_ratios() -> None:
    ideal_us = 25e6 * 8 / 200e6 * 1514 / 1408 * 1e6
    outcome = Outcome(MEASUREMENT, [row(OURS, 9e6, ideal_us / 0.9, 1.0), row(PEER, 2 * ideal_us / 0.9)])
    outcome.rows.append(row(OURS + SPINNING, 2 * ideal_us / 0.9))
    assert outcome.ratio_to_peer() == {25_000_000: pytest.approx(2.0)}
    assert outcome.ratio_to_line() == {25_000_000: pytest.approx(0.9)}
    assert outcome.ratio_spinning() == {25_000_000: pytest.approx(0.5)}


def test_without_a_peer_or_a_rate_there_is_no_ratio() -> None:
    outcome = Outcome(Measurement(workers=2, sizes=(25_000_000,), backends=(OURS,)), [row(OURS, 1.0)])
    assert (outcome.ratio_to_peer(), outcome.ratio_to_line(), outcome.ratio_spinning()) == ({}, {}, {})


def test_json_has_what_scripts_are_promised() -> None:
    document = Outcome(MEASUREMENT, [row(OURS, 1e6, wrong=3), row(PEER, 2e6)]).to_json()
    first = document["rows"][0]
    assert first["backend"] == OURS
    assert (first["size_bytes"], first["count"], first["type"], first["redop"]) == (
        25_000_000,
        6_250_000,
        "float32",
        "sum",
    )
    assert (first["time_us"], first["wrong"]) == (1e6, 3)
    assert first["cpu_s_per_GB"] == first["cpu_s"] / 0.025
    assert first["algbw_GBps"] == pytest.approx(0.025)
    assert first["busbw_GBps"] == pytest.approx(0.025 * 14 / 8)
    assert document["ratio_to_peer"] == {"25000000": 2.0}
    assert set(document["ratio_to_line"]) == {"25000000"}
    assert document["settings"]["workers"] == 8


def test_a_full_frame_of_1500_bytes_carries_1408_of_tensor() -> None:
    assert measurement.payload_share(1500) == pytest.approx(1408 / 1514)


def test_sixteen_bit_types_use_half_of_the_payload_of_32_bit_integers() -> None:
    assert measurement.payload_share(1500, 2) == pytest.approx(704 / 1514)
    assert measurement.payload_share(1500, 2, 16) == pytest.approx(1408 / 1514)


def test_larger_tensors_of_sixteen_bits_travel_in_sixteen_bits() -> None:
    halves = Measurement(workers=2, sizes=(1,), backends=(OURS,), dtype="bfloat16")
    assert [halves.wire_bits(size) for size in (2 * 16_384, 2 * 16_385)] == [32, 16]
    assert replace(halves, wire=32).wire_bits(2 * 16_385) == 32
    assert MEASUREMENT.wire_bits(25_000_000) == 32


def test_jumbo_frames_are_cut_at_the_largest_packet() -> None:
    assert measurement.payload_share(9000) == pytest.approx(8192 / (8192 + 64 + 28 + 14))


def test_ideal_time_sends_everything_once() -> None:
    assert measurement.ideal_s(25_000_000, 200e6, 1500) == pytest.approx(25e6 * 8 / 200e6 * 1514 / 1408)


def test_bandwidths_are_those_of_nccl_tests() -> None:
    assert measurement.algbw_gbytes(4_000_000_000, 2.0) == pytest.approx(2.0)
    assert measurement.busbw_gbytes(4_000_000_000, 2.0, 4) == pytest.approx(3.0)


def test_a_range_goes_up_and_ends_with_its_end() -> None:
    assert parse_sizes("4B..1kB") == (4, 32, 256, 1000)
    assert parse_sizes("8..8") == (8,)


def test_lists_and_ranges_mix_and_each_size_comes_once() -> None:
    assert parse_sizes("25MB, 4B..32B ,25 MB,1KiB") == (25_000_000, 4, 32, 1024)


@pytest.mark.parametrize("text", ["", "4B..", "many", "100MB..4B", "0", "-4B", "3GiB", "4B,,8B", "4bit"])
def test_a_bad_size_is_the_users_error(text: str) -> None:
    with pytest.raises(UserError, match="--sizes"):
        parse_sizes(text)


SEVERAL = replace(MEASUREMENT, switches=2, spin=False)


def test_with_several_switches_one_alone_is_measured_too() -> None:
    assert SEVERAL.variants() == (OURS, ONE, PEER)
    assert replace(SEVERAL, spin=True).variants()[3:] == (OURS + SPINNING, ONE + SPINNING, PEER + SPINNING)
    assert replace(SEVERAL, switches=1).variants() == (OURS, PEER)
    assert replace(SEVERAL, backends=(PEER,)).variants() == (PEER,)
    assert Measurement.from_json(SEVERAL.to_json()) == SEVERAL


def test_switches_of_their_own_carry_every_workers_stream() -> None:
    """Two links of 200 Mbit/s for eight workers: 50 Mbit/s each; and the workers' links are not the limit."""
    assert (SEVERAL.worker_rate_bps, SEVERAL.sum_rate_bps) == (400e6, 50e6)
    assert (MEASUREMENT.worker_rate_bps, MEASUREMENT.sum_rate_bps) == (200e6, 200e6)
    assert (
        replace(SEVERAL, rate_bps=None).worker_rate_bps,
        replace(SEVERAL, rate_bps=None).sum_rate_bps,
    ) == (
        None,
        None,
    )
    ideal_us = 25e6 * 8 / 50e6 * 1514 / 1408 * 1e6
    outcome = Outcome(SEVERAL, [row(OURS, ideal_us), row(ONE, 2 * ideal_us)])
    assert outcome.ratio_to_line() == {25_000_000: pytest.approx(1.0)}
    assert outcome.ratio_to_one() == {25_000_000: pytest.approx(2.0)}
    assert outcome.to_json()["ratio_to_one"] == {"25000000": pytest.approx(2.0)}


def test_sums_that_end_on_another_way_are_trouble() -> None:
    assert Outcome(SEVERAL, status={"path": "switch x2"}).trouble() == ""
    assert (
        "'switch, custodian', not 'switch x2'"
        in Outcome(SEVERAL, status={"path": "switch, custodian"}).trouble()
    )
    assert Outcome(MEASUREMENT, status={"path": "switch"}).trouble() == ""
