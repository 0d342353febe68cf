"""Groups that need no agents: all ranks on one host, a single rank, or more workers than a mask has bits."""

from datetime import timedelta
from typing import Any

from torch.distributed import AllreduceOptions, ReduceOp

from paceline.live.hostmem.group import HostGroup
from paceline.torch.journal import Journal
from paceline.torch.serial_thread import SerialThread
from paceline.torch.work import DRAIN_S, Reduction, error_of


class HostReducer:
    """All-reduces one after another; a blocking one that finds the thread idle runs on the caller's own."""

    def __init__(self, host: HostGroup, journal: Journal) -> None:
        self._host, self._journal = host, journal
        self._thread = SerialThread("paceline-host")
        self._closing = False

    def submit(self, reduction: Reduction) -> None:
        self._thread.put(lambda: self._reduce(reduction))

    def try_now(self, reduction: Reduction) -> bool:
        return self._thread.run_if_idle(lambda: self._reduce(reduction))

    def _reduce(self, reduction: Reduction) -> None:
        divisor = reduction.divisor(self._host.ranks)
        try:
            self._host.all_reduce(reduction.array, reduction.kind, divisor, reduction.timeout_s)
        except Exception as error:
            if not self._closing and not self._journal.counters["failed"]:
                self._journal.change("failed", str(error), bad=True)
            reduction.work.end(error)
            return
        self._journal.count("reductions")
        reduction.work.end()

    def status(self) -> dict[str, Any]:
        return {"path": "host", "workers": 1}

    def close(self, drain_s: float = DRAIN_S) -> None:
        self._thread.drain(drain_s)
        self._closing = True
        self._host.close()
        self._thread.close()


class LoneReducer:
    """A group of one rank: the sum over one is what it was."""

    def submit(self, reduction: Reduction) -> None:
        reduction.work.end()

    def try_now(self, reduction: Reduction) -> bool:
        reduction.work.end()
        return True

    def status(self) -> dict[str, Any]:
        return {"path": "alone", "workers": 1}

    def close(self, drain_s: float = DRAIN_S) -> None:
        pass


class InnerReducer:
    """Everything over the inner Gloo group."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def submit(self, reduction: Reduction) -> None:
        options: Any = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM if reduction.op == "sum" else ReduceOp.AVG
        options.timeout = timedelta(seconds=reduction.timeout_s)
        work = self._inner.allreduce([reduction.tensor()], options)
        work.get_future().add_done_callback(lambda done: reduction.work.end(error_of(done)))

    def try_now(self, _reduction: Reduction) -> bool:
        return False

    def status(self) -> dict[str, Any]:
        return {"path": "gloo"}

    def close(self, drain_s: float = DRAIN_S) -> None:
        pass
