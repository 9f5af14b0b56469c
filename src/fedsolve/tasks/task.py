"""A task: the model, the loss, the federated data and how the result is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.building import Made, made
from fedsolve.core.errors import InvalidInput, is_one_of, unknown
from fedsolve.core.types import Batch, Params, Scalar
from fedsolve.core.xla.compiler import make_cores_devices
from fedsolve.data.examples import Examples as Examples
from fedsolve.data.federated import FederatedData
from fedsolve.methods.wrappers.buffers import keeps_buffers
from fedsolve.tasks.inference import Inference, input_columns, input_rows, predicted_by
from fedsolve.tasks.leaf_types import unrounded
from fedsolve.tasks.leaves import refuse_state, split_leaves
from fedsolve.tasks.losses.weights import Whole, coupled
from fedsolve.tasks.sum_metrics import SumMetric, on_model, outputs_of
from fedsolve.tasks.task_checks import (
    as_held_out,
    as_unseen,
    check_data,
    check_diagnostics,
    check_forms,
    check_functions,
    check_lengths,
    check_metrics,
    check_name,
    check_owners,
    check_sizes,
    check_targets,
)

_MERGED = (
    ": float32 cannot tell this number from another one in its column: subtract a constant that all clients share, "
    "or run in float64"
)
_PREDICT = "Task.from_arrays(predict=f), f(params, x) the outputs for inputs x"


@dataclass(frozen=True, repr=False)
class Task:
    """A federated problem: minimise the mean of `loss` over the clients' examples.

    A loss that mixes examples, or that draws at random with a key of its own, is refused when a run is made ready.

    Attributes:
        name: what tables and folders call it.
        init: random key -> parameters, any pytree of floating-point arrays.
        loss: (params, batch) -> scalar, a mean over the first axis of the batch, or each example's own loss, shape
            (n,). It asks by name for what else it needs: `key` (to draw with; None in evaluation), `weights` (which
            examples count), see docs/networks.md. Where clients are uneven a loss that gives its mean alone, without
            `weights`, is applied to single examples and averaged, which takes several times as long.
        data: the clients' examples.
        test: held-out examples, or None.
        validation: examples by which a run is stopped, a model kept or a setting chosen, or None; evaluations then have
            `validation_NAME`. `hold_out` makes some of the clients' own.
        validation_clients: the client of each of them, by number, shape (examples,); None if none of them trains.
        unseen: held-out clients, used for evaluation only, with fields as those of `data`; None if there are
            none. Evaluations then have `unseen_NAME`, the mean over all their examples, and of their own means
            `unseen_NAME_mean`, `_p10`, `_p90` and `_worst`.
        metrics: further means over a batch, name -> (params, batch) -> scalar (such as accuracy). One that is found
            to be no mean over examples is computed on whole sets instead, in one piece. One of `fs.metrics`, such as
            `AUC()`, is of the model's outputs, and is put on the model of the loss, or on `outputs`.
        frozen: the leaves of the model that do not train, a pytree of arrays; loss and metrics are then called with
            `WithFrozen(trained, frozen)` (`fedsolve.tasks.leaves`). They reach the devices once, no message and no
            checkpoint holds them. `()` if all train.
        buffers: what the model keeps beside its parameters (BatchNorm's statistics), as they are at first: a pytree of
            floating-point arrays and integers. The loss then asks for `buffers` and returns (value, new buffers);
            clients start a round from the server's, whose next ones are the plain mean of theirs, integers rounded.
            None if it keeps nothing.
        whole: metrics of whole sets, computed on the host: name -> `Whole` (scikit-learn's F1 or AUC of gathered
            predictions), or a function of the parameters and a whole set as NumPy arrays, called as it is. They
            are logged as `train_NAME` and `test_NAME`; clients have none of their own.
        batch_size: examples of a local step unless the run says otherwise; None is the full batch; at least 1.
        epochs: local epochs of a round unless the run says otherwise; at least 1.
        local_steps: local steps of a round instead of epochs; at least 1.
        microbatches: parts in which a local step works through its examples unless the run says otherwise; at least 1.
        citation: key of the paper it comes from (see `fedsolve cite`), '' if none.
        eval_examples: training metrics look at whole clients, drawn at random, of at least so many examples
            together; None looks at all.
        assemble: trained parameters -> the model as the user gave it.
        module: (assembled parameters, buffers) -> what `Result.module` returns, such as a PyTorch module; None if the
            model is its parameters.
        outputs: (assembled parameters, inputs) -> the model's outputs in evaluation mode, a row for each input, for
            `predict`; it may ask for `buffers`. None: those of the loss's model, where it is a loss of
            `fedsolve.tasks` and no leaf is frozen.
        labels: outputs -> what `predict` returns; None: what the loss predicts, or the outputs.
        notes: what a run's record says of the task, lines.
        diagnostics: diagnostics of the model and the full objective that evaluations add (`fedsolve.diagnostics`); one
            such as `Objective(L1(0.1))` is then measured of every method, and not what its own penalty would give.
        truth: the parameters that made the data, of the shapes of `init`, where they are known: measures of
            recovery compare with them. None if unknown.
        made_by: how a configuration names it; None if it does not, as of any task that `dataclasses.replace` made.

    Raises:
        InvalidInput: a part of another type than above, a label that the loss has no class for, a metric in both
            `metrics` and `whole`, or validation clients that are not one for each example.
    """

    name: str
    init: Callable[[jax.Array], Params]
    loss: Callable[[Params, Batch], Scalar]
    data: FederatedData
    test: Batch | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = 32
    epochs: int | None = 1
    local_steps: int | None = None
    citation: str = ""
    eval_examples: int | None = None
    assemble: Callable[[Params], Params] = lambda params: params
    module: Callable[[Params, Any], Any] | None = None
    notes: tuple[str, ...] = ()
    diagnostics: tuple[Any, ...] = ()
    truth: Params | None = None
    whole: Mapping[str, Callable[[Params, Batch], Any] | Whole] = field(default_factory=dict)
    unseen: FederatedData | None = None
    frozen: Params = ()
    buffers: Any = None
    validation: Batch | None = None
    validation_clients: np.ndarray | None = None
    outputs: Callable[..., Any] | None = None
    labels: Callable[[Any], Any] | None = None
    microbatches: int = 1
    made_by: Made | None = field(default=None, init=False, compare=False)

    def __repr__(self) -> str:
        return (
            f"Task({self.name}: {self.data.num_clients:,} clients, {int(self.data.counts.sum()):,} examples)"
        )

    def __post_init__(self) -> None:
        make_cores_devices()  # before the loss's model, which may ask for its backend, begins JAX
        model = getattr(self.loss, "model", None) if self.buffers is None else None
        model = model or outputs_of(self.outputs, unrounded(self.assemble))
        object.__setattr__(self, "metrics", on_model(self.metrics, model, _PREDICT))
        check_data(self.data)
        held_out = {
            name: as_held_out(name, getattr(self, name), self.data) for name in ("test", "validation")
        }
        for name, examples in held_out.items():
            object.__setattr__(self, name, examples)
        object.__setattr__(self, "unseen", as_unseen(self.data, self.unseen))
        check_owners(self.data, self.validation, self.validation_clients)
        check_lengths(self.loss, self.data, self.unseen, **held_out)
        check_functions(init=self.init, loss=self.loss, assemble=self.assemble)
        check_forms(self.loss, self.init, self.frozen, self.buffers, self.data, **held_out)
        optional = {"outputs": self.outputs, "labels": self.labels}
        check_functions(**{name: function for name, function in optional.items() if function is not None})
        check_targets(self.loss, self.init, self.frozen, self.data, self.unseen, **held_out)
        check_name(self.name)
        check_sizes(
            self.batch_size,
            epochs=self.epochs,
            local_steps=self.local_steps,
            eval_examples=self.eval_examples,
            microbatches=self.microbatches,
        )
        notes = [note for note in self.notes if not note.endswith(_MERGED)]  # of the data of before
        notes += [where + _MERGED for where in self.data.merged_in_float32]
        object.__setattr__(self, "notes", tuple(notes))
        check_metrics(self.metrics, self.whole)
        check_diagnostics(self.diagnostics)

    def around(self, algorithm: Algorithm) -> Algorithm:
        """The method as runs of this task use it: with buffers if the task has some.

        Args:
            algorithm: the method.

        Returns:
            The method itself where the task has no buffers.

        Raises:
            InvalidInput: a private method of a task with buffers.
        """
        return keeps_buffers(algorithm, self.buffers)

    @cached_property
    def inference(self) -> Inference:
        # how models of this task predict, without the task's data
        outputs, labels = self.outputs, self.labels
        if self.module is None and outputs is None and not jax.tree.leaves(self.frozen):
            outputs, predicted = predicted_by(self.loss)
            labels = labels or predicted
        rows, columns = input_rows(self.data), input_columns(self.data)
        return Inference(self.name, outputs, labels, rows, self.module, self.buffers, self.made_by, columns)

    def predict(self, params: Params, x: Any, *, buffers: Any = None, scores: bool = False) -> Any:
        """Predict new inputs in evaluation mode, in batches; compiled once for each shape.

        Args:
            params: the model, as `Result.params` is.
            x: inputs, arrays of shape (n, ...) as the x of the task's examples: arrays, a table of pandas, Polars or
                Arrow, whose columns go by name where the clients' have names, `fs.SparseRows`, or a pytree of these
                where the task's inputs are one. n is at least 1.
            buffers: what the model keeps beside its parameters, as `Result.buffers` is; None for the task's own.
            scores: return the model's outputs (logits, margins) in place of labels.

        Returns:
            NumPy arrays with a row for each input. Classification: labels, int32 of shape (n,), those of y; 0 or 1 of
            binary tasks, of tags (n, tags); of next words the likeliest token at each position, (n, length). All other
            tasks, and `scores=True`: the model's outputs, such as (n, classes) or (n,). A model from PyTorch gives
            labels where its targets are classes. With `from_arrays(predict=f)`: what f returns.

        Raises:
            InvalidInput: x of another shape or type than the task's inputs, not finite, or without rows; a task that
                does not say how its model predicts (`Task.outputs`).

        >>> import fedsolve as fs
        >>> task = fs.tasks.synthetic(num_clients=3)
        >>> task.predict(task.init(jax.random.key(0)), np.zeros((4, 60)))
        array([0, 0, 0, 0], dtype=int32)
        """
        return self.inference.predict(params, x, buffers=buffers, scores=scores)

    def hold_out(self, share: float, *, by: Literal["example", "client"] = "example", seed: int = 0) -> Task:
        """The task with a fraction of its training examples held out as `validation`.

        Args:
            share: in (0, 1), of every client's examples, or of the clients.
            by: "example": every client keeps the rest of its own, at least one; "client": whole clients train no more.
            seed: of the draw.

        Returns:
            A task with `validation`, and fewer training examples or clients; the test set stays.

        Raises:
            InvalidInput: the task has validation examples already, a share outside (0, 1), or one that holds out
                nothing, or all.
        """
        if self.validation is not None:
            raise InvalidInput(f"task {self.name} has validation examples already: hold out no more")
        if not is_one_of(by, ("example", "client")):
            raise unknown("way to hold out", str(by), ("example", "client"))
        if by == "client":
            data, validation = self.data.hold_out_clients(share, seed)
            return replace(self, data=data, validation=validation)
        data, validation = self.data.hold_out(share, seed)
        owners = np.repeat(np.arange(data.num_clients), self.data.counts - data.counts)
        rest = replace(self, data=data, validation=validation, validation_clients=owners)
        return rest if self.made_by is None or seed else made(rest, replace(self.made_by, validation=share))

    @classmethod
    def from_arrays(
        cls,
        loss: Callable[[Params, Batch], Scalar],
        params: Params,
        clients: FederatedData | Sequence[Batch],
        *,
        test: Batch | None = None,
        validation: Batch | None = None,
        unseen: FederatedData | Sequence[Batch] | None = None,
        metrics: Mapping[str, Callable[[Params, Batch], Scalar] | SumMetric] | None = None,
        whole: Mapping[str, Callable[[Params, Batch], Any] | Whole] | None = None,
        predict: Callable[[Params, Any], Any] | None = None,
        freeze: Sequence[str] = (),
        frozen_dtype: Literal["bfloat16", "float16", "int8"] | None = None,
        buffers: Any = None,
        batch_size: int | None = 32,
        epochs: int | None = 1,
        local_steps: int | None = None,
        microbatches: int = 1,
        couples_examples: bool = False,
        name: str = "custom",
    ) -> Task:
        """Make a task from your own loss, parameters and per-client arrays.

        `params` may be any pytree, an equinox or flax model included: leaves that are not
        floating-point arrays (activation functions, counters) stay as they are. A model that keeps running
        statistics (BatchNorm) among its parameters is refused. It is where training starts: the `params` of an
        earlier result as well as fresh ones.

        `freeze` names leaves that do not train, by patterns of their paths as `fedsolve.geometry` takes them:
        `("encoder.*", "embedding")`. Loss and metrics see the whole model, the method what trains, and so do
        messages, their bytes and checkpoints; `result.params` is the whole model again.

        Leaves may be bfloat16 or float16: frozen ones are stored so; of those that train the run has float32 copies,
        which are rounded once, in `result.params`.

        `buffers` are what the model keeps beside its parameters, such as BatchNorm's statistics: see `Task.buffers`.

        Args:
            loss: (params, batch) -> scalar, as `Task.loss`.
            params: where training starts; floating-point leaves of any shape.
            clients: for each a pytree of arrays of shape (examples, ...) or tables, or `FederatedData`.
            test: held-out examples, of the form of a client's; None for none.
            validation: examples likewise that decide what is stopped, kept or chosen.
            unseen: clients that never train, of the form of `clients`.
            metrics: name -> (params, batch) -> scalar, a mean over the batch; or one of `fs.metrics`, of the outputs of
                `predict`.
            whole: metrics of whole sets, as `Task.whole`.
            predict: (params, x) -> what `Task.predict` and `Result.predict` return for inputs x, arrays with a row for
                each input, in jax.numpy; None for the loss's model, where it is a loss of `fedsolve.tasks`.
            freeze: patterns of the paths of leaves that do not train.
            frozen_dtype: type in which frozen leaves are stored, rounded to it; they are computed with in the run's
                type. "int8" is for leaves of two axes or more, with a scale for each index of the first axis: each
                entry is at most scale / 2 away. None for the type that they have.
            buffers: as `Task.buffers`; None for none.
            batch_size: examples of a local step, at least 1; None for all of a client's.
            epochs: passes over a client's examples in a round, at least 1.
            local_steps: steps of a client in a round, at least 1, in place of `epochs`.
            microbatches: parts in which a local step works through its examples, at least 1 (`Task.microbatches`).
            couples_examples: whether the loss of an example depends on the others of its batch, as a contrastive or a
                Cox loss. Every client then has a multiple of `batch_size` examples; evaluations, too, are of
                consecutive batches of that size.
            name: what tables call it.

        Returns:
            The task; its model, as results have it, is of the structure of `params`.

        Raises:
            InvalidInput: a part of another form, clients that differ, a model with running statistics, or a pattern
                that matches no leaf.

        >>> import jax.numpy as jnp, numpy as np
        >>> clients = [np.ones((4, 2), np.float32), np.zeros((3, 2), np.float32)]
        >>> loss = lambda w, batch: jnp.mean((batch @ w - 1.0) ** 2)
        >>> Task.from_arrays(loss, jnp.zeros(2), clients).data.counts
        array([4, 3])
        """
        data = clients if isinstance(clients, FederatedData) else FederatedData.from_clients(clients)
        refuse_state(params)
        leaves = split_leaves(params, freeze, frozen_dtype)
        outputs, labels = predicted_by(loss) if predict is None else (predict, None)
        named: Any = on_model(metrics, predict or getattr(loss, "model", None), _PREDICT)
        wrap = leaves.wrap
        # copies: a user may write to theirs
        trained = jax.tree.map(lambda a: np.array(a) if isinstance(a, np.ndarray) else a, leaves.trained)
        return cls(
            name=name,
            init=lambda key: trained,
            loss=coupled(couples_examples, wrap(loss), batch_size, data.counts),
            data=data,
            test=test,
            validation=validation,
            unseen=unseen
            if unseen is None or isinstance(unseen, FederatedData)
            else FederatedData.from_clients(unseen),
            metrics={k: wrap(m) for k, m in named.items()} if isinstance(named, Mapping) else named or {},
            whole={
                k: Whole(wrap(m.outputs), m.score) if isinstance(m, Whole) else wrap(m)
                for k, m in whole.items()
            }
            if isinstance(whole, Mapping)
            else whole or {},
            batch_size=batch_size,
            epochs=None if local_steps is not None else epochs,
            local_steps=local_steps,
            microbatches=microbatches,
            assemble=leaves.assemble,
            frozen=leaves.frozen,
            buffers=buffers,
            outputs=outputs,
            labels=labels,
        )
