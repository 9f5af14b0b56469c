"""The runs of `robustness`: every attack at every share of attackers, for each server optimiser and reduction.

All attacks and shares of one rule and reduction are one program. Label flips are part of it by a trick: each
client has a twin with flipped labels, of which one takes part and the other's message is made NaN, hence dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from fedsolve import trees
from fedsolve.algorithm import Algorithm, name_of
from fedsolve.attacks import (
    Attack,
    Attacked,
    GaussianNoise,
    Scaled,
    SignFlip,
    choose_attackers,
    flip_labels,
)
from fedsolve.data.partitions import Dirichlet
from fedsolve.oracle import Oracle
from fedsolve.studies.experiment import Context
from fedsolve.tasks.task import Task
from fedsolve.types import Scalar, module
from fedsolve.wrappers.robust.coordinates import Median, TrimmedMean
from fedsolve.wrappers.robust.vectors import GeometricMedian, Krum, MultiKrum, NormClipping
from fedsolve.wrappers.robust.wrapper import Robust

CLIENTS, CLASSES, ALPHA, WORST = 30, 10, 1.0, 12  # WORST: attackers that the reductions are told to expect
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
HONEST = Scaled(1.0)
ATTACKS: dict[str, Attack] = {
    "sign flip": SignFlip(1.0),
    "scaled": Scaled(-10.0),
    "Gaussian": GaussianNoise(1.0),
    "label flip": HONEST,
}
"""What attackers send; with `label flip` they send what their own wrong labels teach them."""
RULES: dict[str, Callable[[], Algorithm]] = {
    "FedAvg": lambda: fs.FedAvg(0.5, weighting="uniform"),
    "FedAdam": lambda: fs.FedAdam(0.5, server_lr=0.03, weighting="uniform"),
    "FedDuAdam": lambda: fs.FedDuAdam(0.5),
}
REDUCTIONS: dict[str, Any] = {
    "mean": None,
    "median": Median(),
    "trimmed mean": TrimmedMean(WORST / CLIENTS),
    "geometric median": GeometricMedian(),
    "Krum": Krum(WORST),
    "multi-Krum": MultiKrum(WORST, CLIENTS - WORST),
    "norm clipping": NormClipping(),
}


@dataclass(frozen=True)
class Plan:
    """How much is run."""

    rounds: int = 40
    seeds: tuple[int, ...] = (0, 1, 2)
    shares: tuple[float, ...] = SHARES
    rules: tuple[str, ...] = tuple(RULES)
    reductions: tuple[str, ...] = tuple(REDUCTIONS)


FULL, QUICK = Plan(), Plan(2, (0,), (0.0, 0.4), ("FedAvg",), ("mean", "median"))

Found = Mapping[tuple[str, str], np.ndarray]
"""(rule, reduction) -> test accuracy at the end, shape (seeds, attacks, shares)."""


@module
class Twins(fs.Proximal):
    """Of client i and its twin i + CLIENTS with flipped labels, one takes part: the twin of attackers if `flips`.

    A wrapper that changes nothing else (mu = 0): what does not take part sends NaN, which the server drops.
    """

    title: ClassVar[str] = "Twins"
    attackers: Any = ()
    flips: Scalar = 0.0

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inner name."""
        return name_of(self.inner)

    def train(self, broadcast: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """The inner work, or NaN."""
        message, after = self.inner.train(broadcast, client, oracle)
        attacks = jnp.any(jnp.asarray(self.attackers) == oracle.client % CLIENTS)
        present = (oracle.client >= CLIENTS) == (attacks & (self.flips > 0))
        return trees.scale(jnp.where(present, 1.0, jnp.nan), message), after


def make_task() -> Task:
    """The digits among 30 clients, softmax regression, with every client's twin."""
    task = fs.tasks.digits(num_clients=CLIENTS, partition=Dirichlet(ALPHA), model="softmax")
    flipped = flip_labels(task, range(CLIENTS), CLASSES)
    both = [t.data.client(i) for t in (task, flipped) for i in range(CLIENTS)]
    return replace(task, data=fs.FederatedData.from_clients(both))


def settings(shares: tuple[float, ...]) -> list[tuple[str, float]]:
    """(attack, share) of each lane; without attackers all attacks are one."""
    return [("label flip", 0.0), *((a, s) for a in ATTACKS for s in shares if s > 0)]


def method(rule: str, reduction: str, attack: str, share: float, seed: int) -> Algorithm:
    """A rule and a reduction among attackers, drawn anew for each seed."""
    chosen = choose_attackers(CLIENTS, share, seed)
    attackers = (*chosen, *(-1,) * (WORST - len(chosen)))  # equally many, so that settings stack
    attacked = Attacked(RULES[rule](), ATTACKS[attack], attackers)
    twins = Twins(attacked, 0.0, np.asarray(attackers, np.int32), float(attack == "label flip"))
    return twins if REDUCTIONS[reduction] is None else Robust(twins, REDUCTIONS[reduction])


def run_all(context: Context) -> tuple[Plan, Found]:
    """Every rule with every reduction; a pair is a part."""
    plan = QUICK if context.quick else FULL
    task, found, lanes = make_task(), {}, settings(plan.shares)
    pairs = [(rule, reduction) for rule in plan.rules for reduction in plan.reductions]
    known = {
        "rounds": plan.rounds,
        "seeds": plan.seeds,
        "shares": plan.shares,
        "alpha": ALPHA,
        "worst": WORST,
    }
    for number, (rule, reduction) in enumerate(pairs):
        own = known | {"rule": repr(RULES[rule]()), "reduction": repr(REDUCTIONS[reduction])}
        own |= {"attacks": repr(ATTACKS)}

        def compute(rule: str = rule, reduction: str = reduction) -> dict[str, np.ndarray]:
            return {"accuracy": np.stack([_run(task, plan, rule, reduction, lanes, s) for s in plan.seeds])}

        kept = context.part(f"{rule}-{reduction}".replace(" ", "-"), own, compute)["accuracy"]
        places = [[lanes.index((a, s) if s else lanes[0]) for s in plan.shares] for a in ATTACKS]
        found[rule, reduction] = kept[:, places]
        context.say("rules and reductions", number + 1, len(pairs))
    return plan, found


def _run(
    task: Task, plan: Plan, rule: str, reduction: str, lanes: list[tuple[str, float]], seed: int
) -> np.ndarray:
    """Test accuracy at the end of each lane; 0.1, that of guessing, where a run diverged."""
    swept = fs.sweep(
        lambda lane: method(rule, reduction, *lanes[int(lane)], seed),
        task,
        {"lane": tuple(range(len(lanes)))},
        seeds=(seed,),
        rounds=plan.rounds,
        eval_every=plan.rounds,
        parallel_trials=len(lanes),
        label=f"{rule}, {reduction}",
    )
    last = swept.metrics["test_accuracy"][:, 0, -1]
    return np.where(np.isfinite(last) & (swept.diverged[:, 0] < 0), last, 1 / CLASSES)
