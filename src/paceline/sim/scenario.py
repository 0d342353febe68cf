"""A scenario: network, switches, transport, jobs and faults, as a user writes it in TOML.

Every key has its default and its unit here; `paceline simulate` reads nothing else. What differs by policy
is set under `[policy.NAME]`, over `TUNED`: defaults that suit a policy everywhere. What suits it at one point is
found by tuning, as `paceline reproduce esa` does.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from paceline.core.switch.memory import MARGIN
from paceline.core.switch.memory import POLICIES as SWITCH_POLICIES
from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.errors import JobError, SettingError
from paceline.models.catalogue import (
    DEFAULT_FLOP_PER_S,
    ModelProfile,
    communication_heavy,
    computation_heavy,
    profile,
)
from paceline.models.profile import Profile, load_profile
from paceline.sim.faults import Faults
from paceline.toml import Name, Section, load
from paceline.units import Rate, Size, TimeNs

POLICIES = ("esa-plus", "esa", "atp", "switchml", "ring", "ps", "never", "always-preempt", "coin-flip")
PolicyName = Literal[
    "esa-plus", "esa", "atp", "switchml", "ring", "ps", "never", "always-preempt", "coin-flip"
]
assert set(POLICIES) - {"ring", "ps"} == set(SWITCH_POLICIES) - {"none"}

StragglerMode = Literal["off", "custody", "takeover", "both", "backup", "timeout"]

Count = Annotated[int, Field(ge=1)]


class Network(Section):
    """Hosts and links."""

    topology: Literal["star", "leaf-spine"] = "star"
    hosts: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Hosts for workers; by default one for each worker of the scenario."""
    leaves: Annotated[int, Field(ge=1, le=64)] = 4
    uppers: Annotated[int, Field(ge=1, le=64)] = 1
    switches: Annotated[int, Field(ge=0, le=8)] = 0
    """Star: so many servers beside the hub are the switches, each with one link, and the hub only forwards; 0: the hub
    is the switch."""
    switch_rate: Rate | None = None
    """Of the link between such a server and the hub; by default as of a host's. It carries what all workers send, and
    the results to each of them."""
    rate: Rate = 100e9
    upper_rate: Rate | None = None
    """Between leaf and upper switches; by default as much as the leaf's hosts together."""
    delay: TimeNs = 1_000
    """Of each link, one way."""
    queue: Size = 1_000_000
    """In front of each switch port."""
    ecn: Size = 200_000
    """Backlog from which packets are marked."""
    burst: Size = 0
    """What a link that was idle carries at once, as token buckets do (`tc tbf`)."""
    elements: Annotated[int, Field(ge=1, le=2048)] = 256
    """32-bit integers in a packet."""
    placement: Literal["packed", "spread"] = "packed"
    """Workers of a job side by side, or dealt out over the leaves."""

    @property
    def links_of_a_round_trip(self) -> int:
        """To the switch, to a server, and back."""
        return 4 if self.topology == "star" and self.switches == 0 else 8

    def bdp_packets(self) -> int:
        """Packets that a job keeps in flight at full rate: to the switch, to a server, and back."""
        packet_bytes = HEADER_BYTES + ENVELOPE_BYTES + 4 * self.elements
        round_trip_s = self.links_of_a_round_trip * (self.delay * 1e-9 + packet_bytes * 8 / self.rate)
        return max(1, round(self.rate * round_trip_s / 8 / packet_bytes))


class Hosts(Section):
    """What programs on real hosts are like; by default they handle a packet as soon as it comes."""

    wake: TimeNs = 0
    """Until a program that waits for packets runs: the median of a log-normal distribution. What comes meanwhile waits
    and is handled in one go. 20 us on two busy cores."""
    wake_spread: Annotated[float, Field(ge=0, le=4)] = 2.07
    """Its spread, as the standard deviation of the logarithm; 2.07 makes one wake-up in a hundred take 2.5 ms."""
    turn: TimeNs = 0
    """Processor time of a wake-up, beside that of its packets."""
    packet: TimeNs = 0
    """Processor time for a packet."""
    cores: Annotated[int, Field(ge=0)] = 0
    """All programs share so many cores, as in a cluster that is emulated on one machine; 0: each has its own. Jobs that
    compute on them share them too (`processor` of a job)."""
    train: Size = 0
    """Packets that follow each other closely cross a link in trains of up to this size, and arrive together
    (segmentation offload: 64 kB)."""
    receive_buffer: Size = 16_777_216
    """What waits for a program beyond this is lost."""
    software_switch: bool = True
    """The switch is such a program too."""

    @property
    def are_programs(self) -> bool:
        return self.wake > 0 or self.packet > 0


