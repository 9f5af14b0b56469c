"""FedLi-LS on convex losses: descent, linear rate and tuned FedAvg beside it (Geetika et al. 2024)."""

from __future__ import annotations

from typing import Any

from fedsolve.experiments import fedli_problems, fedli_report
from fedsolve.experiments.fedli_claims import claims
from fedsolve.experiments.fedli_problems import CLIENTS, DATASETS, EXAMPLES, KINDS, L2, problem
from fedsolve.experiments.fedli_runs import (
    BATCH,
    DRAWN,
    EXACT,
    GRID,
    PAPER,
    REGIMES,
    RULE,
    STEPS,
    curve,
    from_minimiser,
    solve,
    tuned,
)
from fedsolve.experiments.fedli_verdicts import Found
from fedsolve.studies.experiment import Context, Experiment, Outcome

ROUNDS, LONG, SEEDS = 100, 300, tuple(range(8))
"""Rounds, those with the theorem's constants, and the seeds of rounds begun at the minimiser."""
CONVEX = (
    *(("eta_max 1", regime) for regime in REGIMES),
    *(("eta_max 10", regime) for regime in (EXACT, PAPER)),
    *(("eta_max 10, server max", regime) for regime in (EXACT, PAPER)),
    ("eta_max 1, server max", PAPER),
    ("FedLiLU", PAPER),
)
"""What is run on the convex problems (l2 = 0)."""
STRONG = (
    ("eta_max 1", EXACT), ("eta_max 1", PAPER), ("eta_max 10", EXACT), ("theorem's constants", EXACT),
)  # fmt: skip
"""What is run on the strongly convex ones."""


def run(context: Context) -> Outcome:
    """All runs, counts, slopes and verdicts."""
    found = measure(context)
    note = f"{found.clients} clients of {found.examples} examples, {STEPS} local steps, float64, seed 0"
    drawn = fedli_report.pictures(found, note)
    settings: dict[str, Any] = {
        "data": "6,400 random training examples of each data set", "clients": found.clients,
        "examples a client": found.examples, "local steps": STEPS, "batch of minibatches": BATCH,
        "share of clients drawn": DRAWN, "rounds": found.rounds, "rounds with the theorem's constants": found.long,
        "l2 of the strongly convex problems": L2, "seed": 0, "seeds of rounds begun at the minimiser": len(SEEDS),
        "FedAvg's grid": {k: list(v) for k, v in GRID.items()}, "FedAvg tuned by": RULE, "dtype": "float64",
        "L of the losses (l2 = 0)": {f"{d}, {k}": round(v, 3) for (d, k), v in found.smooth.items()},
    }  # fmt: skip
    return Outcome(claims(found), drawn, fedli_report.tables(found), DEVIATIONS, settings)


DEVIATIONS = (
    f"The paper measures nothing on convex problems. The data sets, the {CLIENTS} clients of {EXAMPLES} examples "
    "(6,400 drawn from each training set, so that all have one shape), l2 and the rounds are ours.",
    f"A round is {STEPS} local steps, on full batches or on minibatches of {BATCH} (two epochs). Unequal clients "
    "hold one label each, of equal size (shards of the examples sorted by label), a harder split than "
    "Dirichlet(0.1) and one that needs no masks.",
    "The paper gives no constants of the line search; c = 0.1, beta = 0.9 and eta_max = 1 are its public code's. "
    "As L is near 1 here, a step of 1 is nearly always accepted at once: eta_max = 10 is run beside it, where the "
    "search works.",
    "A rise is a round after which F is larger by more than 1e-12 of its value (float64). The paper's claim is on "
    "expectations; only with full batches and all clients is a single rise a counter-example. One seed.",
    "FedLi-LS is not tuned and FedAvg is, over 14 pairs of rates; both see the same cohorts. FedLi-LU is shown at "
    "its default client_lr of 0.1 and at the best of the same seven.",
    "That L of the theorems' condition is the largest of the clients' (a quarter of the top eigenvalue of x x^T).",
)


def measure(context: Context) -> Found:
    """Everything that is run."""
    quick = context.quick
    rounds, long = (6, 8) if quick else (ROUNDS, LONG)
    names = ("made",) if quick else DATASETS
    clients, seeds = (10, SEEDS[:2]) if quick else (CLIENTS, SEEDS)
    convex = CONVEX[::3] if quick else CONVEX
    found = Found(rounds, long, clients)
    for name in names:
        data = fedli_problems.pooled(name, context.data_dir)
        for kind in KINDS:
            label = f"{name}-{kind}"
            plain, strong = (problem(data, kind, l2, clients) for l2 in (0.0, L2))
            found.examples = int(plain.data.counts[0])
            found.smooth[name, kind] = fedli_problems.smoothness(plain, 0.0)
            for number, (method, regime) in enumerate(convex):
                done = curve(context, f"{label}-l2-0", plain, method, regime, rounds, 0.0, 0.0)
                found.convex[name, kind, method, regime.label] = done
                context.say(f"{label}: convex", number + 1, len(convex))
            best = solve(context, label, strong)
            optimum = float(best["value"])
            for number, (method, regime) in enumerate(STRONG):
                last = long if method.startswith("theorem") else rounds
                done = curve(context, f"{label}-l2", strong, method, regime, last, optimum, L2)
                found.strong[name, kind, method, regime.label] = done
                context.say(f"{label}: strongly convex", number + 1, len(STRONG))
            found.minimiser[name, kind] = from_minimiser(
                context, label, strong, best["weight"], optimum, seeds
            )
            if kind != "identical":
                for method in ("FedAvg", "FedLiLU"):
                    found.tuned[name, kind, method] = tuned(context, label, plain, method, rounds)
    return found


EXPERIMENTS = {
    "fedli-convex": Experiment(
        title="FedLi-LS on convex losses: descent, linear rate, and tuned FedAvg",
        citation="geetika2024fedli",
        summary="Logistic regression on a9a, w8a and mushrooms: rounds in which the objective rises are counted.",
        run=run,
        minutes=27,
        needs_data=True,
    )
}
