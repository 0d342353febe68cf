"""A compiled function with one signature for each number of dimensions, for the cache's test."""

from typing import Any

from paceline.compile.decorators import compiled


@compiled
def total(values: Any) -> float:
    """The sum of all elements."""
    result = 0.0
    for value in values.flat:
        result += value
    return result
