"""Compile ahead what a run would compile: agent, switch, worker and planner, each in a process of its own.

    python -m paceline.launch.warm [agent] [switch] [worker] [planner] [simulator]

Machine code is kept on disk, so this is needed once a machine and version; what is there already is loaded, in a second
or two. `paceline run` does it by itself before the clock of a run starts, where its jobs run on this machine and have a
switch. On other nodes a job's first start compiles, unless this was run there before.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from paceline.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, UserError

_MODULES = {
    "agent": "paceline.live.agent.setup",
    "switch": "paceline.live.switch.daemon",
    "worker": "paceline.torch.warm",
    "planner": "paceline.schedule.planning",
    "simulator": "paceline.sim.run",
}
"""What is compiled ahead, the longest first: modules with a `warm_up`. By name: only the backend may know torch."""
PARTS = ("agent", "switch", "worker", "planner")
"""What a run needs, and what is compiled if nothing is named."""
LIMIT_S = 900.0
TELL_S = 10.0
"""Between two lines that say what is waited for."""


def compile_part(part: str) -> None:
    """Compile or load one part, in this process."""
    if part != "worker" or importlib.util.find_spec("torch") is not None:
        importlib.import_module(_MODULES[part]).warm_up()


class Warming:
    """The parts, each compiled by a process of its own, beside whatever the caller does meanwhile."""

    def __init__(self, parts: Sequence[str] = PARTS) -> None:
        self._processes = {
            part: subprocess.Popen(
                [sys.executable, "-m", "paceline.launch.warm", f"--here={part}"],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is ours: it would make each of them write a traceback
            )
            for part in parts
        }

    def wait(self, limit_s: float = LIMIT_S) -> None:
        """Until all are compiled. A `UserError` says which part could not be."""
        begin = time.monotonic()
        try:
            for part, process in self._processes.items():
                while (code := self._ended(process)) is None:
                    passed_s = time.monotonic() - begin
                    if passed_s > limit_s:
                        raise UserError(f"not compiled within {limit_s:.0f} s", place="run")
                    if part != PARTS[0]:  # which tells by itself
                        print(
                            f"paceline: compiling the {part}: {passed_s:.0f} s", file=sys.stderr, flush=True
                        )
                if code != 0:
                    raise UserError(f"the {part} could not be compiled (exit code {code})", place="run")
        finally:
            self.stop()

    def _ended(self, process: "subprocess.Popen[bytes]") -> int | None:
        try:
            return process.wait(TELL_S)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End what still compiles."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def main(arguments: Sequence[str]) -> int:
    parts = [argument.removeprefix("--here=") for argument in arguments]
    unknown = [part for part in parts if part not in _MODULES]
    if unknown:
        print(f"there is no {unknown[0]!r} to compile; known: {', '.join(_MODULES)}", file=sys.stderr)
        return EXIT_USAGE
    if arguments and arguments[0].startswith("--here="):
        if parts[0] != PARTS[0]:
            # The longest has a processor to itself; the others share what is left.
            os.nice(10)
        compile_part(parts[0])
        return EXIT_OK
    try:
        Warming(parts or PARTS).wait()
    except UserError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
