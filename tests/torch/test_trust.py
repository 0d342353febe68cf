"""No silent wrong data and no standstill: what torch and its users do with a group beside plain all-reduces.

One world of processes runs many cases, each named; a case that fails gives its error as its result.
"""

import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch.ranks import run_ranks

HERE = "tests.torch.test_trust"
LARGE = 4_000_000


def run_cases(cases: list[Callable[[int], None]], rank: int) -> dict[str, str]:
    """What went wrong in each case; all ranks run all of them in order."""
    told = {}
    for case in cases:
        try:
            case(rank)
            told[case.__name__] = ""
        except Exception:
            told[case.__name__] = traceback.format_exc()
    return told


def failed_cases(results: list[dict[str, str]]) -> list[str]:
    return [
        f"{name} on rank {r}:\n{text}"
        for r, told in enumerate(results)
        for name, text in told.items()
        if text
    ]


# --- what is waited for is done --------------------------------------------------------------------------------


def wait_tensor_waits(rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed._functional_collectives import allow_inflight_collective_as_graph_input_ctx

    registered: Callable[[], int] = torch._C._distributed_c10d._get_work_registry_size
    with allow_inflight_collective_as_graph_input_ctx():
        for _ in range(3):
            tensor = torch.ones(LARGE)
            dist.all_reduce(tensor, async_op=True)  # nobody keeps the Work
            torch.ops._c10d_functional.wait_tensor(tensor)
            assert (tensor == 2).all()
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        assert (tensor == 4).all()
        doubles = torch.ones(1000, dtype=torch.float64)
        dist.all_reduce(doubles, async_op=True)
        torch.ops._c10d_functional.wait_tensor(doubles)
        assert (doubles == 2).all()
        # A blocking call leaves nothing registered either.
        dist.all_reduce(tensor)
    assert registered() == 0
    with allow_inflight_collective_as_graph_input_ctx():
        coalesced = [torch.ones(3), torch.ones(4)]
        work = dist.group.WORLD.allreduce_coalesced(coalesced)  # type: ignore[union-attr]
        work.wait()


def a_barrier_is_behind_what_came_before(rank: int) -> None:
    import torch
    import torch.distributed as dist

    for round_ in range(3):
        tensors = [torch.ones(500_000) for _ in range(16)]
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
        if round_ == 2:
            work = dist.barrier(async_op=True)
            assert work is not None
            assert work.wait()
            assert work.is_completed()
        else:
            dist.barrier()
        assert all((tensor == 2).all() for tensor in tensors)


# --- callbacks -------------------------------------------------------------------------------------------------


def callbacks_may_wait_for_reductions(rank: int) -> None:
    import torch
    import torch.distributed as dist

    def again(done: Any) -> Any:
        tensor = done.value()[0]
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        (got,) = work.get_future().wait()
        inner = dist.all_reduce(tensor, async_op=True)
        assert inner is not None
        return inner.get_future().then(lambda last: last.value()[0] + 1).wait() + 0 * got

    work = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work is not None
    assert (work.get_future().then(again).wait() == 17).all()


def power_sgd_goes_beyond_its_first_steps(rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
    from torch.nn.parallel import DistributedDataParallel

    outputs = []
    for group in (None, GLOO[0]):
        torch.manual_seed(3)
        model = DistributedDataParallel(torch.nn.Linear(40, 40), process_group=group)
        state = power_sgd.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, power_sgd.powerSGD_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(rank)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 40, generator=data)).square().mean().backward()
            optimizer.step()
        outputs.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.allclose(*outputs, rtol=1e-4, atol=1e-6)
    dist.barrier()


# --- tensors that cannot be written as they are ------------------------------------------------------------------


