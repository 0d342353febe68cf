"""Validated TOML: `load(path, Model)` gives the model, or one line that names file, line and key.

`tomllib` does not tell where a key stands, so a small scanner maps each key's path to its line; it is used
only to report errors, never to read values, and an unusual layout merely costs the line number.
"""

import difflib
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_core import ErrorDetails

from paceline.errors import UserError
from paceline.whole_files import read_bytes

KeyPath = tuple[str | int, ...]
INTEGER_MAX = 2**63 - 1
DEPTH_MAX = 16
"""Keys that lie deeper have no line."""
GIVEN_MAX = 100
"""Letters of a value that an error shows."""


class Section(BaseModel):
    """Base of every configuration record: unknown keys are errors, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _check_number(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > INTEGER_MAX:
            raise ValueError("is more than can be reckoned with")
        return value


S = TypeVar("S", bound=BaseModel)


def _check_name(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has a character that cannot be shown")
    return text


Name = Annotated[str, AfterValidator(_check_name)]
"""A name in a file: a line break or a terminal's command in it is refused."""

_HEADER = re.compile(r"^\s*(\[{1,2})\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(
    r"^\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*="
)


def load(path: Path, model: type[S], overrides: Sequence[str] = ()) -> S:
    """Read a TOML file into `model`; `overrides` are `key.path=value` texts from the command line."""
    text = read_text(path)
    data = parse(text, str(path))
    lines = key_lines(text)
    for override in overrides:
        lines[apply_override(data, override)] = 0
    return validate(data, model, str(path), lines)


def parse(text: str, place: str) -> dict[str, Any]:
    """The tables of a text, or a `UserError` that says why there are none."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UserError("not valid TOML: nested too deep", place=place) from None
    except ValueError as error:  # no TOML, or a number of thousands of digits
        raise UserError(f"not valid TOML: {str(error).partition(';')[0]}", place=place) from None


def read_text(path: Path) -> str:
    """The file's text, or a `UserError` that says why there is none."""
    try:
        return read_bytes(path).decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"cannot be read: {error}", place=str(path)) from None


def validate(data: Mapping[str, Any], model: type[S], name: str, lines: Mapping[KeyPath, int]) -> S:
    """Check plain data against `model`; the first error becomes one line with its place."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _user_error(error, model, name, lines) from None


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of each key, by path; elements of arrays of tables are numbered from 0."""
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    prefix: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            path: KeyPath = ()
            parts = _parts(header.group(2))
            for part in parts[:-1]:
                path = (*path, part)
                if path in counts:
                    path = (*path, counts[path] - 1)
            path = (*path, parts[-1])
            for end in range(1, len(path)):
                lines.setdefault(path[:end], number)
            if header.group(1) == "[[":
                lines.setdefault(path, number)
                counts[path] = counts.get(path, 0) + 1
                path = (*path, counts[path] - 1)
            lines.setdefault(path, number)
            prefix = path
        elif key := _KEY.match(line):
            path = prefix
            for part in _parts(key.group(1)):
                path = (*path, part)
                lines.setdefault(path, number)
    return lines


def apply_override(data: dict[str, Any], override: str) -> KeyPath:
    """Set `a.b.0.c=value` in plain data; the value is TOML if it parses as such, else a text."""
    key, equals, raw = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"{override!r} is not KEY=VALUE", place="--set")
    try:
        value = tomllib.loads(f"x = {raw}")["x"]
    except (ValueError, RecursionError):
        value = raw.strip()
    path: KeyPath = tuple(int(part) if part.isdigit() else part for part in key.strip().split("."))
    target: Any = data
    for part, following in itertools.pairwise(path):
        try:
            if isinstance(target, dict):
                target = target.setdefault(str(part), [] if isinstance(following, int) else {})
            else:
                target = target[part]
        except (KeyError, IndexError, TypeError):
            raise UserError(f"there is no {part!r} to set in {key.strip()!r}", place="--set") from None
    try:
        target[str(path[-1]) if isinstance(target, dict) else path[-1]] = value
    except (KeyError, IndexError, TypeError):
        raise UserError(f"there is no place {key.strip()!r} to set", place="--set") from None
    return path


