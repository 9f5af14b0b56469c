"""How bench.py measures: programs in turns, each repetition one call of every program.

A drift of the machine's speed hits all programs alike; a ratio is the median over repetitions of time / time.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

import fedsolve as fs
import handwritten
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare
from fedsolve.tasks import CrossEntropy, Examples
from stored import record, table

Run = Callable[[], Any]


class Setting(NamedTuple):
    """How large works are, and where PyTorch computes.

    Attributes:
        tiny: sizes with which a work only shows that it runs.
        torch: PyTorch's device, "cpu" or "cuda".
    """

    tiny: bool = False
    torch: str = "cpu"

    def pick(self, usual: Any, tiny: Any) -> Any:
        """One of two sizes."""
        return tiny if self.tiny else usual

    def on_torch(self) -> dict[str, Any]:
        """PyTorch's device and its threads on a CPU: one a core, where a few operations are tried one."""
        return {"device": self.torch, "threads": 1 if self.tiny else None}


def task(name: str, model: Any, clients: int, n: int, shape: tuple[int, ...], classes: int) -> fs.Task:
    x, y = (np.asarray(a) for a in handwritten.synthetic(clients, n, shape, classes))
    packed = Examples(x.reshape(-1, *shape), y.reshape(-1))
    return fs.Task(name, model.init, CrossEntropy(model), fs.FederatedData(packed, np.full(clients, n)))


def library(
    algorithm: fs.Algorithm,
    work: fs.Task,
    cohort: int | None,
    rounds: int,
    devices: int | None = None,
    chunk: int | None = None,
    **local: Any,
) -> Run:
    """A function that runs `rounds` rounds of the engine, compiled already; devices as a run chooses them."""
    options = RunOptions(
        rounds=rounds, clients_per_round=cohort, eval_every=rounds, chunk=chunk, devices=devices, **local
    )
    setup = prepare(algorithm, work, options)
    state = [setup.state]

    def run() -> None:
        state[0], _ = setup.advance(state[0], rounds)
        jax.block_until_ready(state[0].server)

    run()
    return run


def by_hand(make: Callable[..., Any], rounds: int) -> Run:
    run, params = make()
    key = jax.random.key(0)

    def call() -> None:
        jax.block_until_ready(run(params, key, rounds))

    call()
    return call


def torch_works() -> Any:
    """The PyTorch loops, None where PyTorch is not installed."""
    try:
        import torch_works
    except ImportError:
        print("PyTorch is not installed: its rows are left out")
        return None
    return torch_works


def interleave(
    programs: Mapping[str, Run],
    units: float | Mapping[str, float],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of a unit of each program, by repetition; `units` of a call, such as rounds."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            begun = clock()
            program()
            count = units if isinstance(units, float | int) else units[name]
            times[name].append(1e3 * (clock() - begun) / count)
    return times


def compare(
    key: str,
    about: str,
    programs: Mapping[str, Run],
    units: float | Mapping[str, float],
    repeats: int,
    *,
    base: str,
    unit: str = "ms a round",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time programs in turns, print the table and note the times under `key`, by which bounds.py knows them."""
    times = interleave(programs, units, repeats, clock)
    show(key, about, times, base, unit)
    return times


def show(key: str, about: str, times: dict[str, list[float]], base: str = "", unit: str = "ms") -> None:
    """The table of such times, each with its ratio to those of `base`; noted under `key`."""
    rows = []
    for name, values in times.items():
        ratio = f"{ratio_of(values, times[base]):.2f}" if base else ""
        rows.append((name, f"{statistics.median(values):,.3f}", f"{min(values):,.3f}", ratio))
    table(
        f"{key}  {about}",
        ("program", f"{unit} (median)", "minimum", f"ratio to {base}" if base else ""),
        rows,
    )
    record({"key": key, "about": about, "unit": unit, "base": base, "times": times})


def ratio_of(times: list[float], others: list[float]) -> float:
    """The median over repetitions of time / time."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def seconds(call: Run) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def digest(params, columns):
    """Of a model and of columns of numbers, in the order of their names, whatever keeps time left out."""
    h = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        a = np.ascontiguousarray(np.asarray(leaf))
        h.update(str((a.dtype, a.shape)).encode() + a.tobytes())
    for name in sorted(name for name in columns if "seconds" not in name):
        h.update(np.ascontiguousarray(np.asarray(columns[name])).tobytes())
    return h.hexdigest()[:16]


def digest_of_run(result):
    """Of a run: its model, evaluations and log."""
    metrics = {f"m/{name}": column for name, column in result.metrics.items()}
    return digest(result.params, metrics | {f"r/{name}": column for name, column in result.rounds.items()})
