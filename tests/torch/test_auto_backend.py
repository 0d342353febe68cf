"""PACELINE_BACKEND=auto: the script stays as it is, the backend is ours, and a line says so."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from paceline.torch.auto_backend import choose
from tests.torch.test_autoload import run

ASK = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group(*CALL, init_method="file://" + sys.argv[1], rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print(dist.get_backend(), dist.get_backend(dist.new_group([0])), dist.get_backend(dist.new_group([0], backend="gloo")))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("asked", "accelerator", "used"),
    [
        ("gloo", "", "paceline"),
        ("GLOO", "cuda", "paceline"),
        ("cpu:gloo", "", "paceline"),
        (None, "", "paceline"),
        ("undefined", "", "paceline"),
        (None, "cuda", None),
        ("nccl", "cuda", "nccl"),
        ("cpu:gloo,cuda:nccl", "cuda", "cpu:gloo,cuda:nccl"),
        ("paceline", "", "paceline"),
    ],
)
def test_gloo_and_nothing_are_replaced(asked: str | None, accelerator: str, used: str | None) -> None:
    assert choose(asked, accelerator)[0] == used


@pytest.mark.parametrize(("call", "asked"), [('("gloo",)', "gloo"), ("()", "nothing")])
def test_a_script_that_does_not_know_us_gets_the_backend_and_is_told(
    call: str, asked: str, tmp_path: Path
) -> None:
    done = run(tmp_path, ASK.replace("CALL", call), PACELINE_BACKEND="auto")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["paceline", "paceline", "gloo"], "a side group of its own stays what it is"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("PACELINE_BACKEND ")]
    told = json.loads(line.removeprefix("PACELINE_BACKEND "))
    assert (told["used"], told["asked"]) == ("paceline", asked)


def test_off_leaves_a_script_alone(tmp_path: Path) -> None:
    done = run(tmp_path, ASK.replace("CALL", '("gloo",)'), PACELINE_BACKEND="off")
    assert done.stdout.split() == ["gloo", "gloo", "gloo"], done.stderr
    assert "PACELINE_BACKEND" not in done.stderr


def test_a_mesh_gets_the_backend_too(tmp_path: Path) -> None:
    """torch's own modules took `init_process_group` from one another before we came."""
    code = (
        "import os\n"
        "os.environ |= dict(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', MASTER_PORT='0')\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "print(init_device_mesh('cpu', (1,)).get_group()._get_backend_name())\n"
    )
    done = run(tmp_path, code, PACELINE_BACKEND="auto")
    assert done.stdout.split() == ["paceline"], done.stderr


def test_another_word_is_a_mistake(tmp_path: Path) -> None:
    done = run(tmp_path, ASK.replace("CALL", '("gloo",)'), PACELINE_BACKEND="yes")
    assert done.returncode != 0
    assert 'PACELINE_BACKEND: "yes" is neither auto nor off' in done.stderr
