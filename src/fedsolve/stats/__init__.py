"""Statistics over sites that equal those of their tables put together: only sums over rows leave a site."""

from fedsolve.data.column_statistics import Statistics
from fedsolve.stats.estimates import Estimates, load
from fedsolve.stats.hazards import CoxResult, cox
from fedsolve.stats.linear_models import GlmResult, glm
from fedsolve.stats.local_sites import describe
from fedsolve.stats.survival import KaplanMeier, kaplan_meier

__all__ = [
    "CoxResult",
    "Estimates",
    "GlmResult",
    "KaplanMeier",
    "Statistics",
    "cox",
    "describe",
    "glm",
    "kaplan_meier",
    "load",
]


def __dir__() -> list[str]:
    return sorted(__all__)
