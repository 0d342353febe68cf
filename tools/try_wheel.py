"""Try a wheel as a user gets it: a fresh environment, no compiler on the path, no repository, the commands that matter.

    python -m tools.try_wheel dist/paceline-0.1.0-py3-none-any.whl

Ends with 0 if `simulate`, `plan` and `switch` run from it. The environment is a temporary folder, and goes away.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_S = 3600.0
"""For one command: on a machine that is busy with other things, compiling takes its time."""
SCENARIO = """
name = "two jobs"
policies = ["esa", "atp"]
[network]
rate = "10 Gbit/s"
[switch]
slots = 64
[[job]]
name = "a"
copies = 2
workers = 3
iterations = 3
size = "1 MB"
ratio = 1
"""
COMPILERS = ("gcc", "cc", "g++", "clang", "ld", "as")


def main(wheel: Path) -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory(prefix="paceline-wheel-") as name:
        folder = Path(name)
        python = folder / "venv" / "bin" / "python"
        _call([sys.executable, "-m", "venv", str(folder / "venv")], folder, dict(os.environ))
        _call(
            [str(python), "-m", "pip", "install", "--quiet", f"{wheel.resolve()}[switch]"],
            folder,
            dict(os.environ),
        )
        env = _bare_environment(folder)
        (folder / "scenario.toml").write_text(SCENARIO, encoding="utf-8")
        paceline = str(folder / "venv" / "bin" / "paceline")
        where = "import paceline; print(paceline.__file__)"
        found = _call([str(python), "-c", where], folder, env)
        assert str(folder) in found, f"{found} is not the wheel's"
        print(_call([paceline, "--version"], folder, env).strip())
        print(_call([paceline, "simulate", "scenario.toml"], folder, env))
        print(
            _call(
                [paceline, "plan", "--cluster", "paper:1:5", "--jobs", "paper:1", "--no-gantt"], folder, env
            )
        )
        _try_switch(paceline, folder, env)
    print(f"{wheel.name}: simulate, plan and switch run, without a compiler and without the repository")
    return 0


def _bare_environment(folder: Path) -> dict[str, str]:
    """Nothing of ours, and no compiler: a path with the few tools that are not one."""
    tools = folder / "bin"
    tools.mkdir()
    for tool in ("sh", "env", "ip"):
        path = shutil.which(tool)
        if path:
            (tools / tool).symlink_to(path)
    env = {
        "PATH": str(tools),
        "HOME": str(folder),
        "PACELINE_CACHE": str(folder / "cache"),
        "LANG": "C.UTF-8",
    }
    for compiler in COMPILERS:
        assert shutil.which(compiler, path=env["PATH"]) is None
    return env


def _try_switch(paceline: str, folder: Path, env: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    process = subprocess.Popen([paceline, "switch", "--listen", address], cwd=folder, env=env)
    try:
        until = time.monotonic() + LIMIT_S
        while True:
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the switch ended"
            assert time.monotonic() < until, "the switch does not answer"
            time.sleep(0.2)
        print(_call([paceline, "doctor", "--switch", address], folder, env))
    finally:
        process.terminate()
        process.wait(60)


def _call(command: list[str], folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        print(done.stdout)
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
