"""Clients that take part: Figures 2 and 3 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import fedsolve as fs
from experiments.fedfw.ablations import ROUNDS, data, ordered
from experiments.fedfw.columns import BALLS
from fedsolve.studies import Cells, Decision, Method, Statement, Study
from fedsolve.studies.cells import SettingKind
from fedsolve.studies.pictures import Curves
from fedsolve.studies.rules import (
    Difference,
    Rule,
    by_metric,
    grade,
    interval,
)

SHARES = (0.1, 0.25, 0.5, 1.0)
LINEAR = {f"MCLR, lam0 = {lam0:g}": lam0 for lam0 in (0.01, 0.001)}
NETWORKS: dict[str, Callable[..., fs.Algorithm]] = {"DNN, FedFW": fs.FedFW, "DNN, FedFWPlus": fs.FedFWPlus}
FIXED = 1e-3
"""lambda_t of Figure 3."""


def _of_share(name: str, p: float) -> Method:
    options = {"sampling": fs.sampling.Bernoulli(p)}
    if name in LINEAR:

        def linear(lam0: float) -> fs.Algorithm:
            return fs.FedFW(BALLS["l1"], steps=fs.frank_wolfe.Convex(lam0, p))

        return Method(linear, {"lam0": LINEAR[name]}, options=options)

    def network(weight: float) -> fs.Algorithm:
        steps = fs.frank_wolfe.OwnSteps((p * ROUNDS + 1) ** (-2 / 3), weight, lam0=weight)
        return NETWORKS[name](BALLS["l2"], steps=steps, start="projected")

    return Method(network, {"weight": FIXED}, {"weight": (1e-4, FIXED, 0.01, 0.1, 1.0)}, options)


NAMES = tuple(f"p = {p:g}" for p in SHARES)


def _falls(problems: Iterable[str], metric: str, which: SettingKind = "published") -> Rule:
    """F or the gap falls as more clients take part; accuracy rises."""
    return by_metric(metric, ordered(tuple(problems), NAMES, metric == "test_accuracy", which))


def as_many_uploads(cells: Cells) -> Decision:
    """F after a tenth of the rounds with all clients, against that at the end with a tenth of them."""
    found = []
    for name in LINEAR:
        rounds, most = cells.curve(name, NAMES[-1], "published")
        _, least = cells.curve(name, NAMES[0], "published")
        apart = least[:, -1] - most[:, list(rounds).index(round(SHARES[0] * ROUNDS))]
        found.append(Difference(f"{name}: {NAMES[-1]}", NAMES[0], *interval(apart, len(LINEAR))))
    verdict, where = grade(found)
    what = f"F of {NAMES[0]} after {ROUNDS} rounds and of {NAMES[-1]} after {ROUNDS // 10}"
    ours = f"{what}: {'; '.join(d.words for d in found)}"
    return Decision(ours, verdict, f"95 % intervals over data sets, paired{where}")


FASTER = "Section 5.4: faster convergence for higher participation"
STUDY = Study(
    title="Partial participation in federated Frank-Wolfe",
    summary="FedFW and FedFW+ on synthetic data with a tenth to all of the clients (Figures 2 and 3).",
    paper="dadras2024fedfw",
    problems={
        **{name: data(name, "l1", "synthetic") for name in LINEAR},
        **{name: data(name, "l2", "dnn") for name in NETWORKS},
    },
    quick=data("synthetic, l1", "l1", "synthetic"),
    methods=lambda name: {label: _of_share(name, p) for label, p in zip(NAMES, SHARES, strict=True)},
    seeds=tuple(range(10)),
    statements=(
        Statement(
            "Softmax regression: more clients, faster in F, whichever lam0",
            f"Figure 2, {FASTER} in loss; lam0 does not alter the influence of p", _falls(LINEAR, "train_loss"),
        ),
        Statement(
            "Softmax regression: more clients, faster in test accuracy", f"Figure 2, {FASTER} in accuracy",
            _falls(LINEAR, "test_accuracy"),
        ),
        Statement(
            f"Network, lambda = {FIXED:g}: more clients, faster in F", f"Figure 3, {FASTER} in loss",
            _falls(NETWORKS, "train_loss"),
        ),
        Statement(
            f"Network, lambda = {FIXED:g}: more clients, faster in test accuracy", f"Figure 3, {FASTER} in accuracy",
            _falls(NETWORKS, "test_accuracy"),
        ),
        Statement("Softmax regression: more clients, faster in the gap", "", _falls(LINEAR, "gap")),
        Statement(f"Network, lambda = {FIXED:g}: more clients, faster in the gap", "", _falls(NETWORKS, "gap")),
        Statement(
            "Network, each p at the lambda of the least F: more clients, faster in F", "",
            _falls(NETWORKS, "train_loss", "tuned"),
        ),
        Statement(
            "After as many uploads, ten times the rounds with a tenth of the clients, F is lower with all clients", "",
            as_many_uploads,
        ),
    ),
    pictures={
        "loss": Curves("F by round at the paper's penalty.", "train_loss", "published"),
        "accuracy": Curves("Test accuracy by round at the paper's penalty.", "test_accuracy", "published"),
        "gap": Curves("Frank-Wolfe gap by round at the paper's penalty.", "gap", "published"),
        "tuned": Curves("F by round, networks at the lambda of the least F.", problems=tuple(NETWORKS)),
    },
    deviations=(
        "Compared is the mean over all rounds. The paper's figures are images without numbers; its values of p, its "
        "clients, rounds and partition are not in the text: here 0.1 to 1, 10 clients of 200 examples with 3 labels "
        "each, 100 rounds, ten data sets.",
        "Each client takes part with probability p, independently, as the theory says; the public code draws a fixed "
        "number.",
        "The networks' step is (p T + 1)^(-2/3), which the paper leaves open; lambda is also tuned from 1e-4 to 1.",
    ),
    minutes=1.8,
    needs_data=False,
)  # fmt: skip
