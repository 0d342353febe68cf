import pytest

from paceline.units import format_rate, parse_rate_bps, parse_seconds, parse_size_bytes, parse_time_ns


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100 Gbit/s", 1e11),
        ("25Gbps", 25e9),
        ("200mbit", 2e8),
        ("1.5 GB/s", 12e9),
        (5e9, 5e9),
        ("1 Kibit/s", 1024),
    ],
)
def test_rates(text: object, value: float) -> None:
    assert parse_rate_bps(text) == value


@pytest.mark.parametrize(("text", "value"), [("98 MB", 98_000_000), ("16MiB", 1 << 24), ("4B", 4), (12, 12)])
def test_sizes(text: object, value: int) -> None:
    assert parse_size_bytes(text) == value


@pytest.mark.parametrize(("text", "value"), [("8h", 28800.0), ("250 ms", 0.25), ("3 m", 180.0), (2, 2.0)])
def test_times(text: object, value: float) -> None:
    assert parse_seconds(text) == pytest.approx(value)


def test_time_is_whole_nanoseconds() -> None:
    assert parse_time_ns("1.5 us") == 1500


@pytest.mark.parametrize("text", ["fast", "10 parsecs", "", "/s", "5 /s", True, None, "1..2 Gbit/s"])
def test_what_is_no_rate_says_how_to_write_one(text: object) -> None:
    with pytest.raises(ValueError, match="rate"):
        parse_rate_bps(text)


def test_a_rate_reads_back() -> None:
    assert parse_rate_bps(format_rate(25e9)) == 25e9
