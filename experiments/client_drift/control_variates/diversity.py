"""The diversity of the client updates, mean |D_i|^2 / |D|^2, logged beside whatever step a server takes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import fedsolve as fs
from fedsolve.studies.public import Params, Spread, Traced, module, quotient, reported, trees


@module
class DiversityState:
    """The inner optimiser's state, and the last round's diversity, at least 1; 0 if D = 0."""

    inner: Any
    diversity: Traced = reported()


@module
class Measured:
    """What the inner optimiser asks of a client, and |D_i|^2."""

    inner: Any
    spread: Spread


@module
class WithDiversity(fs.server.ServerOptimizer):
    """Any optimiser that steps by a mean client update, with  diversity = mean |D_i|^2 / |D|^2  reported each round.

    It is 1 if all client updates are equal. FedExP's step is half of it (Jhunjhunwala et al. 2023); for gradients in
    place of client updates it is the gradient diversity of Yin et al. 2018.
    """

    weighting = "uniform"
    inner: fs.server.ServerOptimizer

    def init(self, params: Params) -> DiversityState:
        """The inner state, and 0."""
        return DiversityState(self.inner.init(params), jnp.zeros((), trees.dtype_of(params)))

    def client_stats(
        self, delta: Params, solution: fs.client.Solution, start: Params, oracle: fs.Oracle
    ) -> Measured:
        """The inner optimiser's, and |D_i|^2."""
        inner = self.inner.client_stats(delta, solution, start, oracle)
        return Measured(inner, Spread(trees.squared_norm(delta)))

    def step(
        self, params: Params, state: DiversityState, delta: Params, measured: Measured, cohort: fs.Cohort
    ) -> tuple[Params, DiversityState]:
        """The inner step."""
        new, inner = self.inner.step(params, state.inner, delta, measured.inner, cohort)
        diversity = quotient(measured.spread.squared_norm, trees.squared_norm(delta))
        return new, DiversityState(inner, diversity.astype(state.diversity.dtype))
