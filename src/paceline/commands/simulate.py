"""`paceline simulate`: one scenario under several policies, packet by packet."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.commands.output import JsonFile, Legend, page_console, print_legend, print_table, write_json

if TYPE_CHECKING:
    from paceline.core.priority import PriorityRule
    from paceline.errors import UserError
    from paceline.sim.results import RunResult
    from paceline.sim.scenario import Scenario, ScenarioJob

HELP = """Simulate training jobs that share a network, packet by packet, and compare policies.

The scenario is a TOML file: network, switch memory, jobs, faults; see examples/simulate.

Policies: esa, atp, switchml, ring, ps, always-preempt, coin-flip, or all.

Exit code: 0; 1 if a run failed or, with --check, a sum was wrong; 2 for a mistake in what was given.

Examples:

  paceline simulate examples/simulate/quick.toml

  paceline simulate examples/simulate/quick.toml --policy esa --policy atp --html report.html

  paceline simulate examples/simulate/quick.toml --set switch.slots=2048 --set job.0.iterations=5

  paceline simulate examples/simulate/faults.toml --policy all --check --seed 7

  paceline simulate examples/simulate/quick.toml --seeds 5

  paceline simulate examples/simulate/leaf-spine.toml --set "network.rate=25 Gbit/s" --json -

  paceline simulate examples/simulate/leaf-spine.toml --policy esa --profile
"""
DECISIONS_SHOWN_MAX = 12
JOBS_SHOWN_MAX = 16
WIDE = 132
"""Columns of a terminal that holds the whole table; a narrower one gets it in two parts."""
SWITCH_COLUMNS = ("memory used", "completions", "preemptions", "fallbacks", "reminders")


def simulate(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO.toml", help="What to simulate.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A policy, several (repeat, or commas), or all. Default: the scenario's."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key of the scenario, e.g. switch.slots=64; repeat."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the scenario's seed.")] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Repeat with so many seeds, this one and those after it.")
    ] = 1,
    check: Annotated[bool, typer.Option("--check", help="Carry integers and check every sum.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes for policies and seeds; default: all cores.")
    ] = None,
    json_file: JsonFile = "",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained page.")] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="What the simulator did: events by kind, and time by part.")
    ] = False,
    legend: Legend = False,
) -> None:
    from paceline.errors import EXIT_FAILED
    from paceline.sim.scenario import load_scenario

    overrides = tuple(settings or ())
    for target in (html, Path(json_file) if json_file not in ("", "-") else None):
        _check_target(target)
    loaded = load_scenario(scenario, overrides)
    if seed is not None:
        loaded = loaded.model_copy(update={"seed": seed})
    names = _names(policy or [], loaded)
    _check_scenario(scenario, loaded, names, overrides)
    by_seed = _run(loaded, names, seeds, check, jobs)
    results = by_seed[0]
    if json_file:
        policies = {result.policy: _as_data(result, profile) for result in results}
        told: dict[str, Any] = {"scenario": loaded.name, "seed": loaded.seed, "policies": policies}
        if seeds > 1:
            told["seeds"] = {
                str(group[0].seed): {result.policy: result.to_dict() for result in group} for group in by_seed
            }
        write_json(json_file, told)
    if html is not None:
        from paceline.report.simulation import write_page

        write_page(html, loaded, results, _command(scenario, names, overrides, loaded.seed, check))
    if json_file != "-":
        _show(results, html, doubled_up(loaded), legend)
        _show_seeds(by_seed, legend)
        if profile:
            _show_profile(results, legend)
    if any(result.failed or result.wrong for group in by_seed for result in group):
        raise typer.Exit(EXIT_FAILED)


simulate.__doc__ = HELP


def _names(given: list[str], scenario: "Scenario") -> list[str]:
    import difflib

    from paceline.errors import UserError
    from paceline.plugins import MEMORY, is_plugin
    from paceline.sim.scenario import POLICIES

    wanted = [name.strip() for entry in given for name in entry.split(",") if name.strip()]
    names: list[str] = []
    for name in wanted or scenario.policies:
        if name == "all":
            names.extend(POLICIES)
        elif name in POLICIES or is_plugin(name, MEMORY):
            _memory_policy(name)
            names.append(name)
        else:
            close = difflib.get_close_matches(name.lower(), [*POLICIES, "all"], n=1, cutoff=0.4)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UserError(
                f"unknown policy {name!r}; {hint}known: {', '.join(POLICIES)}, all", place="--policy"
            )
    if not names:
        raise UserError("the scenario lists no policy, and --policy gives none", place="policies")
    return list(dict.fromkeys(names))


def _memory_policy(name: str) -> "tuple[str, PriorityRule]":
    """The compiled rule behind a policy's name, and how packets get their priority."""
    from paceline.core.priority import priority
    from paceline.errors import UserError
    from paceline.plugins import MEMORY, is_plugin, make
    from paceline.sim.scenario import POLICIES

    if name in POLICIES or not is_plugin(name, MEMORY):
        return name, priority
    made = make(name, MEMORY, ("base", "priority"))
    if made.base not in POLICIES:
        raise UserError(f"{name}: base is {made.base!r}; known: {', '.join(POLICIES)}", place="--policy")

    def checked(remaining_s: float, comm_over_comp: float, layer: int, layers: int) -> int:
        given = made.priority(remaining_s, comm_over_comp, layer, layers)
        if not isinstance(given, int) or not 0 <= given <= 255:
            raise UserError(f"{name}: a priority of {given!r} is no integer from 0 to 255", place="--policy")
        return given

    return made.base, checked


