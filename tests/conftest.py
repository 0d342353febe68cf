"""For all tests: Hypothesis looks for wrong answers, not for slow ones; a busy machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("paceline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("paceline")
