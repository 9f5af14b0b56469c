"""Whole grids against the same runs in a row, as a user would call them, S1 and S2; all compiled before, then in turns.

    python benchmarks/bench.py sweeps

The runs in a row are some of the trials, evenly spread over the grid, and their time is that of all trials at this
rate. `rounds alone` is the compiled rounds of those runs, without set-up and evaluation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.geometry import L1
from fedsolve.tasks import Softmax
from measure import Setting, interleave, library, seconds, show, task, torch_works

STABLE = np.logspace(-5, -3.3, 7).tolist()
"""Client rates of LASSO I with which every setting runs to the end."""
THE_PAPERS = np.logspace(-3, 0, 7).tolist()
"""With these 42 of 49 settings diverge in the first rounds."""


def sweeps(setting: Setting) -> None:
    count, rounds = setting.pick(7, 2), setting.pick(500, 4)
    server = np.logspace(-2, 1, 7).tolist()[:count]
    lasso = fs.tasks.lasso()
    method, local = partial(fs.FedDualAvg, L1(0.1)), {"clients_per_round": 10, "eval_every": rounds // 2}
    for key, rates, what in (
        ("S1", STABLE, "of which none diverges"),
        ("S1 diverged", THE_PAPERS, "of which 42 diverge"),
    ):
        grid = {"client_lr": rates[:count], "server_lr": server}
        about = f"LASSO I, FedDualAvg, {count**2} settings {what}, {rounds} rounds, 10 of 64 clients"
        beside_runs(key, about, method, lasso, grid, 1, rounds, count, local, setting)
    clients, rounds = setting.pick((100, 200), (10, 2))
    small = task("w1", Softmax(60, 10), clients, 100, (60,), 10)
    grid = {
        "client_lr": np.logspace(-3, 0, 7).tolist()[:count],
        "server_lr": np.logspace(-1, 0.5, 7).tolist()[:count],
    }
    local = {"clients_per_round": 10, "batch_size": 10, "epochs": 1, "eval_every": rounds}
    seeds, some = setting.pick((5, 25), (2, 2))
    about = f"W1, FedAvg, {count**2} settings x {seeds} seeds x {rounds} rounds"
    beside_runs("S2", about, fs.FedAvg, small, grid, seeds, rounds, some, local, setting)


def beside_runs(
    key: str,
    about: str,
    method: Callable[..., fs.Algorithm],
    work: fs.Task,
    grid: dict[str, list[float]],
    seeds: int,
    rounds: int,
    some: int,
    local: dict[str, Any],
    setting: Setting,
) -> None:
    """Seconds of a sweep, first with its compilation, then beside `some` of its trials run one after another."""

    def sweep() -> Any:
        return fs.sweep(method, work, grid, seeds=seeds, rounds=rounds, **local)

    first = seconds(sweep)
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
    units = {
        "sweep": 1e3,
        "runs in a row": 1e3 * some / len(trials),
        "rounds alone": 1e3 * some / len(trials),
    }
    if setting.torch != "cpu" and key == "S2" and (torch := torch_works()):
        x, y = (a.reshape(-1, 100, *a.shape[1:]) for a in (work.data.examples.x, work.data.examples.y))
        programs["PyTorch loop"] = torch.program(torch.mlp(60, 10), x, y, 10, rounds=20, **setting.on_torch())
        units["PyTorch loop"] = 1e3 * 20 / (len(trials) * rounds)
    times = interleave(programs, units, setting.pick(3, 1))
    show(key, about, times | {"sweep, with its compilation": [first] * len(times["sweep"])}, "sweep", "s")
