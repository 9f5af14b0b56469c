"""Made-up sweeps that look like real ones: a valley of good rates, large ones diverge, seeds differ a little."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from fedsolve.results.sweep import Selection, SweepRecord

HALVES = tuple(float(f"{10 ** (-3 + i / 2):.12g}") for i in range(7))
"""Half decades from 0.001 to 1."""


def make_sweep(
    grid=None, *, seeds=(0, 1, 2), label="FedAdam", selection=None, limit=0.5, task="digits", **changes
):
    """A sweep with the least loss where each rate is 0.1; where the product of rates is over `limit` it diverges."""
    grid = grid or {"client_lr": HALVES, "server_lr": HALVES}
    rounds = np.arange(0, 201, 10)
    points = list(itertools.product(*grid.values()))
    loss = np.empty((len(points), len(seeds), len(rounds)))
    diverged = np.full(loss.shape[:2], -1)
    for i, point in enumerate(points):
        numbers = [v for v in point if isinstance(v, int | float) and not isinstance(v, bool)]
        off = sum(np.log10(v / 0.1) ** 2 for v in numbers if v > 0)
        for j, seed in enumerate(seeds):
            noise = 1 + 0.04 * np.sin(7 * i + 3 * seed)
            loss[i, j] = 2.3 * np.exp(-rounds / (20 + 25 * off) * noise) + 0.02 * (1 + off) * noise
            if np.prod(numbers) > limit * noise:
                diverged[i, j] = 30 + seed
                loss[i, j, rounds > 20] = np.nan
    metrics = {"train_loss": loss, "test_accuracy": np.exp(-loss)}
    selection = selection or Selection("train_loss", 100)
    fields = {"settings": {"clients_per_round": 10, "rounds": 200}, "seconds": 12.5, "notes": ("in 2 parts",)}
    return SweepRecord(
        label, task, grid, tuple(seeds), rounds, metrics, diverged, selection, **(fields | changes)
    )


def make_search(stops=(60, 20), trials=12, **changes):
    """Every fourth setting of the same as if drawn at random, of which every third stopped after a round of `stops`."""
    whole = make_sweep(**changes)
    chosen = list(range(0, 4 * trials, 4))
    points = [whole.points[i] for i in chosen]
    found = whole.at_settings(chosen, {axis: tuple(p[axis] for p in points) for axis in whole.grid})
    ranges = {axis: "1e-3:1:log" for axis in whole.grid}
    about = {"kind": "random", "trials": trials, "seed": 0, "ranges": ranges, "halving": 3}
    return stop(replace(found, search=about), {i: stops[i % len(stops)] for i in range(1, trials, 3)})


def stop(sweep, stops):
    """The same with some settings stopped, which have no numbers from then on; those that diverged are left."""
    stopped = np.full(len(sweep.points), -1, np.int32)
    metrics = {name: values.copy() for name, values in sweep.metrics.items()}
    for setting, last in stops.items():
        if (sweep.diverged[setting] < 0).all():
            stopped[setting] = last
            for values in metrics.values():
                values[setting][:, sweep.rounds > last] = np.nan
    return replace(sweep, metrics=metrics, stopped=stopped, search=dict(sweep.search) | {"halving": 3})
