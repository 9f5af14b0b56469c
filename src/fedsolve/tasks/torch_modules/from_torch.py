"""A task from a PyTorch module: translated to JAX, it trains like any other model of the compiled engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core import gc_paused
from fedsolve.core.errors import InvalidInput, of_type, require, shown, unknown
from fedsolve.core.trees import dtype_of
from fedsolve.core.xla.compiler import make_cores_devices, use_compile_cache
from fedsolve.core.xla.host_calls import CALLS
from fedsolve.data.columns import check_list
from fedsolve.data.federated import FederatedData
from fedsolve.tasks.leaf_types import assembled, check_some_frozen, given_again, narrowed
from fedsolve.tasks.leaves import Merged, WithFrozen
from fedsolve.tasks.losses.weights import Whole, check_no_buffers, coupled
from fedsolve.tasks.sum_metrics import SumMetric, on_model, refuse_weighted
from fedsolve.tasks.task import Examples, Task
from fedsolve.tasks.torch_modules.agreement import Agreement
from fedsolve.tasks.torch_modules.losses import (
    LossBehind,
    LossWithBuffers,
    MetricWithBuffers,
    ModuleOutputs,
    OfBatch,
    OfModule,
    SumsBehind,
    SumsOfModule,
    SumsWithBuffers,
    dataset_metric,
    likeliest,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fedsolve.pytorch.callback import Module
    from fedsolve.pytorch.loss_analysis import LossAnalysis
    from fedsolve.pytorch.translation.model import Model

# What a task is made of that trains a PyTorch module: its translation, or calls of it, with PyTorch's own numbers.

_OF_A_BATCH = "compute what is of a whole batch in the loss, from outputs for each example"
_MIXING = f"its outputs for an example depend on the others of the batch in evaluation: {_OF_A_BATCH}"


class Parts(NamedTuple):
    """What a task is made of; `outputs` are the module's, of its parameters and inputs.

    The functions refer to the dictionary `frozen`, so that they complete their parameters with what it holds.
    """

    params: dict[str, np.ndarray]
    frozen: dict[str, Any]
    buffers: dict[str, np.ndarray]
    functions: dict[str, Any]
    outputs: Any


def build_parts(
    module: nn.Module,
    functions: Mapping[str, LossAnalysis],
    data: tuple[FederatedData, Examples | None],
    x: Any,
    outputs: Any,
    y: Any,
    translate: bool | None,
    remat: str | None = None,
) -> tuple[Parts, tuple[str, ...]]:
    # translated, or called where the module cannot or shall not be, and the notes on that. data: the
    # clients', and those held out; x, outputs, y: a batch, as tensors; translate: None decides; remat: as `Program`
    # has it
    from fedsolve.pytorch.translation.arrays import memory_returned
    from fedsolve.pytorch.translation.blocks import POLICIES
    from fedsolve.pytorch.translation.model import Model
    from fedsolve.pytorch.translation.registry import NotTranslatable

    if remat is not None and remat not in POLICIES:
        raise unknown("remat", remat, POLICIES)
    examples = data[0].examples, data[1]
    theirs = _PyTorchNumbers(module, functions, examples[0])
    together = functions["loss"].couples_examples
    if together and translate is False:
        raise InvalidInput("translate = False runs a loss that couples examples by no batches: leave it out")
    if translate is False:
        why = "the module runs in PyTorch, one client after another: translate=False"
        _check_no_remat(remat, why)
        return _in_pytorch(module, functions, x, outputs, y, theirs), (why,)
    try:
        with memory_returned(module):
            return _translated(Model(module, x, remat, _largest(examples)), functions, outputs, y, theirs), ()
    except NotTranslatable as error:
        why = f"{type(module).__name__} cannot be translated: {error}"
        if translate or together:
            remedy = "" if together else "; leave translate=True out to run it in PyTorch"
            raise InvalidInput(why + remedy) from error
        _check_no_remat(remat, why)
        return _in_pytorch(module, functions, x, outputs, y, theirs), (
            f"{why}; it runs in PyTorch, one client after another",
        )


def _check_no_remat(remat: str | None, why: str) -> None:
    if remat is not None:
        raise InvalidInput(
            f"remat = {remat!r}, but {why}: leave remat out, or use torch.utils.checkpoint in its forward"
        )


class _PyTorchNumbers:
    """PyTorch's own numbers, to compare a task's functions with."""

    def __init__(self, module: nn.Module, functions: Mapping[str, LossAnalysis], examples: Examples) -> None:
        by_batch = {name: f.function for name, f in functions.items() if not f.not_a_mean_because}
        self._given = module, by_batch, examples

    @cached_property
    def wide(self) -> Agreement:
        # in float64, or in the module's own type where it takes no other, or computes otherwise in it
        # (autocast)
        import torch

        try:
            wide = Agreement(*self._given, torch.float64)
        except InvalidInput:
            return self.own
        return self.own if wide.reference.autocast else wide

    @cached_property
    def own(self) -> Agreement:
        return Agreement(*self._given, _dtype(self._given[0]))

    @cached_property
    def narrow(self) -> Agreement | None:
        # as a run in float32 has numbers, at the extremes of integers too; None if the module takes no
        # float32
        import torch

        for extremes in (True, False):
            try:
                return Agreement(*self._given, torch.float32, extremes)
            except InvalidInput:  # of such integers, which no example may have together, or of the type
                continue
        return None


def _largest(examples: Iterable[Examples | None]) -> float:
    # of the size of integers among inputs, and as many times more as a module is called with later
    inputs = [np.asarray(a) for some in examples if some is not None for a in jax.tree.leaves(some.x)]
    sizes = [max(abs(int(a.min())), abs(int(a.max()))) for a in inputs if a.dtype.kind in "iu" and a.size]
    return _LATER * max(sizes, default=1)


def _translated(
    model: Model, functions: Mapping[str, LossAnalysis], outputs: Any, y: Any, theirs: _PyTorchNumbers
) -> Parts:
    from fedsolve.pytorch.translation.registry import NotTranslatable
    from fedsolve.tasks.torch_modules.agreement import of_translated

    made: dict[str, Any] = {}
    merged = partial(Merged, merge=Complete(model.frozen)) if model.frozen else _identity
    for name, f in functions.items():
        if f.not_a_mean_because:
            made[name] = dataset_metric(model, f.function, outputs, y, merged)
        elif f.rows is None:
            raise NotTranslatable(f.not_translated_because)
        elif f.couples_examples:
            check_no_buffers(bool(model.buffers))
            made[name] = merged(OfBatch(model, f.rows))
        elif f.sums is not None:
            made[name] = merged((SumsWithBuffers if model.buffers else SumsOfModule)(model, f.sums))
        else:
            kind = OfModule if not model.buffers else LossWithBuffers if name == "loss" else MetricWithBuffers
            made[name] = merged(kind(model, f.rows))
    by_batch = _by_batch(made)
    evaluate = of_translated(by_batch, model.buffers, model.frozen, theirs.wide)
    difference = theirs.wide.difference(evaluate, _unknown(outputs))
    if difference := difference or theirs.wide.left_out():  # what acts on other values than the sample's, too
        raise NotTranslatable(difference)
    if model.wide or any(f.rows is not None and f.rows.program.wide for f in functions.values()):
        _check_narrow(by_batch, model, theirs)
    return Parts(model.params, model.frozen, model.buffers, made, merged(ModuleOutputs(model)))


def _check_narrow(made: Mapping[str, Any], model: Model, theirs: _PyTorchNumbers) -> None:
    # are 32 bits enough for what the module computes in 64?
    from fedsolve.pytorch.translation.registry import NotTranslatable
    from fedsolve.tasks.torch_modules.agreement import of_translated

    if theirs.narrow is None:
        return
    try:
        evaluate = of_translated(made, model.buffers, model.frozen, theirs.narrow)
        difference = theirs.narrow.difference(evaluate, "it needs the 64 bits of its own types")
    except OverflowError as error:  # of a literal
        difference = str(error)
    if difference:
        raise NotTranslatable(f"in 32 bits, as runs in float32 compute, {difference}")


def _in_pytorch(
    module: nn.Module,
    functions: Mapping[str, LossAnalysis],
    x: Any,
    outputs: Any,
    y: Any,
    theirs: _PyTorchNumbers,
) -> Parts:
    # the first way that has PyTorch's numbers: a copy of the module, or itself where a copy does something
    # else; evaluated by sums that JAX takes, or by PyTorch's values of examples, where the loss refers to
    # what trains; in batches, or each example by itself, as one that draws then
    from fedsolve.pytorch.callback import Module, Outputs
    from fedsolve.pytorch.translation.export import draws_in_evaluation, silence
    from fedsolve.tasks.torch_modules.agreement import of_called

    difference = None
    draws = draws_in_evaluation(module, [f.function for f in functions.values()], x, y)
    ways = (True,) if draws else (False, True)
    for alone, by_sums, copied in itertools.product(ways, (True, False), (True, False)):
        own = Module(module, copied, alone)
        made = _called(own, functions, outputs, y, by_sums)
        try:
            with CALLS.failing_plainly(), silence():  # warnings of ways that are not taken
                found = theirs.own.difference(
                    of_called(_by_batch(made), theirs.own.type), _unknown(outputs), _MIXING
                )
        except Exception as error:  # what the user's code raises of one example alone
            if not alone:
                raise
            why = "it is called with one example at a time" + ", since it draws in evaluation" * draws
            difference = difference or f"{why}: {error}"
            continue
        if found is None:
            return Parts(
                own.params, {}, own.buffers, made, ModuleOutputs(Outputs.of(own, outputs, rows_of(y)))
            )
        difference = difference or found
    raise InvalidInput(f"{type(module).__name__} cannot be trained: run by its own code too, {difference}")


def _called(
    own: Module, functions: Mapping[str, LossAnalysis], outputs: Any, y: Any, by_sums: bool
) -> dict[str, Any]:
    from fedsolve.pytorch.callback import HostLoss, HostValues, Outputs

    made: dict[str, Any] = {}
    rows = rows_of(y)
    for name, f in functions.items():
        kind = HostLoss if name == "loss" else HostValues
        made[name] = kind(own, f.function, bool(own.buffers))
        if f.not_a_mean_because:
            made[name] = dataset_metric(Outputs.of(own, outputs, rows), f.function, outputs, y, _identity)
        elif f.sums is not None and by_sums:
            values = SumsBehind(Outputs.of(own, outputs, rows), f.sums)
            made[name] = LossBehind(values, made[name]) if name == "loss" else values
    return made


def _unknown(outputs: Any) -> str:
    from torch.utils import _pytree as pytree

    if all(t.ndim for t in pytree.tree_leaves(outputs) if hasattr(t, "ndim")):
        return "the cause is not known"
    return f"an output has no row for each example: {_OF_A_BATCH}"


def rows_of(targets: Any) -> int:
    return len(next(t for t in jax.tree.leaves(targets) if t.ndim))


def _by_batch(functions: Mapping[str, Any]) -> dict[str, Any]:
    return {name: f for name, f in functions.items() if not isinstance(f, Whole)}


class Complete:
    """Trained parameters -> with those that do not train, which are given beside them or are as at first."""

    def __init__(self, frozen: Mapping[str, Any], types: Mapping[str, Any] | None = None) -> None:
        self.frozen = frozen  # as they are stored
        self._types = types or {}  # of those that are given again in another type than the trained ones'

    def __call__(self, params: Any) -> dict[str, Any]:
        if isinstance(params, WithFrozen):
            return {**params.frozen, **params.trained}
        dtype = dtype_of(params)  # float64 where the model is compared with PyTorch's
        frozen = {name: given_again(x, self._types.get(name, dtype)) for name, x in self.frozen.items()}
        return {**frozen, **params}


def _identity(given: Any) -> Any:
    return given


_WHOLE = "{} is no mean over examples ({}): it is computed on whole sets, and clients have none of their own"
_STORED = "frozen parameters are rounded to {}, in the run and in the module that it gives"
_DRAWN = (
    "the dataset of {} gives other values when an item is read again: each item is read once, and stays so in all "
    "epochs; augment in the module's forward, where self.training"
)
_ROUNDED = (
    "the module gives something else for its inputs rounded to {}, as a run in that type has them: subtract from "
    "them a constant that all clients share, or run in float64"
)
# rows of the batch that a module is traced with, and a large one: numbers that hardly any other axis has
_ROWS, _FEW_ROWS = 31, 7
_READ_AGAIN, _MOST_TRIED = 16, 64  # items of a dataset; rows of a batch: what fails, fails of few
_LATER = 16  # times the largest integer of the data


def from_torch(
    module: nn.Module,
    loss: Callable[[Any, Any], torch.Tensor],
    clients: FederatedData | Sequence[Any],
    *,
    test: Any = None,
    metrics: Mapping[str, Callable[[Any, Any], torch.Tensor] | SumMetric] | None = None,
    batch_size: int | None = 32,
    epochs: int | None = 1,
    local_steps: int | None = None,
    translate: bool | None = None,
    frozen_dtype: Literal["bfloat16", "float16", "int8"] | None = None,
    remat: str | None = None,
    microbatches: int = 1,
    couples_examples: bool = False,
    name: str | None = None,
) -> Task:
    """Make a task from your own PyTorch module, loss and per-client data.

    The module is exported (`torch.export`) in training and in evaluation mode, and every operation of it becomes its
    JAX equivalent: it then trains vmapped over clients, on any device, with any method. Training starts from the
    module's weights. Parameters that need no gradient stay as they are; running statistics are averaged plainly.
    A module that cannot be translated runs in PyTorch instead: the compiled program calls it, one client after another,
    which takes 2 to 3 times as long for ordinary small networks; the run's notes say that it does, and why.

    Args:
        module: called with the inputs of a batch; its parameters of one floating-point type, or of 16 bits beside it:
            frozen ones are then stored so, and of those that train the run has float32 copies. It is not changed.
        loss: (outputs, targets) -> scalar, a mean over the batch, such as `nn.CrossEntropyLoss()`, or one sum over it
            divided by another (class weights, `ignore_index`, a mask); or one value for each example.
        clients: for each client a pair (inputs, targets) of arrays or tensors of shape (examples, ...), or a
            `torch.utils.data.Dataset` of such pairs, read once (random transforms are not drawn again); or
            `FederatedData` of `Examples`. Inputs may be a tuple, list or dictionary of arrays, given to the module as
            one argument.
        test: held-out examples, in the form of a client's.
        metrics: further ones, name -> (outputs, targets) -> tensor as for `loss`, or one of `fs.metrics`; what is no
            mean over examples is computed on whole sets. None for the accuracy where targets are classes, one for each
            row of outputs (n, classes, ...).
        batch_size: examples of a local step; None is the full batch; at least 1.
        epochs: local epochs of a round, at least 1.
        local_steps: local steps of a round instead of epochs, at least 1.
        translate: False runs the module in PyTorch; True raises where it cannot be translated; None decides.
        frozen_dtype: type in which parameters that need no gradient are stored, rounded to it; they are computed with
            in the run's type. "int8" is for those of two axes or more, with a scale for each index of the first axis:
            each entry is at most scale / 2 away. None for their own type.
        remat: which values of a translated module's blocks the gradient computes again, so that training takes less
            memory and more time. `"blocks"`: all but the inputs of each block; `"products"`: all but these and products
            with weights; None: none. Blocks are children of one class of an `nn.ModuleList` or `nn.Sequential`, such
            as a decoder's layers. Results are the same up to rounding.
        microbatches: parts in which a local step works through its examples, at least 1 (`Task.microbatches`).
        couples_examples: whether the loss of an example depends on the others of its batch, as a contrastive or a Cox
            loss. Every client then has a multiple of `batch_size` examples; evaluations, too, are of consecutive
            batches of that size.
        name: what tables call the task; None for the module's class.

    Returns:
        A task whose model is the dict of the module's parameters by name. `Result.module()` of a run on it is a
        trained copy of the module, in its types (with `frozen_dtype` frozen parameters are rounded to that first), and
        `Result.predict(x)` gives what that computes in evaluation mode: classes where targets are classes, else its
        outputs. `notes` say where it runs in PyTorch.

    Raises:
        InvalidInput: a module that cannot be translated (which line or operation), a loss that is no mean over
            examples, a loss or metric that fails (on which shapes and types), PyTorch missing, or data of another form.
    """
    require("torch", "from_torch needs", "torch", "PyTorch")
    import torch

    from fedsolve.pytorch.batch_losses import are_classes
    from fedsolve.pytorch.loss_analysis import analyse
    from fedsolve.pytorch.preserved_state import preserve_state
    from fedsolve.pytorch.translation import arrays
    from fedsolve.pytorch.translation.export import loses_by_rounding, outputs_of

    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"module = {shown(module)} must be a torch.nn.Module, an instance, not a class")
    arrays.refuse_sparse(module)
    given, module = module, arrays.without_halves(module)
    make_cores_devices()  # before the translation begins JAX
    use_compile_cache()
    drawn: list[str] = []
    data = clients if isinstance(clients, FederatedData) else _federated(clients, drawn)
    held_out = None if test is None else _examples("test", test, drawn)
    arrays.check_weights(module)  # some cannot be copied
    copied, changed = arrays.copy_module(given), (module, loss, *(metrics or {}).values())
    with preserve_state(changed, copied=copied if module is given else None), gc_paused():
        rows = _FEW_ROWS if (is_large := arrays.is_large(module)) else _ROWS
        x, y = _sample(data.examples, _dtype(module), rows)
        outputs = outputs_of(module, x, is_large)
        rounded = loses_by_rounding(module, _sample(data.examples, None, rows)[0], _dtype(module))
        classes = are_classes(outputs, y)
        metrics = metrics if metrics is not None else {"accuracy": _accuracy} if classes else {}
        from_sums = {what: metric for what, metric in metrics.items() if isinstance(metric, SumMetric)}
        refuse_weighted(from_sums)
        analysed = partial(analyse, outputs=outputs, targets=y, dtype=_dtype(module))
        functions = {"loss": analysed("the loss", loss, only_means=True, couples_examples=couples_examples)}
        others = {what: metric for what, metric in metrics.items() if what not in from_sums}
        functions |= {what: analysed(f"metric {what}", f, only_means=False) for what, f in others.items()}
        _check_sizes(module, loss, x, y, data, batch_size)
        parts, notes = build_parts(module, functions, (data, held_out), x, outputs, y, translate, remat)
    assemble = _store(parts, given, copied if module is given else module, frozen_dtype, notes)
    notes += (_STORED.format(frozen_dtype),) if frozen_dtype else ()
    why = {name: f.not_a_mean_because for name, f in functions.items() if f.not_a_mean_because}
    notes += tuple(_WHOLE.format(*pair) for pair in why.items())
    notes += (_ROUNDED.format(str(_dtype(module))[6:]),) * rounded + tuple(map(_DRAWN.format, drawn[:1]))
    return Task(
        name=name or type(module).__name__,
        init=_Start(parts.params),
        loss=coupled(couples_examples, parts.functions.pop("loss"), batch_size, data.counts),
        data=data,
        test=held_out,
        metrics={name: f for name, f in parts.functions.items() if not isinstance(f, Whole)}
        | on_model(from_sums, parts.outputs, ""),
        whole={name: f for name, f in parts.functions.items() if isinstance(f, Whole)},
        batch_size=batch_size,
        epochs=None if local_steps is not None else epochs,
        local_steps=local_steps,
        microbatches=microbatches,
        frozen=parts.frozen or (),
        buffers=parts.buffers or None,
        assemble=assemble,
        module=partial(_trained_copy, copied, assemble, frozenset(parts.frozen)),
        labels=likeliest if classes else None,
        notes=notes,
    )


def _check_sizes(module: Any, loss: Any, x: Any, y: Any, data: FederatedData, batch_size: Any) -> None:
    # of each batch that some client has: BatchNorm and the like cannot be trained on one example
    from fedsolve.pytorch.loss_analysis import check_size
    from fedsolve.pytorch.translation.arrays import copy_module, is_large, mode_setter

    sized = isinstance(batch_size, int) and batch_size > 0  # else all are one batch, or it is refused below
    full, rest = (
        (np.minimum(data.counts, batch_size), data.counts % batch_size) if sized else (data.counts,) * 2
    )
    sizes, first = np.unique(np.append(full, rest), return_index=True)
    known = [(int(size), int(i)) for size, i in zip(sizes, first, strict=True) if 0 < size <= _MOST_TRIED]
    mode_setter(own := copy_module(module))(True)
    for size, i in known[: 1 if is_large(module) else None]:
        where = f"a batch of {data.names[i % len(data.counts)]}"
        check_size(own, loss, x, y, size, where, "take another batch_size, or leave rows out")


def _store(
    parts: Parts, module: nn.Module, copied: nn.Module, to: str | None, notes: tuple[str, ...]
) -> Callable[[Any], Any]:
    # puts frozen parameters into the types that they are stored in, all in a copy's memory in place of the module's;
    # the task's `assemble`. notes: on the translation
    from fedsolve.pytorch.translation.arrays import as_array, is_half

    copies = dict(copied.named_parameters())
    for held in (parts.params, parts.frozen):
        held.update((name, as_array(copies[name])) for name in list(held))

    if to is not None and notes:
        raise InvalidInput(f"frozen_dtype = {shown(to)}: {notes[0]}; leave it out")
    check_some_frozen(to, parts.frozen, "set requires_grad = False of some parameters, or leave it out")
    own = {name: jnp.dtype(str(x.dtype)[6:]) for name, x in module.named_parameters() if is_half(x)}
    stored = {name: x.astype(own.get(name, x.dtype)) for name, x in parts.frozen.items()}
    parts.frozen.update(narrowed(stored, to))
    complete = Complete(parts.frozen, own) if parts.frozen else _identity
    return assembled(complete, [own.get(name, x.dtype) for name, x in sorted(parts.params.items())])


def _trained_copy(
    module: nn.Module,
    assemble: Callable[[Any], Any],
    frozen: frozenset[str],
    params: Mapping[str, Any],
    buffers: Mapping[str, Any] | None = None,
) -> nn.Module:
    # frozen parameters are as they are given or, as a deployed server has none, as they were trained with
    from fedsolve.pytorch.translation.arrays import trained_copy

    return trained_copy(module, params if frozen <= params.keys() else assemble(params), buffers)


class _Start:
    """Initial parameters, whatever the key."""

    def __init__(self, params: Mapping[str, np.ndarray]) -> None:
        self.params = dict(params)

    def __call__(self, key: Any) -> dict[str, Any]:
        # in the memory that they are in, which nobody writes to; others are converted and checked
        return {name: jax.device_put(a) if a.dtype == np.float32 else a for name, a in self.params.items()}


def _dtype(module: nn.Module) -> torch.dtype:
    from fedsolve.pytorch.translation.arrays import trainable

    return next(iter(trainable(module).values())).dtype


def _federated(clients: Any, drawn: list[str]) -> FederatedData:
    check_list("clients", clients, "(inputs, targets) for each client")
    return FederatedData.from_clients([_examples(f"client {i}", c, drawn) for i, c in enumerate(clients)])


def _examples(who: str, data: Any, drawn: list[str]) -> Examples:
    # `who` joins `drawn` if items differ when read again
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    from fedsolve.pytorch.callback import collate
    from fedsolve.pytorch.preserved_state import preserve_state, same_values

    if isinstance(data, DataLoader):
        raise InvalidInput(
            f"{who} is a DataLoader: give its dataset; batch_size= sets the size of minibatches"
        )
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        with preserve_state((), (data,)):
            items, first = [], []
            for i in range(len(data)):  # pyright: ignore[reportArgumentType]
                items.append(data[i])
                first = first or [np.asarray(leaf).copy() for leaf in jax.tree.leaves(items[0])]
            if items and not same_values(first, jax.tree.leaves(items[0])):
                raise InvalidInput(
                    f"the dataset of {who} writes to the items that it gave before: give a copy of each"
                )
            again = range(0, len(items), max(1, len(items) // _READ_AGAIN))
            if not all(same_values(items[i], data[i]) for i in again):
                drawn.append(who)
            data = collate(who, items)
    if not isinstance(data, tuple | list) or len(data) != 2:
        what = f"{of_type(data)}{f' of {len(data)}' if isinstance(data, tuple | list) else ''}"
        raise InvalidInput(f"{who} is {what}: give a pair (inputs, targets), or a data set of pairs")
    # tables keep the names of their columns: FederatedData makes arrays of them
    convert = lambda a: a.detach().cpu().numpy() if isinstance(a, Tensor) else a  # noqa: E731
    return Examples(*(jax.tree.map(convert, part) for part in data))


def _sample(examples: Any, dtype: torch.dtype | None, rows: int) -> tuple[Any, Any]:
    # floating numbers in a type; None for their own
    from fedsolve.pytorch.translation.arrays import to_tensor

    if not isinstance(examples, Examples):
        raise InvalidInput(
            f"the clients' examples are {shown(type(examples))}: give Examples(inputs, targets)"
        )

    def tensor(a: np.ndarray) -> torch.Tensor:
        spread = np.linspace(0, len(a) - 1, rows).astype(int)
        return to_tensor(a[spread], dtype)

    return jax.tree.map(tensor, examples.x), jax.tree.map(tensor, examples.y)


def _accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == targets).float().mean()
