"""`paceline bench allreduce`: how fast a sum over all workers is, beside Gloo in the same run."""

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.commands.output import JsonFile, Legend, finite, page_console, print_legend, write_json

if TYPE_CHECKING:
    from paceline.bench.measurement import MeasuredRow, Measurement, Outcome

HELP = """Measure all_reduce through a switch as a training script gets it, and Gloo in the same run.

Every rank is a process with init_process_group("paceline"), beside a `paceline switch` that is started and ended
here. The columns are those of nccl-tests: time of one all-reduce (median of the repetitions, which take turns with
Gloo's), algbw = size / time, busbw = algbw x 2 (n - 1) / n, cpu, the processor time of all ranks and our switch for
each GB of the tensor, and #wrong, the elements of all ranks that
are further from the exact sum than the method's stated error, or that differ between ranks. The busbw of a sum
inside the network can exceed the link's rate: it says how fast a ring's links would have to be.

Without --rate the ranks share this machine's loopback. With --rate (root) each has a network namespace with
one link to the switch, limited in both directions; Gloo gets the same links. Everything is removed at the end.

vs gloo: our algbw over Gloo's. vs line: the ideal time over ours. Ideal is size / goodput, with goodput = rate x
payload share of the frames (0.930 with an MTU of 1500): an in-network sum sends and receives everything once.
Sizes near the limiter's burst of 128 KiB can exceed the line.

With --switches N, N servers beside the workers are switches. Each has one link, of --rate, which carries what all
workers send it and what it sends to all; the workers' links are N times as wide. From two on, the rows paceline/1
are the same sums over the first switch alone, in the same run and on the same links, and #wrong of these counts
results that differ in any bit from those over all.

Exit code: 0; 1 if an element was wrong or a process failed; 2 for a mistake in what was given.

Examples:

  paceline bench allreduce --workers 4 --sizes 4B..100MB

  paceline bench allreduce --workers 8 --rate 200mbit --sizes 25MB,100MB

  paceline bench allreduce --workers 4 --no-host-reduce --sizes 100MB --shards 2 --json -

  paceline bench allreduce --workers 8 --rate 200mbit --loss 0.01 --peer none --sizes 25MB

  paceline bench allreduce --workers 2 --rate 200mbit --spin --sizes 25MB

  paceline bench allreduce --workers 4 --switches 2 --rate 200mbit --sizes 25MB
"""
BACKENDS = ("paceline", "gloo")
TYPES = ("float32", "bfloat16", "float16", "int32")


def allreduce(
    workers: Annotated[int, typer.Option(min=2, max=64, help="Ranks, one process each.")] = 4,
    sizes: Annotated[
        str, typer.Option(metavar="SIZES", help="Of the tensor: a range (times 8 each), a list, or both.")
    ] = "4B..100MB",
    rate: Annotated[
        str, typer.Option(metavar="RATE", help="Of each link, e.g. 200mbit; makes namespaces, needs root.")
    ] = "",
    peer: Annotated[str, typer.Option(metavar="gloo|none", help="What to measure beside it.")] = "gloo",
    loss: Annotated[
        float,
        typer.Option(
            callback=finite,
            min=0.0,
            max=0.5,
            help="Share of packets that our switch drops on purpose; Gloo's lose nothing.",
        ),
    ] = 0.0,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="paceline; or gloo, to measure the peer alone.")
    ] = "paceline",
    dtype: Annotated[str, typer.Option(metavar="TYPE", help=", ".join(TYPES) + ".")] = "float32",
    wire: Annotated[
        str,
        typer.Option(metavar="32", help="Bits of a number on the wire; default: 16 for types of 16 bits."),
    ] = "",
    host_reduce: Annotated[
        bool, typer.Option(help="Whether ranks of one host sum in shared memory first (without --rate).")
    ] = True,
    policy: Annotated[str, typer.Option(metavar="NAME", help="Of the switch.")] = "esa",
    switches: Annotated[
        int,
        typer.Option(
            min=0, max=8, help="Servers that are switches, each with a link of --rate; 0: the hub is one."
        ),
    ] = 0,
    shards: Annotated[int, typer.Option(min=1, max=64, help="Of the switch, one thread each.")] = 1,
    spin: Annotated[
        bool, typer.Option("--spin", help="Measure also with every rank's main thread busy in Python.")
    ] = False,
    mtu: Annotated[int, typer.Option(min=576, max=9000, help="Of the links of --rate.")] = 1500,
    repeat: Annotated[
        int, typer.Option(min=0, max=1000, help="Repetitions; 0: three to fifteen, by what a size costs.")
    ] = 0,
    legend: Legend = False,
    json_file: JsonFile = "",
) -> None:
    from paceline.bench.measurement import Measurement, parse_sizes
    from paceline.errors import EXIT_FAILED

    _check_torch()
    known = _one_of("--dtype", dtype, TYPES)
    measurement = Measurement(
        workers=workers,
        sizes=_whole(parse_sizes(sizes), known),
        backends=_backends(backend, peer),
        dtype=known,
        rate_bps=_rate(rate),
        mtu=mtu,
        loss=loss,
        host_reduce=host_reduce,
        policy=policy,
        shards=shards,
        switches=switches,
        wire=int(_one_of("--wire", wire, ("", "32")) or 0) or None,
        spin=spin,
        repeat=repeat,
    )
    outcome = _run(measurement, quiet=json_file == "-")
    if json_file:
        write_json(json_file, outcome.to_json())
    if json_file != "-":
        _show_ratios(outcome)
        if legend:
            print_legend(page_console(110), (*COLUMNS, "vs gloo", "vs line", "vs one switch"))
    if outcome.trouble():
        typer.echo(f"paceline: bench allreduce: {outcome.trouble()}", err=True)
    if outcome.trouble() or any(row.wrong for row in outcome.rows):
        raise typer.Exit(EXIT_FAILED)


