"""DiLoCo on a small transformer: how rarely clients may talk, and what steps outside (Douillard et al. 2023).

The whole of it is 78 runs of 1,000 local steps of 8 clients, some 1.3e14 floating-point operations: reckoned, not
measured, one to two hours on 2 quiet cores. Every rule at every H is a part that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import optax

import fedsolve as fs
from fedsolve.experiments.diloco_claims import DEVIATIONS, claims, table
from fedsolve.studies.experiment import Context, Experiment, Outcome
from fedsolve.studies.panels import Line, Panel, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedsolve.algorithm import Algorithm
    from fedsolve.engine.sweep import Sweep
    from fedsolve.tasks.task import Task

CLIENT_LR, WEIGHT_DECAY, BATCH, CLIENTS = 2e-3, 0.1, 4, 8
EVALUATIONS, JUDGED = 10, 500
"""Evaluations of a run, and how many sequences of either kind each one reads."""


@dataclass(frozen=True)
class Plan:
    """What is run: local steps in all, how many of them between two rounds, seeds; the transformer's size."""

    steps: int
    every: tuple[int, ...]
    seeds: tuple[int, ...]
    width: int
    length: int


FULL = Plan(1_000, (1, 5, 20, 100, 500), (0, 1, 2), 64, 80)
QUICK = Plan(20, (5, 20), (0, 1), 16, 20)

RULES: Mapping[str, tuple[Callable[..., Algorithm], tuple[float, ...]]] = {
    "Nesterov": (
        lambda server_lr: _diloco(fs.server.ServerSGD(server_lr, momentum=0.9, nesterov=True)),
        (0.3, 0.7),
    ),
    "FedAdam": (lambda server_lr: _diloco(fs.server.Adaptive(server_lr)), (3e-3, 1e-2)),
    "FedDuAdam": (
        lambda server_lr: _diloco(fs.server.DoublyAdaptive(beta1=0.9, preconditioner="adam")),
        (0.0,),
    ),
}
"""The server's rules by name: from a server rate to the method, and the rates that are tried (FedDuAdam has none)."""
SYNCHRONOUS = "AdamW on the mean gradient of every step"


def _diloco(rule: fs.server.ServerOptimizer) -> Algorithm:
    return fs.DiLoCo(CLIENT_LR, weight_decay=WEIGHT_DECAY, server_optimizer=rule)


def _synchronous() -> Algorithm:
    """Clients send gradients, the server alone runs AdamW: what DiLoCo is compared with."""
    adamw = fs.server.Optax(optax.adamw, learning_rate=CLIENT_LR, weight_decay=WEIGHT_DECAY)
    return fs.FedOpt(fs.client.SGD(1.0), adamw, weighting="uniform", name="synchronous")


def make_task(context: Context, plan: Plan) -> Task:
    """Eight speaking roles with much text, and the next character by a causal transformer of two blocks."""
    from fedsolve.tasks.networks.causal import CausalTransformer
    from fedsolve.tasks.shakespeare import VOCABULARY, shakespeare

    model = CausalTransformer(VOCABULARY, plan.length, plan.width, layers=2, heads=4)
    task = shakespeare(
        context.data_dir, model, CLIENTS, length=plan.length, min_characters=20_000, test_examples=JUDGED
    )
    return replace(task, eval_examples=JUDGED)


def run(context: Context) -> Outcome:
    """Every rule at every H, with equally many local steps; verdicts from the losses at the end."""
    plan = QUICK if context.quick else FULL
    task = make_task(context, plan)
    found = {
        (name, H): _best(context, plan, task, name, make, rates, H)
        for H in plan.every
        for name, (make, rates) in RULES.items()
    }
    alone = _best(context, plan, task, SYNCHRONOUS, lambda server_lr: _synchronous(), (0.0,), 1)
    note = (
        f"{CLIENTS} Shakespeare roles, transformer of width {plan.width}, {plan.steps} local steps of {BATCH} "
        f"sequences, seeds {', '.join(map(str, plan.seeds))}"
    )
    caption = (
        f"Left: loss on later text of the roles after equally many local steps, mean and range of seeds, at the better "
        f"of the server rates tried. Right: as Nesterov's runs go on. {note}."
    )
    settings = {
        "local steps": plan.steps, "H": list(plan.every), "seeds": list(plan.seeds), "clients": CLIENTS, "batch": BATCH,
        "width": plan.width, "client_lr": CLIENT_LR, "weight_decay": WEIGHT_DECAY,
        "server rates": {name: list(rates) for name, (_, rates) in RULES.items()},
    }  # fmt: skip
    return Outcome(
        claims(plan.every, found, alone),
        {"losses": (caption, picture(plan, found, alone, note))},
        {"losses": table(plan.every, tuple(RULES), found, alone)},
        DEVIATIONS,
        settings,
    )


def _best(
    context: Context,
    plan: Plan,
    task: Task,
    name: str,
    make: Callable[..., Algorithm],
    rates: tuple[float, ...],
    H: int,
) -> dict[str, np.ndarray]:
    """Test losses (seed, evaluation), local steps (evaluation) and the rate of lowest training loss; a part."""
    part = f"{name.split()[0].lower()}-{H}"
    rounds = plan.steps // H

    def compute() -> dict[str, np.ndarray]:
        swept: Sweep = fs.sweep(
            make, task, {"server_lr": rates}, seeds=plan.seeds, rounds=rounds, local_steps=H, batch_size=BATCH,
            eval_every=max(1, rounds // EVALUATIONS), label=name, progress=context.sweeping(part),
        )  # fmt: skip
        last = np.where(np.isfinite(swept.metrics["train_loss"]), swept.metrics["train_loss"], np.inf)[
            ..., -1
        ]
        chosen = int(np.argmin(last.mean(axis=1)))
        return {
            "test_loss": swept.metrics["test_loss"][chosen],
            "steps": np.asarray(swept.rounds) * H,
            "rate": np.array(rates[chosen]),
        }

    known = {
        "rule": name,
        "H": H,
        "rates": rates,
        "plan": repr(plan),
        "client": (CLIENT_LR, WEIGHT_DECAY, BATCH, CLIENTS),
    }
    return context.part(part, known, compute)


def picture(plan: Plan, found: Mapping[Any, Any], alone: Mapping[str, np.ndarray], note: str) -> Figure:
    """Losses at the end by H, and Nesterov's on the way."""
    every = np.array(plan.every)
    ends = [
        Line(name, every, np.stack([found[name, H]["test_loss"][:, -1] for H in plan.every], axis=1))
        for name in RULES
    ]
    ends.append(Line(SYNCHRONOUS, every, np.tile(alone["test_loss"][:, -1:], len(every))))
    ways = [
        Line(f"Nesterov, H = {H}", found["Nesterov", H]["steps"], found["Nesterov", H]["test_loss"])
        for H in plan.every
    ]
    label = "test loss (nats a character)"
    left = Panel("at the end", ends, label, "local steps between rounds, H", ylog=False, xlog=True)
    right = Panel("on the way", ways, label, "local steps", ylog=False)
    figure = panels([[left, right]], f"DiLoCo: how rarely clients may talk\n{note}", width=4.6, height=3.4)
    figure.axes[0].set_xticks(every, [str(H) for H in every])
    figure.axes[0].minorticks_off()
    return figure


EXPERIMENTS = {
    "diloco": Experiment(
        title="DiLoCo on a small transformer",
        citation="douillard2023diloco",
        summary="H = 1 to 500 local steps between rounds; Nesterov, FedAdam and FedDuAdam outside AdamW.",
        run=run,
        needs_data=True,
    )
}
