"""Reductions between workers over Gloo, with the agents' arithmetic: the last path, and bit for bit the same.

Each reduction also carries one flag a worker: "I am ready to leave this path". The sum tells every worker, at
the same reduction, that all are."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import ProcessGroupGloo

from paceline.torch.failover.chunked_reduction import BulkReduction, warm_up


class GlooCarrier:
    """A Gloo group of the workers."""

    def __init__(self, store: Any, worker: int, workers: int, elements: int, timeout_s: float) -> None:
        self._workers, self.elements = workers, elements
        warm_up()
        self._group: Any = ProcessGroupGloo(store, worker, workers, timeout=timedelta(seconds=timeout_s))

    def reduce(
        self,
        source: npt.NDArray[Any],
        kind: str,
        op: str,
        target: npt.NDArray[Any],
        ready: bool,
        timeout_s: float,
    ) -> bool:
        """All-reduce `source` of all workers into `target`; True if every worker was `ready`."""
        bulk = BulkReduction(source, kind, op, self.elements, self._workers)
        first = bulk.write_agreement()
        message = np.concatenate([np.array([int(ready)], np.int32), first])
        self._sum(message, timeout_s)
        bulk.agreement[:] = message[1:]
        bulk.read_agreement(target)
        rest = bulk.write_rest()
        if rest.size:
            self._sum(rest, timeout_s)
            bulk.read_rest(target)
        return int(message[0]) == self._workers

    def _sum(self, ints: npt.NDArray[np.int32], timeout_s: float) -> None:
        options: Any = torch.distributed.AllreduceOptions()
        options.timeout = timedelta(seconds=timeout_s)
        self._group.allreduce([torch.from_numpy(ints)], options).wait()

    def abort(self) -> None:
        """Let whoever waits in here go."""
        with suppress(RuntimeError):
            self._group.abort()

    def close(self) -> None:
        """Close the connections."""
        self._group.shutdown()
