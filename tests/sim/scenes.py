"""Small scenarios that the simulator's tests share."""

from typing import Any

from paceline.core.wire import ENVELOPE_BYTES, HEADER_BYTES
from paceline.sim.results import RunResult
from paceline.sim.scenario import Scenario

OVERHEAD_BYTES = HEADER_BYTES + ENVELOPE_BYTES


def scene(*jobs: dict[str, Any], **sections: Any) -> Scenario:
    """A scenario from plain data, as a TOML file would give it."""
    return Scenario.model_validate({"job": list(jobs), **sections})


def job(**keys: Any) -> dict[str, Any]:
    """A job of four workers with a small model."""
    return {"name": "a", "workers": 4, "size": 40_000, "layers": 4, "iterations": 2} | keys


def facts(result: RunResult) -> dict[str, Any]:
    """Everything a run says, but for how long it took on this machine."""
    data = result.to_dict(with_occupancy=True)
    del data["wall_s"]
    return data


def wire_s(scenario: Scenario, size_bytes: int) -> float:
    """Time on a host's link for that much gradient, with all headers."""
    network = scenario.network
    packets = -(-size_bytes // (4 * network.elements))
    return packets * (OVERHEAD_BYTES + 4 * network.elements) * 8 / network.rate
