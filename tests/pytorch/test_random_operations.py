"""What is drawn: its distribution, the same again from the same key; and dropout at rate 1, which draws nothing."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import samples  # noqa: E402

from fedsolve.pytorch.operations import OPERATIONS  # noqa: E402
from fedsolve.pytorch.translation.arrays import tensor_to_array  # noqa: E402

N = 20_000
X = np.random.default_rng(0).standard_normal(N).astype(np.float32)
IMAGES = np.ones((500, 4, 3, 3), np.float32)
CALLS = {
    "dropout": ("aten.dropout.default", (X, 0.25, True)),
    "native": ("aten.native_dropout.default", (X, 0.25, True)),
    "channels": ("aten.feature_dropout.default", (IMAGES, 0.25, True)),
    "alpha": ("aten.alpha_dropout.default", (X, 0.25, True)),
    "alpha channels": ("aten.feature_alpha_dropout.default", (IMAGES, 0.25, True)),
    "bernoulli": ("aten.bernoulli.p", (X, 0.3)),
    "rand": ("aten.rand.default", ([N],)),
    "rand like": ("aten.rand_like.default", (X,)),
    "randn": ("aten.randn.default", ([N],)),
    "randn like": ("aten.randn_like.default", (X,)),
    "normal": ("aten.normal_functional.default", (X,)),
    "uniform": ("aten.uniform.default", (X,)),
    "exponential": ("aten.exponential.default", (X, 2.0)),
    "randint": ("aten.randint.low", (-2, 3, [N])),
    "randperm": ("aten.randperm.default", (50,)),
    "rrelu": ("aten.rrelu_with_noise_functional.default", (X, X, 0.1, 0.5, True)),
}


@pytest.fixture(scope="module")
def drawn() -> dict[str, np.ndarray]:
    def draw(key: jax.Array) -> dict[str, jax.Array]:
        results = {}
        for name, (operation, (first, *rest)) in CALLS.items():
            args = (jnp.asarray(first) if isinstance(first, np.ndarray) else first, *rest)
            result = OPERATIONS[operation].function(*args, key=key)
            results[name] = result[0] if isinstance(result, tuple) else result
        return results

    program = jax.jit(draw)
    once, again, other = (program(jax.random.key(k)) for k in (0, 0, 1))
    for name in CALLS:
        assert np.array_equal(once[name], again[name])
        assert not np.array_equal(once[name], other[name])
    return {name: np.asarray(value) for name, value in once.items()}


def near(sample: np.ndarray, mean: float, deviation: float) -> None:
    assert abs(sample.mean() - mean) < 5 * deviation / np.sqrt(sample.size)


@pytest.mark.full
def test_dropout_keeps_a_share_and_the_mean(drawn: dict[str, np.ndarray]) -> None:
    for name in ("dropout", "native"):
        y = drawn[name]
        near(y != 0, 0.75, 0.44)
        np.testing.assert_allclose(y[y != 0], X[y != 0] / 0.75, rtol=1e-6)


def test_whole_channels(drawn: dict[str, np.ndarray]) -> None:
    for name, levels in (("channels", 2), ("alpha channels", 2)):
        y = drawn[name].reshape(500 * 4, 9)
        assert (y == y[:, :1]).all()
        assert len(np.unique(y)) == levels
        near(y[:, 0] == y.max(), 0.75, 0.44)


def test_alpha_dropout_keeps_mean_and_variance(drawn: dict[str, np.ndarray]) -> None:
    near(drawn["alpha"], 0, 1)
    assert abs(drawn["alpha"].var() - 1) < 0.05


def test_distributions(drawn: dict[str, np.ndarray]) -> None:
    near(drawn["bernoulli"], 0.3, 0.46)
    assert set(np.unique(drawn["bernoulli"])) == {0, 1}
    for name in ("rand", "rand like", "uniform"):
        near(drawn[name], 0.5, 0.29)
        assert drawn[name].min() >= 0
        assert drawn[name].max() < 1
    for name in ("randn", "randn like", "normal"):
        near(drawn[name], 0, 1)
        near(drawn[name] ** 2, 1, 1.42)
    near(drawn["exponential"], 0.5, 0.5)
    near(drawn["randint"], 0, 1.42)
    assert set(np.unique(drawn["randint"])) == {-2, -1, 0, 1, 2}
    assert sorted(drawn["randperm"]) == list(range(50))
    slopes = drawn["rrelu"][X < 0] / X[X < 0]
    near(slopes, 0.3, 0.12)
    assert slopes.min() >= 0.1 - 1e-6
    assert slopes.max() <= 0.5 + 1e-6
    assert np.array_equal(drawn["rrelu"][X > 0], X[X > 0])


def test_dropout_without_a_draw() -> None:
    """Between the layers of an LSTM, and of attention's weights, with PyTorch at the rate 1; off in evaluation."""
    d = samples.Draw(torch.float32)
    key = jax.random.key(0)
    lstm = samples.recurrent(d)["aten.lstm.input"][0].args
    for name, rest in (("lstm", (1.0, True, False, True)), ("lstm", (0.5, False, False, True))):
        x, hx, params = lstm[:3]
        theirs = torch.ops.aten.lstm.input(x, hx, params, True, 2, *rest)
        arrays = [
            tensor_to_array(x),
            [tensor_to_array(h) for h in hx],
            [jnp.asarray(tensor_to_array(p)) for p in params],
        ]
        function = OPERATIONS[f"aten.{name}.input"].function
        ours = jax.jit(lambda given, f=function, r=rest: f(*given, True, 2, *r, key=key))(arrays)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, tensor_to_array(b), rtol=1e-5, atol=1e-5)
    q = d.normal(2, 3, 4)
    attention = OPERATIONS["aten.scaled_dot_product_attention.default"].function
    assert not np.any(jax.jit(lambda a: attention(a, a, a, None, 1.0, key=key))(tensor_to_array(q)))
    dropout = OPERATIONS["aten.dropout.default"].function
    assert np.array_equal(dropout(X, 0.5, False, key=None), X)