def results_go_back_to_tensors_of_inference_mode(rank: int) -> None:
    import torch
    import torch.distributed as dist

    with torch.inference_mode():
        turned = torch.ones(30, 20).t()
    for _ in range(2):
        work = dist.all_reduce(turned, async_op=True)
        assert work is not None
        assert work.wait(timedelta(seconds=20))
        dist.all_reduce(turned)
    assert (turned == 16).all()


def a_tensor_with_one_place_for_many_elements_is_refused(rank: int) -> None:
    import torch
    import torch.distributed as dist

    wide = torch.ones(3).expand(4, 3)
    for asynchronous in (True, False):
        with pytest.raises((RuntimeError, ValueError), match="one place in memory"):
            dist.all_reduce(wide, async_op=asynchronous)
    fine = torch.ones(3).expand(1, 3)
    dist.all_reduce(fine)
    assert (fine == 2).all()


def a_view_with_a_sign_of_its_own_is_reduced(rank: int) -> None:
    import torch
    import torch.distributed as dist

    complex_ = torch.complex(torch.ones(5), torch.full((5,), 3.0))
    view = complex_.conj().imag
    assert view.is_neg()
    dist.all_reduce(view)
    assert (view == -6).all()
    assert (complex_.imag == 6).all()


# --- DDP, compiled and joined ------------------------------------------------------------------------------------


def join_divides_by_those_who_are_left(rank: int) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    ends = []
    for group in (None, GLOO[0]):
        torch.manual_seed(5)
        model = DistributedDataParallel(torch.nn.Linear(6, 2), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(rank)
        with model.join(divide_by_initial_world_size=False):
            for _ in range(3 + 3 * rank):
                optimizer.zero_grad()
                model(torch.randn(4, 6, generator=data)).square().mean().backward()
                optimizer.step()
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.allclose(*ends, rtol=1e-5, atol=1e-7)


def a_compiled_model_trains(rank: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    ends = []
    for compiled in (False, True):
        torch.manual_seed(7)
        inner = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))
        model: Any = DistributedDataParallel(inner)
        if compiled:
            model = torch.compile(model, backend="eager")
        data = torch.Generator().manual_seed(rank)
        for _ in range(2):
            model(torch.randn(4, 6, generator=data)).square().mean().backward()
        ends.append(torch.cat([parameter.grad.flatten() for parameter in inner.parameters()]))
    assert torch.equal(*ends)

    @torch.compile(backend="eager")
    def doubled(tensor: Any) -> Any:
        dist.all_reduce(tensor)
        dist.barrier()
        return tensor + 1

    assert doubled(torch.ones(3)).tolist() == [3] * 3


# --- groups ------------------------------------------------------------------------------------------------------


def a_group_can_be_split(rank: int) -> None:
    import torch
    import torch.distributed as dist

    world: Any = dist.group.WORLD
    part = world.split_group([1, 0], timeout=timedelta(seconds=30), group_desc="a part")
    assert type(part) is type(world)
    assert (part.rank(), part.size(), part.group_desc) == (rank, 2, "a part")
    tensor = torch.ones(5)
    part.allreduce([tensor]).wait()
    assert (tensor == 2).all()
    alone = world.split_group([0])
    assert (alone is None) == (rank != 0)
    part.shutdown()
    if alone is not None:
        alone.shutdown()


def calls_are_counted_profiled_and_shown(rank: int) -> None:
    import torch
    import torch.distributed as dist

    import paceline.torch

    world: Any = dist.group.WORLD
    before = world._get_sequence_number_for_group()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(3))
        work = dist.all_reduce(torch.ones(4), op=dist.ReduceOp.AVG, async_op=True)
        assert work is not None
        work.wait()
        dist.broadcast(torch.ones(3), 0)
    assert world._get_sequence_number_for_group() == before + 3
    names = [event.name for event in profile.events()]
    assert names.count("paceline:all_reduce") == 2, names
    shown = paceline.torch.status()[-1]
    latest = next(s for s in paceline.torch.status() if s["group"] == world.group_name)["latest"]
    assert [(r["elements"], r["dtype"], r["op"], r["state"]) for r in latest[-2:]] == [
        (3, "float32", "sum", "done"),
        (4, "float32", "avg", "done"),
    ], shown


