"""Lists of rows as people export them: comma, semicolon or tab between the fields, a byte order mark or none."""

import csv
import io
from collections.abc import Sequence

from paceline.errors import UserError

# A field may be as long as it likes: what it means is judged by who reads it.
csv.field_size_limit(2**31 - 1)
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def read_rows(
    text: str, place: str, known: Sequence[str], needed: Sequence[str]
) -> "tuple[csv.DictReader[str], list[str]]":
    """A reader of the rows, and the columns; a column that is missing or not known is named."""
    text = text.removeprefix("\ufeff")
    first = text.split("\n", 1)[0]
    separator = max(SEPARATORS, key=first.count)
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True, delimiter=separator)
    columns = [column.strip() for column in reader.fieldnames or ()]
    for column in columns:
        if column not in known:
            hint = "" if separator == "," else f" (fields were taken to be parted by {SEPARATORS[separator]})"
            raise UserError(
                f"unknown column {column!r}; known: {', '.join(sorted(known))}{hint}", place=f"{place}:1"
            )
    for name in needed:
        if name not in columns:
            raise UserError(f"column {name!r} is missing", place=f"{place}:1")
    reader.fieldnames = columns
    return reader, columns
