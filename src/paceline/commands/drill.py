"""`paceline drill`: a fault file in the simulator and against the live system, judged alike."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.commands.output import JsonFile, Legend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.drill.outcome import DrillOutcome
    from paceline.drill.plan import Drill

COLUMNS = ("drill", "world", "steps", "wrong sums", "recovery, s", "bound, s", "path after")


def drill(
    files: Annotated[
        list[Path], typer.Argument(metavar="FAULTS.toml...", help="Drills; see docs/drills.md.")
    ],
    live: Annotated[bool, typer.Option("--live", help="Against a real switch and real workers.")] = False,
    sim: Annotated[bool, typer.Option("--sim", help="In the simulator.")] = False,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="Live without namespaces, also for root; cuts are skipped.")
    ] = False,
    legend: Legend = False,
    ddp: Annotated[
        bool, typer.Option("--ddp", help="Live with ranks that train with PyTorch, instead of bare agents.")
    ] = False,
    json_file: JsonFile = "",
) -> None:
    """Let things go wrong on purpose, and see that sums keep their bits, no step is lost, and the job goes on in time.

    With neither --live nor --sim, both. Live drills of one size share a switch and its workers. As root they run in
    network namespaces, otherwise on loopback.

    Exit code: 0 all passed (or could not be run here, which is told); 1 one did not; 2 a mistake in a file.

    Examples:

      paceline drill examples/drills/switch-killed.toml

      paceline drill examples/drills/*.toml --sim

      paceline drill examples/drills/half-cut-to.toml --live --ddp
    """
    from paceline.commands.output import page_console, print_legend, print_table, write_json
    from paceline.drill.plan import load_drill
    from paceline.errors import EXIT_FAILED

    drills = [load_drill(path) for path in files]
    console = page_console(130)
    outcomes: list[DrillOutcome] = []

    def note(outcome: "DrillOutcome") -> None:
        outcomes.append(outcome)
        if json_file != "-":
            verdict = "passed" if outcome.passed else "skipped" if outcome.skipped else "FAILED"
            print(f"{verdict:8} {outcome.world:10} {outcome.drill}: {outcome.why()}", flush=True)

    live = live or ddp
    both = not live and not sim
    if sim or both:
        from paceline.drill.in_simulator import run_in_simulator

        for each in drills:
            note(run_in_simulator(each))
    if live or both:
        for outcome in _live(drills, loopback, ddp):
            note(outcome)
    if json_file:
        write_json(json_file, [outcome.as_json() for outcome in outcomes])
    if json_file != "-":
        rows = [
            (
                outcome.drill,
                outcome.world,
                f"{outcome.steps}/{outcome.steps_wanted}",
                f"{outcome.wrong}/{outcome.sums}",
                f"{outcome.recovery_s:.3f}",
                f"{outcome.bound_s:.1f}",
                outcome.path_after,
            )
            for outcome in outcomes
        ]
        console.print()
        print_table(console, COLUMNS, rows, texts=2)
        if legend:
            print_legend(console, COLUMNS)
    if not all(outcome.passed or outcome.skipped for outcome in outcomes):
        raise typer.Exit(EXIT_FAILED)


def _live(drills: "list[Drill]", loopback: bool, ddp: bool) -> "Iterator[DrillOutcome]":
    """One bed for drills of one kind, as long as its workers use the switch; each is told when it ends."""
    from paceline.bench.processes import ChildError
    from paceline.drill.in_live import RETURN_S, run_live
    from paceline.drill.live_bed import live_bed
    from paceline.errors import UserError

    kinds = dict.fromkeys((each.workers, each.seed, each.elements, each.pace) for each in drills)
    for workers, seed, elements, pace in kinds:
        waiting = [
            each
            for each in drills
            if (each.workers, each.seed, each.elements, each.pace) == (workers, seed, elements, pace)
        ]
        try:
            while waiting:
                with live_bed(workers, seed, elements, pace / 1e9, loopback, ddp) as bed:
                    yield run_live(waiting.pop(0), bed)
                    # Workers that stay away from a switch that failed them often are of no use to the next drill.
                    while waiting and bed.settle(RETURN_S):
                        yield run_live(waiting.pop(0), bed)
        except ChildError as error:
            raise UserError(str(error).splitlines()[0], place="drill --live") from None