def _parts(dotted: str) -> list[str]:
    found = re.finditer(r"\"[^\"]*\"|'[^']*'|[^.]+", dotted)
    return [part.group().strip().strip("\"'") for part in itertools.islice(found, DEPTH_MAX)]


def _user_error(
    error: ValidationError, model: type[BaseModel], name: str, lines: Mapping[KeyPath, int]
) -> UserError:
    # Unknown keys first: a misspelt key usually also shows up as a missing one.
    details = sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    first = details[0]
    location: KeyPath = tuple(part for part in first["loc"] if not _is_tag(part, first["loc"], lines))
    line = _nearest_line(location, lines)
    place = name if line is None else "--set" if line == 0 else f"{name}:{line}"
    shown = ".".join(str(part) for part in location)
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(sorted(known))}"
        return UserError(f"unknown key {shown!r}; {hint}", place=place)
    if first["type"] == "missing":
        return UserError(f"key {shown!r} is missing", place=place)
    message = in_our_words(first)
    return UserError(f"{shown}: {message}" if shown else message, place=place)


def shortened(value: object) -> str:
    """A value as an error shows it."""
    text = repr(value)
    return text if len(text) <= GIVEN_MAX else f"{text[:GIVEN_MAX]}..."


_WORDS = {
    "int": "a whole number", "float": "a number", "string": "a text", "bool": "true or false", "list": "a list, [...]",
    "tuple": "a list, [...]", "dict": "a table, {...}", "model": "a table, {...}", "date": "a date",
}  # fmt: skip
"""What the validator's kinds of values are called here."""
_BOUNDS = {
    "greater_than": "has to be above {gt:g}", "greater_than_equal": "has to be at least {ge:g}",
    "less_than": "has to be below {lt:g}", "less_than_equal": "has to be at most {le:g}",
    "too_short": "has to have at least {min_length} entries", "too_long": "may have at most {max_length} entries",
    "string_too_short": "has to have at least {min_length} letters",
    "string_too_long": "may have at most {max_length} letters",
    "literal_error": "has to be {expected}", "enum": "has to be {expected}",
    "finite_number": "has to be a finite number", "int_from_float": "has to be a whole number",
}  # fmt: skip


def in_our_words(error: ErrorDetails) -> str:
    """What is wrong with a value, and the value; not in the words of the library that found it."""
    message, given = _message(error), error.get("input")
    if isinstance(given, str | int | float | bool) and repr(given) not in message:
        message = f"{message} (given {shortened(given)})"
    return message


def _message(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**error.get("ctx", {}))
    for suffix in ("_type", "_parsing", "_parsing_size", "_attributes_type"):
        word = _WORDS.get(kind.removesuffix(suffix)) if kind.endswith(suffix) else None
        if word is not None:
            return f"has to be {word}"
    return error["msg"].removeprefix("Value error, ")


def _is_tag(part: str | int, location: Sequence[str | int], lines: Mapping[KeyPath, int]) -> bool:
    # Pydantic names the member of a union in `loc`; such names are no keys of the file.
    return isinstance(part, str) and ("[" in part or "(" in part)


def _nearest_line(location: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    for end in range(len(location), 0, -1):
        if location[:end] in lines:
            return lines[location[:end]]
    return None


def _fields_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    current: type[BaseModel] | None = model
    named = False
    for part in path:
        if isinstance(part, int) or current is None:
            continue
        if named:  # The key of a table of tables, such as NAME in [policy.NAME].
            named = False
            continue
        field = current.model_fields.get(part)
        named = field is not None and get_origin(field.annotation) is dict
        current = _model_in(field.annotation) if field is not None else None
    if current is None:
        return []
    return [field.alias or key for key, field in current.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