def the_flight_recorder_shows_ours_and_gloos(rank: int) -> None:
    import os
    import tempfile

    import torch
    import torch.distributed as dist

    from paceline.torch import flight_recorder

    world: Any = dist.group.WORLD
    dist.all_reduce(torch.ones(7))
    dist.broadcast(torch.ones(3), 0)
    folder: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    flight_recorder.write(os.path.join(folder[0], "trace_"))  # noqa: PTH118
    dist.barrier()
    if rank == 0:
        from torch.distributed.flight_recorder.components.loader import read_dump

        dumps = [read_dump("trace_", f"{folder[0]}/trace_{each}") for each in range(2)]
        ours: list[Any] = [
            [entry for entry in dump["entries"] if entry["profiling_name"] == "paceline:all_reduce"]  # type: ignore
            for dump in dumps
        ]
        last = [each[-1] for each in ours]
        assert [entry["input_sizes"] for entry in last] == [[[7]], [[7]]]
        assert {entry["state"] for entry in last} == {"completed"}
        assert last[0]["collective_seq_id"] == last[1]["collective_seq_id"]
        name = f"{world.group_name}:paceline"
        assert all(dump["pg_config"][name]["ranks"] == "[0, 1]" for dump in dumps)  # type: ignore
        assert any(e["profiling_name"] == "gloo:broadcast" for e in dumps[0]["entries"]), "what torch has"  # type: ignore
    dist.barrier()


def a_profile_may_end_with_the_wait(rank: int) -> None:
    """The event of a reduction must have ended by then: the profile frees it."""
    import torch
    import torch.distributed as dist

    for _ in range(25):
        with torch.autograd.profiler.profile(use_cpu=True):
            works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(4)]
            for work in works:
                assert work is not None
                work.wait()


def a_monitored_barrier_names_who_is_missing(rank: int) -> None:
    import torch.distributed as dist

    world: Any = dist.group.WORLD
    world.monitored_barrier(timedelta(seconds=20))
    if rank == 0:
        with pytest.raises(RuntimeError, match="Ranks 1 failed"):
            world.monitored_barrier(timedelta(seconds=0.5), wait_all_ranks=True)
    else:
        time.sleep(1.0)


GLOO: list[Any] = []


def a_restart_finds_nothing_of_the_attempt_before(rank: int) -> None:
    """The same Store under the same names, as after `torchrun --max-restarts`; the first attempt ends by abort."""
    import os

    import torch
    import torch.distributed as dist

    port = int(os.environ["MASTER_PORT"]) + 1
    meeting = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60))
    for attempt in range(2):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        dist.init_process_group(
            "paceline", store=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=30)
        )
        tensor = torch.ones(5)
        dist.all_reduce(tensor)
        assert (tensor == 2).all()
        dist.group.WORLD.abort()  # type: ignore[union-attr]
        dist.destroy_process_group()


def options_are_taken_or_refused(rank: int) -> None:
    import os

    import torch
    import torch.distributed as dist

    import paceline.torch
    from paceline.errors import UserError
    from paceline.torch.settings import Settings

    alone = dist.new_group([0, 1], pg_options=Settings(remaining_s=50.0, job="by options"))
    shown = next(s for s in paceline.torch.status() if s["group"] == alone.group_name)
    assert shown["priority"] != 128
    gloo: Any = dist.ProcessGroupGloo._Options()
    gloo._devices = [dist.ProcessGroupGloo.create_device(interface="lo")]
    gloo._threads = 3
    before = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    threaded = dist.new_group([0, 1], pg_options=gloo)
    assert len(os.listdir("/proc/self/task")) >= before + 3  # noqa: PTH208
    doubles = torch.ones(3, dtype=torch.float64)
    dist.all_reduce(doubles, group=threaded)
    assert doubles.tolist() == [2] * 3
    with pytest.raises(UserError, match="pg_options"):
        dist.new_group([0, 1], pg_options=object())
    with pytest.raises(UserError, match="cuda:gloo would be lost"):
        dist.new_group([0, 1], backend="cpu:paceline,cuda:gloo")
    with pytest.raises(UserError, match="would be lost"):
        dist.new_group([0, 1], backend="cuda:gloo,cpu:paceline")


