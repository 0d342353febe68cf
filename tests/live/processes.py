"""A switch as its users run it: a process of its own."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.live.workers import ask

PACELINE = [sys.executable, "-c", "from paceline.cli import main; main()"]


@contextmanager
def process(*words: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A running switch and its control port; what it says is JSON.

    A long lease, unless `words` say otherwise: workers may compile between admission and first packet.
    """
    command = [*PACELINE, "switch", "--listen", "127.0.0.1:0", "--log-json", "--lease", "600", *words]
    made = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert made.stderr is not None
        told = []
        for line in made.stderr:
            told.append(line)
            if line.startswith("{") and json.loads(line)["event"] == "listening":
                break
        assert "listening" in told[-1], told
        yield made, json.loads(told[-1])["port"]
    finally:
        made.kill()
        made.communicate(timeout=30)


def resident_kib(pid: int) -> int:
    """What a process holds in memory."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def metrics(port: int) -> dict[tuple[str, str], float]:
    """The switch's metrics: (name, labels as written) to value."""
    text = ask(port, "GET", "/metrics")[1]["text"]
    lines = re.findall(r"^(\w+)(\{.*\})? (\S+)$", text, re.M)
    return {(name, labels): float(value) for name, labels, value in lines}