def _check_target(path: Path | None) -> None:
    # Before any run: a report that cannot be written should not cost one.
    from paceline.errors import UserError

    if path is None:
        return
    if path.is_dir():
        raise UserError("is a directory, not a file", place=str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", place=str(path)) from None


def _check_scenario(path: Path, scenario: "Scenario", names: list[str], overrides: tuple[str, ...]) -> None:
    """Build every run before the first starts: what does not fit is told at once, with its line."""
    from paceline.errors import JobError, SettingError, UserError
    from paceline.models.catalogue import profile
    from paceline.sim.build.arrays import build

    for number, job in enumerate(scenario.job):
        if job.profile:
            _check_profile(path, overrides, number, job)
            continue
        try:
            profile(job.model)
            job.model_profile(scenario.network.rate)
        except UserError as error:
            raise _located(path, overrides, ("job", number, "model"), error.message) from None
    try:
        for name in names:
            base, rule = _memory_policy(name)
            build(scenario, base, scenario.seed, False, rule)
    except JobError as error:
        number = _number_of(scenario, error.job)
        raise _located(path, overrides, ("job", number), str(error)) from None
    except SettingError as error:
        raise _located(path, overrides, error.key, str(error)) from None


def _check_profile(path: Path, overrides: tuple[str, ...], number: int, job: "ScenarioJob") -> None:
    """A mistake in the profile has its own file and line; one beside it is the scenario's."""
    from paceline.errors import SettingError

    try:
        job.settled()
        job.model_profile(1.0)
    except SettingError as error:
        raise _located(path, overrides, ("job", number, "profile"), error.message) from None


def _number_of(scenario: "Scenario", name: str) -> int:
    """Which `[[job]]` the job with this name, or this copy, comes from."""
    at = 0
    names = [job.name for job in scenario.expanded_jobs()]
    for number, job in enumerate(scenario.job):
        if name in names[at : at + job.copies]:
            return number
        at += job.copies
    return 0


def _located(path: Path, overrides: tuple[str, ...], key: tuple[str | int, ...], message: str) -> "UserError":
    """The error at the line of its key, or of the nearest table around it."""
    from paceline.errors import UserError
    from paceline.toml import key_lines, read_text

    lines = key_lines(read_text(path))
    given = {override.partition("=")[0].strip() for override in overrides}
    for end in range(len(key), 0, -1):
        if ".".join(str(part) for part in key[:end]) in given:
            return UserError(message, place="--set")
        if key[:end] in lines:
            return UserError(message, place=f"{path}:{lines[key[:end]]}")
    return UserError(message, place=str(path))


def _run(
    scenario: "Scenario", names: list[str], seeds: int, check: bool, processes: int | None
) -> "list[list[RunResult]]":
    """The policies' results, for each seed."""
    from paceline.progress import ProgressDisplay
    from paceline.sim.batch import BatchRun, simulate_all
    from paceline.sim.run import announce_compilation

    announce_compilation()
    policies = [(name, *_memory_policy(name)) for name in names]
    runs = [
        BatchRun(name, scenario.seed + k, base, rule) for k in range(seeds) for name, base, rule in policies
    ]
    with ProgressDisplay() as progress:
        parts = [progress.add(_label(run.policy, run.seed, seeds), 1) for run in runs]

        def tell(number: int, done: int, total: int) -> None:
            parts[number].move_to(done, total)

        results = simulate_all(scenario, runs, check=check, processes=processes, tell=tell)
    return [results[k : k + len(names)] for k in range(0, len(results), len(names))]


def _label(policy: str, seed: int, seeds: int) -> str:
    return policy if seeds == 1 else f"{policy}, seed {seed}"


def _command(path: Path, names: list[str], overrides: tuple[str, ...], seed: int, check: bool) -> str:
    """The command line that repeats this run, whatever the scenario's defaults become."""
    import shlex

    words = ["paceline", "simulate", str(path), "--policy", ",".join(names)]
    for override in overrides:
        words += ["--set", override]
    return shlex.join([*words, "--seed", str(seed), *(["--check"] if check else [])])


def doubled_up(scenario: "Scenario") -> str:
    """How many workers share a host where some do; empty where none does."""
    from collections import Counter

    from paceline.sim.build.topology import place_jobs

    placed = place_jobs(scenario, scenario.expanded_jobs(), 0).worker_hosts
    per_host = Counter(host for hosts in placed for host in hosts)
    if max(per_host.values(), default=0) < 2:
        return ""
    told = ", ".join(
        f"{hosts} with {n}" for n, hosts in sorted(Counter(per_host.values()).items(), reverse=True)
    )
    return f"{per_host.total()} workers on {len(per_host)} hosts: some share a host and its link ({told})"


def _show(results: "list[RunResult]", html: Path | None, remark: str, legend: bool) -> None:
    from paceline.report import simulation as report

    console = page_console(140)
    if remark:
        console.print(remark, style="dim", markup=False)
    best_s = report.best_jct_s(results)
    checked = any(result.exact is not None for result in results)
    rows = [report.row(result, best_s) for result in results]
    shown = [name for name in report.COLUMNS if checked or name != "exact"]
    if console.width >= WIDE:
        print_table(console, shown, _chosen(report.COLUMNS, rows, shown))
    else:
        outcome = [name for name in shown if name not in SWITCH_COLUMNS]
        print_table(console, outcome, _chosen(report.COLUMNS, rows, outcome))
        console.print("\nIn the switches:", style="bold")
        print_table(
            console, ["policy", *SWITCH_COLUMNS], _chosen(report.COLUMNS, rows, ["policy", *SWITCH_COLUMNS])
        )
    if legend:
        print_legend(console, shown)
    if len(results[0].jobs) <= JOBS_SHOWN_MAX:
        console.print("\nCompletion time of each job:", style="bold")
        print_table(console, ["job", *(result.policy for result in results)], report.job_rows(results))
    for result in results:
        _show_stragglers(console, result, legend)
        if result.failed:
            console.print(f"\n{result.policy} failed: {result.failed}", style="red", markup=False)
        elif result.wrong:
            console.print(
                f"\n{result.policy}: {result.wrong:,} of {result.checked:,} sums were wrong", style="red"
            )
    if html is not None:
        console.print(f"\npage: {html}", markup=False, soft_wrap=True)


SEED_COLUMNS = ("policy", "seeds", "avg JCT", "least", "most", "vs best")


def _show_seeds(by_seed: "list[list[RunResult]]", legend: bool) -> None:
    """The tables above are the first seed's; this one has all of them."""
    from paceline.report import simulation as report

    if len(by_seed) < 2:
        return
    console = page_console(140)
    first, last = by_seed[0][0].seed, by_seed[-1][0].seed
    console.print(f"\nAbove is seed {first}. Over the seeds from {first} to {last}:", style="bold")
    print_table(console, SEED_COLUMNS, report.seed_rows(by_seed))
    if legend:
        print_legend(console, SEED_COLUMNS)


def _as_data(result: "RunResult", profile: bool) -> dict[str, Any]:
    return {**result.to_dict(), **({"parts_s": result.parts_s} if profile else {})}


PROFILE_COLUMNS = ("policy", "events", "at switches", "between switches", "at hosts", "detours", "timers")


def _show_profile(results: "list[RunResult]", legend: bool) -> None:
    """Events by kind and real time by part, of the first seed's runs."""
    from paceline.report import simulation as report

    console = page_console(140)
    console.print("\nEvents, and of which kind they were:", style="bold")
    print_table(console, PROFILE_COLUMNS, [report.event_row(result) for result in results])
    if legend:
        print_legend(console, PROFILE_COLUMNS)
    parts = list(dict.fromkeys(part for result in results for part in result.parts_s))
    console.print("\nReal time of each part:", style="bold")
    columns = ["policy", *parts, "events/s"]
    print_table(console, columns, [report.part_row(result, parts) for result in results])
    if legend:
        print_legend(console, columns)


STRAGGLER_COLUMNS = ("time", "job", "worker", "what", "why")


def _show_stragglers(console: Any, result: "RunResult", legend: bool) -> None:
    """Who straggled, when, why and what was done; nothing for runs without help."""
    from paceline.report import simulation as report

    lines = report.help_lines(result)
    if lines:
        console.print(f"\nStragglers under {result.policy}:", style="bold", markup=False)
        rows = report.straggler_rows(result, DECISIONS_SHOWN_MAX)
        if rows:
            print_table(console, STRAGGLER_COLUMNS, rows)
            if legend:
                print_legend(console, STRAGGLER_COLUMNS)
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)


def _chosen(columns: tuple[str, ...], rows: list[list[str]], names: list[str]) -> list[list[str]]:
    return [[row[columns.index(name)] for name in names] for row in rows]
