"""Speed as ratios, measured in one interleaved run: the library against the same work written by hand.

    make bench            all works
    python benchmarks/bench.py w1 w3
    python benchmarks/bench.py --store      all works, and their tables in benchmarks/results/ (docs/benchmarks.md)

Each repetition times every program of a work once, in turn, so that a drift of the machine's speed hits all
alike; the ratio is the median over repetitions of time / time of the hand-written program beside it. The
hand-written programs are in handwritten.py, the PyTorch loops in torch_loop.py and torch_client.py.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import fedsolve as fs
import handwritten
import networks
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare
from fedsolve.geometry import L1, L1Ball, L2Ball
from fedsolve.tasks import CNN, MLP, CrossEntropy, Examples, Softmax
from stored import collect, store, table

RATE = handwritten.RATE
METHODS = {
    "FedAvg": lambda: fs.FedAvg(RATE),
    "FedDuAdam": lambda: fs.FedDuAdam(RATE),
    "SCAFFOLD": lambda: fs.SCAFFOLD(RATE),
}
console = Console(width=100)


def task(name: str, model: Any, clients: int, n: int, shape: tuple[int, ...], classes: int) -> fs.Task:
    x, y = (np.asarray(a) for a in handwritten.synthetic(clients, n, shape, classes))
    packed = Examples(x.reshape(-1, *shape), y.reshape(-1))
    data = fs.FederatedData(packed, np.full(clients, n))
    return fs.Task(name, model.init, CrossEntropy(model), data)


def library(
    algorithm: fs.Algorithm,
    work: fs.Task,
    cohort: int,
    rounds: int,
    devices: int = 1,
    chunk: int | None = None,
    **local: Any,
) -> Callable[[], None]:
    """A function that runs `rounds` rounds of the engine, compiled already."""
    options = RunOptions(
        rounds=rounds, clients_per_round=cohort, eval_every=rounds, chunk=chunk, devices=devices, **local
    )
    setup = prepare(algorithm, work, options)
    state = [setup.state]

    def run() -> None:
        state[0], _ = setup.advance(state[0], rounds)

    run()
    return run


def by_hand(make: Callable[..., Any], rounds: int) -> Callable[[], None]:
    run, params = make()
    key = jax.random.key(0)

    def call() -> None:
        jax.block_until_ready(run(params, key, rounds))

    call()
    return call


def interleave(
    programs: dict[str, Callable[[], None]],
    rounds: int,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds a round of each program, by repetition."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            begun = clock()
            program()
            times[name].append(1e3 * (clock() - begun) / rounds)
    return times


def show(title: str, times: dict[str, list[float]], base: str, notes: dict[str, str] | None = None) -> None:
    rows = []
    for name, values in times.items():
        ratio = statistics.median(v / b for v, b in zip(values, times[base], strict=True))
        bound = (notes or {}).get(name, "")
        rows.append((name, f"{statistics.median(values):.3f}", f"{min(values):.3f}", f"{ratio:.2f}", bound))
    table(title, ("program", "ms a round (median)", "minimum", f"ratio to {base}", "bound"), rows)


def small(
    title: str, make: Callable[..., Any], work: fs.Task, cohort: int, rounds: int, **local: Any
) -> None:
    programs = {"by hand": by_hand(make, rounds)}
    programs |= {name: library(a(), work, cohort, rounds, **local) for name, a in METHODS.items()}
    times = interleave(programs, rounds, 15)
    show(title, times, "by hand", {"FedAvg": "<= 1.2", "SCAFFOLD": "<= 1.45"})
    bounds = {"FedDuAdam": "<= 1.3", "SCAFFOLD": "<= 1.5"}
    show(f"{title.split()[0]}  against FedAvg, {jax.device_count()} device(s)", times, "FedAvg", bounds)


def w1() -> None:
    work = task("w1", Softmax(60, 10), 100, 100, (60,), 10)
    title = "W1  softmax regression, 100 clients x 100, 10 a round, 10 steps of 10"
    small(title, handwritten.make_w1, work, 10, 200, batch_size=10, epochs=1)


def w3() -> None:
    devices = jax.device_count()
    work = task("w3", Softmax(60, 10), 10_000, 20, (60,), 10)
    title = f"W3  softmax regression, 10,000 clients x 20, 1,000 a round, 1 step of 10, {devices} device(s)"
    local = {"batch_size": 10, "local_steps": 1, "devices": devices}
    small(title, handwritten.make_w3, work, 1000, 25, **local)


def on_two_devices(name: str) -> None:
    """A work again in a process whose two cores are two devices."""
    flags = "--xla_force_host_platform_device_count=2"
    subprocess.run([sys.executable, __file__, name], env=os.environ | {"XLA_FLAGS": flags}, check=True)


def w2() -> None:
    work = task("w2", CNN(), 100, 100, (28, 28, 1), 62)
    programs = {
        "by hand": by_hand(handwritten.make_w2, 1),
        "FedAvg": library(fs.FedAvg(RATE), work, 10, 1, batch_size=20, epochs=1),
    }
    try:
        import torch_loop

        programs["PyTorch loop"] = torch_loop.program()
    except ImportError:
        console.print("PyTorch is not installed: its row is left out")
    times = interleave(programs, 1, 7)
    title = "W2  CNN 28x28, 62 classes, 100 clients x 100, 10 a round, 5 steps of 20"
    show(title, times, "by hand", {"FedAvg": "<= 1.1", "PyTorch loop": "> FedAvg"})
    rate = product_rate()
    reached = {name: 72e3 / min(times[name]) for name in times}
    rows = [("matrix products alone", f"{rate:.0f}", "")]
    rows += [(name, f"{value:.0f}", f"{100 * value / rate:.0f} %") for name, value in reached.items()]
    # above 100 % is possible: minimal filtering needs fewer products
    table("W2  rate at the 72 GFLOP of a round's direct convolutions", ("program", "GFLOP/s", "share"), rows)


def w4() -> None:
    """FedFW against FedAvg with the same gradients: one step on all of a client's data.

    In processor time of all threads: what is compared is the work, and both use the cores alike.
    """
    model = MLP((784, 900, 300, 62))
    work = task("w4", model, 20, 100, (784,), 62)
    params = sum(x.size for x in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
    options = {"batch_size": "full", "local_steps": 1}
    ball = L1Ball(1e5)
    methods = {
        "FedAvg": fs.FedAvg(RATE),
        "FedFW": fs.FedFW(ball),
        "FedFWPlus": fs.FedFWPlus(ball),
        "FedFW, l2 ball": fs.FedFW(L2Ball(1e3)),
        "FedFW, a ball a leaf": fs.FedFW(ball.each()),
        "FedMiD, l1": fs.FedMiD(L1(1e-4), RATE),
        "FedDualAvg, l1": fs.FedDualAvg(L1(1e-4), RATE),
    }
    programs = {name: library(a, work, 10, 2, **options) for name, a in methods.items()}
    title = f"W4  MLP of {params:,} parameters, 20 clients x 100, 10 a round, 1 step on all examples"
    bounds = {"FedFW": "<= 1.3", "FedFW, l2 ball": "<= 1.5", "FedFW, a ball a leaf": "<= 1.5"}
    show(title, interleave(programs, 2, 9, time.process_time), "FedAvg", bounds)


def w5() -> None:
    """A user's own CNN: what the library costs beside the loop that the user would have written."""
    try:
        import flax_loop as own
    except ImportError:
        console.print("flax is not installed: a user's flax CNN is left out")
        return
    for kind, sizes in (("even", own.EVEN), ("uneven", own.UNEVEN)):
        programs = {"Python loop": own.program(sizes)}
        local = {"batch_size": own.BATCH, "epochs": 1}
        work = own.task(sizes)
        programs["FedAvg"] = library(fs.FedAvg(own.RATE), work, own.COHORT, 1, **local)
        for chunk in (1, 2, own.COHORT):
            name = f"FedAvg, {chunk} side by side"
            programs[name] = library(fs.FedAvg(own.RATE), work, own.COHORT, 1, chunk=chunk, **local)
        title = f"W5  flax CNN of 105,866 parameters, 28x28, {kind} clients, 10 a round, batches of 20"
        times = interleave(programs, 1, 15)
        show(title, times, "Python loop", {"FedAvg": "<= 1.2"})