allreduce.__doc__ = HELP


def _check_torch() -> None:
    import importlib.util

    from paceline.errors import UserError

    if importlib.util.find_spec("torch") is None:
        raise UserError(
            "the ranks need PyTorch: pip install 'paceline[torch,switch]'", place="bench allreduce"
        )


def _one_of(option: str, name: str, known: tuple[str, ...]) -> str:
    from paceline.errors import UserError

    if name not in known:
        raise UserError(f"{name!r} is not one of {', '.join(filter(None, known))}", place=option)
    return name


def _backends(backend: str, peer: str) -> tuple[str, ...]:
    _one_of("--backend", backend, BACKENDS)
    _one_of("--peer", peer, ("gloo", "none"))
    return tuple(dict.fromkeys([backend, *([] if peer == "none" else [peer])]))


def _rate(text: str) -> float | None:
    from paceline.emulation.namespaces import check_possible
    from paceline.errors import UserError
    from paceline.units import parse_rate_bps

    if not text:
        return None
    try:
        rate_bps = parse_rate_bps(text)
    except ValueError as error:
        raise UserError(str(error), place="--rate") from None
    if not 1e6 <= rate_bps <= 100e9:
        raise UserError(f"{text!r} is not between 1 Mbit/s and 100 Gbit/s", place="--rate")
    check_possible()
    return rate_bps


def _whole(sizes: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """Sizes cut to whole elements, at least one."""
    from paceline.bench.reference import ITEM_BYTES

    item = ITEM_BYTES[dtype]
    return tuple(dict.fromkeys(max(item, size // item * item) for size in sizes))


def _run(measurement: "Measurement", quiet: bool) -> "Outcome":
    from paceline.bench.processes import ChildError
    from paceline.bench.run import run
    from paceline.errors import EXIT_FAILED

    if not quiet:
        _show_head(measurement)
    try:
        with _sigterm_as_interrupt():
            return run(measurement, (lambda row: None) if quiet else _show_row)
    except ChildError as error:
        typer.echo(f"paceline: bench allreduce: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Leave by the same door on SIGTERM as on Ctrl-C, so that everything is removed."""

    def leave(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


COLUMNS = (
    *("size", "count", "type", "redop", "backend", "time of an all-reduce", "algbw", "busbw"),
    *("processor time", "#wrong"),
)
_FORMAT = "{:>12} {:>12} {:>9} {:>6} {:>14} {:>12} {:>9} {:>9} {:>9} {:>7}"


def _show_head(measurement: "Measurement") -> None:
    from paceline.units import format_rate

    wide = measurement.worker_rate_bps
    links = f"links of {format_rate(wide)}" if wide else "loopback"
    ours = (
        f", {_named_switches(measurement)}: {measurement.policy}, {measurement.shards} shard(s)"
        if "paceline" in measurement.backends
        else ""
    )
    typer.echo(f"# {measurement.workers} workers, {links}{ours}; time: median of the slowest rank's")
    if measurement.loss:
        typer.echo(
            f"# our switch drops {measurement.loss:.2%} of its packets on purpose; Gloo's packets are not dropped"
        )
    typer.echo(
        _FORMAT.format("size", "count", "type", "redop", "backend", "time", "algbw", "busbw", "cpu", "#wrong")
    )
    typer.echo(_FORMAT.format("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "(s/GB)", ""))


def _named_switches(measurement: "Measurement") -> str:
    from paceline.units import format_rate

    if not measurement.switches:
        return "switch"
    links = f" with links of {format_rate(measurement.rate_bps)}" if measurement.rate_bps else ""
    return f"{measurement.switches} switch(es){links}"


def _show_row(row: "MeasuredRow") -> None:
    values = row.to_json()
    typer.echo(
        _FORMAT.format(
            *(row.size_bytes, row.count, row.dtype, values["redop"], row.backend),
            *(f"{row.time_us:.1f}", f"{values['algbw_GBps']:.4f}", f"{values['busbw_GBps']:.4f}"),
            *(f"{row.cpu_s_per_gbyte:.3g}", row.wrong),
        )
    )


def _show_ratios(outcome: "Outcome") -> None:
    from paceline.units import format_size

    ratios = {
        "vs gloo": outcome.ratio_to_peer(),
        "vs line": outcome.ratio_to_line(),
        "vs one switch": outcome.ratio_to_one(),
        "with a busy main thread": outcome.ratio_spinning(),
    }
    for name, by_size in ratios.items():
        if by_size:
            each = ", ".join(f"{format_size(size)} {ratio:.2f}" for size, ratio in by_size.items())
            typer.echo(f"# {name}: {each}")
    if outcome.status:
        typer.echo(f"# path of the sums: {outcome.status.get('path', 'unknown')}")
    if outcome.ratio_to_peer():
        typer.echo(
            "# busbw of a sum inside the network can exceed the link's rate: every byte crosses a link once"
        )
