"""`paceline profile`: a job entry from the user's own training script, measured as it runs, or from a trace of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.commands.output import JsonFile, write_json

if TYPE_CHECKING:
    from paceline.models.profile import Measured


def profile(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND ...", help="The script's own command, after --.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the profile goes.")] = Path("profile.toml"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps to measure.")] = 20,
    kineto: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read a PyTorch profiler's trace (JSON) instead.")
    ] = None,
    chakra: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read a Chakra execution trace (.et) instead.")
    ] = None,
    json_file: JsonFile = "",
) -> None:
    """Measure a PyTorch training script, unchanged: passes, gradients in the order of release, jitter.

    The file is what `profile = "FILE"` of a job in a job list or a scenario reads. The script runs as it does without
    this command; rank 0 is watched. A trace that there is already gives the same file; what could not be read is named.

    Examples:

      paceline profile -- torchrun --nproc-per-node 4 examples/train_ddp.py --backend gloo

      paceline profile --steps 50 --out resnet.toml -- python train.py

      paceline profile --kineto trace.json --out resnet.toml

      paceline profile --chakra resnet.0.et --out resnet.toml
    """
    from paceline.errors import UserError
    from paceline.models.profile import load_profile
    from paceline.units import format_seconds, format_size

    if sum(given is not None and given != [] for given in (command, kineto, chakra)) != 1:
        raise UserError("give a command after --, or --kineto FILE, or --chakra FILE", place="profile")
    unread: tuple[str, ...] = ()
    if kineto is not None:
        from paceline.models.kineto import read_kineto

        unread = _write(out, read_kineto(kineto))
    elif chakra is not None:
        from paceline.models.chakra import read_chakra

        unread = _write(out, read_chakra(chakra))
    else:
        _watch(command or [], out, steps)
    measured = load_profile(out)
    if json_file:
        write_json(json_file, {"profile": str(out), **measured.model_dump(), "unread": list(unread)})
    if json_file == "-":
        return
    typer.echo(
        f"{out}: {len(measured.layers)} gradients, {format_size(measured.gradient)}; forward "
        f"{format_seconds(measured.forward)}, backward {format_seconds(measured.backward)}, "
        f"jitter {measured.jitter:.1%}"
    )
    for each in unread:
        typer.echo(f"not read: {each}")


def _write(out: Path, seen: "Measured") -> tuple[str, ...]:
    """The profile of a trace; gives what could not be read."""
    from paceline.errors import UserError
    from paceline.models.profile import entry_text

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(entry_text(seen), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", place=str(out)) from None
    return seen.unread


def _watch(command: list[str], out: Path, steps: int) -> None:
    """Run the script; rank 0 writes the file."""
    import os
    import subprocess

    from paceline.errors import EXIT_FAILED, UserError

    out.unlink(missing_ok=True)
    environment = os.environ | {"PACELINE_PROFILE": str(out.absolute()), "PACELINE_PROFILE_STEPS": str(steps)}
    try:
        code = subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        raise UserError(f"could not be run: {error.strerror or error}", place=command[0]) from None
    if not out.exists():
        if code:
            typer.echo(f"paceline: the script ended with {code} before {steps} steps were seen", err=True)
            raise typer.Exit(EXIT_FAILED)
        raise UserError(
            f"no PyTorch training loop of {steps} steps was seen; fewer steps: --steps", place=command[0]
        )
