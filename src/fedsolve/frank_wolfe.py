"""What the Frank-Wolfe methods (`fs.FedFW`, `fs.FedFWPlus`, `fs.FedFWSto`) are given: step schedules, split sets.

fs.FedFW(L1Ball(10.0), steps=fs.frank_wolfe.Convex(lam0=0.01))
"""

from fedsolve.algorithms.frank_wolfe import FrankWolfe
from fedsolve.algorithms.frank_wolfe_steps import Convex, FrankWolfeSteps, NonConvex, OwnSteps, Stochastic
from fedsolve.algorithms.split_sets import SplitSets

__all__ = ["Convex", "FrankWolfe", "FrankWolfeSteps", "NonConvex", "OwnSteps", "SplitSets", "Stochastic"]


def __dir__() -> list[str]:
    return sorted(__all__)
