"""The errors that a user can cause, and the exit codes of every command.

A `UserError` is a mistake in what the user gave: a file, a key, a value. Its text is one line that names
the place; the command line prints it and exits with 2. Code tells errors apart by their types
and fields, never by their text. Anything else that escapes is a defect of ours.
"""

import importlib
from typing import Any

EXIT_OK = 0
EXIT_FAILED = 1
"""The command ran and its answer is no: a check failed, a result was wrong."""
EXIT_USAGE = 2
"""The command could not run as asked: a bad file, key, value or option."""

NEEDS_PANDAS = "to_dataframe needs pandas: pip install pandas"


class UserError(Exception):
    """A mistake in the input, told in one line: where it is, what is wrong, what would be right."""

    def __init__(self, message: str, *, place: str = "") -> None:
        self.place = place
        self.message = message
        super().__init__(f"{place}: {message}" if place else message)


class SettingError(UserError):
    """A setting that does not fit what else is asked for; `key` leads to it in the file."""

    def __init__(self, message: str, *, key: tuple[str, ...]) -> None:
        self.key = key
        super().__init__(message, place=".".join(key))


class JobError(UserError):
    """A job that does not fit, by its name."""

    def __init__(self, message: str, *, job: str) -> None:
        self.job = job
        super().__init__(message, place=f"job {job!r}")


def optional_module(name: str, missing: str, *, place: str = "") -> Any:
    """A module of a package that not everyone has; `missing` says what needs it and how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(missing, place=place) from None
