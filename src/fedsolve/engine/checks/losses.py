"""Which functions are no means over examples: found on a few rows, before anything is compiled for the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from jaxtyping import Array

from fedsolve.core import trees
from fedsolve.core.buffers import WithBuffers
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Batch, Params, replace
from fedsolve.core.xla.compiler import all_equations, all_programs, equations_of, programs_inside
from fedsolve.engine.compute.clients import on_device, shapes_of_two
from fedsolve.tasks.leaves import with_frozen
from fedsolve.tasks.loss_arguments import asked, call, mean_of
from fedsolve.tasks.task import Task
from fedsolve.tasks.torch_modules.losses import is_mean

# What a function's program holds as constants: a draw that would serve every step, arrays in the type of one run.
#
# A loss that draws is compiled with one constant draw, unless its key is among its inputs. And a NumPy array that a
# function closes over gets one type from JAX, for as long as a program with it is kept.

Function = Callable[..., Any]

_DRAWS = {"random_bits", "random_gamma", "threefry2x32", "rng_bit_generator", "rng_uniform"}
_REMEDY = (
    "a loss that draws asks for a key by an argument of that name, loss(params, batch, key=None), None in evaluation; "
    "else dropout is switched off (flax: deterministic=True; equinox: eqx.nn.inference_mode(model)), and what is meant "
    "to be fixed is drawn once, outside the loss"
)
# whether the last program with such an array had 64-bit types; at first as JAX has it
_LAST = {"wide": False}


def check_frozen(name: str, loss: Callable[[Params, Batch], Any], params: Params, batch: Batch) -> None:
    """A loss may draw from the key that it asks for, from none of its own; nor may two traces differ (`np.random`)."""
    # loss: as `fedsolve.tasks.loss_arguments` has it; params, batch: shapes and types to trace it with
    leaves, structure = jax.tree.flatten((params, batch))
    source = _chance(loss, structure, tuple((a.shape, a.dtype) for a in leaves))
    if source == "np.random":
        raise InvalidInput(
            f"{name} differs between two evaluations of one model on one batch (np.random, or other chance, in it): "
            f"it would be compiled with one constant draw; {_REMEDY}"
        )
    if source == "a key":
        raise InvalidInput(
            f"{name} draws with a key that is the same at every step, so that one draw would serve every step: "
            f"{_REMEDY}"
        )


@lru_cache(maxsize=64)
def _chance(loss: Callable[[Params, Batch], Any], structure: Any, shapes: tuple[Any, ...]) -> str | None:
    # where a loss has its randomness from, None if it has none; kept, since tracing takes longer than a small
    # run
    params, batch = structure.unflatten([jax.ShapeDtypeStruct(*one) for one in shapes])
    key = jax.eval_shape(jax.random.key, 0)
    first, again = (
        jax.make_jaxpr(lambda p, b, k: call(loss, p, b, key=k)[0])(params, batch, key) for _ in range(2)
    )
    if not _same(first, again):
        return "np.random"
    return "a key" if _draws(first.jaxpr, [True] * len(first.jaxpr.invars)) else None


def _same(a: Any, b: Any) -> bool:
    # whether two programs have the same operations on the same constants
    if a is b:
        return True
    consts = zip(getattr(a, "consts", ()), getattr(b, "consts", ()), strict=True)
    inner: list[Any] = equations_of(a)
    other: list[Any] = equations_of(b)
    if len(inner) != len(other) or not all(_equal(x, y) for x, y in consts):
        return False
    return all(
        e.primitive is f.primitive
        and all(
            _equal(x.val, y.val)
            for x, y in zip(e.invars, f.invars, strict=True)
            if isinstance(x, Literal) and isinstance(y, Literal)
        )
        and all(_same(x, y) for x, y in zip(programs_inside(e), programs_inside(f), strict=True))
        for e, f in zip(inner, other, strict=True)
    )


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _draws(jaxpr: Any, given: list[bool]) -> bool:
    # whether anything is drawn from constants alone; `given` says which inputs come from model or batch
    known = dict(zip(jaxpr.invars, given, strict=True))
    for equation in jaxpr.eqns:
        inputs = [not isinstance(v, Literal) and known.get(v, False) for v in equation.invars]
        if equation.primitive.name in _DRAWS and not any(inputs):
            return True
        for some in programs_inside(equation):
            body = getattr(some, "jaxpr", some)
            # a branch is not given which it is, a loop's body not what its condition needs
            size = len(body.invars)
            if _draws(body, inputs[-size:] if 0 < size <= len(inputs) else [any(inputs)] * size):
                return True
        known.update(dict.fromkeys(equation.outvars, any(inputs)))
    return False


@partial(jax.jit, static_argnums=0)
def of_call(function: Function, params: Params, batch: Batch, key: Any = None, weights: Any = None) -> Any:
    """A function's value, for what only looks at its program: equal shapes are traced once."""
    return call(function, params, batch, key=key, weights=weights)[0]


