"""Runs of federated Frank-Wolfe on the problems of `rates_problems`: suboptimality by round, smallest gap by T."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import fedsolve as fs
from fedsolve.experiments.rates_problems import Bounded
from fedsolve.studies.experiment import Context

ROUNDS, EVERY, SEEDS, P, BATCH = 10_000, 10, (0, 1, 2), 0.5, 4
LAM0 = 0.1
"""Where nothing else is said."""
PENALTIES = (0.03, 0.1)
"""lam0 of the non-convex runs."""
HORIZONS = (100, 316, 1000, 3162, 10_000)


@dataclass(frozen=True)
class Method:
    """A line of the convex pictures.

    Attributes:
        label: its name.
        make: ball -> algorithm.
        rate: r of the theorem's bound t^-r, None where there is no theorem.
        source: of the bound.
        p: participation.
        batch: of a step.
    """

    label: str
    make: Callable[[Any], Any]
    rate: float | None
    source: str = ""
    p: float = 1.0
    batch: Any = "full"

    @property
    def seeds(self) -> tuple[int, ...]:
        """One where nothing is drawn."""
        return SEEDS if self.p < 1 or self.batch != "full" else SEEDS[:1]


METHODS = (
    Method("FedFW", lambda b: fs.FedFW(b, steps=fs.frank_wolfe.Convex(LAM0)), 1 / 2, "Theorem 1"),
    Method("FedFW, lam0 = 1", lambda b: fs.FedFW(b, steps=fs.frank_wolfe.Convex(1.0)), 1 / 2, "Theorem 1"),
    Method("FedFW, p = 0.5", lambda b: fs.FedFW(b, steps=fs.frank_wolfe.Convex(LAM0, P)), 1 / 2, "(17)", P),
    Method(
        "FedFWSto",
        lambda b: fs.FedFWSto(b, steps=fs.frank_wolfe.Stochastic(LAM0)),
        1 / 3,
        "Theorem 3",
        1.0,
        BATCH,
    ),
    Method(
        "FedFWSto, p = 0.5",
        lambda b: fs.FedFWSto(b, steps=fs.frank_wolfe.Stochastic(LAM0)),
        None,
        "",
        P,
        BATCH,
    ),
    Method("FedFWPlus", lambda b: fs.FedFWPlus(b, steps=fs.frank_wolfe.Convex(LAM0)), None),
)
"""What is run on the convex problems."""


def curve(
    context: Context, name: str, problem: Bounded, method: Method, rounds: int
) -> dict[str, np.ndarray]:
    """`round`, and F - F* and gap by (seed, evaluation)."""

    def compute() -> dict[str, np.ndarray]:
        say, runs = context.progress(f"{name}: {method.label}"), []
        for k, seed in enumerate(method.seeds):
            runs.append(
                _evaluations(method.make(problem.ball), problem, rounds, seed, method.p, method.batch)
            )
            say(k + 1, len(method.seeds))
        return {"round": runs[0]["round"]} | {
            key: np.stack([r[of] for r in runs])
            for key, of in (("suboptimality", "suboptimality"), ("gap", "gap"))
        }

    known = {"problem": name, "method": method.label, "rounds": rounds, "every": EVERY, "lam0": LAM0}
    return context.part(
        f"{name}-{method.label.replace(', p = ', '-').replace(', lam0 = ', '-lam')}", known, compute
    )


def smallest_gaps(
    context: Context, name: str, problem: Bounded, p: float, lam0: float, horizons: tuple[int, ...]
) -> np.ndarray:
    """min over t of gap(xbar_t) by (seed, T), each T a run of its own."""

    def compute() -> dict[str, np.ndarray]:
        seeds = SEEDS if p < 1 else SEEDS[:1]
        say, found = context.progress(f"{name}: non-convex, p = {p:g}, lam0 = {lam0:g}"), []
        for seed in seeds:
            for horizon in horizons:
                algorithm = fs.FedFW(
                    problem.ball, steps=fs.frank_wolfe.NonConvex(horizon, lam0, p if p < 1 else None)
                )
                found.append(_evaluations(algorithm, problem, horizon, seed, p, "full")["gap"].min())
                say(len(found), len(seeds) * len(horizons))
        return {"gap": np.array(found).reshape(len(seeds), len(horizons))}

    known = {"problem": name, "p": p, "horizons": list(horizons), "every": EVERY, "lam0": lam0}
    return context.part(f"nonconvex-{name}-{p:g}-{lam0:g}", known, compute)["gap"]


def _evaluations(
    algorithm: Any, problem: Bounded, rounds: int, seed: int, p: float, batch: Any
) -> dict[str, np.ndarray]:
    return fs.run(
        algorithm, problem.task, rounds=rounds, seed=seed, batch_size=batch, eval_every=EVERY,
        sampling=fs.sampling.Bernoulli(p) if p < 1 else None, dtype="float64",
    ).history.evaluations  # fmt: skip
