"""A study of one's own: data drawn anew for each seed, five methods over a grid of rates, claims that intervals decide.

Run it: python examples/own_study.py; or, from this folder: fedsolve study own_study:study
"""

from dataclasses import replace
from functools import partial

import numpy as np

import fedsolve as fs
from fedsolve.geometry import GroupL1
from fedsolve.geometry.diagnostics import Density, RecoveryError, Support
from fedsolve.studies import Method, Problem, Statement, Study
from fedsolve.studies.pictures import Maps, Several
from fedsolve.studies.rules import better, better_than_all, by_metric

FEATURES, OUTPUTS, TRUE, CLIENTS, EXAMPLES = 64, 4, 8, 32, 32
PENALTY = GroupL1(0.3)


def squares(w, batch):
    """Mean of |x W - y|^2."""
    x, y = batch
    return ((x @ w - y) ** 2).sum(axis=1).mean()


def task(data_dir, seed):
    """y = x W + N(0, 1), where 8 of 64 rows of W are N(0, 1) and the others 0; a client's x have their own centre."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((FEATURES, OUTPUTS)) * (np.arange(FEATURES) < TRUE)[:, None]
    clients = []
    for _ in range(CLIENTS):
        x = 0.3 * rng.standard_normal(FEATURES) + rng.standard_normal((EXAMPLES, FEATURES))
        clients.append((x, x @ truth + rng.standard_normal((EXAMPLES, OUTPUTS))))
    made = fs.Task.from_arrays(squares, np.zeros((FEATURES, OUTPUTS)), clients, batch_size=8, epochs=1)
    return replace(made, diagnostics=(Support(truth), Density(1e-2), RecoveryError(truth)))


def composite(make, client_lr, server_lr):
    """A method under the penalty."""
    return make(PENALTY, client_lr, server_lr=server_lr)


def subgradient(client_lr, server_lr):
    """FedAvg that steps along subgradients of the penalty."""
    return fs.Subgradient(fs.FedAvg(client_lr, server_lr=server_lr), PENALTY)


NAME, RIVALS = "group lasso", ("FedDualAvgOSP", "FedMiD", "FedMiDOSP")
GRID = {"client_lr": (1e-3, 3e-3, 1e-2, 3e-2), "server_lr": (0.3, 1.0, 3.0, 10.0)}
METHODS = {name: Method(partial(composite, getattr(fs, name)), grid=GRID) for name in ("FedDualAvg", *RIVALS)}
METHODS["Subgradient"] = Method(subgradient, grid=GRID)


def study() -> Study:
    """What `fedsolve study own_study:study` runs."""
    size = f"{CLIENTS} clients of {EXAMPLES} examples, {TRUE} of {FEATURES} rows true"
    options = {"rounds": 100, "clients_per_round": 8, "eval_every": 10}
    problem = Problem(
        NAME, size, task, options, metric="f1", last=20, select="recovery-error", data_by_seed=True
    )
    error = by_metric("recovery_error", better_than_all(NAME, "FedDualAvg", RIVALS))
    return Study(
        title="Group lasso: which federated methods find the rows",
        summary="Regression on four outputs, of which 8 rows of 64 are true: five methods.",
        problems={NAME: problem},
        methods=METHODS,
        seeds=(0, 1, 2, 3, 4),
        statements=(
            Statement(
                "FedDualAvg finds more of the rows than FedMiD", "", better(NAME, "FedDualAvg", "FedMiD")
            ),
            Statement("Its recovery error is lower than that of its rivals", "", error),
            Statement(
                "It finds more than FedAvg with subgradients", "", better(NAME, "FedDualAvg", "Subgradient")
            ),
        ),
        pictures={
            "curves": Several("At the tuned rates.", ("f1", "density", "recovery_error")),
            "grid": Maps("F1 score at the end at every pair of rates.", "f1", 1.0, 0.0),
        },
        needs_data=False,
    )


if __name__ == "__main__":
    from fedsolve.studies.reproduce import reproduce

    found = reproduce("own_study:study", "runs/own-study")
    for claim in found.outcome.claims:
        print(f"{claim.shown_verdict}: {claim.claim}. {claim.ours}")
    print(f"{found.page}, {found.seconds:.0f} s of processor time")
