"""What a task computes of a PyTorch module, compared with what PyTorch computes, before anything trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.xla.compiler import quickest, return_memory
from fedsolve.tasks.leaf_types import given_again
from fedsolve.tasks.leaves import with_frozen
from fedsolve.tasks.loss_arguments import asked, call
from fedsolve.tasks.task import Examples
from fedsolve.tasks.torch_modules.losses import OfBatch

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fedsolve.pytorch.callback import HostLoss
    from fedsolve.pytorch.reference import EvaluationValue, TrainingValues

PADDING = "it mixes examples, and padding would count"
_LEAST, _MOST, _PADDING = 24, 64, 6  # rows of the sample, and how many of them are padding once
# of a large module (`is_large`): fewer rows, nothing is held for a second look, and weights keep the module's own type
# until they are computed with
_LEAST_OF_LARGE, _MOST_OF_LARGE, _PADDING_OF_LARGE = 6, 8, 2
# integers of an example, beyond which it is a text with a loss at each of them; rows of such texts
_LONG, _OF_LONG = 16, 4
_LONG_PROGRAM = 4_000  # lines, from which on XLA's emitters of fusions compile it sooner
_STEP = 0.1  # of the weights' size, to a point where no weight has a special value
_CLOSE, _UNITS = 1e-6, 1e4  # relative difference that is none, at least so many rounding units
# of what a conversion to a coarser type changes: so many times that change, and so many of its units; at most a tenth
_CHANGES, _COARSE, _MOST_APART = 30, 8, 0.1
_SMALL = 1e-3  # of the largest entry of all, below which an array's entries are compared by that size


class Point(NamedTuple):
    """Where both are evaluated."""

    params: Mapping[str, np.ndarray]  # params, buffers: values by name
    buffers: Mapping[str, np.ndarray]
    counts: np.ndarray  # which rows of the sample are no padding, shape (n,)


class Results(NamedTuple):
    """What is compared."""

    training: TrainingValues  # loss, gradient and new buffers in training mode
    # the loss and metrics of the rows that count in evaluation mode, by name
    evaluation: Mapping[str, EvaluationValue]


Evaluate = Callable[[Point, Examples], Results]


class Agreement:
    """PyTorch's numbers on a sample of all clients' examples, to compare others with; the module is then as it was.

    `functions` are the loss and metrics, of outputs and targets. `extremes`: rows are added that have the largest and
    the smallest integers of all inputs at once.
    """

    def __init__(
        self,
        module: nn.Module,
        functions: Mapping[str, Any],
        examples: Examples,
        dtype: torch.dtype,
        extremes: bool = False,
    ) -> None:
        from fedsolve.core.loss_checks import informative_rows
        from fedsolve.pytorch.reference import Reference
        from fedsolve.pytorch.translation.arrays import as_array, buffer_tensors, is_large, trainable

        self.reference = Reference(module, functions["loss"], dtype)
        self._functions, self.dtype, self.is_large = functions, dtype, is_large(module)
        sizes = (_LEAST_OF_LARGE, _MOST_OF_LARGE) if self.is_large else (_LEAST, _MOST)
        if self.is_large and any(_of_text(np.asarray(a)) > _LONG for a in jax.tree.leaves(examples)):
            sizes = _OF_LONG, _OF_LONG
        rows = informative_rows(*examples, *sizes)
        batch = jax.tree.map(lambda a: np.asarray(a)[rows], tuple(examples))
        if extremes:
            rows = np.append(rows, rows[:2])
            batch = jax.tree.map(_with_extremes, batch[0], examples.x), jax.tree.map(_repeat_rows, batch[1])
        self.batch = Examples(*batch)
        own = as_array if self.is_large else lambda t: _to_float64(as_array(t))
        params = {n: own(p) for n, p in trainable(module).items()}
        buffers = {n: _to_float64(as_array(b)) for n, b in buffer_tensors(module).items()}
        self.start = Point(params, buffers, np.ones(len(rows), bool))
        first = self.results(self.start)
        if not _is_finite(first.training.gradient):  # beside which nothing else would be seen
            counts = np.array([self._has_slope(i) for i in range(len(rows))])
            counts |= not counts.any()
            self.batch = jax.tree.map(lambda a: a[counts], self.batch)
            self.start = Point(params, buffers, counts[counts])
            first = self.results(self.start)
        self._first: Results | None = first
        self._second = None if self.is_large else self._beside(first.training.buffers)

    def _points(self) -> Iterator[tuple[Point, Results]]:
        # all rows at the start; then with padding, at weights beside it and with buffers that have moved
        first = self._first or self.results(self.start)
        moved_buffers = first.training.buffers
        self._first = None if self.is_large else first
        yield self.start, first
        del first
        yield self._second or self._beside(moved_buffers)

    def _beside(self, buffers: Mapping[str, np.ndarray]) -> tuple[Point, Results]:
        padded = self.start.counts.copy()
        number = _PADDING_OF_LARGE if self.is_large else _PADDING
        padded[np.linspace(0, len(padded) - 1, number).astype(int)] = False
        moved = Point(_perturbed(self.start.params), buffers, padded)
        second = self.results(moved)
        if not np.isfinite(second.training.loss):
            moved = Point(self.start.params, self.start.buffers, padded)
            second = self.results(moved)
        return moved, second

    def _has_slope(self, row: int) -> bool:
        one = jax.tree.map(lambda a: a[row : row + 1], self.batch)
        try:
            found, _ = self.reference.results({}, self.start.params, self.start.buffers, one)
        except InvalidInput:  # of one row alone
            return True
        return _is_finite(found.gradient)

    @property
    def type(self) -> Any:
        from fedsolve.pytorch.translation.arrays import jax_dtype

        with jax.enable_x64(True):
            return jax_dtype(self.dtype)

    @property
    def held(self) -> Any:
        """The type in which a large module's parameters and their gradients are held: float32 for narrower ones."""
        return jnp.promote_types(jnp.float32, jnp.result_type(*self.start.params.values()))

    def results(self, point: Point) -> Results:
        from fedsolve.pytorch.translation.arrays import memory_returned

        rows = jax.tree.map(lambda a: a[point.counts], self.batch)
        with memory_returned(self.reference.module):
            return Results(*self.reference.results(self._functions, point.params, point.buffers, rows))

    def difference(
        self, evaluate: Evaluate, otherwise: str = "the cause is not known", mixing: str = PADDING
    ) -> str | None:
        # None if no number differs from PyTorch's. `otherwise` is said where no cause is found, `mixing` of a
        # module that mixes examples
        for point, theirs in self._points():
            words = self._first_difference(evaluate(point, self.batch), theirs, point)
            del theirs  # before the next ones are computed
            if words is not None:
                if self.reference.autocast:
                    otherwise = "torch.autocast rounds otherwise"
                return f"{words}: {self._likely_cause(point, evaluate, mixing) or otherwise}"
        return None

    def left_out(self) -> str:
        # also what the sample does not show
        from fedsolve.pytorch.reference import cause

        few = jax.tree.map(lambda a: a[:2], self.batch) if self.is_large else self.batch
        return cause(self.reference, self.start.params, self.start.buffers, few)

    def _limit(self, value: Any, exact: Any, coarsest: float, small: float) -> float:
        # follows from the types that this number passes through, not from others
        import torch

        own = max(_CLOSE, min(_UNITS * torch.finfo(self.dtype).eps, _MOST_APART))
        if not coarsest:
            return own
        if exact is None:
            return max(own, min(_UNITS * coarsest, _MOST_APART))
        change = _relative(exact, value, small)
        coarse = max(_CHANGES * change, _COARSE * coarsest) if change else 0.0
        return max(own, min(coarse, _MOST_APART))

    def _first_difference(self, ours: Results, theirs: Results, point: Point) -> str | None:
        # what conversions change is computed only where something is beyond the limit without them
        training, evaluation = theirs
        fine = {name: value._replace(coarsest=0.0) for name, value in evaluation.items()}
        words = self._beyond(ours, Results(training._replace(coarsest=0.0), fine))
        if words is None or not (training.coarsest or any(v.coarsest for v in evaluation.values())):
            return words
        rows = jax.tree.map(lambda a: a[point.counts], self.batch)
        exact = self.reference.exact(theirs, self._functions, point.params, point.buffers, rows)
        return self._beyond(ours, Results(*exact))

    def _beyond(self, ours: Results, theirs: Results) -> str | None:
        for name, (value, coarsest, exact) in theirs.evaluation.items():
            smooth = exact if name == "loss" else None  # an accuracy jumps
            limit = self._limit(value, smooth, coarsest, 1e-3)
            if (
                name in ours.evaluation
                and (by := _relative(ours.evaluation[name].value, value, 1e-3)) > limit
            ):
                what = "loss" if name == "loss" else f"metric {name}"
                return (
                    f"its {what} in evaluation mode would differ from PyTorch's {value:.6g} by {by:.2g} of it"
                )
        mine, own = ours.training, theirs.training
        limit = self._limit(own.loss, own.exact and own.exact.loss, own.coarsest, 1e-3)
        if (by := _relative(mine.loss, own.loss, 1e-3)) > limit:
            return f"its loss in training would differ from PyTorch's {own.loss:.6g} by {by:.2g} of it"
        for what, kind in (("the gradient of", "gradient"), ("the new value of buffer", "buffers")):
            expected, found = getattr(own, kind), getattr(mine, kind)
            exact = getattr(own.exact, kind, {})
            small = _SMALL * max((_size(v) for v in expected.values()), default=0.0)
            apart = {name: _relative(found[name], value, small) for name, value in expected.items()}
            wrong = [
                name
                for name, value in expected.items()
                if apart[name] > self._limit(value, exact.get(name), own.coarsest, small)
            ]
            if wrong:
                name = max(wrong, key=apart.__getitem__)
                return f"{what} '{name}' would differ from PyTorch's by {apart[name]:.2g} times its largest entry"
        return None

    def _likely_cause(self, point: Point, evaluate: Evaluate, mixing: str) -> str:
        from fedsolve.pytorch.reference import cause

        every = Point(point.params, point.buffers, np.ones_like(point.counts))
        if (
            not point.counts.all()
            and self._first_difference(evaluate(every, self.batch), self.results(every), every) is None
        ):
            return mixing
        return cause(self.reference, point.params, point.buffers, self.batch)


