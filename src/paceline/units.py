"""Quantities as people write them: `100 Gbit/s`, `98 MB`, `8h`, `12 us`.

Every quantity becomes a plain number in one base unit (bits a second, bytes, nanoseconds or seconds), and
the pydantic types below (`Rate`, `Size`, `TimeNs`, `Seconds`) put that into a model's field. Decimal
prefixes are powers of 1000 and binary ones (`KiB`) powers of 1024, as in networking; a bare number is
taken in the base unit, but for a rate, which asks for its unit. Case matters only where it carries meaning: `b` is
bits and `B` is bytes.
"""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_NUMBER = re.compile(r"^\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ/]*)\s*$")
_PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_SECONDS = {
    **dict.fromkeys(("ns",), 1e-09),
    **dict.fromkeys(("us", "µs"), 1e-06),
    **dict.fromkeys(("ms",), 0.001),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}


RATE_MAX = 1e18
SIZE_MAX = 1e18
SECONDS_MAX = 9e9
"""More would not fit into the integers that count bytes and nanoseconds; nobody means it."""


WHOLE_RATE_MIN = 1_000_000
RATE_MIN = 1_000.0
"""A smaller number was written by a person who left out the unit; a rate that code has scaled down is no integer."""


def _no_unit(given: str, figure: str) -> str:
    if not figure.rstrip().endswith(tuple("kKMmGgTti")):
        bare = figure.strip()
        return f"{given!r} is a rate without a unit; write it like '{bare} Gbit/s' or '{bare} Mbit/s'"
    return f"{given!r} is a rate without a unit; write '{figure}bit/s' (bits) or '{figure}B/s' (bytes)"


def _within(value: float, most: float, kind: str, text: object) -> float:
    if not abs(value) <= most:
        raise ValueError(f"{text!r} is not a {kind} that can be reckoned with")
    return value


def _split(text: str, kind: str, example: str) -> tuple[float, str]:
    match = _NUMBER.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a {kind}; write it like {example!r}")
    return float(match.group(1).replace("_", "")), match.group(2)


def parse_rate_bps(value: object) -> float:
    """A data rate in bits a second: `25 Gbit/s`, `100Gbps`, `1.5 GB/s`, `200mbit`.

    A number without a unit is bits a second for code; one that only a person can have written asks for its unit.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if 0 < value < (WHOLE_RATE_MIN if isinstance(value, int) else RATE_MIN):
            raise ValueError(_no_unit(str(value), f"{value:g}"))
        return float(_within(value, RATE_MAX, "rate", value))
    if not isinstance(value, str):
        raise ValueError("a rate is a number of bits a second or text like '100 Gbit/s'")
    number, unit = _split(value, "rate", "100 Gbit/s")
    base = re.sub(r"(/s|ps)$", "", unit)
    match = re.fullmatch(r"([kKMmGgTt]i?|)(bits|bit|b|B|Bytes|bytes|byte)?", base)
    if match is None or (unit and not base):
        raise ValueError(f"{value!r} has no unit of rate; write it like '100 Gbit/s'")
    prefix, letter = match.group(1).lower(), match.group(2) or ""
    figure = f"{number:g} {match.group(1)}"
    if not letter:
        raise ValueError(_no_unit(value, figure))
    if base == unit and (letter[0] == "B" or letter.startswith("byte")):
        raise ValueError(
            f"{value!r} is a size, not a rate; write '{figure}B/s' (bytes) or '{figure}bit/s' (bits)"
        )
    scale = _BINARY.get(prefix) or _PREFIX[prefix]
    bits = 8.0 if letter[0] == "B" or letter.startswith("byte") else 1.0
    return _within(number * scale * bits, RATE_MAX, "rate", value)


def parse_size_bytes(value: object) -> int:
    """A size in bytes: `98 MB`, `16MiB`, `4B`; a bare number is bytes."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return round(_within(value, SIZE_MAX, "size", value))
    if not isinstance(value, str):
        raise ValueError("a size is a number of bytes or text like '98 MB'")
    number, unit = _split(value, "size", "98 MB")
    if unit.endswith(("/s", "ps")):
        raise ValueError(f"{value!r} is a rate, not a size; write a size like '98 MB' or '16 MiB'")
    match = re.fullmatch(r"([kKMmGgTt]i?|)(B|b|bytes|byte)?", unit)
    if match is None or (match.group(2) == "b"):
        raise ValueError(f"{value!r} has no unit of size; write it like '98 MB' or '16 MiB'")
    prefix = match.group(1).lower()
    return round(_within(number * (_BINARY.get(prefix) or _PREFIX[prefix]), SIZE_MAX, "size", value))


def parse_seconds(value: object) -> float:
    """A time in seconds: `8h`, `250 ms`, `1.5`; a bare number is seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(_within(value, SECONDS_MAX, "time", value))
    if not isinstance(value, str):
        raise ValueError("a time is a number of seconds or text like '250 ms'")
    number, unit = _split(value, "time", "250 ms")
    if unit not in _SECONDS:
        raise ValueError(f"{value!r} has no unit of time; write it like '12 us', '250 ms' or '8h'")
    return _within(number * _SECONDS[unit], SECONDS_MAX, "time", value)


def parse_time_ns(value: object) -> int:
    """A time in whole nanoseconds, from the same forms as `parse_seconds`."""
    return round(parse_seconds(value) * 1e9)


def format_rate(rate_bps: float) -> str:
    """`100 Gbit/s` for 1e11."""
    return _scaled(rate_bps, "bit/s")


def format_size(size_bytes: float) -> str:
    """`98 MB` for 98_000_000."""
    return _scaled(size_bytes, "B")


def format_seconds(seconds: float) -> str:
    """Three significant digits in the unit a person would choose."""
    if seconds != seconds:
        return "-"
    size = abs(seconds)
    if size >= 7200:
        return f"{seconds / 3600:.3g} h"
    if size >= 600:
        return f"{seconds / 60:.3g} min"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if size >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _scaled(number: float, unit: str) -> str:
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale:
            return f"{number / scale:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


Rate = Annotated[float, BeforeValidator(parse_rate_bps), Field(gt=0)]
Size = Annotated[int, BeforeValidator(parse_size_bytes), Field(ge=0)]
TimeNs = Annotated[int, BeforeValidator(parse_time_ns), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(ge=0)]
