"""The workloads of the ESA experiment: who shares a switch with whom, on which network, with how much memory.

All on links of 100 Gb/s and 1 us with packets of 256 integers; models of eight layers; compute times vary by up to 10 %
from worker to worker and iteration to iteration. Jobs have hosts of their own unless a workload says otherwise, so that
they meet in the switch's memory and on the way to custodians.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from paceline.sim.scenario import Network, Scenario

RATE_BPS = 100e9
DELAY_NS = 1_000
ELEMENTS = 256
NETWORK = Network.model_validate({"rate": RATE_BPS, "delay": DELAY_NS * 1e-9, "elements": ELEMENTS})
UNLIMITED_SLOTS = 1 << 16

Settings = dict[str, dict[str, Any]]


def bdp_slots() -> int:
    """Aggregators that one job needs to run at full rate, in a bandwidth-delay product."""
    return NETWORK.bdp_packets()


@dataclass(frozen=True)
class EsaWorkload:
    """Jobs, a network and memory; all that a scenario needs but for a policy's settings."""

    sweep: str
    """Which table it stands in."""
    x: float
    """Where it stands on that table's axis."""
    memory: float
    """In bandwidth-delay products of all jobs."""
    lengths: tuple[int, ...] = (3,) * 8
    """Iterations of each job."""
    arrivals_us: tuple[float, ...] = ()
    """When each job comes; by default 37 us after the one before."""
    workers: int = 8
    model: Literal["communication-heavy", "computation-heavy", "mixed"] = "communication-heavy"
    ratio: float | None = None
    """Communication time over computation time; by default the model's own, 4 or 0.25."""
    overlap: Literal["layers", "ddp"] = "layers"
    """What the next forward pass waits for."""
    skewed: bool = False
    """One worker of each job has half its uplink, other traffic the rest."""
    server: Literal["own", "shared"] = "own"
    """A server (custodians' host) for each job, or one for all."""
    racks: Literal["", "full", "quarter"] = ""
    """Four racks, workers dealt out over them, uplinks of the full rate of a rack's hosts or of a quarter of it."""
    jobs_a_host: int = 1
    """So many jobs share each host."""
    loss: float = 0.0
    """On each link."""
    size_bytes: int = 1_000_000
    """Of a job's gradients."""

    @property
    def slots(self) -> int:
        """Aggregators of a switch."""
        return max(1, round(self.memory * len(self.lengths) * bdp_slots()))

    @property
    def short(self) -> list[int]:
        """Which jobs are short, where lengths differ: those of one iteration."""
        return (
            [j for j, length in enumerate(self.lengths) if length == 1] if len(set(self.lengths)) > 1 else []
        )

    def describe(self) -> str:
        """In words, for tables."""
        count = len(self.lengths)
        lengths = sorted(set(self.lengths))
        jobs = f"{count} jobs" if len(lengths) == 1 else f"{count} jobs of {_listed(self.lengths)} iterations"
        parts = [f"{jobs} of {self.workers} workers", f"memory {self.memory:g} BDP"]
        parts += [self.model] if self.model != "communication-heavy" else []
        parts += [f"comm/comp {self.ratio:g}"] if self.ratio else []
        parts += ["one slow uplink a job"] if self.skewed else []
        parts += ["one server for all"] if self.server == "shared" else []
        parts += [f"four racks, uplinks {self.racks}"] if self.racks else []
        parts += [f"{self.jobs_a_host} jobs a host"] if self.jobs_a_host > 1 else []
        parts += ["arrivals over time"] if self.arrivals_us else []
        parts += [f"loss {self.loss:g}"] if self.loss else []
        parts += ["ddp"] if self.overlap == "ddp" else []
        return ", ".join(parts)

    def scenario(self, settings: Settings, unlimited: bool = False) -> Scenario:
        """The workload with a policy's settings."""
        custodians = dict(settings.get("custodians", {}))
        if self.server == "shared" and custodians.get("placement", "dedicated") == "dedicated":
            custodians["placement"] = "shared"
        switch = {"slots": UNLIMITED_SLOTS if unlimited else self.slots, **settings.get("switch", {})}
        return Scenario.model_validate(
            {
                "horizon": "2",
                "network": self._network(),
                "switch": switch,
                "transport": settings.get("transport", {}),
                "custodians": custodians,
                "faults": self._faults(),
                "job": [self._job(j) for j in range(len(self.lengths))],
            }
        )

    def _network(self) -> Network:
        update: dict[str, Any] = {}
        hosts = len(self.lengths) * self.workers // self.jobs_a_host
        if self.jobs_a_host > 1:
            update["hosts"] = hosts
        if self.racks:
            update |= {"topology": "leaf-spine", "leaves": 4, "placement": "spread"}
            if self.racks == "quarter":
                update["upper_rate"] = RATE_BPS * hosts / 4 / 4
        return NETWORK.model_copy(update=update)

    def _faults(self) -> dict[str, Any]:
        faults: dict[str, Any] = {"loss": self.loss}
        if self.skewed:
            hosts = [j * self.workers for j in range(len(self.lengths))]
            faults["other_traffic"] = [
                {"host": host, "rate": RATE_BPS / 2, "direction": "from"} for host in hosts
            ]
        return faults

    def _job(self, j: int) -> dict[str, Any]:
        model = self.model
        if model == "mixed":
            model = "computation-heavy" if j % 2 else "communication-heavy"
        ratio = {"ratio": self.ratio} if self.ratio else {}
        return {
            "name": f"{j}",
            "model": model,
            "workers": self.workers,
            "iterations": self.lengths[j],
            "arrival": (self.arrivals_us[j] if self.arrivals_us else 37 * j) * 1e-6,
            "size": self.size_bytes,
            "layers": 8,
            "jitter": 0.1,
            "overlap": self.overlap,
            **ratio,
        }


