"""Ways to train that build on a group: each gives over Paceline what it gives over Gloo.

One world of four ranks runs them all, each twice.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch.ranks import ROOT, run_ranks
from tests.torch.test_trust import failed_cases, run_cases

HERE = "tests.torch.test_training"
GROUPS: dict[str, Any] = {}


def the_same(train: Callable[[str], Any], rtol: float = 1e-5) -> None:
    """Train over both backends; what comes out is the same, up to the order of the sums."""
    import torch

    ours, theirs = train("paceline"), train("gloo")
    assert torch.isfinite(ours).all()
    assert torch.allclose(ours, theirs, rtol=rtol, atol=1e-6), (ours - theirs).abs().max()


def _model() -> Any:
    import torch

    torch.manual_seed(11)
    return torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))


def _steps(model: Any, optimizer: Any, rank: int, count: int = 4) -> None:
    import torch

    data = torch.Generator().manual_seed(20 + rank)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(6, 24, generator=data)).square().mean().backward()
        optimizer.step()


def _flat(parameters: Any) -> Any:
    import torch

    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in parameters]
    return torch.cat([tensor.detach().flatten() for tensor in whole])


def fully_sharded(rank: int) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def train(backend: str, shape: tuple[int, ...]) -> Any:
        override = dict.fromkeys(range(len(shape)), backend)
        names = ("replicate", "shard")[-len(shape) :]
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names, backend_override=override)
        model = _model()
        for layer in model:
            fully_shard(layer, mesh=mesh) if list(layer.parameters()) else None
        fully_shard(model, mesh=mesh)
        _steps(model, torch.optim.SGD(model.parameters(), lr=0.1), rank)
        return _flat(model.parameters())

    the_same(lambda backend: train(backend, (4,)))
    the_same(lambda backend: train(backend, (2, 2)))  # replicated over one dimension


def zero_redundancy(rank: int) -> None:
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    def train(backend: str) -> Any:
        model = DistributedDataParallel(_model(), process_group=GROUPS[backend])
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, process_group=GROUPS[backend], lr=0.01
        )
        _steps(model, optimizer, rank)
        return _flat(model.parameters())

    the_same(train)


def hooks(rank: int) -> None:
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
    from torch.nn.parallel import DistributedDataParallel

    def in_bfloat16(state, bucket):  # type: ignore[no-untyped-def]  # under a name that torch asks no GPU for
        return default_hooks.bf16_compress_hook(state, bucket)

    def train(backend: str, hook: Any) -> Any:
        group = GROUPS[backend]
        model = DistributedDataParallel(_model(), process_group=group)
        state = (
            power_sgd.PowerSGDState(group, 2, start_powerSGD_iter=2)
            if hook is power_sgd.powerSGD_hook
            else group
        )
        model.register_comm_hook(state, hook)
        _steps(model, torch.optim.SGD(model.parameters(), lr=0.1), rank)
        return _flat(model.parameters())

    the_same(lambda backend: train(backend, default_hooks.allreduce_hook))
    # Gloo rounds every partial sum to 16 bits, Paceline the whole one.
    the_same(lambda backend: train(backend, default_hooks.fp16_compress_hook), rtol=1e-3)
    the_same(lambda backend: train(backend, in_bfloat16), rtol=1e-2)
    the_same(lambda backend: train(backend, power_sgd.powerSGD_hook), rtol=1e-4)


def accumulated_and_uneven(rank: int) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def train(backend: str) -> Any:
        model = DistributedDataParallel(_model(), process_group=GROUPS[backend], bucket_cap_mb=0.002)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(rank)
        with model.join():
            for _ in range(2 + rank):
                optimizer.zero_grad()
                with model.no_sync():
                    model(torch.randn(3, 24, generator=data)).square().mean().backward()
                model(torch.randn(3, 24, generator=data)).square().mean().backward()
                optimizer.step()
        return _flat(model.parameters())

    the_same(train)


def tensor_parallel(rank: int) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def train(backend: str) -> Any:
        mesh = init_device_mesh("cpu", (4,), backend_override={0: backend})
        model = parallelize_module(_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        _steps(model, torch.optim.SGD(model.parameters(), lr=0.1), 0)  # all ranks have the same data
        return _flat(model.parameters())

    the_same(train)


def checkpointed(rank: int) -> None:
    import tempfile

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def train(backend: str) -> Any:
        group = GROUPS[backend]
        folder: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folder)
        mesh = init_device_mesh("cpu", (4,), backend_override={0: backend})
        model = _model()
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        _steps(model, optimizer, rank)
        saved, states = get_state_dict(model, optimizer)
        dcp.save({"model": saved, "optimizer": states}, checkpoint_id=folder[0], process_group=group)
        after = _flat(model.parameters()).clone()
        _steps(model, optimizer, rank)
        saved, states = get_state_dict(model, optimizer)
        found = {"model": saved, "optimizer": states}
        dcp.load(found, checkpoint_id=folder[0], process_group=group)
        set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
        assert torch.equal(_flat(model.parameters()), after)
        _steps(model, optimizer, rank)
        return _flat(model.parameters())

    the_same(train)


def everything(rank: int) -> dict[str, str]:
    import torch.distributed as dist

    import paceline.torch  # noqa: F401

    dist.init_process_group("paceline", timeout=timedelta(seconds=60))
    GROUPS.update(paceline=dist.group.WORLD, gloo=dist.new_group(backend="gloo"))
    told = run_cases(
        [fully_sharded, zero_redundancy, hooks, accumulated_and_uneven, tensor_parallel, checkpointed], rank
    )
    dist.destroy_process_group()
    return told


def test_every_way_to_train_gives_what_it_gives_over_gloo(tmp_path: Path) -> None:
    failed = failed_cases(run_ranks(4, f"{HERE}:everything", tmp_path))
    assert not failed, "\n".join(failed)


ELASTIC = """
import os, signal, sys, torch, torch.distributed as dist
signal.alarm(100)  # a killed torchrun leaves its ranks
dist.init_process_group(sys.argv[1])
tensor = torch.ones(5)
dist.all_reduce(tensor)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if dist.get_rank() == 1 and attempt == 0:
    os._exit(3)
dist.all_reduce(tensor)
dist.barrier()
sys.stdout.write(f"attempt {attempt} {tensor.tolist()}\\n")  # one write: ranks share the pipe
sys.stdout.flush()
dist.destroy_process_group()
"""


def test_a_job_that_torchrun_starts_again_comes_up(tmp_path: Path) -> None:
    """Gloo itself does not always: ranks of the new attempt may find addresses of the old one in the Store."""
    import os
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text("import paceline.torch\n" + ELASTIC)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "--max-restarts", "2", "--monitor-interval", "0.2", str(script), "paceline"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("attempt 1 [4.0, 4.0, 4.0, 4.0, 4.0]\n") == 2