def n4() -> None:
    try:
        import torch_modules
    except ImportError:
        console.print("PyTorch is not installed: its translated modules are left out")
        return
    torch_modules.n4(library)


def torch_client() -> None:
    """One client's round behind a PyTorch module, on one thread of PyTorch and on as many as it takes."""
    try:
        import torch

        import torch_client
    except ImportError:
        console.print("PyTorch is not installed: its client is left out")
        return
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        times = interleave(torch_client.programs(), 1, 25)
        title = f"T1  digits CNN in PyTorch, one client, 20 steps of 32, {threads} thread(s)"
        show(title, times, "PyTorch loop", {"FedAvg": "<= 1.5"})


def product_rate(size: int = 2048) -> float:
    """GFLOP/s of a large float32 matrix product, the best of several."""
    a = jnp.ones((size, size))
    product = jax.jit(lambda x: x @ x)
    product(a).block_until_ready()
    best = min(_seconds(lambda: product(a).block_until_ready()) for _ in range(8))
    return 2 * size**3 / best / 1e9


def _seconds(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


START = """
import time; t = time.perf_counter()
import fedsolve as fs; imported = time.perf_counter() - t
task = fs.tasks.digits(); loaded = time.perf_counter() - t
fs.run(fs.FedAvg(0.1), task, rounds=1, clients_per_round=20); first = time.perf_counter() - t
print(imported, loaded, first)
"""


def start() -> None:
    """Fresh processes without a compilation cache: import, and the first round done and evaluated."""
    found = []
    for _ in range(3):
        env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
        out = subprocess.run(
            [sys.executable, "-c", START], env=env, check=True, capture_output=True, text=True
        )
        found.append([float(v) for v in out.stdout.split()])
    imported, loaded, first = (f"{statistics.median(column):.2f}" for column in zip(*found, strict=True))
    rows = [
        ("`import fedsolve`", imported, "<= 1.5"),
        ("digits loaded, JAX and scikit-learn imported", loaded, ""),
        ("first round done and evaluated", first, "<= 5"),
    ]
    table("START  seconds from a cold start, without a compilation cache", ("after", "s", "bound"), rows)


RATES = {
    "stable": np.logspace(-5, -3.3, 7).tolist(),  # every setting runs to the end
    "the paper's": np.logspace(-3, 0, 7).tolist(),  # most settings diverge in the first rounds
}


def sweeps() -> None:
    """Whole grids against the same runs in a row, as a user would call them; both compiled before, then in turn.

    The runs in a row are some of the trials, evenly spread over the grid, and their time is scaled to all trials.
    `rounds alone` is the compiled rounds of those runs, without set-up and evaluation.
    """
    server = np.logspace(-2, 1, 7).tolist()
    lasso = fs.tasks.lasso()
    for name, rates in RATES.items():
        grid = {"client_lr": rates, "server_lr": server}
        title = f"S1  LASSO I, FedDualAvg, 49 settings ({name} client rates) x 500 rounds, 10 of 64 clients"
        local = {"clients_per_round": 10, "eval_every": 50}
        one_sweep(title, partial(fs.FedDualAvg, L1(0.1)), lasso, grid, 1, 500, 7, local, ">= 3")
    diverged(lasso, server, local)
    small = task("w1", Softmax(60, 10), 100, 100, (60,), 10)
    grid = {"client_lr": np.logspace(-3, 0, 7).tolist(), "server_lr": np.logspace(-1, 0.5, 7).tolist()}
    local = {"clients_per_round": 10, "batch_size": 10, "epochs": 1, "eval_every": 200}
    one_sweep(
        "S2  W1, FedAvg, 49 settings x 5 seeds x 200 rounds",
        fs.FedAvg,
        small,
        grid,
        5,
        200,
        25,
        local,
        ">= 5",
    )


def diverged(lasso: fs.Task, server: list[float], local: dict[str, Any]) -> None:
    """A sweep of which 42 of 49 trials diverge in the first rounds, beside one of which none does."""
    method, rounds = partial(fs.FedDualAvg, L1(0.1)), 500

    def sweep(rates: list[float]) -> Callable[[], Any]:
        grid = {"client_lr": rates, "server_lr": server}
        return lambda: fs.sweep(method, lasso, grid, rounds=rounds, **local)

    programs = {"none diverges": sweep(RATES["stable"]), "42 diverge": sweep(RATES["the paper's"])}
    for program in programs.values():
        program()
    title = "S1  LASSO I, FedDualAvg, 49 settings of which none or 42 diverge, a round of all of them"
    show(title, interleave(programs, rounds, 7), "none diverges", {"42 diverge": "<= 0.3"})


def one_sweep(
    title: str,
    method: Callable[..., fs.Algorithm],
    work: fs.Task,
    grid: dict[str, list[float]],
    seeds: int,
    rounds: int,
    some: int,
    local: dict[str, Any],
    bound: str,
) -> None:
    """Seconds of a sweep, first with its compilation, then beside `some` of its trials run one after another."""

    def sweep() -> Any:
        return fs.sweep(method, work, grid, seeds=seeds, rounds=rounds, **local)

    first = _seconds(sweep)
    trials = [(point, seed) for point in sweep().points for seed in range(seeds)]
    chosen = [trials[i] for i in np.linspace(0, len(trials) - 1, some).astype(int)]

    def in_a_row() -> None:
        for point, seed in chosen:
            with contextlib.suppress(fs.Diverged):
                fs.run(method(**point), work, seed=seed, rounds=rounds, **local)

    options = {k: v for k, v in local.items() if k not in ("clients_per_round", "eval_every")}
    alone = [
        library(method(**point), work, local["clients_per_round"], rounds, **options) for point, _ in chosen
    ]
    in_a_row()
    programs = {"sweep": sweep, "runs in a row": in_a_row, "rounds alone": lambda: [run() for run in alone]}
    times = interleave(programs, 1, 3)
    scale = len(trials) / some
    rows = [("sweep, with its compilation", f"{first:.1f}", "", "")]
    for name, values in times.items():
        many = 1 if name == "sweep" else scale
        ratio = statistics.median(many * v / s for v, s in zip(values, times["sweep"], strict=True))
        text = "" if name == "sweep" else f"{ratio:.1f}"
        seconds = f"{many * statistics.median(values) / 1e3:.1f}"
        rows.append((name, seconds, text, bound if name == "runs in a row" else ""))
    table(title, ("program", "s", "times the sweep", "bound"), rows)


def federation() -> None:
    """The adapter's own cost, a real round beside a bare Flower app's, and one without Flower's longest pause."""
    try:
        import adapter
        import node_pause
        import real_round
    except ImportError:
        console.print("Flower is not installed: real federations are left out")
        return
    adapter.measure(table)
    real_round.main(4)
    node_pause.main(4)


WORKS = {
    "start": start,
    "w1": w1,
    "w3": w3,
    "w3-2": partial(on_two_devices, "w3"),
    "w2": w2,
    "w4": w4,
    "w5": w5,
    "n1": partial(networks.n1, library, by_hand),
    "n1-2": partial(on_two_devices, "n1"),
    "n2": partial(networks.n2, library, by_hand),
    "n2-2": partial(on_two_devices, "n2"),
    "n3": partial(networks.n3, library, by_hand),
    "n3-2": partial(on_two_devices, "n3"),
    "n4": n4,
    "sweeps": sweeps,
    "torch-client": torch_client,
    "federation": federation,
}


def main(words: list[str]) -> None:
    """The works that are named, or all; with `--store` their tables are kept."""
    works = [word for word in words if word != "--store"]
    with tempfile.TemporaryDirectory() as folder:
        lines = collect(Path(folder)) if "--store" in words else None
        for name in works or WORKS:
            WORKS[name]()
        if lines is not None:
            console.print(f"stored in {store(lines, works)}")


if __name__ == "__main__":
    main(sys.argv[1:])
