"""Pictures for the pages, of a real run: `python -m tests.dashboard.screenshots docs/images`.

Starts the example in which two jobs want one switch's memory, with its dashboard, and looks at it with Chromium; then
at the report of the same run, as far as it is by then.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from paceline.launch.store import read_run
from paceline.report.run.page import write_page
from tests.dashboard.browser import Browser, opened

CALL = "from paceline.cli import main; main()"
EXAMPLE = ("examples/contend/jobs.toml", "--cluster", "examples/contend/cluster.toml")
OPTIONS = ("--switch", "auto", "--switch-memory", "256KiB", "--dashboard")


def address_of(lines: list[str], limit_s: float = 300.0) -> str:
    """Where the run says that its page is, with the token."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        for line in list(lines):
            if found := re.search(r"to steer:\s+(\S+)", line):
                return found[1]
        time.sleep(0.1)
    raise SystemExit("the run told no address:\n" + "".join(lines))


def look(page: Browser, url: str, into: Path) -> None:
    """Wait until there is something to see, and take the pictures."""
    page.open(url, 1280, 900)
    runs = "#jobs .state.running"
    page.wait(lambda: page.count(runs + ", #jobs .state.failed") >= 2, "two running jobs", 400.0)
    if page.count("#jobs .state.failed"):
        raise SystemExit("a job failed")
    page.wait(lambda: page.count("#memory .areas path") >= 2, "both in the switch's memory", 120.0)
    page.wait(lambda: page.count("#stragglers tbody tr") >= 4, "all workers", 120.0)
    time.sleep(12.0)
    page.screenshot(into / "dashboard.png", full=True)
    page.resize(1280, 900)
    page.click('#jobs tr[data-key="fir"]')
    page.wait(lambda: "loss" in page.text("#detail pre"), "a log with losses")
    time.sleep(1.0)
    page.screenshot(into / "dashboard-job.png")
    page.click("#close-detail")
    page.click("#theme")
    page.resize(390, 844)
    time.sleep(1.0)
    page.screenshot(into / "dashboard-phone.png", full=True)


def look_at_report(page: Browser, run: Path, into: Path) -> None:
    write_page(run / "report.html", read_run(run))
    page.open((run / "report.html").as_uri(), 1100, 1720)
    page.screenshot(into / "report.png")


def main() -> None:
    into = Path(sys.argv[1])
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        command = [sys.executable, "-c", CALL, "run", *EXAMPLE, *OPTIONS, "--out", f"{made}/contend"]
        # The jobs' `python` is this one.
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        run = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
        lines: list[str] = []
        assert run.stderr is not None

        def read() -> None:
            for line in run.stderr or ():
                lines.append(line)
                print(line, end="", file=sys.stderr)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            with opened() as page:
                look(page, address_of(lines), into)
                look_at_report(page, Path(made) / "contend", into)
        finally:
            run.terminate()
            try:
                run.wait(60)
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait(10)


if __name__ == "__main__":
    main()
