"""The generated parts of docs/switch.md: metrics, and reasons of drops, read from the code.

python -m paceline.live.switch.describe docs/switch.md
"""

import sys

from paceline.core.describe import ERROR_RULES, SWITCH_COUNTER_MEANINGS
from paceline.core.switch.program import COUNTER_NAMES
from paceline.generated import renew, table
from paceline.live.switch.metrics import METRICS
from paceline.live.switch.shard_state import DROP_REASONS, OWN_DROPS


def _metrics() -> str:
    rows = [
        (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), meaning)
        for name, (kind, labels, meaning) in METRICS.items()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


def _drops() -> str:
    meanings = dict(zip(DROP_REASONS[1:], ERROR_RULES[1:], strict=False)) | OWN_DROPS
    for counter, meaning in zip(COUNTER_NAMES, SWITCH_COUNTER_MEANINGS, strict=True):
        if counter.startswith("drop_"):
            reason = counter.removeprefix("drop_")
            known = meanings.get(reason)
            meanings[reason] = f"{known}; {meaning}" if known and known != meaning else meaning
    return table(("reason", "meaning"), [(f"`{reason}`", meaning) for reason, meaning in meanings.items()])


def sections() -> dict[str, str]:
    """Every generated part, by the name in its marker."""
    return {"metrics": _metrics(), "drops": _drops()}


if __name__ == "__main__":
    renew(sys.argv[1:], sections())
