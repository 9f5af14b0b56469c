"""The CPU forms of convolution and pooling against XLA's own operations, and augmentation against NumPy."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedsolve.core.errors import InvalidInput
from fedsolve.core.xla import convolutions
from fedsolve.core.xla import direct as form
from fedsolve.core.xla import direct as tiles
from fedsolve.core.xla.convolutions import conv, max_pool2x2, without_slow_convolutions
from fedsolve.core.xla.direct import by_patches, direct
from fedsolve.tasks import Augmented, Softmax

# The CPU forms of convolution and pooling against XLA's own operations.

SHAPES = [
    (2, 10, 12, 8, 16),
    (3, 8, 8, 1, 5),
    (2, 7, 9, 8, 9),
    (1, 4, 4, 32, 33),
    (2, 3, 3, 2, 2),
    (4, 28, 28, 1, 32),
]


def layer(x, kernel, bias):
    return conv(x, kernel) + bias


def reference(x, kernel, bias):
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=dims) + bias


def reference_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def arrays(shape, dtype, seed=0):
    n, h, w, c, out = shape
    rng = np.random.default_rng(seed)
    x, kernel = rng.normal(size=(n, h, w, c)), rng.normal(size=(3, 3, c, out)) / np.sqrt(9 * c)
    return tuple(jnp.asarray(a, dtype) for a in (x, kernel, rng.normal(size=out)))


def value_and_gradients(function, args, target):
    def loss(*args):
        return jnp.mean((function(*args) - target) ** 2)

    both = jax.jit(lambda args: (function(*args), jax.grad(lambda a: loss(*a))(args)))
    return both(args)


def assert_close(a, b, tol):
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert u.shape == v.shape
        assert u.dtype == v.dtype
        np.testing.assert_allclose(u, v, rtol=tol, atol=tol)


@pytest.mark.full_rows("float64-1e-12-shape2", "float64-1e-12-shape5")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "tol"), [pytest.param("float32", 1e-5, marks=pytest.mark.full), ("float64", 1e-12)]
)
def test_convolution_and_its_gradients(shape, dtype, tol):
    with jax.enable_x64(dtype == "float64"):
        args = arrays(shape, dtype)
        target = jnp.asarray(np.random.default_rng(9).normal(size=reference(*args).shape), dtype)
        assert_close(
            value_and_gradients(layer, args, target), value_and_gradients(reference, args, target), tol
        )


@pytest.mark.full
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_vmap_over_clients_with_their_own_kernels(shape):
    clients = [arrays(shape, "float32", seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)

    def gradients(function):
        return jax.value_and_grad(lambda args: jnp.mean(jnp.sin(function(*args))))

    together = jax.jit(jax.vmap(gradients(layer)))(stacked)
    alone = jax.jit(gradients(reference))
    for i, args in enumerate(clients):
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone(args), 1e-5)


@pytest.mark.parametrize("shape", [(2, 8, 6, 3), (1, 24, 24, 64), (2, 7, 5, 2)])
def test_pooling_and_its_gradient(shape):
    x = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
    target = jnp.ones(reference_pool(x).shape)
    assert_close(
        value_and_gradients(max_pool2x2, (x,), target),
        value_and_gradients(reference_pool, (x,), target),
        1e-7,
    )


def test_tied_windows_share_the_gradient():
    gradient = jax.grad(lambda x: max_pool2x2(x).sum())(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_allclose(gradient, 0.25)


# The direct convolution and its derivatives of every kind against XLA's, as JAX differentiates that.

# input, kernel, strides, padding, dilation of the kernel
CASES = {
    "3, even": ((2, 6, 8, 3), (3, 3, 3, 4), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "3, strides": ((2, 7, 6, 3), (3, 3, 3, 4), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    "1, strides": ((2, 7, 6, 3), (1, 1, 3, 4), (2, 2), ((0, 0), (0, 0)), (1, 1)),
    "5 x 7": ((2, 9, 8, 3), (5, 7, 3, 2), (1, 2), ((2, 2), (3, 3)), (1, 1)),
    "dilated": ((2, 9, 9, 3), (3, 3, 3, 2), (1, 1), ((0, 0), (0, 0)), (2, 3)),
    "one axis": ((2, 11, 3), (4, 3, 2), (3,), ((1, 2),), (1,)),
    "three axes": ((1, 4, 5, 4, 2), (2, 3, 2, 2, 3), (1, 2, 1), ((0, 1), (1, 1), (0, 1)), (1, 1, 1)),
    "cropped": ((2, 8, 8, 2), (3, 3, 2, 2), (1, 1), ((-1, 0), (1, -2)), (1, 1)),
    "padded beyond the kernel": ((2, 8, 8, 2), (3, 3, 2, 2), (2, 3), ((4, 3), (3, 4)), (1, 1)),
}
TILES = {
    "whole and parts": ((2, 10, 5, 3), (3, 3, 3, 2), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "padded and cropped": ((1, 3, 9, 2), (3, 3, 2, 3), (1, 1), ((4, 3), (1, -2)), (1, 1)),
}
"""Of minimal filtering, which is used from many channels and tiles on; its formula holds for any."""
SECOND = ("3, strides", "dilated")  # of which second derivatives are compared too
LAYOUTS = {
    1: ("NWC", "WIO", "NWC"),
    2: ("NHWC", "HWIO", "NHWC"),
    3: ("NDHWC", "DHWIO", "NDHWC"),
}


def xla(x, kernel, strides, padding, dilation):
    layout = LAYOUTS[len(strides)]
    return lax.conv_general_dilated(x, kernel, strides, padding, None, dilation, layout)


def own(x, kernel, strides, padding, dilation, **of_tiles):
    return direct(x, kernel, strides=strides, padding=padding, dilation=dilation, **of_tiles)


def derivatives(convolution, name, x, kernel):
    """Of one and of three pictures and kernels: (label, values) of all that a user may ask for."""
    settings = CASES[name][2:]

    def loss(x, kernel):
        return jnp.sum(jnp.sin(convolution(x, kernel, *settings)))

    gradients = jax.grad(loss, (0, 1))
    yield "value", convolution(x[0], kernel[0], *settings)
    yield "gradients", gradients(x[0], kernel[0])
    yield "clients", jax.vmap(gradients)(x, kernel)
    yield "one kernel", jax.vmap(gradients, (0, None))(x, kernel[0])
    yield "kernels alone", jax.vmap(gradients, (None, 0))(x[0], kernel)
    each = lambda x, kernel: jnp.sum(jax.vmap(loss, (0, None))(x[:, None], kernel) ** 2)  # noqa: E731
    yield "by example", jax.grad(each, (0, 1))(x[0], kernel[0])
    yield "clients, by example", jax.vmap(jax.grad(each, (0, 1)))(x, kernel)
    if name in SECOND:
        yield "forward over backward", jax.jvp(gradients, (x[0], kernel[0]), (x[1], kernel[1]))[1]
        cubes = lambda *of: sum(jnp.sum(g**3) for g in gradients(*of))  # noqa: E731
        yield "backward twice", jax.grad(cubes, (0, 1))(x[0], kernel[0])


@pytest.mark.parametrize(
    "name", [name if name == SECOND[0] else pytest.param(name, marks=pytest.mark.full) for name in CASES]
)
def test_all_derivatives_are_xla_s(name):
    rng = np.random.default_rng(0)
    x, kernel = (rng.standard_normal((3, *shape)) for shape in CASES[name][:2])
    with jax.enable_x64(True):
        want = jax.jit(lambda *of: dict(derivatives(xla, name, *of)))(x, kernel)
        got = jax.jit(lambda *of: dict(derivatives(own, name, *of)))(x, kernel)
        for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(got), strict=True):
            tolerance = 1e-12 * float(np.abs(a).max())
            np.testing.assert_allclose(
                b, a, rtol=0, atol=tolerance, err_msg=f"{name}: {jax.tree_util.keystr(path)}"
            )


def by_channel(x, kernel, strides, padding, dilation):
    return by_patches(x, kernel, strides=strides, padding=padding, dilation=dilation, by_channel=True)


def test_values_and_gradients_of_every_form_are_xla_s():
    """All cases in one program, outside of any transformation but the gradient."""
    rng = np.random.default_rng(1)
    given = {k: tuple(rng.standard_normal(shape) for shape in case[:2]) for k, case in CASES.items()}

    def loss(convolution, given):
        found = [convolution(*given[k], *CASES[k][2:]) for k in CASES]
        return sum(jnp.sum(jnp.cos(i + y)) for i, y in enumerate(found)), found

    with jax.enable_x64(True):
        both = [
            jax.jit(jax.grad(lambda g, f=f: loss(f, g), has_aux=True))(given) for f in (xla, own, by_channel)
        ]
        for found in both[1:]:
            jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=0, atol=1e-12), both[0], found)


@pytest.mark.parametrize(("rows", "is_product"), [(1, True), (2, False)])
def test_a_large_kernel_multiplies_patches_of_few_rows(monkeypatch, rows, is_product):
    """As PyTorch has it: of as many rows as outputs, its patches in the order of the kernel, which stays as it is."""
    monkeypatch.setattr(convolutions, "_LARGE_KERNEL", 32 * 2 * 9)
    rng = np.random.default_rng(4)
    x, kernel = (np.float32(rng.normal(size=shape)) for shape in ((2 * rows, 2, 4, 4), (32, 2, 3, 3)))

    def loss(x, kernel):
        y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        return jnp.sum(jnp.sin(y))

    fast = jax.jit(jax.grad(without_slow_convolutions(loss), (0, 1)))
    text = fast.lower(x, kernel).as_text()
    assert ("stablehlo.convolution" not in text) == is_product
    assert_close(fast(x, kernel), jax.jit(jax.grad(loss, (0, 1)))(x, kernel), 1e-4)


@pytest.mark.parametrize("by_channel", [False, True])
def test_values_and_gradients_of_tiles_are_xla_s(monkeypatch, by_channel):
    monkeypatch.setattr(form, "_TILE_PAIRS", 0)
    monkeypatch.setattr(form, "_TILES", 0)
    rng = np.random.default_rng(2)
    given = {k: tuple(rng.standard_normal(shape) for shape in case[:2]) for k, case in TILES.items()}

    def loss(convolution, given):
        found = [convolution(*given[k], *TILES[k][2:]) for k in TILES]
        return sum(jnp.sum(jnp.cos(i + y)) for i, y in enumerate(found)), found

    ours = partial(own, by_channel=by_channel)
    with jax.enable_x64(True):
        both = [jax.jit(jax.grad(lambda g, f=f: loss(f, g), has_aux=True))(given) for f in (xla, ours)]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=0, atol=1e-12), *both)


@pytest.mark.full_rows("20-26-32-64-True")
@pytest.mark.parametrize(
    ("examples", "size", "channels", "out", "used"),
    [(20, 26, 32, 64, True), (3, 26, 32, 64, False), (20, 26, 16, 64, False),
     (8, 10, 256, 256, True), (8, 10, 64, 64, False)],
)  # fmt: skip
def test_tiles_are_used_where_they_pay(examples, size, channels, out, used):
    """First the second convolution of the FEMNIST network, in batches of 20: no convolution is left in the program."""
    shapes = [
        jax.ShapeDtypeStruct(s, jnp.float32)
        for s in ((examples, size, size, channels), (3, 3, channels, out))
    ]
    gradients = jax.grad(lambda x, kernel: jnp.sum(conv(x, kernel) ** 2), (0, 1))
    assert ("stablehlo.convolution" not in jax.jit(gradients).lower(*shapes).as_text()) == used


def test_float32_tiles_round_as_direct_sums_do():
    """Errors relative to the largest entry, of value and gradients, of a convolution of 32 channels."""
    rng = np.random.default_rng(3)
    x, kernel = rng.standard_normal((2, 26, 26, 32)), rng.standard_normal((3, 3, 32, 64)) / 17
    y = rng.standard_normal((2, 24, 24, 64))

    def all_three(x, kernel, y):
        yield tiles.convolution(x, kernel, y.shape, (0, 0))
        yield tiles.gradient_of_input(y, kernel, x.shape, (0, 0))
        yield tiles.gradient_of_kernel(x, y, (0, 0))

    with jax.enable_x64(True):
        exact = jax.tree.map(np.asarray, jax.jit(lambda *given: list(all_three(*given)))(x, kernel, y))
    halved = jax.jit(lambda *given: list(all_three(*given)))(*(np.float32(a) for a in (x, kernel, y)))
    for a, b in zip(exact, halved, strict=True):
        assert np.abs(np.asarray(a) - b).max() < 5e-6 * np.abs(a).max()


@pytest.mark.parametrize(
    ("images", "kernel", "functions"),
    [((4, 8, 8, 3), (3, 3, 3, 16), ["gradient_of_kernel"]),
     ((8, 16, 16, 64), (3, 3, 64, 64), ["of_input", "of_input", "of_result"])],
    ids=["direct", "tiles"],
)  # fmt: skip
def test_parts_of_a_gradient_are_functions_that_are_not_inlined(images, kernel, functions):
    """So that XLA does not work out what their arguments are made of again, in the order of their transposes."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (images, kernel)]
    gradient = jax.grad(lambda x, kernel: jnp.sum(conv(x, kernel, padding=1) ** 2), 1)
    lines = jax.jit(gradient).lower(*shapes).as_text().splitlines()
    apart = [line for line in lines if "call @" in line and 'inlineable = "false"' in line]
    assert sorted(line.split("@_")[1].split("(")[0] for line in apart) == functions


