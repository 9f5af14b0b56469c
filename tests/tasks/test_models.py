"""Models against NumPy, their parameter counts against the papers, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.core import trees
from fedsolve.core.errors import InvalidInput
from fedsolve.core.xla.convolutions import max_pool2x2
from fedsolve.tasks.models.models import CNN, MLP, Affine, Linear, MatrixLinear, Softmax, check_model

KEY = jax.random.key(0)
MODELS = [
    Linear(6),
    Linear(6, bias=True),
    MatrixLinear(2, 3, bias=True),
    Softmax(6, 3),
    MLP((6, 5, 3)),
    CNN(5, 8, 9, (2, 3), 4, inputs=2),
]


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_convex_models_start_at_zero_and_are_affine():
    x = normal(0, 4, 6)
    assert not Linear(6).init(KEY).weight.any()
    assert len(jax.tree.leaves(Linear(6).init(KEY))) == 1
    w, b = normal(1, 6), np.float32(0.5)
    np.testing.assert_allclose(Linear(6)(Affine(w, None), x), x @ w, rtol=1e-5)
    np.testing.assert_allclose(Linear(6, bias=True)(Affine(w, b), x), x @ w + b, rtol=1e-5)
    assert all(not leaf.any() for leaf in jax.tree.leaves(Softmax(6, 3).init(KEY)))
    w, b = normal(1, 6, 3), normal(2, 3)
    images = x.reshape(4, 2, 3)
    np.testing.assert_allclose(Softmax(6, 3)(Affine(w.T, b), images), x @ w + b, rtol=1e-5, atol=1e-6)


def test_matrix_linear_is_the_inner_product_of_matrices():
    x, w, b = normal(0, 5, 3, 4), normal(1, 3, 4), np.float32(0.5)
    expected = np.einsum("nij,ij->n", x, w)
    np.testing.assert_allclose(MatrixLinear(3, 4)(Affine(w, None), x), expected, rtol=1e-5)
    np.testing.assert_allclose(MatrixLinear(3, 4, bias=True)(Affine(w, b), x), expected + b, rtol=1e-5)
    start = MatrixLinear(3, 4, bias=True).init(KEY)
    assert (start.weight.shape, start.bias.shape) == ((3, 4), ())
    assert not any(leaf.any() for leaf in jax.tree.leaves(start))
    assert len(jax.tree.leaves(MatrixLinear(3, 4).init(KEY))) == 1


def test_matrix_linear_refuses_transposed_matrices():
    with pytest.raises(InvalidInput, match=r"does not take examples of shape \(4, 3\)"):
        check_model(MatrixLinear(3, 4), (4, 3), ())


def test_mlp_is_relu_layers_with_an_affine_output():
    model = MLP((6, 5, 4, 3))
    params = [Affine(normal(i, b, a), normal(9 + i, b)) for i, (a, b) in enumerate([(6, 5), (5, 4), (4, 3)])]
    x = normal(3, 7, 6)
    h = x
    for w, b in params[:2]:
        h = np.maximum(h @ w.T + b, 0)
    expected = h @ params[2].weight.T + params[2].bias
    assert (expected < 0).any()
    np.testing.assert_allclose(model(tuple(params), x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_he_weights_have_variance_two_over_fan_in():
    """200 x 300 weights of variance 2 / 200 = .01: the sample variance is within 2 % (4 standard errors)."""
    first, second = jax.device_get(jax.jit(MLP((200, 300, 10)).init)(KEY))
    assert abs(float(first.weight.var()) - 0.01) < 2e-4
    assert not first.bias.any()
    assert not np.array_equal(first.weight[:10, 0], second.weight[:10, 0])
    conv = jax.jit(lambda key: CNN(channels=(32, 64)).init(key).conv2.weight)(KEY)
    assert abs(float(conv.var()) * 9 * 32 / 2 - 1) < 0.05


@pytest.mark.full
def test_cnn_has_the_parameters_of_the_paper():
    """320 + 18,496 + 1,179,776 + 7,998: Table 5 of Takakura et al. 2025."""
    params = CNN().init(KEY)
    assert [trees.size(layer) for layer in params] == [320, 18_496, 1_179_776, 7_998]
    assert params.conv1.weight.shape == (3, 3, 1, 32)
    assert params.hidden.weight.shape == (128, 64 * 12 * 12)


def test_max_pool_takes_the_largest_of_each_block_and_drops_an_odd_line():
    x = np.arange(2 * 5 * 4 * 3).reshape(2, 5, 4, 3).astype(np.float32)
    x = np.random.default_rng(0).permutation(x.ravel()).reshape(x.shape)
    expected = np.stack(
        [[x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2)) for j in range(2)] for i in range(2)]
    )
    np.testing.assert_array_equal(max_pool2x2(x), expected.transpose(2, 0, 1, 3))


@pytest.mark.full
def test_cnn_is_its_four_layers():
    model = CNN(5, 8, 9, (2, 3), 4, inputs=2)
    params = jax.tree.map(lambda a: np.asarray(a) + np.float32(0.1), jax.jit(model.init)(KEY))
    x = normal(0, 3, 8, 9, 2)

    def conv(x, layer):
        y = jax.lax.conv_general_dilated(
            x, layer.weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.maximum(y + layer.bias, 0)

    @jax.jit
    def both(params, x):
        h = conv(conv(x, params.conv1), params.conv2)
        h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        h = jnp.maximum(h.reshape(3, -1) @ params.hidden.weight.T + params.hidden.bias, 0)
        return model(params, x), h @ params.output.weight.T + params.output.bias

    np.testing.assert_allclose(*both(params, x), rtol=2e-4, atol=1e-4)


@pytest.mark.full
def test_cnn_takes_images_with_or_without_a_channel_axis():
    model = CNN(5, 8, 8, (2, 3), 4)
    params, x = model.init(KEY), normal(0, 3, 8, 8)
    np.testing.assert_array_equal(model(params, x), model(params, x[..., None]))


@pytest.mark.full_rows(
    "CNN(classes=5, height=8, width=9, channels=(2, 3), hidden=4, inputs=2, dropout=(0.0, 0.0))",
    "MLP(sizes=(6, 5, 3))",
)
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_equal_models_are_one_compilation(model):
    traces = []

    @jax.jit(static_argnums=0)
    def outputs(model, params, x):
        traces.append(model)
        return model(params, x)

    shapes = {CNN: (2, 8, 9, 2), MatrixLinear: (2, 2, 3)}
    x = normal(0, *shapes.get(type(model), (2, 6)))
    copy = type(model)(**vars(model))
    assert copy is not model
    outputs(model, model.init(KEY), x)
    outputs(copy, copy.init(KEY), x)
    assert len(traces) == 1


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_the_seed_decides_the_parameters(model):
    same = jax.tree.map(np.array_equal, model.init(KEY), model.init(jax.random.key(0)))
    assert all(jax.tree.leaves(same))
    if isinstance(model, MLP | CNN):
        other = jax.tree.map(np.array_equal, model.init(KEY), model.init(jax.random.key(1)))
        assert not all(jax.tree.leaves(other))


def test_a_list_of_sizes_is_as_good_as_a_tuple():
    assert MLP([4, 3, 2]) == MLP((4, 3, 2))
    assert hash(CNN(channels=[2, 3])) == hash(CNN(channels=(2, 3)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(0), "features = 0"),
        (lambda: MatrixLinear(0, 3), "rows = 0"),
        (lambda: MatrixLinear(3, True), "columns = True"),
        (lambda: Softmax(4, 1), "classes = 1"),
        (lambda: Softmax(2.0, 3), "features = 2.0"),
        (lambda: MLP((4,)), "two or more"),
        (lambda: MLP((4, 0)), "sizes = 0"),
        (lambda: MLP(5), "sizes = 5"),
        (lambda: CNN(height=5), "height = 5"),
        (lambda: CNN(channels=(1, 2, 3)), "channels"),
        (lambda: CNN(channels=(1, 0)), "channels = 0"),
        (lambda: CNN(channels=3), "channels = 3"),
    ],
)
def test_bad_sizes_are_refused_at_construction(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_check_model_names_the_shape_that_does_not_fit():
    check_model(Softmax(6, 3), (2, 3), (3,))
    check_model(Linear(6), (6,), ())
    with pytest.raises(InvalidInput, match=r"does not take examples of shape \(5,\)"):
        check_model(Softmax(6, 3), (5,), (3,))
    with pytest.raises(InvalidInput, match=r"shape \(3,\) for an example, the task needs \(4,\)"):
        check_model(Softmax(6, 3), (6,), (4,))
