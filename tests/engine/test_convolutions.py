"""A user's convolutions and max-pools in the forms that are fast on a CPU: the same values, the same gradients."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedsolve.core.xla.compiler import all_equations
from fedsolve.core.xla.convolutions import without_slow_convolutions
from fedsolve.engine.evaluation.example_metrics import Metrics, on_rows
from fedsolve.tasks import Accuracy, CrossEntropy, Examples

NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
# input, kernel, strides, padding, dilation of the kernel, layout
CONVOLUTIONS = {
    "valid": ((1, 4, 6, 3), (3, 3, 3, 4), (1, 1), "VALID", (1, 1), NHWC),
    "same": ((2, 6, 8, 8), (3, 3, 8, 9), (1, 1), "SAME", (1, 1), NHWC),
    "odd sides": ((2, 7, 5, 8), (3, 3, 8, 9), (1, 1), "SAME", (1, 1), NHWC),
    "strides": ((2, 9, 8, 3), (3, 2, 3, 4), (2, 3), "SAME", (1, 1), NHWC),
    "dilated": ((2, 9, 9, 3), (3, 3, 3, 2), (1, 1), "VALID", (2, 3), NHWC),
    "channels first": ((2, 3, 8, 7), (4, 3, 5, 3), (2, 1), ((2, 1), (0, 2)), (1, 1), NCHW),
    "one axis": ((2, 11, 3), (4, 3, 2), (3,), "SAME", (1,), ("NWC", "WIO", "NWC")),
    "three axes": ((1, 4, 5, 4, 2), (2, 3, 2, 2, 3), (1, 2, 1), "SAME", (1, 1, 1), ("NDHWC", "DHWIO", "NDHWC")),
    "cropped": ((2, 8, 8, 2), (3, 3, 2, 2), (1, 1), ((-1, 0), (1, -2)), (1, 1), NHWC),
}  # fmt: skip
# input, window, strides, padding
POOLS = {
    "2 x 2": ((2, 6, 7, 3), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "overlapping": ((2, 7, 6, 3), (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    "of examples": ((5, 4), (2, 2), (1, 2), "SAME"),
}


pytestmark = pytest.mark.usefixtures("x64")


def convolution(name):
    _, _, strides, padding, dilation, layout = CONVOLUTIONS[name]

    @jax.jit  # as layers of a library are
    def layer(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, strides, padding, rhs_dilation=dilation, dimension_numbers=layout
        )

    return layer


def pool(name):
    _, window, strides, padding = POOLS[name]
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)


def everything(arguments):
    """All cases as one loss, so that all are one program."""
    kernels, inputs = arguments
    found = [jax.nn.relu(convolution(k)(inputs[k], kernels[k])) for k in CONVOLUTIONS]
    found += [pool(k)(inputs[k]) for k in POOLS]
    return sum(jnp.sum(jnp.cos(1.0 + i + y)) for i, y in enumerate(found)), found


def arguments():
    rng = np.random.default_rng(0)
    kernels = {k: rng.standard_normal(case[1]) for k, case in CONVOLUTIONS.items()}
    inputs = {k: rng.standard_normal(case[0]) for k, case in CONVOLUTIONS.items()}
    inputs |= {k: rng.integers(-1, 2, case[0]).astype(float) for k, case in POOLS.items()}  # full of ties
    return kernels, inputs


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                yield from primitives(value.jaxpr)


@pytest.mark.full
def test_values_and_gradients_are_the_same():
    """Every shape, stride, padding and layout; a gradient goes to the first of equal entries."""
    fast = without_slow_convolutions(everything)
    assert {"conv_general_dilated", "reduce_window_max"} <= set(
        primitives(jax.make_jaxpr(everything)(arguments()).jaxpr)
    )
    left = set(primitives(jax.make_jaxpr(jax.grad(lambda a: fast(a)[0]))(arguments()).jaxpr))
    assert not left & {"conv_general_dilated", "reduce_window_max", "select_and_scatter_add"}
    want = jax.jit(jax.value_and_grad(everything, has_aux=True))(arguments())
    got = jax.jit(jax.value_and_grad(fast, has_aux=True))(arguments())
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11, err_msg=jax.tree_util.keystr(path))


def test_outputs_that_metrics_share_are_computed_so():
    """A translated module has XLA's own convolutions, in the loop over the rows of an evaluation too."""

    def outputs(kernel, x):
        return jnp.mean(convolution("same")(x, kernel), axis=(1, 2))

    metrics = Metrics(CrossEntropy(outputs), (("accuracy", Accuracy(outputs)),))
    kernel, x = (a["same"] for a in arguments())
    program = jax.make_jaxpr(partial(on_rows, metrics))(kernel, Examples(x, np.arange(len(x))))
    assert "conv_general_dilated" not in set(primitives(program.jaxpr))


def test_those_in_loops_and_checkpoints_too():
    """Blocks that are scanned, and one whose values the gradient computes again, in a branch."""
    kernel, x = (a["same"] for a in arguments())

    def block(x, kernel):
        return x + jnp.mean(jnp.cos(convolution("same")(x, kernel))), None

    def loss(x, kernels):
        again = lax.cond(jnp.sum(x) < jnp.inf, jax.checkpoint(block), lambda x, _: (x, None), x, kernels[0])[
            0
        ]
        return jnp.sum(lax.scan(block, again, kernels)[0] ** 2)

    given = x, jnp.stack([kernel, -kernel])
    fast = jax.value_and_grad(without_slow_convolutions(loss))
    assert "conv_general_dilated" not in {
        e.primitive.name for e in all_equations(jax.make_jaxpr(fast)(*given))
    }
    jax.tree.map(np.testing.assert_allclose, fast(*given), jax.value_and_grad(loss)(*given))


def test_nan_is_the_maximum_of_its_window():
    """A diverged activation shows, wherever it stands in its window."""
    x = np.zeros((1, 2, 4, 2))
    x[0, 0, 0, 0] = x[0, 1, 3, 1] = np.nan
    got = without_slow_convolutions(pool("2 x 2"))(x)
    np.testing.assert_array_equal(got, [[[[np.nan, 0], [0, np.nan]]]])


def test_what_has_no_fast_form_stays():
    """Grouped, transposed and very large windows, and integers, are called as they are (to rounding: JAX 0.11)."""

    def function(x, grouped, large):
        y = lax.conv_general_dilated(
            x, grouped, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=2
        )
        y += lax.conv_transpose(x, jnp.ones((2, 2, 2, 2)), (1, 1), "SAME", dimension_numbers=NHWC)
        y += lax.conv_general_dilated(x, large, (1, 1), "SAME", dimension_numbers=NHWC)
        top = lax.reduce_window(
            jnp.arange(9), np.iinfo(np.int64).min, lax.max, window_dimensions=(3,), window_strides=(3,), padding="VALID"
        )  # fmt: skip
        return y, top

    rng = np.random.default_rng(1)
    shapes = ((1, 9, 9, 2), (3, 3, 1, 2), (9, 9, 2, 2))
    values = [rng.standard_normal(s) for s in shapes]
    fast = without_slow_convolutions(function)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12), fast(*values), function(*values))


def test_only_losses_with_slow_operations_are_rewritten():
    """Another loss is called as it is: its program, and so its bits, are its own."""

    def loss(w, x):
        return jnp.mean(jax.nn.relu(x @ w))

    w, x = np.ones(3), np.ones((2, 3))
    assert str(jax.make_jaxpr(without_slow_convolutions(loss))(w, x)) == str(jax.make_jaxpr(loss)(w, x))
