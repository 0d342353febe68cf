"""A run on a disk that gets full while a job runs: `python -m tests.launch.full_disk DISK NOTES`.

DISK is a small file system of its own, NOTES a folder elsewhere. Used by `test_full_disk.py`.
"""

import sys
from pathlib import Path

from tests.launch.scenes import Scene, finish, until, wait_for


def fill(path: Path) -> None:
    """Write until there is no room for a byte."""
    with path.open("wb", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def main() -> None:
    disk, notes = Path(sys.argv[1]), Path(sys.argv[2])
    scene = Scene(disk / "scene", {"s0": 1})
    scene.notes = notes / "starts"
    scene.job("first", 1, until(notes / "go")).job("second", 1, "true", arrival="0.1 s")
    planner = scene.new_planner()
    wait_for(lambda: scene.starts().get("first"), "the first job's start")
    fill(disk / "ballast")
    (notes / "go").touch()
    code, _, said = finish(planner)
    assert code == 2, said
    assert "the disk is full" in said, said
    assert "Traceback" not in said, said
    wait_for(lambda: list(disk.glob("scene/run/attempts/first.1/exit.json")), "the outcome on the full disk")
    (disk / "ballast").unlink()
    code, _, said = finish(scene.planner("--resume", str(scene.run_dir)))
    assert code == 0, said
    assert scene.states() == {"first": "done", "second": "done"}
    assert scene.starts() == {"first": 1, "second": 1}, "nothing that ended runs again"


if __name__ == "__main__":
    main()