class SwitchSettings(Section):
    """The aggregators of each switch."""

    slots: Count = 512
    stale: TimeNs = 10_000_000
    """ATP: an aggregator untouched for so long may be taken."""
    relay: bool = False
    """ESA: send results by the custodian, as ATP does, instead of at once."""
    copies: bool = True
    """Dedicated custodians get a copy of each result that the switch makes, to answer those who lose theirs; without,
    they ask the other workers for it."""
    rules: list[Literal["priority", "cost", "mark", "answer"]] = ["priority", "cost", "mark", "answer"]
    """`esa-plus`: the rules in force, to see what each is worth (`core/switch/memory.py`)."""
    margin: Annotated[int, Field(ge=0, le=255)] = MARGIN
    """`esa-plus`: a holder whose priority is higher by more than this keeps its place; eight are a factor of two."""
    classes: Annotated[int, Field(ge=1, le=8)] = 1
    """Queues of strict priority in front of every link; 1: first in, first out."""


class Transport(Section):
    """Sending side; see `core/sender/program.py`."""

    window: Count | None = None
    """Packets without a result; under SwitchML the most that a pool gets. By default what suits the network:
    a bandwidth-delay product (four for ps, the whole pool under SwitchML). A ring has `buffer` instead."""
    window_min: Count = 8
    window_start: Count | None = None
    congestion: Literal["together", "aimd", "fixed", "alone"] = "together"
    """How the window moves; see `core/sender/congestion.py`. `fixed` under SwitchML. A ring has TCP's rules instead."""
    queue_target: TimeNs = 0
    """`together`: a longer queue, seen in round trips, shrinks the window; 0: marks and losses alone do."""
    increase: Annotated[float, Field(gt=0)] | None = None
    """`together`: chunks more a round, when nothing speaks against it; by default a 64th of `window`."""
    recovery: Literal["ask", "resend"] = "ask"
    """What is overdue is asked for, and sent again only if it is missing; or sent again at once, and taken to the
    custodian with what the switch holds [ATP]."""
    in_order: bool = False
    """`resend`: results overtake each other only where something was lost or fell back; `ask` always takes it so."""
    rto_min: TimeNs = 200_000
    rto_max: TimeNs = 20_000_000
    rto_start: TimeNs = 2_000_000
    reorder_chunks: Count = 3
    reorder_rtts: Annotated[float, Field(ge=0)] = 0.0
    resends_max: Count = 60
    order: Literal["released", "urgent"] = "released"
    """Layers are sent as their gradients are computed, or, of what is computed by then, those that the next forward
    pass needs first go first, by the job's profile (`core/priority.py`). Not for a ring."""
    bucket: Size = 25_000_000
    """Ring: layers are fused into buckets of at least this size."""
    message: Annotated[Size, Field(gt=0)] = 1_048_576
    """Ring: the longest message; two are under way between neighbours, as in Gloo's ring."""
    buffer: Annotated[Size, Field(ge=65_536)] = 4_194_304
    """Ring: a socket's buffer; the most that is without a receipt. Nothing else limits the window."""
    ack_every: Count = 8
    """Ring: receipts for every so many packets."""


class CustodianSettings(Section):
    """Fallback hosts (ESA), parameter servers (ATP, ps); see `core/custodian/program.py`."""

    placement: Literal["dedicated", "workers", "shared"] = "dedicated"
    """On hosts of their own, on the workers' hosts, or all jobs' on one host (in a star)."""
    per_job: Annotated[int, Field(ge=1, le=64)] = 1
    patience: TimeNs = 20_000
    """A partial sum that waits longer is asked for: reminder, then pull, with back-off."""
    patience_max: TimeNs = 10_000_000
    patience_rtts: Annotated[float, Field(ge=0)] = 0.0
    """On workers: instead of `patience`, so many round trips of the worker."""
    eager: bool = False
    """What was flushed is not in the switch any more: ask the workers at once."""


