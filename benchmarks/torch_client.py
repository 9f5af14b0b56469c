"""One client's round behind a PyTorch module: fedsolve's compiled local work against a plain PyTorch loop.

    python benchmarks/bench.py torch-client
    python benchmarks/torch_client.py               # threads: three clients on cores that are busy already

20 steps of plain SGD on batches of 32 of the digits CNN (1x8x8, 151,306 parameters), the data in memory; and whole
answers of a client whose module has 10 million parameters, with a training loop of its own and without. Alone, this
file times 50 steps of a linear module (64 x 10, batches of 10) in three client processes at once, while as many other
processes as there are cores compute: with PyTorch's own number of threads, with OMP_NUM_THREADS=1, as a client app
chooses the number, and with the environment of a local federation.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

import fedsolve as fs
from fedsolve.core.algorithm import Cohort
from fedsolve.core.xla.compiler import compiler_options, cores
from fedsolve.deploy.client.worker import Worker
from fedsolve.deploy.oracles.torch import TorchOracle
from fedsolve.deploy.server.coordinator import Coordinator, Federation
from measure import Setting, compare

RATE, BATCH, STEPS = 0.05, 32, 20
cross_entropy = nn.functional.cross_entropy


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((BATCH * STEPS, 1, 8, 8), np.float32))
    y = torch.from_numpy(rng.integers(0, 10, BATCH * STEPS))
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def plain_loop() -> Callable[[], None]:
    """A round from the same start each time, as a hand-written client does it."""
    torch.manual_seed(0)
    model, batches = make_model(), make_batches()
    start = {name: v.clone() for name, v in model.state_dict().items()}

    def one_round() -> None:
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        for x, y in batches:
            optimiser.zero_grad()
            cross_entropy(model(x), y).backward()
            optimiser.step()

    one_round()
    return one_round


def fedsolve_client(method: fs.Algorithm | None = None) -> Callable[[], None]:
    """The same round as the compiled local work of a method (FedAvg)."""
    torch.manual_seed(0)
    problem = TorchOracle(make_model(), cross_entropy, make_batches())
    return local_work_of(problem, fs.FedAvg(RATE) if method is None else method)


def local_work_of(problem: TorchOracle, algorithm: fs.Algorithm) -> Callable[[], None]:
    """A round's compiled local work, after its first call."""
    server = algorithm.init(jax.tree.map(jnp.asarray, problem.params))
    broadcast = algorithm.broadcast(server, Cohort(jnp.int32(0), jnp.int32(1), 1))
    state = algorithm.init_client(broadcast)
    oracle = problem.begin(jax.random.key(0), 0, jnp.float32)

    def local_work(oracle: fs.Oracle) -> object:
        return algorithm.train(broadcast, state, oracle)

    train = jax.jit(local_work, compiler_options=compiler_options())

    def one_round() -> None:
        jax.block_until_ready(train(oracle))

    one_round()
    return one_round


def programs() -> dict[str, Callable[[], None]]:
    return {
        "PyTorch loop": plain_loop(),
        "FedAvg": fedsolve_client(),
        "SCAFFOLD": fedsolve_client(fs.SCAFFOLD(RATE)),
    }


