"""Which sizes to measure: `4B..100MB`, `25MB,100MB`, or both mixed."""

from paceline.errors import UserError
from paceline.units import parse_size_bytes

SIZE_MAX_BYTES = 2**31
STEP = 8
"""Between the sizes of a range: 4 B to 100 MB are then ten sizes."""
_PLACE = "--sizes"


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes in bytes, in the order given, each once; a range goes up by `STEP` and ends with its end."""
    sizes: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        sizes.extend(_range(_size(first), _size(last)) if dots else [_size(first)])
    return tuple(dict.fromkeys(sizes))


def _size(text: str) -> int:
    try:
        size = parse_size_bytes(text.strip())
    except ValueError as error:
        raise UserError(str(error), place=_PLACE) from None
    if not 1 <= size <= SIZE_MAX_BYTES:
        raise UserError(f"{text.strip()!r} is not between 1 B and 2 GiB", place=_PLACE)
    return size


def _range(first: int, last: int) -> list[int]:
    if last < first:
        raise UserError(f"the range ends at {last} B, before it begins at {first} B", place=_PLACE)
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= STEP
    return [*sizes, last]
