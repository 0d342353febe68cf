"""`paceline cluster`: a cluster file from what Slurm, Ray or a list of nodes says."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.commands.output import JsonFile, write_json

if TYPE_CHECKING:
    from paceline.schedule.inputs.discover import Found

_OUT = typer.Option(None, "--out", metavar="FILE", help="Write the cluster file here instead of printing it.")
_LINK = typer.Option(
    None, "--link", help="Rate of a server's link, such as '100 Gbit/s', where it is not known."
)


def from_slurm(
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="What `scontrol show node --oneliner` printed; by default it is run.", show_default=False
        ),
    ] = None,
    topology: Annotated[
        Path | None,
        typer.Option(
            help="topology.conf, or what `scontrol show topology` printed; by default that is run.",
            show_default=False,
        ),
    ] = None,
    link: str | None = _LINK,
    out: Path | None = _OUT,
    json_file: JsonFile = "",
) -> None:
    """Nodes, GPUs and racks of a Slurm cluster, as a cluster file.

    Examples:

      paceline cluster from-slurm --link "100 Gbit/s" --out cluster.toml

      paceline cluster from-slurm --nodes nodes.txt --topology topology.conf
    """
    from paceline.schedule.inputs.discover import from_slurm as read
    from paceline.toml import read_text

    nodes_text = read_text(nodes) if nodes else _scontrol("node", "--oneliner")
    # A cluster without a topology plugin says so on stderr: then all nodes are under one switch.
    topology_text = (
        read_text(topology) if topology else ("" if nodes else _scontrol("topology", may_fail=True))
    )
    _write(
        read(nodes_text, topology_text, str(nodes or "scontrol"), str(topology or "scontrol")),
        link,
        out,
        json_file,
    )


def from_ray(
    nodes: Annotated[
        Path, typer.Argument(metavar="NODES.json", help="JSON of `ray list nodes --format json`.")
    ],
    link: str | None = _LINK,
    out: Path | None = _OUT,
    json_file: JsonFile = "",
) -> None:
    """Nodes and GPUs of a Ray cluster, as a cluster file; a label `rack` is a node's rack.

    Examples:

      ray list nodes --format json > nodes.json

      paceline cluster from-ray nodes.json --link "100 Gbit/s" --out cluster.toml
    """
    from paceline.schedule.inputs.discover import from_ray as read
    from paceline.toml import read_text

    _write(read(read_text(nodes), str(nodes)), link, out, json_file)


def from_nodes(
    nodes: Annotated[
        Path,
        typer.Argument(
            metavar="NODES.csv", help="CSV with the columns name, gpus, and if known rack and link."
        ),
    ],
    link: str | None = _LINK,
    out: Path | None = _OUT,
    json_file: JsonFile = "",
) -> None:
    """A list of nodes, as a cluster file.

    Examples:

      printf 'name,gpus,rack\\nn0,8,a\\nn1,8,a\\nn2,8,b\\n' > nodes.csv

      paceline cluster from-nodes nodes.csv --link "100 Gbit/s" --out cluster.toml
    """
    from paceline.schedule.inputs.discover import from_nodes as read
    from paceline.toml import read_text

    _write(read(read_text(nodes), str(nodes)), link, out, json_file)


def _scontrol(what: str, *options: str, may_fail: bool = False) -> str:
    import subprocess

    from paceline.errors import UserError

    command = ["scontrol", "show", what, *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"`{' '.join(command)}` could not be run: {error}", place="scontrol") from None
    if done.returncode != 0:
        if may_fail:
            return ""
        raise UserError(f"`{' '.join(command)}` failed: {done.stderr.strip()}", place="scontrol")
    return done.stdout


def _write(found: "Found", link: str | None, out: Path | None, json_file: str) -> None:
    import tomllib

    from paceline.errors import UserError
    from paceline.schedule.inputs.discover import to_toml
    from paceline.units import parse_rate_bps

    try:
        link_bps = parse_rate_bps(link) if link else None
    except ValueError as error:
        raise UserError(str(error), place="--link") from None
    text = to_toml(found, link_bps)
    if json_file:
        write_json(json_file, tomllib.loads(text))
    if out is None:
        if json_file != "-":
            typer.echo(text, nl=False)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror or error}", place=str(out)) from None
    if json_file == "-":
        return
    racks = len({node.rack for node in found.nodes})
    typer.echo(
        f"{out}: {len(found.nodes)} servers with {sum(n.gpus for n in found.nodes)} GPUs in {racks} racks"
    )
    for note in found.notes:
        typer.echo(f"  {note}")
