"""For all tests: Hypothesis looks for wrong answers, not for slow ones; a busy machine is no failure."""

import contextlib
import signal

from hypothesis import HealthCheck, settings

settings.register_profile("paceline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("paceline")

# Tests that a shell runs in the background ignore Ctrl-C, and so would the programs that they start and stop by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)
