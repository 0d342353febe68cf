"""`paceline profile`: a job entry from the user's own training script, measured while it runs."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.commands.output import JsonFile, write_json


def profile(
    command: Annotated[list[str], typer.Argument(help="The script's own command, after --.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the profile goes.")] = Path("profile.toml"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps to measure.")] = 20,
    json_file: JsonFile = "",
) -> None:
    """Measure a PyTorch training script, unchanged: passes, gradients in the order of release, jitter.

    The file is what `profile = "FILE"` of a job in a job list reads. The script runs as it does without this command;
    rank 0 is watched.

    Examples:

      paceline profile -- torchrun --nproc-per-node 4 examples/train_ddp.py --backend gloo

      paceline profile --steps 50 --out resnet.toml -- python train.py
    """
    import os
    import subprocess

    from paceline.errors import EXIT_FAILED, UserError
    from paceline.schedule.inputs.profile import load_profile
    from paceline.units import format_seconds, format_size

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
    measured = load_profile(out)
    if json_file:
        write_json(json_file, {"profile": str(out), **measured.model_dump()})
    if json_file == "-":
        return
    typer.echo(
        f"{out}: {len(measured.layers)} gradients, {format_size(measured.gradient)}; forward "
        f"{format_seconds(measured.forward)}, backward {format_seconds(measured.backward)}, "
        f"jitter {measured.jitter:.1%}"
    )
