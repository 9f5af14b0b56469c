"""What Douillard et al. 2023 say of DiLoCo beside what a small transformer shows: verdicts by rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsolve.report.markup import PageTable
from fedsolve.studies.experiment import Claim, Verdict

MARGIN = 0.05
"""Nats a character: a perplexity within 5 % is the same."""
Found = Mapping[tuple[str, int], Mapping[str, np.ndarray]]


def end(part: Mapping[str, np.ndarray]) -> float:
    """Mean over seeds of the loss at the end, infinite where one diverged."""
    last = np.asarray(part["test_loss"])[:, -1]
    return float(last.mean()) if np.isfinite(last).all() else float("inf")


def claims(every: Sequence[int], found: Found, alone: Mapping[str, np.ndarray]) -> list[Claim]:
    """The abstract's claim, that of Section 3.1 on H, that on outer optimisers, and FedDuAdam's place."""
    nesterov = {H: end(found["Nesterov", H]) for H in every}
    sparse = [H for H in every if H >= 20]
    return [
        Claim(
            "DiLoCo does as well as AdamW on the mean gradient of every step, and communicates hundreds of times less",
            "as well, 500 times less, 8 workers (abstract)",
            f"{end(alone):.3f} in every step; {listed(nesterov)}",
            as_well(nesterov, end(alone), sparse),
            f"rule: within {MARGIN} nats or better at the largest H; partly if at some H of 20 or more",
        ),
        Claim(
            "The loss rises little as H grows from 50 to 500",
            "mild degradation up to H = 1000",
            listed({H: nesterov[H] for H in sparse}),
            little(nesterov, sparse),
            f"rule: at most {MARGIN} nats from the smallest to the largest H of 20 or more; partly up to twice that",
        ),
        Claim(
            "Nesterov's momentum is the best optimiser outside, better than Adam",
            "best of SGD, SGD with momentum, Nesterov, Adam",
            f"Nesterov {listed(nesterov)}; FedAdam {listed({H: end(found['FedAdam', H]) for H in every})}",
            better(found, sparse),
            "rule: lower loss than FedAdam's at every H of 20 or more; partly if at some. Two server rates tried each",
        ),
        Claim(
            "FedDuAdam outside, without a rate",
            "not in the paper",
            listed({H: end(found["FedDuAdam", H]) for H in every}),
            "not comparable",
            "nobody has claimed anything of it",
        ),
    ]  # fmt: skip


def as_well(nesterov: Mapping[int, float], alone: float, sparse: Sequence[int]) -> Verdict:
    """Whether rare communication costs nothing."""
    within = [nesterov[H] <= alone + MARGIN for H in sparse]
    return "reproduced" if within[-1] else "partly" if any(within) else "not reproduced"


def little(nesterov: Mapping[int, float], sparse: Sequence[int]) -> Verdict:
    """Whether the loss rises little over the H of 20 or more."""
    rise = nesterov[sparse[-1]] - nesterov[sparse[0]]
    return "reproduced" if rise <= MARGIN else "partly" if rise <= 2 * MARGIN else "not reproduced"


def better(found: Found, sparse: Sequence[int]) -> Verdict:
    """Whether Nesterov's loss is below FedAdam's."""
    wins = [end(found["Nesterov", H]) < end(found["FedAdam", H]) for H in sparse]
    return "reproduced" if all(wins) else "partly" if any(wins) else "not reproduced"


def listed(losses: Mapping[int, float]) -> str:
    """Losses by H in words."""
    return ", ".join(f"H = {H}: {loss:.3f}" for H, loss in losses.items())


def table(
    every: Sequence[int], rules: Sequence[str], found: Found, alone: Mapping[str, np.ndarray]
) -> PageTable:
    """Losses at the end, mean and deviation over seeds, and the server rate that was chosen."""
    rows: list[list[Any]] = [["AdamW on every step's mean gradient", 1, *_numbers(alone), None]]
    for rule in rules:
        for H in every:
            rate = float(found[rule, H]["rate"])
            rows.append([rule, H, *_numbers(found[rule, H]), f"{rate:g}" if rate else None])
    head = ["Server", "H", "Test loss (nats)", "Deviation", "Perplexity", "Server rate"]
    return PageTable("Loss on later text after equally many local steps", head, rows)


def _numbers(part: Mapping[str, np.ndarray]) -> list[str | None]:
    last = np.asarray(part["test_loss"])[:, -1]
    if not np.isfinite(last).all():
        return ["diverged", None, None]
    return [f"{last.mean():.3f}", f"{last.std(ddof=1):.3f}", f"{np.exp(last.mean()):.2f}"]


DEVIATIONS = (
    "The paper trains transformers of 60 to 400 million parameters on C4, 88,000 steps of 512 sequences of 1024 "
    "tokens. Here a transformer of two blocks reads characters, 8 roles of Shakespeare are the workers, and H = 500 "
    "leaves two rounds where the paper has 176: what momentum over rounds is worth shows at small H alone.",
    "The clients' rate is constant, 2e-3, and not tuned: the paper warms up and lets it fall along a cosine. Batches "
    "are of 4 sequences of 80 characters; roles are not alike, as in the paper's non-i.i.d. setting.",
    "The paper starts from a model that was trained for 24,000 steps; here every run starts from its seed's own model.",
    "Each rule outside has the better of the rates that were tried, by the training loss; FedDuAdam has none.",
)
