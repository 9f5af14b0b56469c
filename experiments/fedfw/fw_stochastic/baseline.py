"""Table 3 of Dadras et al. 2024 against FedDR as its public code has it and as the method is, from what is kept.

    python -m experiments.fedfw.fw_stochastic.baseline

prints the tables of paper/fedfw-table-3.md.
"""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np

from experiments.fedfw.claims import STOCHASTIC, title
from fedsolve.studies.rules import interval

FW, TUNED, PUBLIC, PUBLIC_FW = "FedFWSto-tuned", "FedDR-tuned", "FedDR--public", "FedFW--public"
RATES, ETAS = (0.03, 0.1, 0.3, 1.0), 2
"""FedDR's grid: client rates, and how many values of eta, of which the last, 10, is shown by rate."""


def _parts(column: str, of: str) -> list[np.ndarray]:
    """Test accuracies (%) at the end, (settings, seeds) for each kept part of a method in a column."""
    start = re.sub(r"[^A-Za-z0-9+.-]", "-", column) + "-" + of
    with zipfile.ZipFile(Path(__file__).parent / "parts.zip") as kept:
        files = [kept.read(name) for name in sorted(kept.namelist()) if name.startswith(start)]
    return [100 * np.load(io.BytesIO(data))["metric test_accuracy"][..., -1] for data in files]


def accuracies(column: str, of: str) -> np.ndarray:
    """Of each seed, (seeds,)."""
    return np.concatenate([part[0] for part in _parts(column, of)])


def comparison() -> list[str]:
    """FedFW-sto over FedDR: mean differences in points, 95 % intervals that share the 5 % over the columns."""
    lines = [
        "| column | paper | FedDR of the public code | FedDR, tuned | public code against itself |",
        "|---|---:|---:|---:|---:|",
    ]
    for column, (theirs, baseline) in STOCHASTIC.items():
        name = title(column)
        ours = accuracies(name, FW)
        differences = (
            ours - accuracies(name, PUBLIC),
            ours - accuracies(name, TUNED),
            accuracies(name, PUBLIC_FW) - accuracies(name, PUBLIC),
        )
        cells = [f"{interval(d, len(STOCHASTIC)):+.2f}" for d in differences]
        lines.append(f"| {name} | {theirs - baseline:+.2f} | {' | '.join(cells)} |")
    return lines


def by_rate() -> list[str]:
    """FedDR's accuracy on the first seed by client rate at eta = 10, beside the public code's at rate 0.05."""
    heads = " | ".join(f"rate {rate:g}" for rate in RATES)
    lines = [f"| column | public code, rate 0.05 | {heads} |", "|---|---:|" + "---:|" * len(RATES)]
    for column in STOCHASTIC:
        grid = _parts(title(column), "FedDR-grid")[0][:, 0].reshape(len(RATES), ETAS)
        own = " | ".join(f"{accuracy:.1f}" for accuracy in grid[:, -1])
        lines.append(f"| {title(column)} | {accuracies(title(column), PUBLIC)[0]:.1f} | {own} |")
    return lines


if __name__ == "__main__":
    print("\n".join([*comparison(), "", *by_rate()]))
