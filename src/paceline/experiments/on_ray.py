"""A sweep's points on a Ray cluster: one task a point, results as they come.

Paceline is installed on every node, and each task first compares its sources with those of the sweep: a node
with other code is refused, not asked. (Sources that travel with the sweep would be compiled anew on every node for
every sweep.) A node that dies takes no result along: Ray runs its tasks elsewhere, and a point is a function of
nothing but itself.
"""

import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from paceline.errors import UserError, optional_module
from paceline.experiments.sweep import sources_hash

P = TypeVar("P")
RETRIES = 3
CONNECT_S = 5.0
PATIENCE_S = 30.0
"""Between two looks at whether the cluster still has a node."""


def run_on_ray(function: Callable[[P], Any], points: Sequence[P], address: str) -> Iterator[tuple[int, Any]]:
    """`(number, result)` of every point, in the order in which they are done."""
    # No figures about the use of Ray go anywhere.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = optional_module("ray", '--ray needs Ray: pip install "paceline[ray]"')
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address)
    try:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(node_task())
        sources = sources_hash(function)
        number_of = {
            task.remote(pickle.dumps((function, point)), sources): i for i, point in enumerate(points)
        }
        waiting = list(number_of)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=PATIENCE_S)
            if not done and not any(node["Alive"] for node in ray.nodes()):
                raise UserError(f"the Ray cluster at {address} has no live node left; go on with --resume")
            for reference in done:
                yield number_of.pop(reference), _taken(ray, reference)
    finally:
        if ours:
            ray.shutdown()


def node_task() -> Callable[[bytes, str], tuple[str, Any]]:
    """What a node runs: how it ended, and the result, or else the node's name and what is missing.

    A function inside of another travels with its code, so it runs where Paceline is not installed, too.
    """

    def run_on_node(work: bytes, sources: str) -> tuple[str, Any]:
        import pickle
        import socket

        try:
            from paceline.experiments import sweep

            function, point = pickle.loads(work)
            if sweep.sources_hash(function) != sources:
                return "other code", (socket.gethostname(), None)
            return "done", function(point)
        except ModuleNotFoundError as error:
            return "module missing", (socket.gethostname(), error.name)

    return run_on_node


def _taken(ray: Any, reference: Any) -> Any:
    ended, result = ray.get(reference)
    if ended == "done":
        return result
    node, module = result
    if ended == "other code":
        raise UserError(
            f"node {node} of the Ray cluster has other Paceline code, Python or NumPy than this machine"
        )
    raise UserError(
        f"node {node} of the Ray cluster lacks {module}; install Paceline and what it needs there"
    )


def _connect(ray: Any, address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():
            # Ray itself would try for a minute.
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"no Ray cluster answers at {address}: {reason}", place="--ray") from None