def one_world(rank: int) -> dict[str, str]:
    import torch.distributed as dist

    import paceline.torch  # noqa: F401

    dist.init_process_group("paceline", timeout=timedelta(seconds=60))
    GLOO.append(dist.new_group(backend="gloo"))
    told = run_cases(
        [
            wait_tensor_waits,
            a_barrier_is_behind_what_came_before,
            callbacks_may_wait_for_reductions,
            power_sgd_goes_beyond_its_first_steps,
            results_go_back_to_tensors_of_inference_mode,
            a_tensor_with_one_place_for_many_elements_is_refused,
            a_view_with_a_sign_of_its_own_is_reduced,
            join_divides_by_those_who_are_left,
            a_compiled_model_trains,
            a_group_can_be_split,
            calls_are_counted_profiled_and_shown,
            a_profile_may_end_with_the_wait,
            the_flight_recorder_shows_ours_and_gloos,
            options_are_taken_or_refused,
        ],
        rank,
    )
    dist.destroy_process_group()
    return told | run_cases([a_restart_finds_nothing_of_the_attempt_before], rank)


def test_what_torch_does_with_a_group(tmp_path: Path) -> None:
    recorder = {"TORCH_FR_BUFFER_SIZE": "200"}
    failed = failed_cases(run_ranks(2, f"{HERE}:one_world", tmp_path, recorder))
    assert not failed, "\n".join(failed)


# --- worlds that end in an error -----------------------------------------------------------------------------------


def different_tensors(rank: int) -> dict[str, str]:
    """Each case breaks its group, so each has its own."""
    import torch
    import torch.distributed as dist

    import paceline.torch  # noqa: F401

    dist.init_process_group("paceline", timeout=timedelta(seconds=60))
    total, average = dist.ReduceOp.SUM, dist.ReduceOp.AVG
    pairs: list[tuple[str, Any, Any, Any, Any]] = [
        ("sizes", torch.ones(10), torch.ones(15), total, total),
        ("large sizes", torch.ones(1_000_000), torch.ones(2_000_000), total, total),
        ("formats", torch.ones(10), torch.ones(10, dtype=torch.int32), total, total),
        ("operations", torch.ones(10), torch.ones(10), total, average),
    ]
    told = {}
    for name, first, second, op_first, op_second in pairs:
        group = dist.new_group()
        tensor, op = (first, op_first) if rank == 0 else (second, op_second)
        try:
            dist.all_reduce(tensor, op=op, group=group)
            told[name] = "no error"
        except dist.DistBackendError as error:
            told[name] = "" if "different tensors" in str(error) else str(error)
    told |= run_cases([a_monitored_barrier_names_who_is_missing], rank)
    # An abort ends what is under way at once.
    pending = dist.all_reduce(torch.ones(10), async_op=True) if rank == 0 else None
    begin = time.monotonic()
    dist.group.WORLD.abort()  # type: ignore[union-attr]
    told["abort"] = "" if time.monotonic() - begin < 20 else "took its time"
    if pending is not None:
        with pytest.raises(dist.DistBackendError, match="closed"):
            pending.wait()
    return told


def test_different_tensors_are_errors_and_an_abort_waits_for_nobody(tmp_path: Path) -> None:
    failed = failed_cases(run_ranks(2, f"{HERE}:different_tensors", tmp_path))
    assert not failed, "\n".join(failed)
