"""Over-parameterised linear regression on anisotropic inputs: the synthetic problem of the FedDuA paper."""

from __future__ import annotations

import numpy as np

from fedsolve.core.building.build_record import by_name
from fedsolve.core.checks import check_integer, check_number
from fedsolve.data.federated import FederatedData
from fedsolve.tasks.losses.losses import SquaredError
from fedsolve.tasks.models.models import Linear
from fedsolve.tasks.task import Examples, Task


@by_name("regression")
def anisotropic_regression(
    seed: int = 0,
    num_clients: int = 20,
    examples_per_client: int = 30,
    features: int = 1000,
    decay: float = 1.1,
    client_variance: float = 0.1,
) -> Task:
    """Linear regression with input variances k^-decay, one weight vector per example (Takakura et al. 2025).

    For client i and example j: w_i ~ N(0, client_variance I), w_ij ~ N(w_i, I), x_ij ~ N(0, diag(k^-decay)),
    y_ij = <w_ij, x_ij>. With the defaults 600 examples meet 1,000 weights, so some w fits all of them. The
    model is <w, x> from w = 0; a round is 20 local steps on all 30 examples; there is no test set.

    The loss is the mean of squares without a half: the paper only says "linear regression", and this is what
    its framework (PyTorch) calls the squared error. With a half, every client_lr would be twice as large. The
    paper's N(0, 0.1) is read as a variance.

    Args:
        seed: of the data, at least 0.
        num_clients: M, 20 in the paper; at least 1.
        examples_per_client: |D_i|, 30 in the paper; at least 1.
        features: d, 1,000 in the paper; at least 1.
        decay: the paper's beta, 1.1; 0 gives isotropic inputs; at least 0.
        client_variance: variance of each coordinate of w_i, at least 0.

    Returns:
        The task `regression`, x float (clients x examples_per_client, features), y of one number for each row.

    Raises:
        InvalidInput: a size below 1 or a negative or non-finite number.
    """
    x, y, _ = draw_regression(seed, num_clients, examples_per_client, features, decay, client_variance)
    pooled = Examples(
        x.reshape(-1, features),  # float64, so that a run in float64 sees exact data
        y.reshape(-1),
    )
    model = Linear(features)
    return Task(
        name="regression",
        init=model.init,
        loss=SquaredError(model),
        data=FederatedData(pooled, np.full(num_clients, examples_per_client)),
        batch_size=None,
        epochs=None,
        local_steps=20,
        citation="takakura2025feddua",
    )


def draw_regression(
    seed: int, num_clients: int, examples_per_client: int, features: int, decay: float, client_variance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x and w of shape (clients, examples, features) and y of shape (clients, examples), in float64."""
    rng = np.random.default_rng(check_integer("seed", seed))
    shape = (
        check_integer("num_clients", num_clients, 1),
        check_integer("examples_per_client", examples_per_client, 1),
        check_integer("features", features, 1),
    )
    check_number("decay", decay, at_least=0)
    check_number("client_variance", client_variance, at_least=0)
    deviation = np.arange(1, features + 1) ** (-decay / 2)
    of_client = np.sqrt(client_variance) * rng.standard_normal((num_clients, 1, features))
    w = of_client + rng.standard_normal(shape)
    x = deviation * rng.standard_normal(shape)
    return x, np.sum(w * x, axis=-1), w
