"""What is said of the methods at a client rate and at their best."""

from __future__ import annotations

from experiments.client_drift.control_variates.by_rate import lower
from experiments.client_drift.control_variates.methods import CAPS, corrected, own
from experiments.client_drift.control_variates.problems import BATCHES, BY_RATE, FIFTH, HALF
from fedsolve.studies import Statement


def _where(batches: str = "", cohort: str = "", on: str = "") -> tuple[str, ...]:
    """The problems with a batch and a cohort, of all or of those on the regression; with a fifth only where asked."""
    return tuple(
        name
        for name in BY_RATE
        if name.startswith(on)
        and batches in name
        and cohort in name
        and (cohort == FIFTH or FIFTH not in name)
    )


SHORT = 0.0125
"""The shortest local work of the regression: K eta L = 0.25."""
OF = {batches: _where(batches) for batches in BATCHES}
BY_RATE_STATEMENTS = (
    Statement(
        "At K eta L = 0.25 SCAFFOLD ends at a lower loss than SCAFFOLD+FedExP, whatever batch, cohort and residual",
        "",
        lower(_where(on="regression"), "SCAFFOLD", (corrected("FedExP"),), SHORT),
    ),
    *(
        Statement(
            f"At K eta L = 0.25 {own(step)} ends at a lower loss than SCAFFOLD and than {corrected(step)}, whatever "
            "batch, cohort and residual (seen before on two other data sets)",
            "",
            lower(_where(on="regression"), own(step), ("SCAFFOLD", corrected(step)), SHORT),
        )
        for step in CAPS
    ),
    Statement(
        "With whole batches SCAFFOLD ends at a lower loss than SCAFFOLD+FedExP, each at its best client rate",
        "",
        lower(OF[BATCHES[0]], "SCAFFOLD", (corrected("FedExP"),)),
    ),
    Statement(
        "With minibatches SCAFFOLD+FedExP ends at a lower loss than SCAFFOLD, each at its best client rate",
        "",
        lower(OF[BATCHES[1]], corrected("FedExP"), ("SCAFFOLD",)),
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
        lower(_where(), own("FedDuAdagrad"), ("FedDuAdagrad",)),
    ),
    Statement(
        "With half of the clients the cap lowers the loss of the step by the clients' own gradients",
        "",
        lower(
            _where(cohort=HALF),
            own("FedExP"),
            (own("FedExP", capped=False),),
        ),
    ),
    Statement(
        "With a fifth of the clients SCAFFOLD ends at a lower loss than SCAFFOLD+FedExP at K eta L = 0.25",
        "",
        lower(_where(cohort=FIFTH, on="regression"), "SCAFFOLD", (corrected("FedExP"),), SHORT),
    ),
    Statement(
        "With a fifth of the clients and minibatches SCAFFOLD+FedExP ends at a lower loss than SCAFFOLD, each at its "
        "best client rate",
        "",
        lower(_where(BATCHES[1], FIFTH), corrected("FedExP"), ("SCAFFOLD",)),
    ),
    *(
        Statement(
            f"With a fifth of the clients {own(step)} ends at a lower loss than SCAFFOLD and than {corrected(step)}, "
            f"{at_rate}",
            "",
            lower(_where(cohort=FIFTH, on=on), own(step), ("SCAFFOLD", corrected(step)), rate),
        )
        for step in CAPS
        for rate, on, at_rate in (
            (SHORT, "regression", "at K eta L = 0.25"),
            (None, "", "each at its best client rate"),
        )
    ),
)