def test_in_a_loop_every_convolution_has_its_channels_last():
    """What the speed rests on: in each, the first axis is of examples and the last of channels."""
    x, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 16))

    def step(kernel, _):
        return kernel - jax.grad(lambda k: jnp.sum(jnp.sin(conv(conv(x, k, padding=1), more))))(kernel), None

    more = jnp.ones((3, 3, 16, 16))
    text = jax.jit(lambda k: lax.scan(step, k, length=2)[0]).lower(kernel).as_text()
    layouts = [
        line.split("dim_numbers = ")[1].split(",  window")[0]
        for line in text.splitlines()
        if "dim_numbers =" in line
    ]
    assert len(layouts) >= 4
    assert {a.replace(" ", "").split("window")[0].rstrip(",") for a in layouts} == {
        "[b,0,1,f]x[0,1,i,o]->[b,0,1,f]"
    }


def test_a_gpu_multiplies_patches():
    """There no convolution is left, neither of one client nor of several; a CPU's library keeps those of one."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in CASES["3, even"][:2]]

    def loss(x, kernel):
        return jnp.sum(own(x, kernel, *CASES["3, even"][2:]) ** 2)

    gradients = jax.jit(jax.grad(loss, (0, 1)))
    texts = {
        platform: jax.export.export(gradients, platforms=[platform])(*shapes).mlir_module()
        for platform in ("cuda", "rocm", "cpu")
    }
    assert {platform: "stablehlo.convolution" in text for platform, text in texts.items()} == {
        "cuda": False, "rocm": False, "cpu": True,
    }  # fmt: skip


# Augmentation of pictures against NumPy: standardised middles in evaluation, and what is drawn in training.

X = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
W = {"w": jnp.ones(())}


@dataclass(frozen=True)
class Seen:
    """A model that gives what it is given."""

    def init(self, key):
        return W

    def __call__(self, params, x):
        return x


@dataclass(frozen=True)
class Keyed(Seen):
    """One that asks for a key, too."""

    def __call__(self, params, x, key=None):
        return key


def standardised(x):
    x = x / 255
    spread = x.std((1, 2, 3), keepdims=True)
    return (x - x.mean((1, 2, 3), keepdims=True)) / np.maximum(spread, x[0].size ** -0.5)


def test_evaluation_takes_the_middle_standardised():
    """TensorFlow's central crop: half of what is cut, rounded down, lies before it. A flat picture becomes 0."""
    flat = np.full_like(X, 7)
    np.testing.assert_allclose(Augmented(Seen(), 3)(W, X), standardised(X[:, 1:4, 0:3]), atol=1e-5)
    np.testing.assert_allclose(Augmented(Seen(), None)(W, X), standardised(X), atol=1e-5)
    np.testing.assert_allclose(Augmented(Seen(), None)(W, flat), 0, atol=1e-5)


