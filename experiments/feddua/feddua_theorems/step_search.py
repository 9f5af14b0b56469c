"""Searches that know nothing of FedDuA's formula: the best step along its direction, the least worst case."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize, minimize_scalar

import fedsolve as fs
from experiments.feddua.feddua_theorems.step_geometries import (
    PRECONDITIONED,
    Geometry,
    geometry,
    quadratic,
    server_step,
)
from fedsolve.studies.public import Spread

MOMENTUM = 0.9
FARTHEST = 20.0
"""How many times FedDuA's step size the search for the best one goes."""
STARTS = 5


class Instance(NamedTuple):
    """A start, a common minimiser, and an orthonormal basis of the directions that each client fixes."""

    start: np.ndarray
    solution: np.ndarray
    fixed: np.ndarray


def draw(rng: np.random.Generator, features: int, clients: int, positive: bool) -> Instance:
    """Clients whose minimisers are affine subspaces through one point, each of a random half of the dimensions."""
    start, solution = rng.standard_normal((2, features))
    if positive:
        start, solution = np.exp(start / 2), np.exp(solution / 2)
    columns = rng.standard_normal((clients, features, max(1, features // 2)))
    return Instance(start, solution, np.linalg.qr(columns)[0])


def updates(instance: Instance, w: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Client updates: `lengths` times the projections onto each client's minimisers, (clients, features)."""
    apart = instance.solution - w
    projections = np.einsum("cfk,cgk,g->cf", instance.fixed, instance.fixed, apart)
    return lengths[:, None] * projections


def step_ratios(name: str, seed: int, rounds: int, features: int, clients: int, momentum: bool) -> np.ndarray:
    """The best step size over FedDuA's in each round of a run, (rounds,).

    The best minimises D_psi(w* | w(eta)), by a search over eta. Without momentum clients go up to twice the way to
    their minimisers, which is what A.P.C. allows; with it at most the whole way, which is the strong A.P.C.
    """
    rng = np.random.default_rng(seed)
    own = None if name in PRECONDITIONED else geometry(name, features)
    beta1 = MOMENTUM if momentum else None
    optimizer, step = server_step(name, features, beta1)
    instance = draw(rng, features, clients, own is not None and own.positive)
    w, state, v = instance.start, optimizer.init(jnp.asarray(instance.start)), np.zeros(features)
    ratios = []
    for _ in range(rounds):
        deltas = updates(instance, w, rng.uniform(0, 1 if momentum else 2, clients))
        mean = deltas.mean(axis=0)
        v = MOMENTUM * v + (1 - MOMENTUM) * mean if momentum else mean
        measured = Spread(jnp.asarray(np.mean(np.sum(deltas**2, axis=1))))
        after, state = step(
            jnp.asarray(w), state, jnp.asarray(mean), measured, fs.Cohort(0, clients, clients)
        )
        there = own or quadratic(np.sqrt(np.asarray(state.s)) + 1e-9)
        ratios.append(_best_step(there, w, v, instance.solution, float(state.server_lr)))
        w = np.asarray(after)
    return np.array(ratios)


def _best_step(there: Geometry, w: np.ndarray, v: np.ndarray, solution: np.ndarray, eta: float) -> float:
    """argmin over t in [0, FARTHEST] of D_psi(w* | w(t eta))."""
    theta = there.forward(w)

    def far(t: float) -> float:
        return float(there.divergence(solution, there.inverse(theta + t * eta * v)))

    found: Any = minimize_scalar(far, bounds=(0.0, FARTHEST), method="bounded", options={"xatol": 1e-7})
    return float(found.x)


class WorstCase(NamedTuple):
    """What searches for the least worst case found, (instances,) each.

    `apart` is the distance of the minimiser that was found from FedDuA's model, over the length of FedDuA's step;
    `gain` by how much its worst case is lower, over the size of FedDuA's; `plain` by how much that of the step with
    G = I is higher, NaN outside the domain.
    """

    apart: np.ndarray
    gain: np.ndarray
    plain: np.ndarray


class Case(NamedTuple):
    """One instance of Theorem 4.1: the model, the mean client update, m, FedDuA's next model, corners of w*."""

    own: Geometry
    model: np.ndarray
    mean: np.ndarray
    bound: float
    after: np.ndarray
    corners: np.ndarray

    def worst(self, models: np.ndarray) -> np.ndarray:
        """V of each of several models: the largest of D(w*|w) - D(w*|w_t), which is linear in w*, at a corner."""
        own, w = self.own, self.model
        theta, duals = own.forward(w), own.forward(models)
        constant = own.value(w) - own.value(models) + np.sum(duals * models, axis=-1) - theta @ w
        return constant + ((theta - duals) @ self.corners.T).max(axis=-1)


def draw_case(name: str, rng: np.random.Generator, features: int, clients: int) -> Case:
    """A random instance, with the box that stands for all w*: it reaches four times as far as FedDuA's step."""
    own = geometry(name, features)
    instance = draw(rng, features, clients, own.positive)
    w = instance.start
    deltas = updates(instance, w, rng.uniform(0, 2, clients))
    mean, bound = deltas.mean(axis=0), float(np.mean(np.sum(deltas**2, axis=1))) / 2
    optimizer, step = server_step(name, features, None)
    measured, now = Spread(jnp.asarray(2 * bound)), jnp.asarray(w)
    cohort = fs.Cohort(0, clients, clients)
    after = np.asarray(step(now, optimizer.init(now), jnp.asarray(mean), measured, cohort)[0])
    reach = 4 * np.abs(after - w).max()
    low = np.maximum(w - reach, 0.0) if own.positive else w - reach
    return Case(own, w, mean, bound, after, vertices(low, w + reach, mean, bound + mean @ w))


def least_worst_case(name: str, seed: int, features: int, clients: int) -> tuple[float, float, float]:
    """Minimise V(w), the largest D(w*|w) - D(w*|w_t) over all w* of a box for which A.P.C. holds.

    Returns:
        The numbers of `WorstCase`.
    """
    rng = np.random.default_rng(seed)
    case = draw_case(name, rng, features, clients)
    w, after = case.model, case.after
    found = searched(case.own, w, case.corners, rng)
    plain = w + case.bound / (case.mean @ case.mean) * case.mean
    inside = not case.own.positive or bool((plain > 0).all())
    ours, theirs, others = case.worst(np.stack([after, found, plain if inside else after]))
    return (
        float(np.linalg.norm(found - after) / np.linalg.norm(after - w)),
        float((ours - theirs) / abs(ours)),
        float((others - ours) / abs(ours)) if inside else np.nan,
    )


def along_the_step(name: str, seed: int, features: int, clients: int, lengths: np.ndarray) -> np.ndarray:
    """V over |V| of FedDuA's model, along its direction in the dual space, by the length over FedDuA's."""
    case = draw_case(name, np.random.default_rng(seed), features, clients)
    theta = case.own.forward(case.model)
    whole = case.own.forward(case.after) - theta
    models = case.own.inverse(theta + lengths[:, None] * whole)
    return case.worst(models) / abs(float(case.worst(case.after[None])[0]))


def vertices(low: np.ndarray, high: np.ndarray, normal: np.ndarray, at_least: float) -> np.ndarray:
    """Of the box between `low` and `high` cut by <normal, x> >= `at_least`, (vertices, dimensions)."""
    corners = np.array(list(product(*zip(low, high, strict=True))))
    above = corners @ normal - at_least
    found = list(corners[above >= 0])
    for i, j in product(range(len(corners)), repeat=2):
        if i < j and np.sum(corners[i] != corners[j]) == 1 and above[i] * above[j] < 0:
            share = above[i] / (above[i] - above[j])
            found.append(corners[i] + share * (corners[j] - corners[i]))
    return np.array(found)


def searched(own: Geometry, w: np.ndarray, corners: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The minimiser of V by a general solver (SLSQP) from random starts: the one with the lowest V.

    V is phi(theta) plus the largest of <theta_t - theta, w*> over the corners, and a constant: it is solved as
    phi(theta) + t with t above them all.
    """
    now = own.forward(w)
    scale = np.abs(own.forward(corners.mean(axis=0)) - now).max()

    def objective(x: np.ndarray) -> float:
        model = own.inverse(x[:-1])
        return float(x[:-1] @ model - own.value(model) + x[-1])

    above = {
        "type": "ineq",
        "fun": lambda x: x[-1] + corners @ (x[:-1] - now),
        "jac": lambda x: np.c_[corners, np.ones(len(corners))],
    }
    results = []
    for _ in range(STARTS):
        theta = now + scale * rng.uniform(-1, 1, len(w))
        start = np.append(theta, -(corners @ (theta - now)).min())
        results.append(
            minimize(
                objective, start, jac=lambda x: np.append(own.inverse(x[:-1]), 1.0), method="SLSQP",
                constraints=[above], options={"maxiter": 500, "ftol": 1e-14},
            )
        )  # fmt: skip
    return own.inverse(min(results, key=lambda result: result.fun).x[:-1])
