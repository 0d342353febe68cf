"""A group's bit passport: the hash of every result, noted on the thread that has it, before the caller may touch it.

    PACELINE_PASSPORT=1 torchrun ...             to ./passport, or to the attempt's folder under `paceline run`
    PACELINE_PASSPORT=out/a torchrun ...         to that folder

`paceline verify` compares two of them. All-reduces of this backend have a place in it, whichever way they go: host
memory, switch, custodians, Gloo in their place. What torch's own Gloo does (other operations and formats) has none:
its works end before anybody could look at their tensors.
"""

import os
from pathlib import Path

from paceline.errors import UserError
from paceline.passport.records import Owner, PassportWriter
from paceline.passport.xxh64 import xxh64
from paceline.torch.journal import Journal
from paceline.torch.work import Reduction

VARIABLE = "PACELINE_PASSPORT"


class GroupPassport:
    """The passport of one group on one rank; a disk that is full ends it, not the training."""

    def __init__(self, folder: str, job: str, group: str, rank: int, ranks: int, journal: Journal) -> None:
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        owner = Owner(job, group, rank, ranks, int(restart) if restart.isdigit() else 0)
        self._writer = PassportWriter(Path(folder), owner)
        self._journal = journal

    def note(self, number: int, reduction: Reduction, error: Exception | None) -> None:
        """A reduction has ended."""
        if error is not None:
            return
        array = reduction.array
        try:
            self._writer.note(number, array.shape[0], reduction.kind, reduction.op, xxh64(array))
        except OSError as problem:
            self._writer.close()
            reason = f"the passport ends at reduction {number}: {problem.strerror or problem}"
            self._journal.change("passport", reason, bad=True)

    def close(self) -> None:
        """The group is over."""
        self._writer.close()


def make_passport(
    folder: str, job: str, group: str, rank: int, ranks: int, journal: Journal
) -> GroupPassport | None:
    """The group's passport, where one is asked for."""
    if not folder:
        return None
    try:
        return GroupPassport(folder, job, group, rank, ranks, journal)
    except UserError as error:
        raise UserError(str(error), place=VARIABLE) from None
