"""What a task may be made of: checked when it is made, since what fails later fails inside a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, shown
from fedsolve.core.metric_direction import check_direction
from fedsolve.core.trees import as_array
from fedsolve.data.columns import named_arrays
from fedsolve.data.examples import form_text
from fedsolve.data.federated import FederatedData, first_nonfinite_row
from fedsolve.geometry.diagnostics import Diagnostic
from fedsolve.tasks.leaves import with_frozen
from fedsolve.tasks.loss_arguments import call
from fedsolve.tasks.losses.weights import Whole
from fedsolve.tasks.sum_metrics import OnModel, SumMetric
from fedsolve.tasks.targets import first_wrong, refuse, targets_of

_AVERAGED = "_averaged"


def check_functions(**functions: object) -> None:
    for name, function in functions.items():
        if not callable(function):
            raise InvalidInput(f"{name} = {shown(function)} of the task must be a function")
    if hasattr(functions.get("loss"), "counts"):
        raise InvalidInput(
            f"loss = {shown(functions['loss'])} of the task pools the parts of all examples: give a loss that is a "
            "mean over examples, such as NextToken, and this one as a metric"
        )


def check_name(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidInput(f"name = {shown(name)} of the task must be text")


def check_sizes(batch_size: Any, **sizes: Any) -> None:
    # integers of at least 1 or None; `batch_size` may be "full"
    if not isinstance(batch_size, str) or batch_size != "full":
        sizes = {"batch_size": batch_size, **sizes}
    for name, size in sizes.items():
        if size is not None:
            check_integer(name, size, 1)


def check_data(data: object) -> None:
    if not isinstance(data, FederatedData):
        raise InvalidInput(
            f"data = {shown(data)} of the task must be FederatedData, such as FederatedData.from_clients([...])"
        )


def as_held_out(name: str, examples: Any, data: FederatedData) -> Any:
    if examples is None:
        return None
    arrays, _ = named_arrays(name, examples, data.columns, "the clients")
    lengths = {len(leaf) if leaf.ndim else 0 for leaf in jax.tree.leaves(arrays)}
    if len(lengths) != 1 or 0 in lengths:
        raise InvalidInput(
            f"the fields of the {name} set have lengths {sorted(lengths)}: give all one, above 0"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        row = first_nonfinite_row(leaf)
        if row is not None:
            where = jax.tree_util.keystr(path) or "an example"
            raise InvalidInput(f"{where} of the {name} set holds a non-finite number in row {row}")
    # copies: a user may write to theirs, which those of clients are packed from. A file's are read from it
    return jax.tree.map(lambda a: a if isinstance(a, np.memmap) else np.array(a), arrays)


def check_forms(
    loss: Any, init: Any, frozen: Any, buffers: Any, data: FederatedData, **held_out: Any
) -> None:
    # held-out examples may have other fields than the clients' only if the loss takes both
    for name, examples in held_out.items():
        if examples is None:
            continue
        if jax.tree.structure(examples) != jax.tree.structure(data.examples):
            raise InvalidInput(
                f"the {name} set is {form_text(examples)}, a client's examples are {form_text(data.examples)}: "
                "give both the same"
            )
        own, clients = ([a.shape[1:] for a in jax.tree.leaves(e)] for e in (examples, data.examples))
        takes = partial(_takes, loss, init, frozen, buffers)
        if own != clients and takes(data.examples) and not takes(examples):
            raise InvalidInput(
                f"the {name} set has rows of shapes {own}, the clients {clients}, and the loss does not take the "
                "former: give both the same"
            )


def _takes(loss: Any, init: Any, frozen: Any, buffers: Any, examples: Any) -> bool:
    # can the loss be traced with such examples? Weights are not given, a key where it asks for one
    batch = jax.tree.map(lambda a: np.broadcast_to(np.zeros((), a.dtype), (2, *a.shape[1:])), examples)
    try:
        jax.eval_shape(
            lambda b, f: call(loss, with_frozen(_start(init), f), b, buffers=buffers)[0], batch, frozen
        )
    except Exception:  # of any kind: it is only compared with that of the clients' examples
        return False
    return True


def check_owners(data: FederatedData, validation: Any, owners: Any) -> None:
    # each validation example has a client that trains, or none has
    if owners is None:
        return
    if validation is None:
        raise InvalidInput(
            "validation_clients of the task say whose validation examples are: give validation"
        )
    column = as_array("validation_clients", owners)
    examples = len(jax.tree.leaves(validation)[0])
    if column.shape != (examples,) or column.dtype.kind not in "iu":
        raise InvalidInput(
            f"validation_clients have shape {column.shape} and type {column.dtype} for {examples} validation "
            "examples: give the number of a client for each"
        )
    if column.min() < 0 or column.max() >= data.num_clients:
        bad = column.min() if column.min() < 0 else column.max()
        raise InvalidInput(f"validation_clients hold {bad}: clients are numbered 0 to {data.num_clients - 1}")


def as_unseen(data: FederatedData, unseen: object) -> FederatedData | None:
    # columns in the order, and numbers in the types, of the clients that train
    if unseen is None:
        return None
    if not isinstance(unseen, FederatedData):
        raise InvalidInput(
            f"unseen = {shown(unseen)} of the task must be FederatedData, such as FederatedData.from_clients([...])"
        )
    unseen = unseen.in_order(data.columns, "unseen")
    fields = [jax.tree.map(lambda a: (a.shape[1:], a.dtype), d.examples) for d in (data, unseen)]
    if fields[0] == fields[1]:
        return unseen
    leaves = [jax.tree.leaves(d.examples) for d in (data, unseen)]
    alike = jax.tree.structure(data.examples) == jax.tree.structure(unseen.examples) and all(
        a.shape[1:] == b.shape[1:] and np.can_cast(b.dtype, a.dtype, "safe")
        for a, b in zip(*leaves, strict=True)
    )
    if not alike:
        raise InvalidInput(
            f"the unseen clients have fields {shown(fields[1])}, those that train {shown(fields[0])}: give all the same"
        )
    examples = jax.tree.map(lambda a, b: b.astype(a.dtype), data.examples, unseen.examples)
    return FederatedData(examples, unseen.counts, unseen.names, unseen.columns)


def check_lengths(loss: Any, data: FederatedData, unseen: FederatedData | None, **held_out: Any) -> None:
    # the mean over the tokens of an empty sequence is of nothing
    empty = getattr(loss, "empty", None)
    if empty is None:
        return
    for part in _sets(data, unseen, held_out):
        for row in np.flatnonzero(empty(part.examples))[:1]:
            raise InvalidInput(f"{part.place(int(row))} {_EMPTY}")


def check_targets(
    loss: Any, init: Any, frozen: Any, data: FederatedData, unseen: FederatedData | None, **held_out: Any
) -> None:
    # a label that the loss does not take would train without a sign
    targets = targets_of(loss, lambda: with_frozen(_start(init), frozen), data.examples)
    if targets is None:
        return
    for part in _sets(data, unseen, held_out):
        y = part.examples[1]
        outside = first_wrong(targets, y, part.data and part.data.range_of(y))
        if outside is not None:
            raise refuse(targets, outside, part.place(outside.row), part.name)


def _start(init: Any) -> Any:
    # inside a trace; an `init` that cannot be traced runs outside
    try:
        return init(jax.random.key(0))
    except jax.errors.JAXTypeError:
        with jax.ensure_compile_time_eval():
            return init(jax.random.key(0))


@dataclass(frozen=True)
class _Set:
    """Examples that a task trains on or is evaluated on."""

    name: str  # what they are called
    examples: Any  # all of them
    data: FederatedData | None = None  # whose they are; None if nobody's
    kind: str = ""  # a word before a client's name

    def place(self, row: int) -> str:
        if self.data is None:
            return f"row {row} of {self.name}"
        return self.data.place(row, kind=self.kind)


def _sets(data: FederatedData, unseen: FederatedData | None, held_out: Mapping[str, Any]) -> Iterator[_Set]:
    yield _Set("the training examples", data.examples, data)
    if unseen is not None:
        yield _Set("the unseen clients", unseen.examples, unseen, "unseen ")
    for name, examples in held_out.items():
        if examples is not None:
            yield _Set(f"the {name} set", examples)


_EMPTY = "is a sequence of length 0: drop it, or give its y a token besides padding"


def check_diagnostics(diagnostics: object) -> None:
    if not isinstance(diagnostics, tuple | list) or not all(isinstance(d, Diagnostic) for d in diagnostics):
        raise InvalidInput(
            f"diagnostics = {shown(diagnostics)} of the task must be diagnostics of fedsolve.diagnostics"
        )


def check_metrics(metrics: Any, whole: Any) -> None:
    # functions, by names that no other number of a run has
    _check_named(metrics)
    _check_named({**metrics, **whole} if isinstance(whole, Mapping) else whole)
    for name in metrics.keys() & whole.keys():
        raise InvalidInput(f"{name} is in metrics and in whole: give each metric a name of its own")
    for name, metric in metrics.items():
        if isinstance(metric, Whole):
            raise InvalidInput(
                f"metric {name} is a Whole: give it as whole={{'{name}': ...}}, not in metrics"
            )


def _check_named(metrics: Any) -> None:
    if not isinstance(metrics, Mapping):
        raise InvalidInput(f"metrics = {shown(metrics)} must be functions by name, such as {{'accuracy': f}}")
    for name, function in metrics.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise InvalidInput(f"a metric is named {shown(name)}: a name must be text on one line")
        if name == "loss" or (
            name.endswith(_AVERAGED) and name.removesuffix(_AVERAGED) in {"loss", *metrics}
        ):
            raise InvalidInput(
                f"a metric is named '{name}', which is already a column of every run: rename it"
            )
        if not callable(function) and not isinstance(function, Whole | SumMetric):
            raise InvalidInput(f"metric {name} = {shown(function)} must be a function of (params, batch)")
        metric = function.metric if isinstance(function, OnModel) else function
        if isinstance(metric, SumMetric) and metric.more_is_better and "" in metric.columns:
            check_direction(name, repr(metric))
