"""Step schedules and split sets for the Frank-Wolfe methods (`fs.FedFW`, `fs.FedFWPlus`, `fs.FedFWSto`).

fs.FedFW(L1Ball(10.0), steps=fs.frank_wolfe.Convex(lam0=0.01))
"""

from fedsolve.methods.frank_wolfe.method import FrankWolfe
from fedsolve.methods.frank_wolfe.split_sets import SplitSets
from fedsolve.methods.frank_wolfe.steps import Convex, FrankWolfeSteps, NonConvex, OwnSteps, Stochastic

__all__ = ["Convex", "FrankWolfe", "FrankWolfeSteps", "NonConvex", "OwnSteps", "SplitSets", "Stochastic"]