def closes_over_floats(function: Function, params: Params, batch: Batch) -> bool:
    """Whether a function's program has a NumPy array of floats among its constants; not of one that fails."""
    try:
        programs = [*all_programs(of_call.trace(function, params, batch).jaxpr)]
    except Exception:  # whatever the user's code raises: said where it is called in earnest
        return False
    constants = [c for program in programs for c in getattr(program, "consts", ())]
    return any(isinstance(c, np.ndarray) and jnp.issubdtype(c.dtype, jnp.inexact) for c in constants)


def renew(functions: Iterable[Function], params: Params, batch: Batch) -> None:
    """Drop what was compiled, where a function's arrays were in a program of other types before."""
    # JAX makes float32 or float64 of a NumPy array once and takes that for the next program too, whether this
    # has types of 64 bits or not; the program then fails, or computes with rounded constants
    # functions: losses and metrics, as `fedsolve.tasks.loss_arguments` has them
    # params, batch: shapes and types to trace them with, those of the run
    if not any([closes_over_floats(function, params, batch) for function in functions]):
        return
    wide = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    if wide != _LAST["wide"]:
        jax.clear_caches()
    _LAST["wide"] = wide


_UNITS = 1000  # of rounding by which the mean over rows may differ from the mean of the rows' own values
_WIDE = 2**22  # parameters up to which the comparison is in float64
_LOOK = 2**17  # rows in which labels are looked for
_SIGNS = (1.0, -1.0, 0.0)  # the models that are compared: on both sides of the start, which comes last


def built_in(function: Any) -> bool:
    """Whether a function is fedsolve's own, with all that it is made of: those are means over examples."""
    if not type(function).__module__.startswith("fedsolve.") or not dataclasses.is_dataclass(function):
        return False
    parts = [getattr(function, f.name) for f in dataclasses.fields(function)]
    return all(built_in(part) for part in parts if callable(part))


