"""The optimisers of optax, as a client's and as the server's: each is tried on a quadratic for two rounds.

docs/optax.md, which tools/generate.py makes.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import optax

import fedsolve as fs
from fedsolve.core.algorithm import Cohort

PARAMS = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
RATES, WITHOUT = {"learning_rate", "max_learning_rate"}, {"cocob", "dog", "dowg"}


class Quadratic:
    """A client whose loss is the squared distance to 2."""

    steps = bound = 3

    def loss(self, params: Any, step: Any) -> Any:
        """The loss of a minibatch, the same in every step."""
        return sum(jnp.sum((x - 2.0) ** 2) for x in jax.tree.leaves(params))

    def __call__(self, params: Any, step: Any) -> Any:
        """Its loss and gradient."""
        return jax.value_and_grad(self.loss)(params, step)


def optimisers() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every optimiser of optax and optax.contrib, with its name: what has a learning rate, or needs none."""
    for package in (optax, optax.contrib):
        for name, found in vars(package).items():
            if name.startswith(("_", "scale_by")) or not isinstance(found, FunctionType | partial):
                continue
            if RATES & set(inspect.signature(found).parameters) or name in WITHOUT:
                yield name, found


def as_client(make: Callable[[Any], Any]) -> str:
    """`yes`, `keep=True` or `no`: whether two rounds move a model, and whether a state must be kept."""
    solver, params = make(fs.client.Optax), PARAMS
    for t in range(2):
        params = solver.solve(params, Quadratic(), t).params
    with jax.disable_jit(False):
        said = solver.why_it_stands_still(PARAMS, 5, 100)
    return "no" if not moved(params) else "`keep=True`" if said else "yes"


def as_server(make: Callable[[Any], Any]) -> str:
    """`yes` or `no`: whether two rounds of clients with the rate 0.1 move a model."""
    rule, params = make(fs.server.Optax), PARAMS
    state = rule.init(params)
    for t in range(2):
        loss, gradient = Quadratic()(params, 0)
        delta = jax.tree.map(lambda g: -0.1 * g, gradient)
        cohort = Cohort(jnp.int32(t), jnp.float32(2), jnp.float32(4))
        params, state = rule.step(params, state, delta, SimpleNamespace(value=0.1 * loss), cohort)
    return "yes" if moved(params) else "no"


def moved(params: Any) -> bool:
    """Whether every leaf has left its start and is finite."""
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(PARAMS), strict=True)
    return all(bool(jnp.isfinite(x).all() and (x != start).any()) for x, start in pairs)


def tried(name: str, factory: Callable[..., Any]) -> tuple[str, str]:
    """What the table says of an optimiser: as a client's, and as the server's."""
    needed = inspect.signature(factory).parameters.get("learning_rate")
    rate = {"learning_rate": 0.1} if needed and needed.default is inspect.Parameter.empty else {}

    def outcome(trial: Callable[..., str]) -> str:
        try:
            return trial(lambda optimiser: optimiser(factory, **rate))
        except fs.InvalidInput as error:
            why = str(error)
        if "losses at other models" in why:
            return "no: other losses"
        return "no: random key" if "random key" in why else "no: other arguments"

    return outcome(as_client), outcome(as_server)


def page() -> str:
    """The page: optimisers by what was found."""
    found: dict[tuple[str, str], list[str]] = {}
    with warnings.catch_warnings(), jax.disable_jit():
        warnings.simplefilter("ignore")
        for name, factory in optimisers():
            found.setdefault(tried(name, factory), []).append(f"`{name}`")
    rows = [
        f"| {' '.join(sorted(set(names)))} | {a} | {b} |"
        for (a, b), names in sorted(found.items(), reverse=True)
    ]
    text = [
        "# Optimisers of optax",
        "",
        "For users of `fs.client.Optax` and `fs.server.Optax`. The table lists which optimisers of",
        f"optax {optax.__version__} each of them accepts. All were tried for two rounds on a quadratic.",
        "",
        "`keep=True`: clients keep the optimiser's state. Without it, the first steps of these optimisers in each",
        "round are over 100 times shorter than later ones, and a note says so. Schedule-free optimisers refuse it:",
        "a client's own iterate would lag behind the server's model.",
        "",
        "| optimiser | on clients | on the server |",
        "|---|---|---|",
        *rows,
    ]
    return "\n".join([*text, ""])