def large_model() -> nn.Sequential:
    """10 million parameters."""
    sizes = ((1024, 2304), (2304, 2304), (2304, 1024), (1024, 10))
    layers = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def messages(folder: Path) -> dict[str, Callable[[], object]]:
    """A client's whole answer to an order, from its bytes to the reply's: by a loop of its own, by its gradients."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((BATCH * STEPS, 1024), np.float32))
    batches = list(
        zip(x.split(BATCH), torch.from_numpy(rng.integers(0, 10, len(x))).split(BATCH), strict=True)
    )

    def train(model: nn.Module, round: int = 0) -> int:
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        for inputs, labels in batches:
            optimiser.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimiser.step()
        return len(x)

    def answer(problem: Any) -> Callable[[], object]:
        given = Federation(1, fs.sampling.Uniform(1), 0, "bench")
        coordinator = Coordinator(fs.FedAvg(RATE, weighting="uniform"), problem.params, given)
        coordinator.draw_cohort()
        request, worker = coordinator.train_request(0), Worker(problem, folder)
        return lambda: worker.train(replace(request))  # which lets go of its bytes

    alone = large_model()
    return {
        "the loop": lambda: train(alone),
        "TrainedClient": answer(fs.flower.TrainedClient(large_model(), train)),
        "TorchOracle": answer(TorchOracle(large_model(), cross_entropy, batches)),
    }


CLIENTS, SECONDS = 3, 4.0


def client(chooses: bool) -> None:
    """One of the processes: once all are ready, the median seconds of a message's local work and its processor time."""
    from fedsolve.deploy.client.app import OracleCache

    def oracle_for(node: object) -> TorchOracle:
        rng = np.random.default_rng(0)
        x = torch.from_numpy(rng.standard_normal((10 * 50, 64), np.float32))
        batches = list(zip(x.split(10), torch.from_numpy(rng.integers(0, 10, 500)).split(10), strict=True))
        return TorchOracle(nn.Linear(64, 10), cross_entropy, batches)

    if chooses:
        node = fs.flower.NodeContext(0, "", {}, {})
        with OracleCache(oracle_for).borrow(1, node) as problem:
            assert isinstance(problem, TorchOracle)
    else:
        problem = oracle_for(None)
    work = local_work_of(problem, fs.FedAvg(RATE))
    print("ready", flush=True)
    sys.stdin.readline()
    seconds, processor = [], []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begun, used = time.perf_counter(), time.process_time()
        work()
        seconds.append(time.perf_counter() - begun)
        processor.append(time.process_time() - used)
    print(statistics.median(seconds), statistics.median(processor), torch.get_num_threads(), flush=True)


def at_once(environment: Mapping[str, str], chooses: bool) -> tuple[float, float, int]:
    """Three clients at once: the largest of their seconds and processor times, and their threads."""
    command = [sys.executable, __file__, "client", *(["chooses"] if chooses else [])]
    pipe = subprocess.PIPE
    clients = [
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) for _ in range(CLIENTS)
    ]
    for process in clients:
        assert process.stdout is not None
        process.stdout.readline()
    for process in clients:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [process.communicate()[0].split() for process in clients]
    return max(float(f[0]) for f in found), max(float(f[1]) for f in found), int(found[0][2])


def measure(setting: Setting) -> None:
    """T1: on one thread of PyTorch, as nodes that share a machine have, and on one a core."""
    if setting.torch != "cpu":
        return
    for count in sorted({1, cores()}):
        torch.set_num_threads(count)
        key = "T1" if count == 1 else "T1, all cores"
        about = f"digits CNN in PyTorch, one client, 20 steps of 32, threads: {count}"
        compare(key, about, programs(), 1, setting.pick(25, 2), base="PyTorch loop")
    with tempfile.TemporaryDirectory() as folder:
        about = "one client's answer, 10 million parameters, 20 steps of 32, threads: one a core"
        compare(
            "T3", about, messages(Path(folder)), STEPS, setting.pick(9, 2), base="the loop", unit="ms a step"
        )


def threads() -> None:
    """The table of `python benchmarks/torch_client.py`."""
    from fedsolve.cli.federation.local import LocalFederation

    plain = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with tempfile.TemporaryDirectory() as folder:
        local = {
            **plain,
            **{n: v for n, v in LocalFederation(Path(folder), CLIENTS).env.items() if n not in plain},
        }
    ways = {
        "PyTorch's own number": (plain, False),
        "OMP_NUM_THREADS=1": (plain | {"OMP_NUM_THREADS": "1"}, False),
        "a client app": (plain, True),
        "a local federation": (local, True),
    }
    # what a client app counts: processes of this name
    nodes = [subprocess.Popen(["flower-supernode", "600"], executable="/bin/sleep") for _ in range(CLIENTS)]
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        turns = [{name: at_once(*way) for name, way in ways.items()} for _ in range(2)]
    finally:
        for process in (*nodes, *others):
            process.kill()
    base = statistics.median(turn["OMP_NUM_THREADS=1"][0] for turn in turns)
    print(f"T2  50 steps of a linear module (64 x 10) in {CLIENTS} processes on busy cores (bound 1.2)")
    for name in ways:
        seconds, processor = (statistics.median(turn[name][k] for turn in turns) for k in (0, 1))
        print(
            f"    {name:21} {turns[0][name][2]} thread(s)  {1e3 * seconds:6.0f} ms, {1e3 * processor:6.0f} ms of a"
            f" processor,  ratio {seconds / base:.2f}"
        )


if __name__ == "__main__":
    client(sys.argv[2:] == ["chooses"]) if sys.argv[1:2] == ["client"] else threads()
