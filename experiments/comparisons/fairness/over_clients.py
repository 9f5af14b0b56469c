"""Held-out accuracy over clients: the mean, the worst decile, the worst client and the spread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from fedsolve.studies.public import module, static

MEAN, DECILE, WORST, SPREAD = (
    f"client_held_out_accuracy{part}" for part in ("", "_worst_decile", "_worst_client", "_spread")
)
SHARE = 0.2
"""Of every client's examples that are held out."""


@module
class OverClients(fs.diagnostics.Diagnostic):
    """Accuracy of each client's held-out examples: their mean, 10th percentile, minimum, and 90th less 10th percentile.

    `owners` numbers the clients that have such examples from 0; all arrays have one entry an example.
    """

    x: Any
    y: Any
    owners: Any
    model: Any = static()
    clients: int = static()

    def __call__(self, point: fs.diagnostics.Point) -> dict[str, Any]:
        """The four numbers."""
        right = jnp.argmax(self.model(point.params, self.x), axis=1) == self.y
        count = jax.ops.segment_sum(jnp.ones_like(self.owners), self.owners, self.clients)
        own = jax.ops.segment_sum(right.astype(jnp.float32), self.owners, self.clients) / count
        low, high = jnp.percentile(own, 10), jnp.percentile(own, 90)
        return {MEAN: jnp.mean(own), DECILE: low, WORST: jnp.min(own), SPREAD: high - low}


def measured(task: fs.Task) -> fs.Task:
    """The task with a fifth of every client's examples held out, and these four numbers of them."""
    held: Any = task.hold_out(SHARE)
    x, y = (np.asarray(part) for part in held.validation)
    x = x.astype(np.float32) / 255 if x.dtype == np.uint8 else x
    known, owners = np.unique(held.validation_clients, return_inverse=True)
    found = OverClients(x, y, owners.astype(np.int32), model=task.init.__self__, clients=len(known))  # pyright: ignore[reportFunctionMemberAccess]
    return replace(held, diagnostics=(found,))
