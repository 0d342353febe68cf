"""State by its address: the same results as by value, one pointer a call, and no read that comes before its write."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.core.errors import NumbaError

from paceline.compile.bundles import Bundle
from paceline.compile.decorators import bundle, compiled, compiled_apart, compiled_inner
from paceline.compile.linking import njit

compiled_only = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
COUNTER = np.dtype([("seen", "i8"), ("limit", "i4")], align=True)


class Shelf(NamedTuple):
    """Reached through a bundle, it is one."""

    rows: Any
    bytes: Any


@bundle
class Store(NamedTuple):
    """Arrays of several kinds and dimensions, a bundle, and a plain number."""

    counters: Any
    shelf: Shelf
    cube: Any
    step: int


def new_store(step: int = 3) -> Store:
    counters = np.zeros(2, dtype=COUNTER).view(np.recarray)
    shelf = Shelf(np.arange(12, dtype=np.int64).reshape(3, 4), np.zeros(5, dtype=np.uint8))
    return Store(counters, shelf, np.zeros((2, 3, 4), dtype=np.float32), step)


@compiled_apart
def shelve(shelf: Shelf, row: int, value: int) -> None:
    for column in range(shelf.rows.shape[1]):
        shelf.rows[row, column] += value


@compiled_apart
def count(store: Store, at: int) -> int:
    store.counters[at].seen += store.step
    return int(store.counters[at].seen)


@compiled_inner
def is_over(store: Store, at: int) -> bool:
    return bool(store.counters[at].seen > store.counters[at].limit)


@compiled
def work(store: Store, turns: int) -> int:
    for turn in range(turns):
        shelve(store.shelf, turn % store.shelf.rows.shape[0], store.step)
        store.shelf.bytes[turn % 5] = turn
        store.cube[turn % 2, turn % 3, turn % 4] += 0.5
        if count(store, 1) > 100 and is_over(store, 1):
            return turn
    return -1


def by_hand(store: Store, turns: int) -> int:
    for turn in range(turns):
        store.shelf.rows[turn % 3] += store.step
        store.shelf.bytes[turn % 5] = turn
        store.cube[turn % 2, turn % 3, turn % 4] += 0.5
        store.counters[1].seen += store.step
        if store.counters[1].seen > 100 and store.counters[1].seen > store.counters[1].limit:
            return turn
    return -1


def test_what_is_written_through_an_address_is_what_python_would_have_written() -> None:
    mine, theirs = new_store(), new_store()
    for store, function in ((mine, work), (theirs, by_hand)):
        store.counters[1].limit = 110
        assert function(store, 20) == -1
        assert function(store, 30) == 16  # the second call begins where the first one ended
    assert mine.counters.tolist() == theirs.counters.tolist()
    assert np.array_equal(mine.shelf.rows, theirs.shelf.rows)
    assert np.array_equal(mine.shelf.bytes, theirs.shelf.bytes)
    assert np.array_equal(mine.cube, theirs.cube)


def test_each_call_reads_the_arrays_and_numbers_that_it_was_given() -> None:
    for step in (1, 7, 40, 7):
        store = new_store(step)
        work(store, 2)
        assert store.counters[1].seen == 2 * step
        assert store.shelf.rows[1].tolist() == [4 + step, 5 + step, 6 + step, 7 + step]


@compiled_only
def test_a_bundle_is_one_pointer_and_what_it_holds_is_a_bundle_too() -> None:
    work(new_store(), 1)
    (signature,) = work.nopython_signatures[-1:]  # type: ignore[attr-defined]
    kind = signature.args[0]
    assert isinstance(kind, Bundle)
    assert isinstance(kind.kinds[1], Bundle)
    assert len(str(kind)) < 120  # it is part of the name of every function that takes it

    def calls_it(store: Store) -> None:
        shelve(store.shelf, 0, store.step)

    njit(nogil=True, error_model="numpy", _nrt=False)(calls_it)(new_store())  # `work` may come from the disk
    inner = str(shelve.overloads[next(iter(shelve.overloads))].library.get_llvm_str())  # type: ignore[attr-defined]
    (head,) = [line for line in inner.splitlines() if line.startswith("define") and "shelve" in line]
    assert head.count("%") <= 8, head


@compiled_only
def test_a_field_that_is_not_there_does_not_compile() -> None:
    @compiled
    def wrong(store: Store) -> int:
        return int(store.nothing[0])  # type: ignore[attr-defined]

    with pytest.raises(NumbaError, match="nothing"):
        wrong(new_store())


@compiled_only
def test_the_type_is_the_same_in_every_process_so_that_code_on_disk_is_found(tmp_path: Path) -> None:
    script = (
        "from tests.compile.test_bundles import new_store, work\n"
        "print(work(new_store(), 3), sum(work.stats.cache_hits.values()))"
    )
    environment = {**os.environ, "PACELINE_CACHE": str(tmp_path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert told == [["-1", "0"], ["-1", "1"]]
