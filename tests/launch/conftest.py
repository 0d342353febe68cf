from collections.abc import Iterator

import pytest

from tests.launch.scenes import PLANNERS


@pytest.fixture(autouse=True)
def _no_planner_is_left() -> Iterator[None]:
    yield
    while PLANNERS:
        # Not `communicate`: what the planner has started may still have its ends of the pipes.
        with PLANNERS.pop() as planner:
            if planner.poll() is None:
                planner.kill()
