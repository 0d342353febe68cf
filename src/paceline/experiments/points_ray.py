"""A sweep's points on a Ray cluster: one task a point, results as they come.

Paceline is installed on every node, and each task first compares its sources with those of the sweep: a node
with other code is refused, not asked. (Sources that travel with the sweep would be compiled anew on every node for
every sweep.) A node that dies takes no result along: Ray runs its tasks elsewhere, and a point is a function of
nothing but itself.
"""

import importlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from paceline.errors import UserError
from paceline.experiments.points_done import sources_hash

P = TypeVar("P")
RETRIES = 3
CONNECT_S = 5.0
PATIENCE_S = 30.0
"""Between two looks at whether the cluster still has a node."""


def run_on_ray(function: Callable[[P], Any], points: Sequence[P], address: str) -> Iterator[tuple[int, Any]]:
    """`(number, result)` of every point, in the order in which they are done."""
    # No figures about the use of Ray go anywhere.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise UserError('--ray needs Ray: pip install "paceline[ray]"') from None
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address)
    try:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_run_here)
        sources = sources_hash(function)
        number_of = {task.remote(function, point, sources): i for i, point in enumerate(points)}
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


def _run_here(function: Callable[[Any], Any], point: Any, sources: str) -> tuple[str, Any]:
    """On the node: the result, or the node's name if it has other code."""
    if sources_hash(function) != sources:
        return socket.gethostname(), None
    return "", function(point)


def _taken(ray: Any, reference: Any) -> Any:
    try:
        stranger, result = ray.get(reference)
    except ray.exceptions.RayError as error:
        if "No module named" in str(error):
            raise UserError(
                "a node of the Ray cluster lacks Paceline or what it needs; install it there"
            ) from None
        raise
    if stranger:
        raise UserError(
            f"node {stranger} of the Ray cluster has other Paceline code, Python or NumPy than this machine"
        )
    return result


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
