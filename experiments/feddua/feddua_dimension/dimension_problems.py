"""Regressions of any dimension with one minimiser for all clients, and methods that report Theorem 4.3's terms."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from fedsolve.studies.public import Batch, Params, Scalar, Traced, Wrapper, module, reported

CLIENTS, EXAMPLES, STEPS = 20, 10, 5
CLIENT_LR = 1 / (6 * STEPS)
"""The largest that Theorem 4.3 allows, 1 / (6 K L), since data are scaled so that L = 1."""


def squares(w: Params, batch: Batch) -> Scalar:
    """Mean of (<w, x> - y)^2."""
    x, y = batch
    return ((x @ w - y) ** 2).mean()


@cache
def regression(data_dir: Path | None, seed: int, features: int, decay: float) -> fs.Task:
    """Clients with inputs x ~ N(0, diag(k^-decay)) and y = <1, x>, divided by sqrt(L): every client's loss is 1-smooth.

    A vector of ones is a minimiser of every client, at |w_0 - w*|_inf = 1 and |w_0 - w*|^2 = d of the start w_0 = 0.
    """
    rng = np.random.default_rng(seed)
    deviation = np.arange(1, features + 1) ** (-decay / 2)
    x = deviation * rng.standard_normal((CLIENTS, EXAMPLES, features))
    x /= np.sqrt(max(2 * np.linalg.norm(own, 2) ** 2 / EXAMPLES for own in x))
    y = x.sum(axis=-1)
    clients = list(zip(x, y, strict=True))
    return fs.Task.from_arrays(squares, np.zeros(features), clients, local_steps=STEPS, batch_size=None)


@module
class TermsServer:
    """The inner server; G of the last round; the terms.

    `divergences` is D_0(w*|w_0) + the sum of D_t(w*|w_t) - D_(t-1)(w*|w_t), `trace` is tr G, `distance` the largest
    |w_t - w*|_inf so far.
    """

    inner: Any
    preconditioner: Traced
    divergences: Traced = reported()
    trace: Traced = reported()
    distance: Traced = reported()


@module
class Terms(Wrapper):
    """A method of the regression, unchanged, with what Theorem 4.3 and Corollary 4.4 need of it reported."""

    title: ClassVar[str] = "Terms"
    inner: fs.Algorithm

    def init(self, params: Params) -> TermsServer:
        """The inner server; G = 0, so that the first difference is D_0."""
        zeros = jnp.zeros_like(params)
        zero = zeros.sum()
        return TermsServer(self.inner.init(params), zeros, zero, zero, zero)

    def broadcast(self, server: TermsServer, cohort: fs.Cohort) -> Any:
        """The inner broadcast."""
        return self.inner.broadcast(server.inner, cohort)

    def update(self, server: TermsServer, message: Any, cohort: fs.Cohort) -> TermsServer:
        """The inner update, and the terms at the model before it."""
        apart = 1 - self.inner.export(server.inner)
        inner = self.inner.update(server.inner, message, cohort)
        s = inner.server_optimizer.s
        g = jnp.ones_like(apart) if isinstance(s, tuple) else jnp.sqrt(s)
        more = 0.5 * jnp.sum(apart**2 * (g - server.preconditioner))
        farthest = jnp.maximum(server.distance, jnp.abs(apart).max())
        return TermsServer(inner, g, server.divergences + more, g.sum(), farthest)

    def export(self, server: TermsServer) -> Params:
        """The inner model."""
        return self.inner.export(server.inner)
