"""JSON that others wrote: read, or refused in one line, whatever it holds."""

import json
from typing import Any

from paceline.errors import UserError


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
