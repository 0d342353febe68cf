"""A Work's end: who is told, in which order."""

import threading
from datetime import timedelta

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed import DistBackendError

from paceline.torch.serial_thread import CallbackThreads
from paceline.torch.work import PacelineWork


def test_nobody_who_waits_goes_on_before_the_listeners_are_done() -> None:
    """A profile that ends after `wait` must not find its event still open."""
    work = PacelineWork([torch.ones(1)], 20.0, CallbackThreads())
    entered, go, late = threading.Event(), threading.Event(), []

    def listener(_error: Exception | None) -> None:
        entered.set()
        go.wait(20)

    work.when_ended(listener)
    thread = threading.Thread(target=work.end)
    thread.start()
    assert entered.wait(20)
    assert not work.is_completed()
    with pytest.raises(DistBackendError, match="did not end"):
        work.wait(timedelta(seconds=0.1))
    work.when_ended(late.append)
    future = work.get_future()
    go.set()
    assert work.wait()
    assert late == [None]
    assert future.wait() == [torch.ones(1)]
    thread.join(20)


def test_the_first_end_counts() -> None:
    work = PacelineWork([torch.ones(1)], 20.0, CallbackThreads())
    work.end(ValueError("the first"))
    work.end()
    told: list[Exception | None] = []
    work.when_ended(told.append)
    assert [str(error) for error in told] == ["the first"]
    with pytest.raises(DistBackendError, match="the first"):
        work.wait()
