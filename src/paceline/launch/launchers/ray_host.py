"""What runs on a node of a Ray cluster: an actor that holds the ranks of one attempt on that node.

The ranks run under the same supervisor as on one machine, at the end of a pipe: when the actor is gone, with its
node or without, its ranks are killed. Log and status files lie in a folder of the node's own; `poll` hands over
what is new in them, so the nodes need no file system in common with the planner.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from paceline.launch.environment import MARK
from paceline.launch.launchers import processes
from paceline.launch.launchers.supervisor import STOPS, read_json

PIECE_BYTES = 1 << 20


class Host:
    """The ranks of one attempt on one node; made once, starts them at once."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="paceline-"))
        for entry in spec["ranks"]:
            entry["env"]["PACELINE_STATUS"] = str(self.folder / f"status-{entry['rank']}")
            entry["env"]["PACELINE_REMAINING_FILE"] = str(self.folder / "remaining_s")
        (self.folder / "remaining_s").write_text(f"{spec['remaining_s']}\n", encoding="utf-8")
        (self.folder / "task.json").write_text(json.dumps(spec), encoding="utf-8")
        self.ranks = [int(entry["rank"]) for entry in spec["ranks"]]
        self.token = str(spec["token"])
        # Whoever asks it to stop while it still starts must be heard later, not end it without a word.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "paceline.launch.launchers.supervisor", str(self.folder), "--lifeline"],
                stdin=subprocess.PIPE, env={**os.environ, MARK: self.token}, start_new_session=True,
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def poll(self, offsets: dict[int, int]) -> dict[str, Any]:
        """How the ranks do, and what is new in their files."""
        code = self.process.poll()
        verdict = read_json(self.folder / "exit.json") if code is not None else None
        if code is not None and verdict is None:
            processes.kill_marked(MARK, self.token)  # it was killed, and its ranks have nobody now
        logs = {}
        for rank in self.ranks:
            with contextlib.suppress(OSError), (self.folder / f"rank-{rank}.log").open("rb") as file:
                file.seek(offsets.get(rank, 0))
                logs[rank] = file.read(PIECE_BYTES)
        status = None
        with contextlib.suppress(OSError):
            status = (self.folder / "status-0").read_bytes()[-PIECE_BYTES:]
        # The end is told only with the last piece of every log.
        whole = all(len(piece) < PIECE_BYTES for piece in logs.values())
        return {"ended": code is not None and whole, "verdict": verdict, "logs": logs, "status": status}

    def stop(self) -> None:
        """SIGTERM, grace, SIGKILL: the supervisor's business."""
        if self.process.poll() is None:
            self.process.terminate()

    def clear(self) -> None:
        """Leave nothing on the node."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)