def few_rows(examples: Batch, params: Params) -> Batch:
    """A few examples, fewer for a large model: half drawn, half with the values of each column of labels."""
    size = trees.size(params)
    count = 16 if size <= 2**16 else 8 if size <= 2**20 else 4
    leaves = [np.asarray(a) for a in jax.tree.leaves(examples)]
    total = len(leaves[0])
    draw = np.random.default_rng(0)
    # of so many rows a few are drawn by themselves: an order of all would take gigabytes
    drawn = draw.permutation(total) if total <= _LOOK else draw.choice(total, 2 * count, replace=False)
    chosen = list(drawn[: count // 2])
    for column in (a[:_LOOK].reshape(-1) for a in leaves if a.size == total):
        values, first = np.unique(column, return_index=True)
        chosen += list(first[np.linspace(0, len(values) - 1, min(count // 2, len(values))).astype(int)])
    rows = np.array(list(dict.fromkeys(int(i) for i in [*chosen, *drawn]))[:count])
    return jax.tree.map(lambda a: np.asarray(a)[rows], examples)


def not_means(functions: Mapping[str, Function], params: Params, rows: Batch) -> dict[str, str]:
    """The functions whose value on the rows is not the mean of their values on single rows, with what was seen."""
    # where a function gives each example's own value, each is compared; where it takes weights, the mean over
    # half of the rows too. They are compared at two models around `params`, so that predictions differ, and at
    # `params` itself where neither gives a finite number. In float64, unless a function takes only the
    # parameters' type or closes over a NumPy array of floats. fedsolve's own functions, and those of
    # translated modules, are not looked at.
    # functions: name -> a loss or a metric, as `fedsolve.tasks.loss_arguments` has them; called as in
    # evaluation
    # rows: a few examples, as NumPy arrays
    own = {name: f for name, f in functions.items() if not hasattr(f, "rows_together")}  # it says what it is
    by_name = {name: _by_example(f) for name, f in own.items() if not built_in(f) and not is_mean(f)}
    if not by_name or len(jax.tree.leaves(rows)[0]) < 2:
        return {}
    with jax.default_matmul_precision("highest"):
        narrow = _floats((params, rows), trees.dtype_of(params))
        # an array that a function closes over would be float64 in the run's own programs too
        if trees.size(params) <= _WIDE and not any(closes_over_floats(f, *narrow) for f in by_name.values()):
            with jax.enable_x64(True):
                wide = _floats((params, rows), np.float64)
                if all(_traces(f, *wide) is None for f in by_name.values()):
                    # a module that runs in PyTorch may take its own type alone
                    with suppress(jax.errors.JaxRuntimeError):
                        return _compared(by_name, *wide) | _doubled(by_name, *wide)
        return _compared(by_name, *narrow) | _doubled(by_name, *narrow)


def _by_example(function: Function) -> Function:
    # what is compared of a function: of one that is pooled over parts, or follows from sums, each example's own
    if hasattr(function, "of_sums"):
        return _Added(function)
    return getattr(function, "each", function) if hasattr(function, "counts") else function


@dataclasses.dataclass(frozen=True)
class _Added:
    # what each example adds to a function of sums, as one number that any of the sums would change, shape (n,)
    function: Any

    @property
    def asks(self) -> frozenset[str]:
        # what the function asks for, but for weights
        return asked(self.function.each)

    def __call__(self, params: Params, batch: Batch, **given: Any) -> Array:
        sums = self.function.each(params, batch, **given)
        return sums @ (1 + jnp.sqrt(jnp.arange(sums.shape[1], dtype=sums.dtype)))


def _doubled(functions: Mapping[str, Function], params: Params, rows: Batch) -> dict[str, str]:
    # the functions of sums that change when every example is given twice, with what was seen
    differences = {}
    for name, f in functions.items():
        if isinstance(f, _Added) and not hasattr(f.function, "columns"):  # counts double, and may
            once, twice = jax.device_get(_compiled_sums()(f.function, params, rows))
            if np.isfinite(once) and not abs(once - twice) <= 1e-3 * abs(once):
                words = f"{once:.4g} on {len(jax.tree.leaves(rows)[0])} examples, {twice:.4g} with each of them twice"
                differences[name] = words
    return differences


@cache
def _compiled_sums() -> Any:
    def values(function: Any, params: Params, rows: Batch) -> tuple[Array, Array]:
        sums = jnp.sum(call(function.each, params, rows)[0], axis=0)
        return function.of_sums(sums), function.of_sums(2 * sums)

    return jax.jit(values, static_argnums=0)


def _floats(tree: Any, dtype: Any) -> Any:
    def leaf(a: Any) -> np.ndarray:
        a = np.asarray(a)
        return a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(leaf, tree)


def _traces(function: Function, params: Params, batch: Batch) -> str | None:
    # why a function does not take a batch, None if it does
    try:
        of_call.eval_shape(function, params, batch)
    except Exception as error:  # whatever the user's code raises
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return None


def _compared(functions: dict[str, Function], params: Params, rows: Batch) -> dict[str, str]:
    one = jax.tree.map(lambda a: a[:1], rows)
    failed = {name: why for name, f in functions.items() if (why := _traces(f, params, one)) is not None}
    differences = {name: f"on one example alone it fails: {why}" for name, why in failed.items()}
    rest = {name: f for name, f in functions.items() if name not in failed}
    steps = steps_of(params)
    by_function = jax.device_get(_compiled()(tuple(rest.values()), params, steps, np.array(_SIGNS), rows))
    for (name, f), results in zip(rest.items(), by_function, strict=True):
        units = _UNITS * _rounding(of_call.trace(f, params, rows).jaxpr)
        models = list(zip(*(np.asarray(values, float) for values in results), strict=True))
        finite = [m for m in models if np.isfinite(m[0]).all() or np.isfinite(m[2]).all()]
        for value, weighted, each in finite[:2]:
            words = _difference(value, weighted, each, min(max(units, 1e-12), 0.05))
            if words is not None:
                differences[name] = words
    return differences


def steps_of(params: Params) -> Params:
    """A random direction, as long as the weights, or as weights that keep the size of what they multiply."""
    draw = np.random.default_rng(1)

    def leaf(a: np.ndarray) -> np.ndarray:
        if not a.size or not jnp.issubdtype(a.dtype, jnp.floating):
            return np.zeros_like(a)
        size = max(float(np.sqrt(np.mean(np.square(a, dtype=np.float64)))), max(a.shape, default=1) ** -0.5)
        return (size * draw.standard_normal(a.shape)).astype(a.dtype)

    steps = jax.tree.map(leaf, params)
    if not isinstance(params, WithBuffers):
        return steps
    # a variance moved at random may be negative
    return replace(steps, buffers=jax.tree.map(np.zeros_like, params.buffers))


@cache
def _compiled() -> Any:
    def values(
        functions: tuple[Function, ...], params: Params, steps: Params, signs: Array, rows: Batch
    ) -> list[tuple[Array, Array, Array]]:
        def at(sign: Array) -> list[tuple[Array, Array, Array]]:
            model = jax.tree.map(lambda p, d: p + sign.astype(p.dtype) * d, params, steps)

            def alone(row: Batch) -> list[Array]:
                batch = jax.tree.map(lambda a: a[None], row)
                return [_own(f, model, batch) for f in functions]

            each = lax.map(alone, rows)
            return [_together(f, model, rows, own) for f, own in zip(functions, each, strict=True)]

        return lax.map(at, signs)

    return jax.jit(values, static_argnums=0, compiler_options=compile_options())


def compile_options() -> dict[str, Any]:
    """The compiler's options for what runs once: what matters is that it compiles fast."""
    return {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}


def _own(function: Function, params: Params, one: Batch) -> Array:
    # the value of a batch of one example, by the function's `each` where it has that, as the engine takes it
    return mean_of(call(getattr(function, "each", function), params, one)[0])


def _together(function: Function, params: Params, rows: Batch, own: Array) -> tuple[Array, Array, Array]:
    # the value of all rows, the mean over the first half of them (by weights where it takes those), and `own`
    value, half = call(function, params, rows)[0], _half(len(own))
    if "weights" not in asked(function):
        return value, jnp.mean(own[half]), own
    weighted = call(function, params, rows, weights=jnp.asarray(half, value.dtype))[0]
    return value, jnp.mean(weighted[half]) if weighted.ndim else weighted, own


def _half(count: int) -> np.ndarray:
    return np.arange(count) < count // 2


def _difference(value: np.ndarray, weighted: float, own: np.ndarray, units: float) -> str | None:
    # how values on a batch differ from the examples' own, None if they do not
    words = None if value.ndim else _mean_difference(float(value), own, units)
    if words is not None:
        return words
    apart = np.flatnonzero(~np.isclose(value, own, rtol=0, atol=units * np.max(np.abs(own)), equal_nan=True))
    if value.ndim and apart.size:
        row = apart[0]
        return f"example {row} of {len(own)} has {value[row]:.6g} among the others and {own[row]:.6g} alone"
    half = own[_half(len(own))]
    if np.isfinite(half).all() and not abs(weighted - half.mean()) <= units * np.mean(np.abs(half)):
        return (
            f"{weighted:.6g} with weights 1 for {len(half)} of {len(own)} examples and 0 for the rest, "
            f"{half.mean():.6g} as the mean of the former"
        )
    return None


def _mean_difference(value: float, own: np.ndarray, units: float) -> str | None:
    # how a value on a batch differs from the mean of the examples' own, None if it does not
    mean, count = float(np.mean(own)), len(own)
    size = max(abs(value), float(np.mean(np.abs(own))))
    if np.isfinite(value) and np.isfinite(own).all() and abs(value - mean) <= units * size:
        return None
    if np.isfinite(mean) and abs(value - count * mean) <= units * count * size:
        return f"{value:.4g} on {count} examples is the sum of their own values"
    digits = 4 if f"{value:.4g}" != f"{mean:.4g}" else 10
    return f"{value:.{digits}g} on {count} examples, {mean:.{digits}g} as the mean of their own values"


def _rounding(program: Any) -> float:
    # the unit of rounding of the coarsest floating-point type that a program computes in
    values = (v.aval for e in all_equations(program) for v in (*e.invars, *e.outvars))
    types = {getattr(aval, "dtype", None) for aval in values}
    floating = [t for t in types if t is not None and jnp.issubdtype(t, jnp.floating)]
    return max((float(jnp.finfo(t).eps) for t in floating), default=0.0)


def calls_host(task: Task, params: Params, dtype: Any) -> bool:
    """Whether the loss or a metric that is a mean over examples calls Python, as a module that is not translated."""
    # on several devices of one process JAX (0.10.2) never ends such a program: each device's call waits for a
    # copy of its arguments, which the threads that wait in the calls would have to make
    # params: shapes of the model, with buffers where the task has some
    if hasattr(task.loss, "training_loop"):
        return True
    functions = [f for f in (task.loss, *task.metrics.values()) if not built_in(f)]
    if not functions:
        return False
    examples = jax.eval_shape(partial(on_device, dtype=dtype), task.data.examples)
    rows = shapes_of_two(examples)
    model = jax.eval_shape(with_frozen, params, task.frozen)
    return any(_calls_host(f, model, rows) for f in functions)


def _calls_host(function: Callable[..., Any], params: Params, rows: Batch) -> bool:
    key = jax.eval_shape(jax.random.key, 0)
    program = jax.make_jaxpr(lambda *given: call(function, *given[:2], key=given[2])[0])(params, rows, key)
    return any(equation.primitive.name.endswith("callback") for equation in all_equations(program))
