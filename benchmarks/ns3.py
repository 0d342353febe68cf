"""The ns-3 peer of the simulator benchmark: the same star, built and timed here, or a reason why not.

`measure` compiles `ns3_star.cc` against the installed ns-3 (Debian: `libns3-dev`) and runs its two modes:
`udp`, the full UDP/IP stack, and `bare`, devices alone. Both are pure simulations inside one process: no
packet leaves it. Compiling and each run are bounded in time. The binary is kept in the user's cache folder
under a hash of its source, so only the first run compiles.

A peer that is not there is no failure: `measure` then prints the reason and returns None.

    python -m benchmarks.ns3 [--hosts 64] [--packets 200000] [--json FILE|-]
"""

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("ns3_star.cc")
MODULES = ("point-to-point", "internet", "traffic-control", "network", "core")
FLAGS = ("-O2", "-std=c++17")
MODES = ("udp", "bare")

COMPILE_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 120.0


class PeerMissing(Exception):  # noqa: N818 - not an error: the benchmark goes on without its peer
    """ns-3 cannot be measured here; the text says why."""


def measure(hosts: int = 64, packets: int = 200_000) -> dict[str, Any] | None:
    """Both modes' figures, keyed by mode, or None after a line on stderr that gives the reason.

    Each mode: `packets_per_s` (forwarded by the hub, a wall-clock second), `forwarded`, `wall_s`, `events`.
    """
    if hosts < 2 or packets < hosts:
        raise ValueError("a star needs two hosts or more, and a packet or more from each")
    try:
        binary = build()
        return {mode: run(binary, mode, hosts, packets) for mode in MODES}
    except PeerMissing as reason:
        print(f"ns-3 was not measured: {reason}", file=sys.stderr)
        return None


def build() -> Path:
    """The compiled peer, from the cache or made now; raises `PeerMissing`."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise PeerMissing("there is no g++")
    flags = ns3_flags()
    key = hashlib.sha256(repr((SOURCE.read_bytes(), FLAGS, flags)).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"
    binary = folder / f"ns3_star-{key}"
    if binary.is_file():
        return binary
    partial = binary.with_name(f"{binary.name}.{os.getpid()}")
    print("compiling the ns-3 star (once, some seconds)", file=sys.stderr)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _command([compiler, *FLAGS, str(SOURCE), "-o", str(partial), *flags], COMPILE_TIMEOUT_S, "compiling")
        partial.replace(binary)
    except OSError as error:
        raise PeerMissing(f"the cache folder cannot be written: {error}") from None
    finally:
        partial.unlink(missing_ok=True)
    return binary


def ns3_flags() -> list[str]:
    """What pkg-config says of ns-3's modules; raises `PeerMissing`."""
    if shutil.which("pkg-config") is None:
        raise PeerMissing("there is no pkg-config")
    names = [f"ns3-{module}" for module in MODULES]
    answer = subprocess.run(
        ["pkg-config", "--cflags", "--libs", *names], capture_output=True, text=True, timeout=30, check=False
    )
    if answer.returncode != 0:
        raise PeerMissing("ns-3 is not installed (Debian: libns3-dev)")
    # Debian's files also name full paths of libraries whose development packages they do not ask for; the
    # shared ns-3 libraries find those by themselves.
    return [flag for flag in shlex.split(answer.stdout) if flag.startswith("-") or Path(flag).exists()]


def run(binary: Path, mode: str, hosts: int, packets: int) -> dict[str, Any]:
    """One timed run; raises `PeerMissing` where it fails or lost a packet (a lossy star is another one)."""
    arguments = [str(binary), f"--mode={mode}", f"--hosts={hosts}", f"--packets={packets}"]
    text = _command(arguments, RUN_TIMEOUT_S, f"mode {mode}")
    try:
        figures: dict[str, Any] = json.loads(text)
        complete = figures["sent"] == figures["forwarded"] == figures["delivered"]
    except (json.JSONDecodeError, KeyError, TypeError):
        raise PeerMissing(f"mode {mode} printed no figures") from None
    if not complete:
        raise PeerMissing(f"mode {mode} lost packets: {text.strip()}")
    return figures


def _command(arguments: list[str], timeout_s: float, what: str) -> str:
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{what} took longer than {timeout_s:.0f} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise PeerMissing(f"{what} failed: {lines[0] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Forwarded packets a second of a star in ns-3.")
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--packets", type=int, default=200_000)
    parser.add_argument("--json", metavar="FILE|-", help="write the figures as JSON (null without ns-3)")
    options = parser.parse_args()
    if options.hosts < 2 or options.packets < options.hosts:
        parser.error("a star needs two hosts or more, and a packet or more from each")
    figures = measure(options.hosts, options.packets)
    if options.json == "-":
        print(json.dumps(figures))
        return
    if options.json:
        Path(options.json).write_text(json.dumps(figures) + "\n", encoding="utf-8")
    for mode, figure in (figures or {}).items():
        rate, events = figure["packets_per_s"], figure["events"]
        print(f"ns-3 {mode:4}: {rate:10,.0f} forwarded packets/s, {events:,} events")


if __name__ == "__main__":
    main()
