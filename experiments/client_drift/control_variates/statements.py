"""What is said of the methods at each client rate and at their best; written before anything had run."""

from __future__ import annotations

from experiments.client_drift.control_variates.by_rate import lower
from experiments.client_drift.control_variates.methods import CAPS, corrected, own
from experiments.client_drift.control_variates.problems import (
    BATCHES,
    BY_RATE,
    COHORTS,
    DIGITS,
    REGRESSION,
    RESIDUAL,
    SHARED,
)
from fedsolve.studies import Statement


def _where(batches: str, cohort: str = "", regression: bool = False) -> tuple[str, ...]:
    """The problems with a batch and a cohort, of the regression alone or of all."""
    problems = REGRESSION[SHARED] | REGRESSION[RESIDUAL] if regression else BY_RATE
    return tuple(name for name in problems if batches in name and cohort in name)


SHORT = 0.0125
"""The shortest local work of the regression: K eta L = 0.25."""
OF = {
    "whole batches": (*_where(BATCHES[0], regression=True), *(n for n in DIGITS if BATCHES[0] in n)),
    "minibatches": _where(BATCHES[1]),
}
BY_RATE_STATEMENTS = (
    Statement(
        "At K eta L = 0.25 SCAFFOLD ends at a lower loss than SCAFFOLD+FedExP, whatever batch, cohort and residual",
        "",
        lower((*_where("", regression=True),), "SCAFFOLD", (corrected("FedExP"),), SHORT),
    ),
    Statement(
        "With whole batches SCAFFOLD ends at a lower loss than SCAFFOLD+FedExP, each at its best client rate",
        "",
        lower(OF["whole batches"], "SCAFFOLD", (corrected("FedExP"),)),
    ),
    Statement(
        "With minibatches SCAFFOLD+FedExP ends at a lower loss than SCAFFOLD, each at its best client rate",
        "",
        lower(OF["minibatches"], corrected("FedExP"), ("SCAFFOLD",)),
    ),
    *(
        Statement(
            f"With {batches} {own(step)} ends at a lower loss than SCAFFOLD and than {corrected(step)}, each at its "
            "best client rate",
            "",
            lower(
                OF[batches],
                own(step),
                ("SCAFFOLD", corrected(step)),
            ),
        )
        for step in CAPS
        for batches in OF
    ),
    Statement(
        f"{own('FedDuAdagrad')} ends at a lower loss than FedDuAdagrad alone, each at its best client rate",
        "",
        lower((*_where("", regression=True), *DIGITS), own("FedDuAdagrad"), ("FedDuAdagrad",)),
    ),
    Statement(
        "With half of the clients the cap lowers the loss of the step by the clients' own gradients",
        "",
        lower(
            [p for p in (*_where("", COHORTS[1], True), *DIGITS) if COHORTS[1] in p],
            own("FedExP"),
            (own("FedExP", capped=False),),
        ),
    ),
)
