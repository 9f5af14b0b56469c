"""What the studies of sequences share: roles of Shakespeare, and a tiny text that needs no data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.studies.public import next_token
from fedsolve.tasks import LSTM, shakespeare

TINY = LSTM(8, 4, 8, 1)
"""The network of `tiny_text`."""


def roles(
    model: Any, tested: int, trained: int | None = None, **options: Any
) -> Callable[[Path | None], fs.Task]:
    """From the data folder to Shakespeare's roles, evaluated on some of the sequences.

    Args:
        model: of the task.
        tested: test sequences.
        trained: training sequences that an evaluation looks at; default as many.
        **options: other arguments of `fedsolve.tasks.ready.texts`.
    """

    def task(data_dir: Path | None) -> fs.Task:
        made = shakespeare(data_dir, model, test_examples=tested, **options)
        return replace(made, eval_examples=trained or tested)

    return task


def tiny_text(data_dir: Path | None = None, model: Any = TINY) -> fs.Task:
    """Six clients who count to seven in steps of their own, for the quick forms: 8 tokens, sequences of 6."""

    def counted(step: int, rows: int) -> fs.Examples:
        at = 1 + (np.arange(rows)[:, None] + step * np.arange(7)) % 7
        return fs.Examples(at[:, :-1].astype(np.int32), at[:, 1:].astype(np.int32))

    data = fs.FederatedData.from_clients([counted(1 + i, 12) for i in range(6)])
    return replace(next_token("counting", model, 8, data, counted(1, 8), "caldas2018leaf"), batch_size=4)
