"""An asynchronous run of a federation repeated in the engine, on a task with all clients' data, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params
from fedsolve.deploy.buffered.arrival_log import read_arrivals
from fedsolve.engine.run import run
from fedsolve.results.callbacks import Evaluated
from fedsolve.results.columns import Columns
from fedsolve.results.record_files import leaves_by_path, read_history, read_model
from fedsolve.tasks.task import Task

_OF_MESSAGES = ("bytes_up", "bytes_down", "rejected", "asked", "waited", "time")
"""Columns of a round that are of the transport or the clock."""
_SHOWN = 5


@dataclass(frozen=True)
class Replay:
    """What a repetition found.

    Attributes:
        label: the method's name.
        updates: server updates that were repeated.
        compared: what is compared: arrays of the model, columns of rounds and of evaluations.
        differences: what is not equal to the bit, in words; () if all is.
    """

    label: str
    updates: int
    compared: tuple[str, ...]
    differences: tuple[str, ...]


def replay(
    folder: Path,
    task: Task,
    params: Params,
    evaluate: Callable[[Params, dict[str, np.ndarray]], Mapping[str, float]] | None = None,
    *,
    trusted: Collection[Any] = (),
) -> Replay:
    """Repeat the arrivals of a finished asynchronous run in `fs.run`, and compare model and record bit by bit.

    Args:
        folder: the run's.
        task: the data of all clients, with the loss and the local work that they had.
        params: the initial model of the run.
        evaluate: what the server measured, as `server_app` takes it; None compares no metrics.
        trusted: classes and functions of yours that the method consists of.

    Raises:
        InvalidInput: no finished asynchronous run, a damaged file, or a task that does not fit it.
    """
    recorded, history = read_arrivals(folder, trusted), read_history(folder)
    if history is None:
        raise InvalidInput(f"{folder} has no record yet: the run has not ended; resume it first")
    if history.settings.get("max_share") not in (None, 1.0):
        raise InvalidInput(
            f"{folder} was run with max_share, which fs.run does not have: it cannot be repeated"
        )
    is_double = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    start = jax.tree.map(np.asarray, params)
    rounds, measured = int(history.rounds["round"][-1]), {}

    def measure(at: Evaluated) -> None:
        if evaluate is not None:
            with jax.enable_x64(is_double):  # as the server calls it, whatever the type of the run
                measured[at.round] = dict(evaluate(jax.device_get(at.result().params), {}))

    result = run(
        recorded.method,
        replace(task, init=lambda key: start),
        rounds=rounds,
        systems=recorded.arrivals,
        seed=recorded.seed,
        dtype="float64" if recorded.dtype == "float64" else "float32",
        chunk=1,
        eval_every=int(history.settings.get("eval_every") or 1),
        callbacks=[measure],
    )
    there, _ = read_model(folder / "model.safetensors")
    here = {name: np.asarray(x) for name, x in leaves_by_path(result.params).items()}
    compared, differences = _arrays(there, here)
    for names, found in (
        _columns("rounds", history.rounds, result.history.rounds),
        _columns("evaluations", history.evaluations, _as_columns(measured)),
    ):
        compared, differences = compared + names, differences + found
    return Replay(history.label, rounds, tuple(compared), tuple(differences))


def _as_columns(measured: Mapping[int, Mapping[str, float]]) -> Columns:
    names = {name for metrics in measured.values() for name in metrics}
    columns = {name: [metrics.get(name, np.nan) for metrics in measured.values()] for name in sorted(names)}
    return {"round": np.array(list(measured)), **{name: np.array(x) for name, x in columns.items()}}


def _arrays(there: Mapping[str, np.ndarray], here: Mapping[str, np.ndarray]) -> tuple[list[str], list[str]]:
    """The arrays of the model, and which differ."""
    differences = [f"model: {name} is in one of both alone" for name in sorted(there.keys() ^ here.keys())]
    names = [name for name in there if name in here]
    for name in names:
        if (a := there[name]).shape != (b := here[name]).shape or a.dtype != b.dtype:
            differences.append(f"model: {name} is {a.dtype}{a.shape} in the run and {b.dtype}{b.shape} here")
        elif a.tobytes() != b.tobytes():
            largest = float(np.max(np.abs(a.astype(float) - b.astype(float))))
            differences.append(f"model: {name} differs by up to {largest:.3g}")
    return [f"model: {name}" for name in names], differences


def _columns(part: str, there: Columns, here: Columns) -> tuple[list[str], list[str]]:
    """The columns of the record that both have, and which differ, row by row of the same round."""
    _, mine, others = np.intersect1d(there["round"], here["round"], return_indices=True)
    names = [n for n in there if n in here and n != "round" and n not in _OF_MESSAGES]
    differences = []
    for name in names:
        a, b = np.asarray(there[name], float)[mine], np.asarray(here[name], float)[others]
        rows = [int(there["round"][i]) for i in mine[~((a == b) | (np.isnan(a) & np.isnan(b)))]]
        if rows:
            more = ", ..." if len(rows) > _SHOWN else ""
            differences.append(
                f"{part}: {name} differs after {', '.join(map(str, rows[:_SHOWN]))}{more} rounds"
            )
    return [f"{part}: {name}" for name in names], differences
