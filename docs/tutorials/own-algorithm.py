# %% [markdown]
# # Your own algorithm
#
# Most methods combine known client steps with a new server step. Such a method needs only a server optimiser, in
# about twenty lines.

# %%
from typing import Any

import jax
import jax.numpy as jnp

import fedsolve as fs
from fedsolve.core import trees
from fedsolve.core.algorithm import Cohort
from fedsolve.core.types import Params, Scalar, module, reported
from fedsolve.methods.server.server_optimizer import ServerOptimizer

# %% [markdown]
# Let $D$ be the mean client update. In this example its signs give the direction of the server's step, and the median
# of $|D|$ gives the length:
#
# $$w \leftarrow w + \eta \, \operatorname{median}(|D|) \, \operatorname{sign}(D)$$
#
# A `module` is a frozen dataclass; a sweep can change its numbers without recompiling. `reported()` logs a scalar in
# each round.


# %%
@module
class Length:
    """The state of the server: the length of its last step."""

    step_length: Scalar = reported()


@module
class SignStep(ServerOptimizer):
    """The step above.

    Args:
        lr: eta, above 0.
    """

    lr: Scalar = 1.0

    def init(self, params: Params) -> Length:
        return Length(jnp.zeros((), trees.dtype_of(params)))

    def step(
        self, params: Params, state: Any, delta: Params, measured: Any, cohort: Cohort
    ) -> tuple[Params, Length]:
        sizes = jnp.concatenate([jnp.abs(d).ravel() for d in jax.tree.leaves(delta)])
        length = self.lr * jnp.median(sizes)
        return trees.axpy(length, jax.tree.map(jnp.sign, delta), params), Length(length)


def SignAvg(client_lr: float = 0.1, *, server_lr: float = 1.0) -> fs.FedOpt:
    """Local SGD with the server step above."""
    return fs.FedOpt(fs.client.SGD(client_lr), SignStep(server_lr))


# %%
task = fs.tasks.digits()
methods = {
    "FedAvg": fs.FedAvg(0.3),
    "signs": SignAvg(0.3, server_lr=2.0),
    "SCAFFOLD + signs": fs.ControlVariates(SignAvg(0.3, server_lr=2.0)),  # wrappers work as they are
}
found = fs.compare(methods, task, seeds=2, rounds=80, clients_per_round=20)
found.plot("test_accuracy")

# %% [markdown]
# A sweep runs all settings in one program:

# %%
rates = fs.sweep(SignAvg, task, {"client_lr": [0.03, 0.1, 0.3], "server_lr": [1.0, 2.0, 4.0]}, rounds=40)
rates.best_settings

# %% [markdown]
# The logged scalar, by its name:

# %%
found["signs"][0].rounds["step_length"][:5]

# %% [markdown]
# ## Check it against NumPy
#
# Compute one round of one client by hand, and compare:

# %%
import numpy as np

X, y = np.eye(3), np.array([1.0, -2.0, 0.5])
one = fs.Task.from_arrays(lambda p, b: jnp.mean((b[0] @ p - b[1]) ** 2), np.zeros(3), [(X, y)])
ran = fs.run(SignAvg(0.1), one, rounds=1, local_steps=1, dtype="float64")
D = -0.1 * 2 / 3 * X.T @ (X @ np.zeros(3) - y)  # one gradient step from 0
by_hand = np.median(np.abs(D)) * np.sign(D)
np.testing.assert_allclose(ran.params, by_hand, rtol=1e-12)
by_hand

# %% [markdown]
# [Adding an algorithm](../adding-an-algorithm) describes client states, messages and wrappers.
