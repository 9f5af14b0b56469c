"""Tables 1 to 3 of Dadras et al. 2024, what is said of them, with the rules that judge it, and what we add."""

from __future__ import annotations

from experiments.fedfw.columns import DEALS
from experiments.fedfw.rules import Pair, columns, with_equal_bytes
from fedsolve.studies import Statement
from fedsolve.studies.rules import by_metric

Column = tuple[str, str, str]
"""Set, deal and data."""
Accuracies = dict[Column, tuple[float, ...]]
"""Of test, in %, by method."""

CONVEX: Accuracies = {
    ("l2", "iid", "mnist"): (86.96, 86.50, 89.59),
    ("l2", "iid", "synthetic"): (80.20, 79.96, 78.24),
    ("l2", "iid", "cifar"): (36.30, 36.30, 39.95),
    ("l2", "labels", "mnist"): (86.95, 86.98, 83.72),
    ("l2", "labels", "synthetic"): (94.81, 94.56, 92.97),
    ("l2", "labels", "cifar"): (38.13, 37.20, 37.79),
    ("l1", "iid", "mnist"): (78.07, 69.17, 72.18),
    ("l1", "iid", "synthetic"): (81.63, 81.92, 79.00),
    ("l1", "iid", "cifar"): (21.86, 21.99, 23.25),
    ("l1", "labels", "mnist"): (80.54, 71.32, 74.29),
    ("l1", "labels", "synthetic"): (90.84, 91.20, 93.81),
    ("l1", "labels", "cifar"): (25.08, 25.16, 24.77),
}
"""Table 1: FedFW, FedFW+, FedDR."""

NONCONVEX: Accuracies = {
    ("l2", "iid", "cnn"): (95.87, 95.05, 96.89),
    ("l2", "iid", "dnn"): (81.70, 81.96, 75.96),
    ("l2", "labels", "cnn"): (92.70, 91.79, 88.93),
    ("l2", "labels", "dnn"): (96.13, 96.08, 93.85),
    ("l1", "iid", "cnn"): (23.88, 20.40, 11.72),
    ("l1", "iid", "dnn"): (75.52, 76.44, 78.59),
    ("l1", "labels", "cnn"): (37.62, 36.27, 16.75),
    ("l1", "labels", "dnn"): (91.53, 91.96, 93.51),
}
"""Table 2: FedFW, FedFW+, FedDR."""

STOCHASTIC: Accuracies = {
    ("l2", "iid", "digits"): (93.79, 92.18),
    ("l2", "iid", "characters"): (41.22, 39.58),
    ("l2", "iid", "synthetic"): (72.01, 67.68),
    ("l2", "iid", "cifar"): (38.52, 36.39),
    ("l2", "labels", "digits"): (91.88, 85.70),
    ("l2", "labels", "characters"): (60.51, 41.09),
    ("l2", "labels", "synthetic"): (87.32, 84.70),
    ("l2", "labels", "cifar"): (37.83, 34.91),
}
"""Table 3: FedFW-sto, FedDR; digits and characters are their EMNIST-10 and EMNIST-62."""

NAMES = {
    "mnist": "MNIST", "cifar": "CIFAR-10", "synthetic": "synthetic", "digits": "FEMNIST-10", "characters": "FEMNIST-62",
    "cnn": "MNIST CNN", "dnn": "synthetic DNN",
}  # fmt: skip
PUBLIC_FW, PUBLIC_DR = "FedFW, public code", "FedDR, public code"
PLUS = ("FedFW", "FedFWPlus")


def title(column: Column) -> str:
    """Such as `MNIST, l2, IID`."""
    ball, deal, data = column
    return f"{NAMES[data]}, {ball}, {DEALS[deal]}"


def ahead(table: Accuracies, family: tuple[str, ...], first: bool) -> list[Pair]:
    """The columns in which the paper has the better one of the family above FedDR (`first`), or below it."""
    pairs = []
    for column, accuracies in table.items():
        best = max(range(len(family)), key=lambda i: accuracies[i])
        if (accuracies[best] > accuracies[-1]) == first:
            named = (family[best], "FedDR")
            pairs.append((title(column), *(named if first else named[::-1])))
    return pairs


def with_public(pairs: list[Pair]) -> list[Pair]:
    """The same with FedDR as the public code has it."""
    return [(name, a, PUBLIC_DR) for name, a, _ in pairs]


def everywhere(table: Accuracies, a: str, b: str, ball: str = "") -> list[Pair]:
    """One pair in all columns, or in those of a set."""
    return [(title(column), a, b) for column in table if ball in ("", column[0])]


def shared(table: Accuracies, method: str) -> tuple[Statement, ...]:
    """What we add for a method."""
    against, public = everywhere(table, method, "FedDR"), everywhere(table, method, PUBLIC_FW)
    return (
        Statement(f"{method} ends with a lower F than FedDR", "", by_metric("train_loss", columns(against))),
        Statement(f"{method} ends with a smaller Frank-Wolfe gap than FedDR", "", by_metric("gap", columns(against))),
        Statement(
            f"{method} as the paper writes it ends with a lower F than the public code's update, which overwrites "
            "clients", "", by_metric("train_loss", columns(public)),
        ),
    )  # fmt: skip


def of_plus(table: Accuracies, name: str) -> tuple[Statement, ...]:
    """What is said of FedFW and FedFW+ in a table, and what we add."""
    above, below = ahead(table, PLUS, True), ahead(table, PLUS, False)
    return (
        Statement(
            "Of FedFW and FedFW+ the better one in the paper is above FedDR in test accuracy where the paper has it so",
            f"{name}: in {len(above)} of {len(table)} columns", columns(above),
        ),
        Statement(
            "FedDR is above that one where the paper has it so",
            f"{name}: in {len(below)} of {len(table)} columns", columns(below),
        ),
        Statement(
            "That one is above FedDR as the public code has it, in the columns of the first claim",
            f"{name}: in {len(above)} of {len(table)} columns", columns(with_public(above)),
        ),
        Statement(
            "FedFW+ is faster than FedFW: it ends with a lower F", "Section 6: empirically faster",
            by_metric("train_loss", columns(everywhere(table, "FedFWPlus", "FedFW"))),
        ),
        *shared(table, "FedFW"),
        Statement(
            "In an l1 ball FedFW ends with a lower F than FedDR had when as many bytes were sent up", "",
            by_metric("train_loss", with_equal_bytes(everywhere(table, "FedFW", "FedDR", "l1"))),
        ),
    )  # fmt: skip


TABLE2 = {column: found for column, found in NONCONVEX.items() if column[::2] != ("l1", "cnn")}
"""The columns of Table 2 that are run."""
OF_TABLE1, OF_TABLE2 = of_plus(CONVEX, "Table 1"), of_plus(TABLE2, "Table 2, of the columns that are run")
OF_TABLE3 = (
    Statement(
        "FedFW-sto is above FedDR in test accuracy", "Table 3: in 8 of 8 columns",
        columns(ahead(STOCHASTIC, ("FedFWSto",), True)),
    ),
    Statement(
        "FedFW-sto is above FedDR as the public code has it in test accuracy", "Table 3: in 8 of 8 columns",
        columns(with_public(ahead(STOCHASTIC, ("FedFWSto",), True))),
    ),
    *shared(STOCHASTIC, "FedFWSto"),
)  # fmt: skip
