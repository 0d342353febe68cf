"""A new user's path, really walked: `python -m tests.dashboard.new_user docs/tutorial.md docs/images/first-look.png`.

Clones this repository into an empty folder with a home of its own, types the five commands of the page, looks at the
dashboard with Chromium, and writes what was seen, each line with the seconds since the first command, into the page.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.generated import renew
from tests.dashboard.browser import Browser, opened

ROOT = Path(__file__).resolve().parents[2]
RUN = (
    "paceline run examples/contend/jobs.toml --cluster examples/contend/cluster.toml --switch auto"
    " --switch-memory 256KiB --dashboard"
)
COMMANDS = ("git clone REPOSITORY paceline", "cd paceline", "make install", ". .venv/bin/activate", RUN)
LIMIT_S = 1800.0
SECRET = re.compile(r"(#token=)\S+")


class Transcript:
    """What was typed and seen, each line with its time."""

    def __init__(self) -> None:
        self.began, self.lines = time.monotonic(), list[str]()

    def note(self, text: str) -> None:
        shown = SECRET.sub(r"\1...", text)
        line = f"[{time.monotonic() - self.began:6.1f} s] {shown}"
        self.lines.append(line)
        print(line, flush=True)


@contextlib.contextmanager
def typed(folder: Path, transcript: Transcript) -> Iterator[Callable[[str], None]]:
    """A shell with an empty home, in which commands are typed; what it says is noted, except for what pip says."""
    kept = re.compile(r"PATH|LANG|TMPDIR|PIP_.*|.*_proxy|.*_CERT_FILE", re.IGNORECASE)
    env = {key: value for key, value in os.environ.items() if kept.fullmatch(key)}
    # The interpreter itself, not a shim that looks for its settings in the user's home.
    env["PATH"] = f"{Path(os.path.realpath(sys.executable)).parent}{os.pathsep}{env['PATH']}"
    shell = subprocess.Popen(
        ["bash"], cwd=folder, env={**env, "HOME": str(folder)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    ended = threading.Event()

    def read() -> None:
        for line in shell.stdout or ():
            if line.startswith("DONE"):
                ended.set()
            elif re.search(r"dashboard:|to steer:|paceline: |switch: |plan: |start: ", line):
                transcript.note(re.sub(r"^\d\d:\d\d:\d\d ", "", line.rstrip()))

    threading.Thread(target=read, daemon=True).start()

    def type_in(command: str) -> None:
        transcript.note(f"$ {command}")
        assert shell.stdin is not None
        shell.stdin.write(command.replace("REPOSITORY", f"-q {ROOT}") + "\n")
        if command != RUN:
            ended.clear()
            shell.stdin.write("echo DONE\n")
            shell.stdin.flush()
            assert ended.wait(LIMIT_S), command
        shell.stdin.flush()

    try:
        yield type_in
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        try:
            shell.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)


def address(transcript: Transcript) -> str:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        for line in transcript.lines:
            if found := re.search(r"dashboard: (\S+)", line):
                return found[1]
        time.sleep(0.1)
    raise SystemExit("the run told no address")


def watch(page: Browser, url: str, transcript: Transcript, picture: Path) -> None:
    page.open(url, 1280, 900)
    page.wait(lambda: page.count("#jobs .state.running") >= 2, "two running jobs", LIMIT_S)
    transcript.note("browser: two jobs run")
    page.wait(lambda: page.count("#memory .areas path") >= 2, "both in the switch's memory", LIMIT_S)
    transcript.note("browser: both hold memory of the switch")
    time.sleep(8.0)
    page.screenshot(picture, full=True)


def main() -> None:
    picture = Path(sys.argv[2]).resolve()
    transcript = Transcript()
    with tempfile.TemporaryDirectory() as made, typed(Path(made), transcript) as type_in:
        for command in COMMANDS:
            type_in(command)
        with opened() as page:
            watch(page, address(transcript), transcript, picture)
    seen = max(i for i, line in enumerate(transcript.lines) if "browser: " in line)
    text = "```\n" + "\n".join(transcript.lines[: seen + 1]) + "\n```"
    renew([sys.argv[1]], {"first look": text})


if __name__ == "__main__":
    main()
