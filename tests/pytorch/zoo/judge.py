"""What fedsolve makes of an entry, and how far it is from plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import fedsolve as fs
from zoo.entry import Entry
from zoo.reference import Outcome, drawn, made, round_by_hand, start
from zoo.traces import without_trace

RATE = 0.1


class Found(NamedTuple):
    """What became of an entry.

    Attributes:
        kind: as in `Verdict`.
        text: the note or the refusal.
        error: the largest difference from PyTorch, of a step relative to the largest entry of each parameter's or
            buffer's, of the test loss relative to it; 0 where refused.
        where: what has it.
    """

    kind: str
    text: str
    error: float = 0.0
    where: str = ""


def judge(entry: Entry, steps: tuple[int, ...] = (1, 2)) -> Found:
    """Give the entry to `from_torch` and compare a round of 1 and of 2 local steps on clients of 5, 3 and 4 examples.

    A round of one step moves each parameter by the mean of the clients' gradients, so it compares those.
    """
    try:
        task = _task(entry)
        worst = max((_difference(entry, task, k) for k in steps), key=lambda pair: pair[0])
    except fs.InvalidInput as error:
        return Found("refused", str(error))
    kind = "in PyTorch" if any("PyTorch" in note for note in task.notes) else "translated"
    return Found(kind, " ".join(task.notes), *worst)


def _task(entry: Entry) -> fs.Task:
    module, loss = made(entry)
    data = drawn(entry)
    with without_trace(module, loss, data):
        return fs.tasks.from_torch(
            module, loss, data.clients, test=data.test, metrics={}, batch_size=None, local_steps=1
        )


def _difference(entry: Entry, task: fs.Task, steps: int) -> tuple[float, str]:
    result = fs.run(
        fs.FedAvg(client_lr=RATE),
        replace(task, local_steps=steps),
        rounds=1,
        clients_per_round=3,
        dtype="float64",
    )
    wanted, before = round_by_hand(entry, steps, RATE), start(entry)
    found = {
        f"{steps} steps, the step of {n}": _of(result.params[n], wanted.params[n], before[n]) for n in before
    }
    written = result.buffers or {}
    for name, value in written.items():
        found[f"{steps} steps, buffer {name}"] = _of(value, wanted.buffers[name], 0.0)
    found |= {f"buffer {n} is not kept": np.inf for n in _changed(entry, wanted) - set(written)}
    loss = float(result.metrics["test_loss"][-1])
    found["test loss"] = abs(loss - wanted.test_loss) / max(abs(wanted.test_loss), 1e-3)
    worst = max(found, key=lambda name: np.nan_to_num(found[name], nan=np.inf))
    return float(np.nan_to_num(found[worst], nan=np.inf)), worst


def _of(ours: Any, theirs: Any, before: Any) -> float:
    """The largest difference, relative to the largest entry of what changed."""
    step = np.asarray(theirs) - before
    wrong = np.abs(np.asarray(ours, np.float64) - theirs).max(initial=0)
    return float(wrong / max(np.abs(step).max(initial=0), 1e-4))


def _changed(entry: Entry, wanted: Outcome) -> set[str]:
    """The buffers that a round of PyTorch's changes."""
    first = dict(made(entry)[0].named_buffers())
    return {n for n, b in wanted.buffers.items() if not np.array_equal(first[n].double().numpy(), b)}
