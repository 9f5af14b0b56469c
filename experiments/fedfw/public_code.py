"""What the public code of Dadras et al. 2024 computes in place of FedFW and of FedDR."""

from __future__ import annotations

from typing import Any

import fedsolve as fs
from fedsolve.geometry import ProjectableSet
from fedsolve.studies.public import DouglasRachford, Scalar, module, replace, trees

CLIENT_LR, PENALTY = 0.05, 0.01
"""FedDR's in the public code, throughout; PENALTY stands for alpha and for 1 / eta."""


@module
class OverwrittenFrankWolfe(fs.frank_wolfe.FrankWolfe):
    """Each client begins its round at xbar, so that the penalty and FedFW+'s dual stay 0: Frank-Wolfe steps averaged.

    With one step a round this is the method that Appendix A proves wrong; lambda_0 has no effect.
    """

    def train(self, broadcast: Any, client: Any, oracle: fs.Oracle) -> tuple[Any, Any]:
        """A Frank-Wolfe step from xbar."""
        return super().train(broadcast, replace(client, params=broadcast.params), oracle)

    def receive(self, broadcast: Any, message: Any, client: Any) -> tuple[Any, Any]:
        """s_i - xbar."""
        return super().receive(broadcast, message, replace(client, params=broadcast.params))


@module
class AccumulatedDouglasRachford(DouglasRachford):
    """The server adds the mean change of xhat_i to the projected model, where FedDR adds it to the mean of xhat_i."""

    def update(self, server: Any, message: Any, cohort: fs.Cohort) -> Any:
        """xbar <- project(xbar + (1/n) sum over S of (xhat_i+ - xhat_i))."""
        moved = trees.axpy(cohort.size / cohort.population, message.delta, server.params)
        model = self.psi.prox(moved, self.eta)
        return replace(server, params=model, mean=model)


def public_feddr(psi: ProjectableSet, client_lr: float = CLIENT_LR) -> AccumulatedDouglasRachford:
    """The public code's FedDR: one gradient step a round at its rate, its one penalty for 1 / eta and for alpha.

    Args:
        psi: the set, projected on exactly; the code scales a vector down where it projects on an l1 ball.
        client_lr: of the gradient step, > 0.
    """
    return AccumulatedDouglasRachford(psi, fs.client.SGD(client_lr), eta=1 / PENALTY, alpha=PENALTY)


@module
class MinibatchSteps(fs.frank_wolfe.Convex):
    """The convex steps for minibatches, each taken as it is: the public code keeps no running mean of gradients."""

    def rho(self, t: Scalar) -> Scalar:
        """1."""
        return 1.0