class Help(Section):
    """Stragglers: how they are noticed, and how leading workers help; for jobs whose `straggler` is not `off`."""

    theta: Annotated[float, Field(gt=0, le=10)] = 0.125
    """A worker is behind when it lags the leaders' median by more than this share of an iteration."""
    window: Annotated[float, Field(gt=0, le=10)] = 0.0625
    """How often progress is looked at, in iterations of computation."""
    windows: Count = 2
    """Behind for so many windows in a row, it straggles."""
    clean_iterations: Count = 2
    """A straggler leads again after so many iterations without being behind."""
    lease: Annotated[float, Field(gt=0)] = 64.0
    """A claimed micro-batch that is not done after so many times its compute time is free again."""
    latency: TimeNs = 20_000
    """Of a message to the coordinator, one way."""
    patience: TimeNs = 5_000_000
    """Custody: as `custodians.patience`, for sums that wait for a straggler."""
    budget: Size = 1_000_000
    """Custody: host memory for gradients that a leader has sent and that have no result yet."""
    dead_after: TimeNs = 10_000_000
    """A worker silent for so long is taken for dead."""
    stall: TimeNs = 2_000_000_000
    """A job in which nothing moves for so long fails, and says who is missing."""
    backup: Count = 1
    """`backup`: how many of the slowest workers an iteration does without."""
    timeout: TimeNs = 1_000_000
    """`timeout`: how long after the first worker's first gradient the others are waited for."""


class PolicySettings(Section):
    """What one policy has otherwise; keys as in `[transport]`, `[custodians]` and `[switch]`."""

    transport: Transport = Transport()
    custodians: CustodianSettings = CustodianSettings()
    switch: SwitchSettings = SwitchSettings()


