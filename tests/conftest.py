"""For all tests: what Hypothesis looks for, which rooms may try a test again, and how the run says so."""

import contextlib
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Hypothesis looks for wrong answers, not for slow ones; a busy machine is no failure.
settings.register_profile("paceline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("paceline")

# Tests that a shell runs in the background ignore Ctrl-C, and so would the programs that they start and stop by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)

# These rooms drive real processes, sockets and timers: on a busy machine a wait can end too early.
# A test of theirs that fails is tried again; the first failure is printed at the end, and more than a few fail the run.
# What runs within one process on a clock of its own gets one try only.
PROCESS_ROOMS = {"bench", "dashboard", "drill", "emulation", "launch", "live", "net", "passport", "torch"}
TRIES_AGAIN = 2
MOST_TRIED_AGAIN = 6


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        if item.path.relative_to(root).parts[0] in PROCESS_ROOMS:
            item.add_marker(pytest.mark.flaky(reruns=TRIES_AGAIN, reruns_delay=2))
    # What waits goes first, several at a time; what computes keeps all processors busy to the end.
    items.sort(key=lambda item: item.path.relative_to(root).parts[0] not in PROCESS_ROOMS)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tried = terminalreporter.getreports("rerun")
    if not tried:
        return
    terminalreporter.section("failed first, tried again")
    for report in tried:
        terminalreporter.write_line(f"{report.nodeid} ({report.when})", yellow=True)
        terminalreporter.write_line(report.longreprtext)
    if _too_many(terminalreporter):
        terminalreporter.write_line(
            f"more than {MOST_TRIED_AGAIN} tests failed first: the run fails", red=True
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not session.exitstatus and _too_many(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _too_many(reporter: pytest.TerminalReporter) -> bool:
    return len({report.nodeid for report in reporter.getreports("rerun")}) > MOST_TRIED_AGAIN
