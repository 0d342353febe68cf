"""JSON that others wrote: read, or refused in one line, whatever it holds."""

import json
import math
from typing import Any

from paceline.errors import UserError
from paceline.names import unicode_text

DEPTH_MAX = 8
TEXT_MAX = 4_096
"""Characters of a text, or of a key."""


def parse(text: str | bytes, place: str, what: str = "not valid JSON") -> Any:
    """The value; `what` begins the line of what is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{what}: {error.msg}", place=f"{place}:{error.lineno}") from None
    except RecursionError:
        raise UserError(f"{what}: nested too deep", place=place) from None
    except ValueError as error:  # bytes that are no text, a number of thousands of digits
        raise UserError(f"{what}: {str(error).partition(';')[0]}", place=place) from None


def storable(value: Any, depth: int = DEPTH_MAX) -> Any:
    """The same value, fit to be stored, shown and sent on as JSON, in which a job may tell anything.

    Numbers that are not finite or beyond a float become None, and so does what is nested deeper than `depth`. Texts
    are Unicode, and not endless.
    """
    if isinstance(value, str):
        return unicode_text(value[:TEXT_MAX])
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        try:
            return value if math.isfinite(value) else None
        except OverflowError:
            return None
    if depth == 0:
        return None
    if isinstance(value, dict):
        return {unicode_text(key[:TEXT_MAX]): storable(part, depth - 1) for key, part in value.items()}
    return [storable(part, depth - 1) for part in value]
