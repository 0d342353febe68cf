"""One process of a job in `benchmarks.sharing`: steps of computing (a sleep stands for the device) and reducing.

    python -m benchmarks.sharing_rank SPEC.json

Three kinds of process, as the specification says:

- `ddp`: one rank of one job; an MLP of 3.16 million parameters under DistributedDataParallel, over any backend;
- `gloo`: the same job without a model: the tensors that DDP would reduce, over Gloo;
- `agents`: one host; an agent for each job on a thread of its own, reducing the same tensors.

A process says that it is ready, waits for the others, and writes what it saw when it is done.
"""

import contextlib
import hashlib
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BUCKETS = (4_185_000, 8_466_000)
"""Bytes that DDP reduces in a step of the MLP, bucket by bucket."""
WAIT_S = 300.0
INPUTS, WIDTH, CLASSES = 32, 1020, 5


def wait_for(path: Path, what: str) -> str:
    """The content of a file that another process writes."""
    until = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > until:
            sys.exit(f"{what} did not come within {WAIT_S:.0f} s")
        time.sleep(0.01)
    return path.read_text(encoding="utf-8")


def put(path: Path, text: str) -> None:
    """Write a file that others wait for: whole, or not yet there."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.rename(path)


def run_steps(step: Callable[[int], None], steps: int, compute_s: float) -> list[float]:
    """Seconds of each step."""
    took = []
    for number in range(steps):
        began = time.perf_counter()
        time.sleep(compute_s)
        step(number)
        took.append(time.perf_counter() - began)
    return took


def contribution(worker: int, number: int, size_bytes: int) -> Any:
    """Whole numbers in float32, so that every sum is exact; another set in every step."""
    base = np.arange(size_bytes // 4, dtype=np.int64)
    return ((base * (worker + 3) + number * 7) % 1021 - 510).astype(np.float32)


def expected(workers: int, number: int, size_bytes: int) -> Any:
    total = np.zeros(size_bytes // 4, dtype=np.float32)
    for worker in range(workers):
        total += contribution(worker, number, size_bytes)
    return total


class Checker:
    """Contributions and sums of a few steps, made before the clock runs."""

    def __init__(self, worker: int, workers: int) -> None:
        self._inputs = [[contribution(worker, k, size) for size in BUCKETS] for k in range(2)]
        self._sums = [[expected(workers, k, size) for size in BUCKETS] for k in range(2)]
        self.buffers = [np.zeros(size // 4, dtype=np.float32) for size in BUCKETS]
        self.wrong = 0

    def fill(self, number: int) -> None:
        for buffer, values in zip(self.buffers, self._inputs[number % 2], strict=True):
            buffer[:] = values

    def check(self, number: int) -> None:
        for buffer, values in zip(self.buffers, self._sums[number % 2], strict=True):
            self.wrong += int((buffer != values).sum())


# --- agents ----------------------------------------------------------------------------------------------------------


def run_agents(spec: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """All jobs' agents of one host."""
    from paceline.live.agent.setup import warm_up

    warm_up()
    results: list[dict[str, Any]] = [{} for _ in range(spec["jobs"])]

    def job(number: int) -> None:
        try:
            results[number] = _agent_job(spec, folder, number)
        except BaseException:
            # The other jobs' threads would wait for this one.
            traceback.print_exc()
            os._exit(1)

    threads = [threading.Thread(target=job, args=(number,)) for number in range(spec["jobs"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _agent_job(spec: dict[str, Any], folder: Path, number: int) -> dict[str, Any]:
    from paceline.live.agent.agent import Agent, open_socket
    from paceline.live.switch_client import Admission, ControlPlane, Membership

    worker, workers = spec["worker"], spec["workers"]
    control = ControlPlane.parse(spec["switch"][spec["rack"]], spec["token"])
    ticket = folder / f"job{number}"
    if worker == 0:
        racks = len(set(spec["racks"]))
        admitted = control.admit(f"job{number}", workers, racks=racks, slots_max=spec.get("slots_max"))
        put(ticket, admitted.to_json())
    admission = Admission.from_json(wait_for(ticket, f"the admission of job {number}"))
    if spec["rack"]:
        admission = control.readmit(admission, rack=spec["rack"])
    sock = open_socket(spec["addresses"][worker])
    own = sock.getsockname()
    control.bind(admission, worker, own)
    put(folder / f"job{number}-{worker}", json.dumps(own))
    peers = [json.loads(wait_for(folder / f"job{number}-{peer}", "an address")) for peer in range(workers)]
    config = admission.config(
        worker,
        [(host, port) for host, port in peers],
        elements=min(admission.elements, 352),
        racks=spec["racks"] if len(set(spec["racks"])) > 1 else (),
    )
    checker = Checker(worker, workers)
    with Agent(config, sock) as agent:
        membership = Membership(control, admission, worker, own, agent)

        def step(at: int) -> None:
            handles = [agent.submit(buffer) for buffer in checker.buffers]
            for handle in handles:
                handle.wait(spec["timeout_s"])
            checker.check(at)
            checker.fill(at + 1)

        checker.fill(0)
        began = time.perf_counter()
        step(0)
        first_s = time.perf_counter() - began
        put(folder / f"ready{number}-{worker}", "")
        wait_for(folder / "go", "the start")
        checker.fill(0)
        took = run_steps(step, spec["steps"], spec["compute_s"])
        put(folder / f"done{number}-{worker}", "")
        counters = agent.status()["counters"]
        for peer in range(workers):
            wait_for(folder / f"done{number}-{peer}", "the end of another worker")
        membership.close()
    return {"job": number, "took": took, "first_s": first_s, "wrong": checker.wrong, "counters": counters}


# --- torch -----------------------------------------------------------------------------------------------------------


def run_torch(spec: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """One rank of one job."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(spec["backend"])
    rank = dist.get_rank()
    result: dict[str, Any] = {"job": spec["job"], "wrong": 0}
    step = _ddp_step(spec) if spec["kind"] == "ddp" else _gloo_step(result)
    step(0)
    step(1)  # DDP builds its buckets anew in the second step
    put(folder / f"ready{spec['job']}-{rank}", "")
    wait_for(folder / "go", "the start")
    result["took"] = run_steps(step, spec["steps"], spec["compute_s"])
    put(folder / f"done{spec['job']}-{rank}", "")
    if spec["kind"] == "ddp":
        result["bits"] = step.bits()
    dist.barrier()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    return [result]


def _gloo_step(result: dict[str, Any]) -> Any:
    import torch
    import torch.distributed as dist

    checker = Checker(dist.get_rank(), dist.get_world_size())

    def step(number: int) -> None:
        checker.fill(number)
        works = [dist.all_reduce(torch.from_numpy(buffer), async_op=True) for buffer in checker.buffers]
        for work in works:
            work.wait()
        checker.check(number)
        result["wrong"] = checker.wrong

    return step


def _ddp_step(spec: dict[str, Any]) -> Any:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(spec["job"])
    widths = [INPUTS, WIDTH, WIDTH, WIDTH, WIDTH, CLASSES]
    layers: list[Any] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1000 * spec["job"] + torch.distributed.get_rank())

    def step(number: int) -> None:
        examples = torch.randn(8, INPUTS, generator=generator)
        labels = torch.randint(CLASSES, (8,), generator=generator)
        optimizer.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(parallel(examples), labels)
        loss.backward()
        optimizer.step()

    def bits() -> str:
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()

    step.bits = bits  # type: ignore[attr-defined]
    return step


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(spec["folder"])
    results = run_agents(spec, folder) if spec["kind"] == "agents" else run_torch(spec, folder)
    put(folder / f"result-{spec['name']}", json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
