"""The soak's own looks at processes and metrics; and, when asked for, a short soak."""

import os
import threading
from pathlib import Path

import pytest

from paceline.drill.soak import Soak, SoakReport, _total, figures_of


def test_what_a_process_holds(tmp_path: Path) -> None:
    before = figures_of(os.getpid())
    assert before is not None
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    with (tmp_path / "open").open("w"):
        after = figures_of(os.getpid())
    ended.set()
    thread.join()
    assert after is not None
    assert (after.threads, after.files) == (before.threads + 1, before.files + 1)
    assert before.memory_mb > 1
    assert figures_of(2**22 + 1) is None


def test_the_sum_of_a_metric() -> None:
    text = '# TYPE x gauge\nx{a="1"} 2\nx{a="2"} 3.5\nxy 7\n'
    assert (_total(text, "x"), _total(text, "xy"), _total(text, "z")) == (5.5, 7.0, 0.0)


@pytest.mark.slow
def test_a_short_soak(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report: SoakReport = Soak(tmp_path, 0.5, 3, 0.0).run()
    assert report.problems == []
    assert report.same_bits
    assert report.results > 100
    assert (report.jobs_left, report.slots_left) == (0.0, 0.0)