@pytest.mark.full
def test_training_draws_places_and_mirrors_for_each_picture():
    """Each picture is one of its 3 x 2 crops, mirrored or not, all of which occur; a key gives the same again."""
    x = np.repeat(X[:1], 300, axis=0)
    crops = [x[0, i : i + 3, j : j + 3] for i in range(3) for j in range(2)]
    known = standardised(np.stack([c for crop in crops for c in (crop, crop[:, ::-1])]))
    draw = jax.jit(lambda key: Augmented(Seen(), 3)(W, x, key=key))
    seen = np.asarray(draw(jax.random.key(3)))
    which = np.abs(seen[:, None] - known[None]).max((2, 3, 4)).argmin(1)
    np.testing.assert_allclose(seen, known[which], atol=1e-5)
    assert np.bincount(which, minlength=12).min() > 8  # 25 each in the mean
    np.testing.assert_array_equal(seen, draw(jax.random.key(3)))
    assert (seen != draw(jax.random.key(4))).any()
    with jax.enable_x64(True):  # a run in float64 sees the same ones
        np.testing.assert_array_equal(seen, draw(jax.random.key(3)))


def test_a_model_that_asks_gets_a_key_of_its_own():
    key = jax.random.key(0)
    assert Augmented(Keyed())(W, np.zeros((1, 24, 24, 3), np.uint8)) is None
    own = Augmented(Keyed(), 3)(W, X, key=key)
    assert (jax.random.key_data(own) != jax.random.key_data(key)).any()


def test_a_crop_is_checked():
    with pytest.raises(InvalidInput, match="crop = 0"):
        Augmented(Seen(), crop=0)
    assert hash(Augmented(Softmax(3, 2))) == hash(Augmented(Softmax(3, 2)))
