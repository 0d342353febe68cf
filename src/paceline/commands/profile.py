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
    switch: Annotated[
        bool,
        typer.Option(
            "--switch", help="Then run it again over a switch that is started here: what sums there cost."
        ),
    ] = False,
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
    this command; rank 0 is watched. Where all ranks are on this machine, no link limits them, and the file also has how
    long a whole step takes over the exchange that the script uses (Gloo, or a switch), and with --switch over both:
    simulations then know what an exchange costs processors. A trace that there is already gives the same file without
    that; what could not be read is named.

    Examples:

      paceline profile -- torchrun --nproc-per-node 4 examples/train_ddp.py --backend gloo

      paceline profile --steps 50 --out resnet.toml -- python train.py

      paceline profile --switch -- torchrun --nproc-per-node 4 examples/train_ddp.py --backend gloo

      paceline profile --kineto trace.json --out resnet.toml

      paceline profile --chakra resnet.0.et --out resnet.toml
    """
    from paceline.errors import UserError
    from paceline.models.profile import load_profile
    from paceline.units import format_seconds, format_size

    if sum(given is not None and given != [] for given in (command, kineto, chakra)) != 1:
        raise UserError("give a command after --, or --kineto FILE, or --chakra FILE", place="profile")
    if switch and not command:
        raise UserError("only a command can be run over a switch, not a trace", place="--switch")
    unread: tuple[str, ...] = ()
    if kineto is not None:
        from paceline.models.kineto import read_kineto

        unread = _write(out, read_kineto(kineto))
    elif chakra is not None:
        from paceline.models.chakra import read_chakra

        unread = _write(out, read_chakra(chakra))
    else:
        _watch(command or [], out, steps)
        if switch and load_profile(out).exchange_by("switch") is None:
            _add_switch(command or [], out, steps)
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
    for step in measured.exchange:
        way = "Gloo" if step.name == "gloo" else "a switch"
        where = f"{step.workers} ranks on {step.cores} cores, no links between them"
        typer.echo(f"a whole step over {way} {format_seconds(step.step)}: {where}")
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


def _add_switch(command: list[str], out: Path, steps: int) -> None:
    """Run the script once more, over a switch of its own, and add what a step takes there."""
    from paceline.bench.processes import ChildError
    from paceline.bench.run import own_switch
    from paceline.errors import UserError
    from paceline.models.profile import exchange_text, load_profile

    again = out.with_suffix(".switch")
    try:
        with own_switch() as variables:
            # Ranks of one machine would sum in its memory; the switch is what is asked about.
            _watch(
                command, again, steps, variables | {"PACELINE_BACKEND": "auto", "PACELINE_HOST_REDUCE": "0"}
            )
        measured = load_profile(again).exchange_by("switch")
    except ChildError as error:
        raise UserError(f"the switch did not start: {error}", place="--switch") from None
    finally:
        again.unlink(missing_ok=True)
    if measured is None:
        raise UserError("its gradients did not go over the switch: does it ask for Gloo?", place=command[0])
    with out.open("a", encoding="utf-8") as file:
        file.write(exchange_text(measured))


def _watch(command: list[str], out: Path, steps: int, more: dict[str, str] | None = None) -> None:
    """Run the script; rank 0 writes the file."""
    import os
    import subprocess

    from paceline.errors import EXIT_FAILED, UserError

    out.unlink(missing_ok=True)
    environment = os.environ | {"PACELINE_PROFILE": str(out.absolute()), "PACELINE_PROFILE_STEPS": str(steps)}
    environment |= more or {}
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