def _listed(lengths: tuple[int, ...]) -> str:
    if len(lengths) <= 8:
        return ", ".join(str(length) for length in lengths)
    return " and ".join(
        f"{lengths.count(length)} x {length}" for length in sorted(set(lengths), reverse=True)
    )


_MIXED = (1, 1, 2, 2, 4, 4, 8, 8)
_LONG_AND_SHORT = (8,) * 4 + (1,) * 12
_SHORT_COME = (0.0, 37.0, 74.0, 111.0, *(120.0 + 60.0 * k for k in range(12)))
_ARRIVE = (8, 1, 4, 1, 2, 8, 1, 4, 1, 2, 1, 4)
_ARRIVALS = (0.0, 55.0, 80.0, 190.0, 230.0, 240.0, 420.0, 480.0, 500.0, 650.0, 800.0, 830.0)


def full_list() -> list[EsaWorkload]:
    """All of them."""
    like = [EsaWorkload("like", memory, memory) for memory in (0.02, 0.05, 0.25, 1, 4)]
    like.append(EsaWorkload("like", 16, 0.25, lengths=(3,) * 16))
    like.append(EsaWorkload("like", 0.25, 0.25, overlap="ddp"))
    like.append(EsaWorkload("like", 0.25, 0.25, model="computation-heavy"))
    like.append(EsaWorkload("like", 0.25, 0.25, model="mixed"))
    ratios = [EsaWorkload("ratio", ratio, 0.1, ratio=ratio) for ratio in (0.5, 1, 2, 4)]
    workers = [
        EsaWorkload("workers", workers, 0.25, lengths=(3,) * 4, workers=workers) for workers in (2, 32)
    ]
    skewed = [EsaWorkload("skewed", memory, memory, skewed=True) for memory in (0.02, 0.05, 0.25, 1)]
    lengths = [
        EsaWorkload("lengths", 8, 0.05, lengths=_MIXED),
        EsaWorkload("lengths", 16, 0.05, lengths=_LONG_AND_SHORT, arrivals_us=_SHORT_COME),
        EsaWorkload("lengths", 12, 0.05, lengths=_ARRIVE, arrivals_us=_ARRIVALS),
        EsaWorkload("lengths", 16.5, 1, lengths=_LONG_AND_SHORT, arrivals_us=_SHORT_COME, jobs_a_host=4),
    ]
    server = [
        EsaWorkload("server", 0.1, 0.1, server="shared"),
        EsaWorkload("server", 0.25, 0.25, server="shared", skewed=True),
        EsaWorkload("server", 0.02, 0.02, lengths=_MIXED, server="shared", skewed=True),
        EsaWorkload(
            "server",
            0.03,
            0.02,
            lengths=_LONG_AND_SHORT,
            arrivals_us=_SHORT_COME,
            server="shared",
            skewed=True,
        ),
    ]
    racks = [
        EsaWorkload("racks", 1, 0.25, racks="full"),
        EsaWorkload("racks", 4, 0.25, lengths=_MIXED, racks="quarter"),
    ]
    loss = [EsaWorkload("loss", loss, 1, lengths=(3,) * 4, loss=loss) for loss in (0.0001, 0.001, 0.01)]
    return like + ratios + workers + skewed + lengths + server + racks + loss


def quick_list() -> list[EsaWorkload]:
    """Five of them, with smaller models."""
    chosen = [
        EsaWorkload("like", 0.05, 0.05),
        EsaWorkload("skewed", 0.25, 0.25, skewed=True),
        EsaWorkload("server", 0.1, 0.1, server="shared"),
        EsaWorkload("lengths", 16.5, 1, lengths=_LONG_AND_SHORT, arrivals_us=_SHORT_COME, jobs_a_host=4),
        EsaWorkload("loss", 0.001, 1, lengths=(3,) * 4, loss=0.001),
    ]
    return [replace(workload, size_bytes=400_000) for workload in chosen]
