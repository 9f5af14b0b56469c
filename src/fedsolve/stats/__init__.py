"""Statistics over sites that equal those of their tables put together: only sums over rows leave a site."""

from fedsolve.data.column_statistics import Statistics
from fedsolve.stats.hazards import CoxResult, cox
from fedsolve.stats.linear_models import GlmResult, glm
from fedsolve.stats.local_sites import describe

__all__ = [
    "CoxResult",
    "GlmResult",
    "Statistics",
    "cox",
    "describe",
    "glm",
]


def __dir__() -> list[str]:
    return sorted(__all__)
