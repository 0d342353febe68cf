"""The entry point of pyproject.toml, as an installed package has it: torch knows the backend without an import."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.torch.ranks import ROOT

MAKE_A_GROUP = """
import sys
import torch
import torch.distributed as dist
assert not any(name.startswith("paceline.") and name not in ALLOWED for name in sys.modules), sys.modules.keys()
dist.init_process_group("paceline", init_method="file://" + sys.argv[1], rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print(dist.get_backend(), tensor.tolist())
dist.destroy_process_group()
""".replace("ALLOWED", '("paceline.torch", "paceline.torch_autoload")')


def run(folder: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Python with a folder on its path that looks like an installed package with our entry points."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "pacelineentry-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pacelineentry\nVersion: 1.0\n")
    lines = [f"[torch.backends]\n{name} = {value}\n" for name, value in entries["torch.backends"].items()]
    (info / "entry_points.txt").write_text("".join(lines))
    path = os.pathsep.join([str(ROOT / "src"), str(folder)])
    return subprocess.run(
        [sys.executable, "-c", code, str(folder / "store")],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_torch_knows_the_backend_by_itself(tmp_path: Path) -> None:
    done = run(tmp_path, MAKE_A_GROUP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["paceline", "[1.0,", "1.0,", "1.0]"]


def test_without_it_torch_does_not(tmp_path: Path) -> None:
    done = run(tmp_path, MAKE_A_GROUP, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode != 0
    assert "paceline" in done.stderr


def test_whoever_imports_the_package_first_brings_torch_in(tmp_path: Path) -> None:
    code = "import paceline.torch, torch; print('PACELINE' in torch.distributed.Backend._plugins)"
    done = run(tmp_path, code)
    assert done.stdout.strip() == "True", done.stderr


def test_a_backend_that_cannot_be_loaded_leaves_torch_whole(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['paceline.torch'] = None\n")
    done = run(tmp_path, "import torch; print(torch.ones(2).sum().item())")
    assert done.stdout.strip() == "2.0", done.stderr


def test_a_process_forked_from_one_that_has_loaded_torch_follows_its_own_environment(tmp_path: Path) -> None:
    code = """
import os, torch, torch.distributed as dist
assert not hasattr(dist.init_process_group, "paceline_mode")
os.environ["PACELINE_BACKEND"] = "auto"
from paceline.torch_autoload import adapt
adapt()
adapt()
print(dist.init_process_group.paceline_mode)
"""
    done = run(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["auto"]
