"""What decides results at a site and is in no message is compared when a client connects."""

from __future__ import annotations

import numpy as np
import pytest

from deploy_small import QUICK
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.messages.signature import check_constants, compare_constants, constant_digests
from fedsolve.deploy.oracles.jax import JaxOracle

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = np.array([0, 1, 0, 1, 1, 0])


def frozen(seed, mask=True):
    """A module with a frozen layer, and with buffers that are not sent."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(seed)
    first = torch.nn.Linear(3, 2).requires_grad_(False)
    torch.manual_seed(0)
    net = torch.nn.Sequential(first, torch.nn.Linear(2, 2))
    net.register_buffer("mask", torch.tensor([mask]))
    net.register_buffer("scale", torch.ones(2), persistent=False)
    return net


def of_module(net):
    from fedsolve.deploy.oracles.torch import TorchOracle

    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    loader = torch.utils.data.DataLoader(list(zip(X, Y, strict=True)), batch_size=3)
    return TorchOracle(net, torch.nn.functional.cross_entropy, loader, epochs=1)


def scaled(mean, classes=(0, 1), x=X):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from fedsolve.deploy.oracles.sklearn import SklearnOracle

    pipeline = make_pipeline(StandardScaler().fit(X + np.float32(mean)), LogisticRegression())
    return SklearnOracle(pipeline, x, np.array(classes)[Y], batch_size=None, epochs=1, classes=classes)


PAIRS = {
    "frozen weights": (lambda: of_module(frozen(0)), lambda: of_module(frozen(1)), "0.bias"),
    "a mask": (lambda: of_module(frozen(0)), lambda: of_module(frozen(0, mask=False)), "mask"),
    "a scaler": (lambda: scaled(0), lambda: scaled(1), "standardscaler.mean_"),
    "classes": (lambda: scaled(0), lambda: scaled(0, (0, 2)), "classes"),
}


@pytest.mark.parametrize("case", PAIRS)
def test_differences_are_named(case):
    """And what is built alike is the same, whatever its data."""
    make, other, name = PAIRS[case]
    ours, same, theirs = (constant_digests(oracle().constants) for oracle in (make, make, other))
    compare_constants(same, 1, ours, 0)
    with pytest.raises(InvalidInput, match=f"^client 1 has another '{name}' than client 0"):
        compare_constants(theirs, 1, ours, 0)


def test_parameters_and_buffers_that_are_sent_are_no_constants():
    assert set(of_module(frozen(0)).constants) == {"0.weight", "0.bias", "mask", "scale"}
    assert check_constants(constant_digests(JaxOracle.of_task(QUICK, 0).constants)) == []


@pytest.mark.parametrize("digests", ["a b", ["a"], [3], ["a " + "b" * 2000]])
def test_what_is_no_list_of_digests(digests):
    with pytest.raises(InvalidInput, match="no names and digests"):
        check_constants(digests)