class ScenarioJob(Section):
    """A training job, or `copies` equal ones."""

    name: Name = ""
    model: str = "communication-heavy"
    profile: str = ""
    """A file that `paceline profile` wrote, beside the scenario: instead of model, batch and speed."""
    workers: Annotated[int, Field(ge=1, le=4096)] = 8
    iterations: Count = 2
    arrival: TimeNs = 0
    copies: Annotated[int, Field(ge=1, le=65_535)] = 1
    stagger: TimeNs = 0
    """Each copy arrives so much later than the one before."""
    batch: Count | None = None
    flop_rate: Annotated[float, Field(gt=0)] = DEFAULT_FLOP_PER_S
    ratio: Annotated[float, Field(gt=0)] | None = None
    """Synthetic models: communication time over computation time at the link's rate."""
    size: Size | None = None
    """Synthetic models: bytes of gradient."""
    layers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Synthetic models: how many."""
    fuse: Size = 0
    """Fuse layers until each has at least so many bytes of gradient."""
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Each worker's computation takes up to this share longer, drawn anew each iteration."""
    processor: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How much of the computation takes a core of `[hosts] cores`; 0: it has a device of its own."""
    overhead: TimeNs | None = None
    """Processor time of a worker for each message of a ring, or each layer of a sum in the network, beside that of
    `[hosts]`; by default what makes a step of its profile take as long as measured, else none."""
    overhead_spread: Annotated[float, Field(ge=0, le=0.57)] = 0.0
    """Its standard deviation from iteration to iteration, as a share of it."""
    overlap: Literal["layers", "ddp"] = "layers"
    """The next forward pass of a layer waits for its own result, or, as DistributedDataParallel has it, for all."""
    straggler: StragglerMode = "off"
    """What is done about a slow worker: `custody`, `takeover` or both; `backup` and `timeout`, for comparison,
    leave it out of the sum."""
    micro_batches: Annotated[int, Field(ge=1, le=64)] | None = None
    """An iteration of a worker is computed in so many parts, whose gradients add up; by default 1, with
    takeover 16."""
    hosts: list[int] | None = None
    """Where the workers are; by default the next hosts in turn."""
    switches: (
        Annotated[list[Annotated[int, Field(ge=1, le=8)]], Field(min_length=1, max_length=64)] | None
    ) = None
    """Which of `network.switches` sum its chunks, numbered from 1; by default all. One that is named twice gets twice
    as many."""
    after: list[str] = []
    """Jobs that must have ended before this one starts, such as those that use its GPUs first."""

    @model_validator(mode="after")
    def _fits(self) -> "ScenarioJob":
        if self.hosts is not None and len(self.hosts) != self.workers:
            raise ValueError(f"hosts names {len(self.hosts)} places for {self.workers} workers")
        return self

    def _measured(self) -> Profile:
        for key in ("model", "batch", "flop_rate", "ratio", "size", "layers"):
            if key in self.model_fields_set:
                raise SettingError(f"give either profile or {key}, not both", key=("job",))
        return load_profile(Path(self.profile))

    def settled(self, **changes: object) -> "ScenarioJob":
        """With changes, and with what its profile measured of jitter and processor time unless they are given."""
        if self.profile:
            seen = self._measured()
            measured = {"jitter": seen.jitter, "processor": seen.processor_share}
            changes |= {key: value for key, value in measured.items() if key not in self.model_fields_set}
        return self.model_copy(update=changes)

    @property
    def takes_over(self) -> bool:
        return self.straggler in ("takeover", "both")

    @property
    def has_custody(self) -> bool:
        return self.straggler in ("custody", "both")

    @property
    def parts(self) -> int:
        """Micro-batches of an iteration."""
        return self.micro_batches or (16 if self.takes_over else 1)

    def model_profile(self, rate_bps: float) -> ModelProfile:
        """The model's layers; synthetic ones are made for the link's rate."""
        if self.profile:
            model = self._measured().as_model(Path(self.profile).stem)
            return model.fused(self.fuse // 4) if self.fuse else model
        key = self.model.lower().replace("_", "-")
        synthetic = {"communication-heavy": communication_heavy, "computation-heavy": computation_heavy}
        if key in synthetic:
            options: dict[str, Any] = {"rate_bps": rate_bps, "flop_per_s": self.flop_rate}
            for name, value in (("ratio", self.ratio), ("size_bytes", self.size), ("layers", self.layers)):
                if value is not None:
                    options[name] = value
            return synthetic[key](**options)
        for name, value in (("ratio", self.ratio), ("size", self.size), ("layers", self.layers)):
            if value is not None:
                raise SettingError(
                    f"{name!r} is for the synthetic models, not for {self.model!r}", key=("job",)
                )
        model = profile(self.model)
        return model.fused(self.fuse // 4) if self.fuse else model


SPREAD_REORDER_CHUNKS = 64
HORIZON_MAX_NS = 9_000_000_000_000
"""Links count femtoseconds in 64 bits, which end after 9,223 s."""


def _countable(horizon_ns: int) -> int:
    if horizon_ns > HORIZON_MAX_NS:
        raise ValueError(f"has to be at most {HORIZON_MAX_NS // 10**9} s, where simulated time ends")
    return horizon_ns


class Scenario(Section):
    """A whole experiment; one run for each policy."""

    name: Name = "scenario"
    seed: int = 1
    policies: list[PolicyName] = ["esa-plus", "esa", "atp", "switchml", "ring", "ps"]
    horizon: Annotated[TimeNs, AfterValidator(_countable)] = 1_000_000_000_000
    """Simulated time after which a run is given up."""
    network: Network = Network()
    hosts: Hosts = Hosts()
    switch: SwitchSettings = SwitchSettings()
    transport: Transport = Transport()
    custodians: CustodianSettings = CustodianSettings()
    policy: dict[PolicyName, PolicySettings] = {}
    straggler: Help = Help()
    job: Annotated[list[ScenarioJob], Field(min_length=1)]
    faults: Faults = Faults()

    @model_validator(mode="after")
    def _has_switches(self) -> "Scenario":
        there = self.network.switches
        if there and self.network.topology != "star":
            raise ValueError(
                "network.switches is for a star: in a leaf-spine every rack has a switch, under the upper ones"
            )
        for job in self.job:
            missing = [number for number in job.switches or [] if number > there]
            if missing:
                raise ValueError(f"switches names {missing[0]}, and network.switches is {there}")
        return self

    def for_policy(self, name: str) -> "Scenario":
        """The scenario with what `[policy.NAME]` sets, over the tuned defaults of that policy."""
        update: dict[str, Section] = {}
        given = self.policy.get(name)  # type: ignore[call-overload]
        for section in ("transport", "custodians", "switch"):
            current: Section = getattr(self, section)
            tuned = type(current).model_validate(TUNED.get(name, {}).get(section, {}))
            values = {key: getattr(tuned, key) for key in tuned.model_fields_set - current.model_fields_set}
            if section == "transport" and self.network.switches > 1:
                # Results of one switch overtake those of another: as the live agent, whose shards do the same.
                values = {"reorder_chunks": SPREAD_REORDER_CHUNKS} | values
                values = {key: values[key] for key in values.keys() - current.model_fields_set}
            if given:
                overrides = getattr(given, section)
                values |= {key: getattr(overrides, key) for key in overrides.model_fields_set}
            update[section] = current.model_copy(update=values)
        transport = update["transport"]
        assert isinstance(transport, Transport)
        if transport.window is None:
            shares = {"ps": 4, "switchml": 1024}
            # Who sums in no switch does not go by one.
            plain = self.network.model_copy(update={"switches": 0})
            network = plain if name in ("ring", "ps") else self.network
            window = max(transport.window_min, shares.get(name, 1) * network.bdp_packets())
            update["transport"] = transport.model_copy(update={"window": window})
        return self.model_copy(update=update)

    def expanded_jobs(self) -> list[ScenarioJob]:
        """One job for each copy, each with a name of its own."""
        jobs: list[ScenarioJob] = []
        for number, job in enumerate(self.job):
            name = job.name or f"{Path(job.profile).stem if job.profile else job.model}-{number}"
            for copy in range(job.copies):
                label = name if job.copies == 1 else f"{name}-{copy}"
                arrival = job.arrival + copy * job.stagger
                jobs.append(job.settled(name=label, arrival=arrival, copies=1))
        names = [job.name for job in jobs]
        for name in names:
            if names.count(name) > 1:
                raise SettingError(f"two jobs are called {name!r}", key=("job",))
        return jobs


TUNED: dict[str, dict[str, dict[str, Any]]] = {
    "esa-plus": {"switch": {"classes": 8}},
    # Its own rule: what three later results overtook, or a timer, is sent again and takes the rest out of the switch.
    "atp": {"transport": {"recovery": "resend", "in_order": True}},
    "switchml": {"transport": {"congestion": "fixed", "recovery": "resend"}},
    "ps": {
        "transport": {"reorder_chunks": 64, "reorder_rtts": 2.0},
        "custodians": {"placement": "workers"},
    },
}
"""Defaults by policy, where they differ from those above."""


def load_scenario(path: Path, overrides: tuple[str, ...] = ()) -> Scenario:
    """A scenario from a TOML file, with `--set` overrides; profiles are looked for beside the file."""
    scenario = load(path, Scenario, overrides)
    jobs = [
        job.model_copy(update={"profile": str(path.parent / job.profile)}) if job.profile else job
        for job in scenario.job
    ]
    return scenario.model_copy(update={"job": jobs})


def check_help(policy: str, jobs: list[ScenarioJob]) -> None:
    """Help that makes no sense under a policy is refused, and the reason told."""
    for job in jobs:
        mode = job.straggler
        if mode == "off":
            continue
        if policy in ("ring", "ps"):
            raise JobError(
                f"straggler = {mode!r} needs in-network aggregation; {policy} has none", job=job.name
            )
        if policy == "switchml" and job.has_custody:
            raise JobError(
                f"straggler = {mode!r} needs custodians, and switchml has none; 'takeover' works there",
                job=job.name,
            )
        if job.takes_over and job.parts < 2:
            raise JobError(f"straggler = {mode!r} needs at least 2 micro-batches", job=job.name)
        if job.workers < 2:
            raise JobError(f"straggler = {mode!r} needs at least 2 workers", job=job.name)