def _is_finite(gradient: Mapping[str, np.ndarray]) -> bool:
    return all(np.isfinite(g).all() for g in gradient.values())


def _to_float64(a: np.ndarray) -> np.ndarray:
    # in a type of NumPy's own
    return a.astype(np.float64) if not np.issubdtype(a.dtype, np.integer) else a


def _with_extremes(some: np.ndarray, every: Any) -> np.ndarray:
    # two more rows: the largest and the smallest integers that any row has at each place
    every = np.asarray(every)
    if not np.issubdtype(every.dtype, np.integer):
        return _repeat_rows(some)
    return np.concatenate([some, [every.max(0), every.min(0)]])


def _repeat_rows(some: np.ndarray) -> np.ndarray:
    return np.concatenate([some, some[:2]])


def _perturbed(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    found = {}
    for name, a in params.items():
        size = max(float(np.sqrt(np.mean(np.square(a)))), max(a.shape, default=1) ** -0.5) if a.size else 0
        found[name] = (a + _STEP * size * draw.standard_normal(a.shape, np.float32)).astype(a.dtype)
    return found


def _of_text(a: np.ndarray) -> int:
    # integers of an example; those of pictures have a byte
    return a[0].size if a.dtype.kind in "iu" and a.dtype.itemsize > 1 else 0


def _size(a: Any) -> float:
    a = np.asarray(a)
    return max(abs(float(a.max())), abs(float(a.min()))) if a.size else 0.0


def _relative(ours: Any, theirs: Any, small: float) -> float:
    # the largest difference of entries, over the largest entry or `small`; infinite where one is no number
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return np.inf
    with np.errstate(invalid="ignore"):  # of infinite entries
        apart = _size(np.subtract(ours, theirs, dtype=np.float64))
    if not np.isfinite(apart):
        finite = np.isfinite(theirs)
        if finite.all() or not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
            return np.inf
        return _relative(ours[finite], theirs[finite], small)
    return apart and apart / max(_size(theirs), small, 1e-300)


# A task's loss and metrics of a PyTorch module on a few rows, as training and evaluation compute them.

Functions = Mapping[str, Callable[..., Any]]


def of_translated(
    functions: Functions, buffers: Mapping[str, Any], frozen: Mapping[str, np.ndarray], like: Agreement
) -> Evaluate:
    # of functions that compile, in the type of what they are compared with: one program for all points. Frozen
    # parameters are arguments of it: as constants they were in memory several times while it was compiled
    from fedsolve.pytorch.reference import EvaluationValue, TrainingValues, fixed_draws
    from fedsolve.pytorch.translation.blocks import compiling_one_block

    programs: dict[int, Any] = {}  # by the number of rows
    dtype = like.type
    whole = isinstance(getattr(functions["loss"], "function", functions["loss"]), OfBatch)

    def evaluate(point: Point, batch: Examples) -> Results:
        if whole:  # padding is in no batch
            batch = jax.tree.map(lambda a: a[point.counts], batch)
            point = point._replace(counts=point.counts[point.counts])
        moving = {name: value for name, value in point.buffers.items() if name in buffers}
        values = dict(point.params), moving, tuple(batch), point.counts.astype(float)
        with (
            jax.enable_x64(np.dtype(dtype) == np.float64),
            jax.default_matmul_precision("highest"),
            fixed_draws(),
        ):
            # the program itself widens the weights of a large module, and rounds gradients as PyTorch's are held;
            # arrays are read where they are, without a copy
            params, *others = values
            own = params if like.is_large else _floats(params, dtype)
            given = jax.device_put((own, dict(frozen), *_floats(others, dtype)))
            rows = len(point.counts)
            if rows not in programs:
                one_block = compiling_one_block(like.held) if like.is_large else nullcontext()
                with one_block:
                    lowered = jax.jit(_all_of(functions, dtype, like.is_large)).lower(*given)
                is_long = lowered.as_text().count("\n") > _LONG_PROGRAM
                programs[rows] = lowered.compile(compiler_options=quickest(is_long))
                if like.is_large:
                    return_memory()
            (loss, after), slope, each = jax.device_get(programs[rows](*given))
            evaluation = {
                name: EvaluationValue(_pooled(functions[name], point.counts, *pair))
                for name, pair in each.items()
            }
        return Results(TrainingValues(float(loss), slope, {**point.buffers, **after}), evaluation)

    return evaluate


def _all_of(functions: Functions, dtype: Any, is_large: bool) -> Callable[..., Any]:
    def run(params: Any, frozen: Any, buffers: Any, batch: Any, weights: Any) -> Any:
        rows, params = Examples(*batch), jax.tree.map(lambda a: a.astype(dtype), params)
        frozen = {name: given_again(x, dtype) for name, x in frozen.items()}

        def loss(params: Any) -> Any:
            return _training(functions["loss"], with_frozen(params, frozen), buffers, rows, weights)

        value, slope = jax.value_and_grad(loss, has_aux=True)(params)
        model = with_frozen(params, frozen)
        each = {name: _each(f, model, buffers, rows) for name, f in functions.items()}
        return value, jax.tree.map(lambda g: g.astype(jnp.float32), slope) if is_large else slope, each

    return run


def _training(function: Any, params: Any, buffers: Any, batch: Examples, weights: Any) -> Any:
    # the mean over the rows that count, and the new buffers
    key, names = jax.random.key(0), asked(function)
    if "weights" not in names:
        function = getattr(function, "each", function)
    value, after = call(function, params, batch, key=key, weights=weights, buffers=buffers)
    if value.ndim:
        value = jnp.sum(jnp.where(weights > 0, value, 0)) / jnp.sum(weights)
    return value, after if "buffers" in names else {}


def _each(function: Any, params: Any, buffers: Any, batch: Examples) -> Any:
    # each row's value, or what it adds, in evaluation mode, and how many parts it is the mean of
    value, _ = call(getattr(function, "each", function), params, batch, buffers=buffers)
    return value, function.counts(batch) if hasattr(function, "counts") else jnp.ones(len(value))


def _pooled(function: Any, counts: np.ndarray, each: Any, parts: Any) -> float:
    # the loss of the rows that count
    each, own = np.asarray(each)[counts], np.asarray(parts)[counts]
    if hasattr(function, "of_sums"):
        return float(jax.jit(function.of_sums)(each.sum(0)))
    return float(np.sum(np.where(own > 0, each, 0) * own) / np.sum(own))


def _floats(tree: Any, dtype: Any) -> Any:
    def leaf(a: Any) -> np.ndarray:
        a = np.asarray(a)
        return a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(leaf, tree)


def of_called(functions: Functions, dtype: Any) -> Evaluate:
    # of functions that PyTorch computes for the program: training without the program
    from fedsolve.pytorch.reference import EvaluationValue, TrainingValues, fixed_draws

    loss: HostLoss = getattr(functions["loss"], "loss", functions["loss"])  # pyright: ignore
    words = np.zeros(2, np.uint32)

    def evaluate(point: Point, batch: Examples) -> Results:
        params, buffers, rows, counts = _floats(
            (dict(point.params), dict(point.buffers), tuple(batch), point.counts), dtype
        )
        with fixed_draws(), jax.enable_x64(np.dtype(dtype) == np.float64):
            value, slope, after = loss.host(True, params, (rows, words, counts, buffers))
            each = {name: _each(f, params, buffers, Examples(*rows)) for name, f in functions.items()}
            evaluation = {
                name: EvaluationValue(_pooled(functions[name], counts, *pair)) for name, pair in each.items()
            }
        return Results(TrainingValues(float(value), slope, after), evaluation)

    return evaluate
