"""What an agent is told at its start: who it is, whom it talks to, and how patient it is.

`AgentConfig` is checked once, when it is made: a mistake gives a `UserError` that names the field.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.numbers.layout import ELEMENTS_MIN
from paceline.core.switch.memory import POLICIES
from paceline.core.wire import CONTRIBUTORS_MAX, MAX_ELEMENTS
from paceline.errors import UserError

Address = tuple[str, int]
"""An IP address as text, and a UDP port."""

KEY_BYTES = 16
STRAGGLER_MODES = ("off", "custody")


@dataclass(frozen=True)
class AgentConfig:
    """One worker of one job; every worker of the job has the same but for `worker`."""

    worker: int
    """This worker's number, 0..workers-1."""
    workers: int
    peers: Sequence[Address]
    """The UDP addresses of all workers' agents, by worker; the own one too."""
    job: int
    key: bytes
    """The job's key, 16 bytes."""
    switch: tuple[str, Sequence[int]] | None = None
    """The switch's address and the ports of its shards; None: custodians only."""
    slots: int = 1024
    """Aggregators of a shard (SwitchML: places of this job's pool), as the admission said."""
    policy: str = "esa-plus"
    auth: str = "header"
    """What tags cover: "header" or "full"."""
    elements: int = MAX_ELEMENTS
    """32-bit integers of a chunk; all workers the same. `sockets.elements_for` knows what a path carries."""
    epoch: int = 0
    racks: Sequence[int] = ()
    """The rack of each worker, where racks have switches of their own; empty: one rack."""
    timeout_s: float = 300.0
    """A reduction that takes longer ends with an error."""
    silence_s: float = 1.0
    """A switch that answers nothing for this long, asked several times, is taken for dead."""
    window_bytes: int = 1 << 20
    """The most bytes that a worker has under way."""
    window_start: int = 64
    """Chunks under way at the beginning."""
    tensors_max: int = 1024
    """Reductions under way at a time; a further `submit` waits."""
    linger_s: float = 1.0
    """How long a closing agent still answers others that lack a result."""
    straggler: str = "off"
    """"custody": leading workers go on without a straggling one, and keep what waits for it; all workers the same."""
    straggler_theta_bytes: int = 1 << 20
    """A worker is behind when it lags the leaders' median by more than this."""
    straggler_window_s: float = 0.1
    """How often progress is looked at."""
    straggler_windows: int = 2
    """Behind for so many windows in a row, it straggles."""
    straggler_clean: int = 2
    """It leads again after so many iterations without being behind."""
    budget_bytes: int = 8 << 20
    """Custody: the most that a leader has sent and that has no result yet. An agent keeps four times this."""
    name: str = field(default="")
    """For log lines."""

    def __post_init__(self) -> None:
        _require(1 <= self.workers <= CONTRIBUTORS_MAX, "workers", f"from 1 to {CONTRIBUTORS_MAX}")
        _require(0 <= self.worker < self.workers, "worker", f"from 0 to {self.workers - 1}")
        _require(len(self.peers) == self.workers, "peers", "one address for each worker")
        _require(len(self.key) == KEY_BYTES, "key", f"{KEY_BYTES} bytes")
        _require(0 <= self.job < 1 << 16, "job", "from 0 to 65535")
        _require(0 <= self.epoch < 1 << 16, "epoch", "from 0 to 65535")
        _require(self.policy in POLICIES, "policy", "one of " + ", ".join(POLICIES))
        _require(self.auth in ("header", "full"), "auth", '"header" or "full"')
        _require(
            ELEMENTS_MIN <= self.elements <= MAX_ELEMENTS,
            "elements",
            f"from {ELEMENTS_MIN} to {MAX_ELEMENTS}",
        )
        _require(not self.racks or len(self.racks) == self.workers, "racks", "one for each worker, or none")
        _require(self.slots >= 1, "slots", "at least 1")
        _require(self.timeout_s > 0, "timeout_s", "above 0")
        _require(self.switch is None or len(self.switch[1]) > 0, "switch", "at least one port")
        _require(self.policy != "switchml" or self.switch is not None, "switch", "needed by switchml")
        _require(self.straggler in STRAGGLER_MODES, "straggler", "one of " + ", ".join(STRAGGLER_MODES))
        _require(
            self.straggler == "off" or self.policy != "switchml",
            "straggler",
            '"off" under switchml, which has no custodians',
        )
        _require(self.straggler_theta_bytes > 0, "straggler_theta_bytes", "above 0")
        _require(self.straggler_window_s > 0, "straggler_window_s", "above 0")
        _require(self.straggler_windows >= 1, "straggler_windows", "at least 1")
        _require(self.straggler_clean >= 1, "straggler_clean", "at least 1")
        _require(self.budget_bytes > 0, "budget_bytes", "above 0")


def _require(holds: bool, field_name: str, what: str) -> None:
    if not holds:
        raise UserError(f"must be {what}", place=f"agent {field_name}")
