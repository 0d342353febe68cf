"""What was typed wrong, in one line of our words: which option or argument, what is wrong with it, what would be right.

The library that reads the command line names parameters in its own way, prints a box, and leaves the words to a third
library. Here its errors become what every other mistake of a user is: a `UserError`.
"""

import difflib
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from paceline.errors import UserError

MISUSE: type[Exception] = typer.BadParameter.__mro__[2]
"""The base of all that the library finds wrong with a command line; it has no public name in every version."""


class Commands(TyperGroup):
    """A group of commands that says which of them an unknown word may mean."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0] if args else ""
        if word and not word.startswith("-") and word not in self.commands and not ctx.resilient_parsing:
            asked = " ".join([*_words(ctx), word])
            raise UserError(f"there is no command {asked!r}; {_meant(word, list(self.commands))}")
        return super().resolve_command(ctx, args)


def told(error: Any) -> UserError:
    """What the library raised, as a mistake with its place."""
    context = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    place, message = "", str(error.message or "").rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        known = [each for one in context.command.params for each in one.opts] if context else []
        message = f"there is no option {error.option_name!r}; {_meant(error.option_name, known)}"
    elif parameter is None:
        message = message[:1].lower() + message[1:]
    elif type(error).__name__ == "MissingParameter":
        message = f"{_shown(parameter)} is missing"
    else:
        place, message = _shown(parameter), _wrong(error, message)
    if context is not None:
        message += f"; see {' '.join(['paceline', *_words(context), '-h'])}"
    return UserError(message, place=place)


def _words(context: Any) -> list[str]:
    """The command's words after `paceline`, however that was started."""
    return str(context.command_path).removeprefix(str(context.find_root().info_name)).split()


def _meant(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"


def _shown(parameter: Any) -> str:
    """An option by its long name, an argument as the help has it."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.human_readable_name)
    return str(max(parameter.opts, key=len))


def _wrong(error: Any, message: str) -> str:
    """What is wrong with a value; its validator's words are replaced by ours."""
    from pydantic import ValidationError

    from paceline.toml import in_our_words

    cause = error.__cause__
    return in_our_words(cause.errors()[0]).rstrip(".") if isinstance(cause, ValidationError) else message
