"""Do the jobs of two runs end with the same loss? Prints both, and fails if they differ by more than rounding.

python examples/demo/losses.py RUN RUN
"""

import json
import re
import sys
from pathlib import Path

TOLERANCE = 1e-4
"""Relative. Sums are taken in another order and in fixed point; over the steps of a job that is rounding."""


def losses(run: Path) -> dict[str, float]:
    """The last loss that each job of a run told, by the job's name."""
    found: dict[str, float] = {}
    for log in sorted(run.glob("**/rank-0.log")):
        lines = re.findall(r"^PACELINE_STATUS (\{.*\})$", log.read_text(encoding="utf-8"), re.M)
        if lines:
            found[log.parent.name.rpartition(".")[0]] = float(json.loads(lines[-1])["loss"])
    return found


def main() -> int:
    first, second = (losses(Path(name)) for name in sys.argv[1:3])
    print(f"{'job':12} {'loss, plain':>14} {'with Paceline':>14} {'difference':>11}")
    agree = first.keys() == second.keys() and bool(first)
    for job in sorted(first.keys() & second.keys()):
        difference = abs(first[job] - second[job]) / abs(first[job])
        agree &= difference <= TOLERANCE
        print(f"{job:12} {first[job]:14.8f} {second[job]:14.8f} {difference:11.1e}")
    print("every job's loss agrees" if agree else "THE LOSSES DIFFER")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
