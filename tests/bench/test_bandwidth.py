"""What the line allows, by hand."""

import pytest

from paceline.bench import bandwidth


def test_a_full_frame_of_1500_bytes_carries_1408_of_tensor() -> None:
    assert bandwidth.payload_share(1500) == pytest.approx(1408 / 1514)


def test_sixteen_bit_types_use_half_of_the_payload() -> None:
    assert bandwidth.payload_share(1500, 2) == pytest.approx(704 / 1514)


def test_jumbo_frames_are_cut_at_the_largest_packet() -> None:
    assert bandwidth.payload_share(9000) == pytest.approx(8192 / (8192 + 64 + 28 + 14))


def test_ideal_time_sends_everything_once() -> None:
    assert bandwidth.ideal_s(25_000_000, 200e6, 1500) == pytest.approx(25e6 * 8 / 200e6 * 1514 / 1408)


def test_bandwidths_are_those_of_nccl_tests() -> None:
    assert bandwidth.algbw_gbytes(4_000_000_000, 2.0) == pytest.approx(2.0)
    assert bandwidth.busbw_gbytes(4_000_000_000, 2.0, 4) == pytest.approx(3.0)
