"""Trainers of libraries as training loops: `transformers.Trainer`, and `lightning.Trainer`.

Neither library is imported before a loop runs.
"""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from fedsolve.core.errors import InvalidInput, check_integer, of_type
from fedsolve.tasks.training_loops import ReadyLoop

_ENDLESS = ("constant", "constant_with_warmup", "inverse_sqrt")  # schedules without a length


@dataclass(kw_only=True)
class TrainerLoop(ReadyLoop):
    """A Trainer's training as a training loop, of which each round is a part."""

    steps: int | None = None
    epochs: int | None = None
    restart_schedule: bool = False

    def __post_init__(self) -> None:
        steps, epochs = self.steps, self.epochs
        if (steps is None) == (epochs is None):
            raise InvalidInput(f"steps = {steps}, epochs = {epochs}: give exactly one of them")
        check_integer("steps", steps, 1, none="epochs")
        check_integer("epochs", epochs, 1, none="steps")

    @abstractmethod
    def evaluate(self, model: Any, data: Any = None) -> dict[str, float]:
        """Evaluate the model as the Trainer does.

        Args:
            model: the module that the Trainer trains.
            data: the client's data in a simulation; None for the loop's own evaluation set.

        Returns:
            The Trainer's metrics by name, without `eval_` or `val_`.
        """


def _part(base: type, **hooks: Callable[..., None]) -> Any:
    # a callback of a Trainer that takes part in these of its events
    return type("Part", (base,), {name: staticmethod(hook) for name, hook in hooks.items()})()


def _examples(data: Any) -> dict[str, int]:
    return {"examples": len(data)} if hasattr(data, "__len__") else {}


def _advance(schedule: Any, steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the optimiser has not stepped yet
        for _ in range(steps):
            schedule.step()


@dataclass
class HuggingFaceLoop(TrainerLoop):
    """A `transformers.Trainer` as a training loop for `TrainedClient`: each round is a part of its training.

    The Trainer's own length (`num_train_epochs`, `max_steps`) is that of all rounds together, which its learning-rate
    schedule spans. A round takes the schedule, and the seed of shuffles and dropout, from where the rounds before it
    end: at one epoch a round one client trains as `trainer.train()` does, but for the state of the optimiser, which
    begins anew in each round. An optimiser or a schedule of your own, `Trainer(optimizers=...)`, goes on as it is. A
    schedule by a metric, such as `reduce_lr_on_plateau`, begins anew. Of a PEFT model the adapter alone is trained and
    sent.

    Args:
        trainer: a `transformers.Trainer` with a model and a training set; it has not trained yet.
        steps: optimiser steps of a round, >= 1; or
        epochs: passes over the training set in a round, >= 1; exactly one of the two.
        restart_schedule: whether the schedule begins anew in each round.
        loss: whether a round begins with a pass over the training set for the loss of the model as it was received,
            which the record shows and QFedAvg and TERM need.

    Raises:
        InvalidInput: steps or epochs out of their range, a Trainer with `model_init` or `data_seed`, or by DeepSpeed or
            FSDP (see `CommandLoop`); in a round: a model that is not the Trainer's, or a Trainer whose length is over.
    """

    trainer: Any
    _: KW_ONLY
    loss: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        trainer = self.trainer
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise InvalidInput("the Trainer divides the model by DeepSpeed or FSDP: run it by CommandLoop")
        if trainer.model_init is not None or trainer.args.data_seed is not None:
            raise InvalidInput(
                "the Trainer has model_init or data_seed, by which all rounds begin alike: leave them out"
            )
        self._own = trainer.optimizer, trainer.lr_scheduler

    def __call__(self, model: Any, round: Any, data: Any = None) -> dict[str, Any]:
        from transformers import TrainerCallback, set_seed  # pyright: ignore[reportMissingImports]

        trainer, before, told = self.trainer, int(round) - 1, {}
        if model is not trainer.model:
            raise InvalidInput(f"the model is {of_type(model)} that is not the Trainer's: give trainer.model")
        trainer.train_dataset = trainer.train_dataset if data is None else data
        if self.loss:
            batches = trainer.get_eval_dataloader(trainer.train_dataset)
            ended = trainer.evaluation_loop(batches, "Loss", True, metric_key_prefix="train")
            told["loss"] = ended.metrics["train_loss"]
        set_seed(trainer.args.seed + before * (self.epochs or 1))
        part = _part(TrainerCallback, on_train_begin=partial(self._begin, before), on_step_end=self._step)
        trainer.add_callback(part)
        try:
            ended = trainer.train()
        finally:
            trainer.remove_callback(part)
            trainer.optimizer, trainer.lr_scheduler = self._own
        told |= {"steps": trainer.state.global_step, "training_loss": ended.training_loss}
        return _examples(trainer.train_dataset) | told

    def evaluate(self, model: Any, data: Any = None) -> dict[str, float]:
        values = self.trainer.evaluate(data).items()
        found = {name.removeprefix("eval_"): x for name, x in values if name.startswith("eval_")}
        return {n: float(x) for n, x in found.items() if not n.endswith(("runtime", "_per_second", "_time"))}

    def _begin(self, before: int, args: Any, state: Any, control: Any, **found: Any) -> None:
        # in a round after so many others
        schedule, batches = found["lr_scheduler"], found["train_dataloader"]
        accumulated = args.gradient_accumulation_steps
        self._length = self.steps or (self.epochs or 1) * math.ceil(len(batches) / accumulated)
        by_metric = "metrics" in inspect.signature(schedule.step).parameters
        anew = self.restart_schedule or self._own[1] is not None or by_metric
        begin = 0 if anew else before * self._length
        is_over = begin + self._length > state.max_steps
        if is_over and (begin == 0 or args.lr_scheduler_type not in _ENDLESS):
            raise InvalidInput(
                f"the Trainer's {state.max_steps} steps end in this round, which has {self._length} after {begin}: set "
                "num_train_epochs (or max_steps) to those of all rounds"
            )
        _advance(schedule, begin)

    def _step(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        control.should_training_stop |= state.global_step == self._length


@dataclass
class LightningLoop(TrainerLoop):
    """A `lightning.Trainer` as a training loop for `TrainedClient`, whose model is the LightningModule.

    Each round has a new Trainer, whose own length (`max_epochs`, `max_steps`) is that of all rounds together:
    `configure_optimizers` is called anew, so that the optimiser's state is fresh, and its learning-rate schedules are
    taken to where the rounds before end. One by a metric (`ReduceLROnPlateau`) begins anew.

    Args:
        trainer_for: () -> a new `lightning.Trainer` (or `pytorch_lightning.Trainer`) of one device; without
            `enable_checkpointing=False` and `logger=False` each round writes files.
        train_dataloaders: as `Trainer.fit` takes them.
        val_dataloaders: as `Trainer.fit` takes them, for `evaluate` too; None for none.
        steps: optimiser steps of a round, >= 1; or
        epochs: passes over the training set in a round, >= 1; exactly one of the two.
        restart_schedule: whether schedules begin anew in each round.
        loss: metric of `validation_step` that is the loss, such as "val_loss": a round then begins with a pass over
            the training set for the loss of the model as it was received, which the record shows and QFedAvg and TERM
            need. None for none.

    Raises:
        InvalidInput: steps or epochs out of their range; in a round: a Trainer that is none, with several devices
            (see `CommandLoop`), with `min_steps` or `min_epochs`, or that is shorter than a round.
    """

    trainer_for: Callable[[], Any]
    train_dataloaders: Any
    val_dataloaders: Any = None
    _: KW_ONLY
    loss: str | None = None

    def __call__(self, model: Any, round: Any, data: Any = None) -> dict[str, Any]:
        batches = self.train_dataloaders if data is None else data
        told: dict[str, Any] = {}
        if self.loss is not None:
            (found,) = self._trainer()[0].validate(model, batches, verbose=False)
            if self.loss not in found:
                raise InvalidInput(f"validation_step logs {', '.join(found)}, not loss = '{self.loss}'")
            told["loss"] = found[self.loss]
        trainer, base = self._trainer()
        begin = partial(self._begin, int(round) - 1)
        trainer.callbacks.append(_part(base, on_train_start=begin, on_train_batch_end=self._step))
        trainer.fit(model, batches, self.val_dataloaders)
        return _examples(getattr(batches, "dataset", None)) | told | {"steps": trainer.global_step}

    def evaluate(self, model: Any, data: Any = None) -> dict[str, float]:
        batches = self.val_dataloaders if data is None else data
        (found,) = self._trainer()[0].validate(model, batches, verbose=False)
        return {name.removeprefix("val_"): value for name, value in found.items()}

    def _trainer(self) -> tuple[Any, type]:
        # and the class of callbacks of its package
        trainer = self.trainer_for()
        packages = [
            sys.modules[name] for name in ("lightning.pytorch", "pytorch_lightning") if name in sys.modules
        ]
        base = next((p.Callback for p in packages if isinstance(trainer, p.Trainer)), None)
        if base is None:
            raise InvalidInput(f"trainer_for gave {of_type(trainer)}: it must give a lightning.Trainer")
        if trainer.world_size > 1:
            raise InvalidInput("the Trainer has several devices: give devices=1, or run it by CommandLoop")
        if trainer.min_steps or trainer.min_epochs:
            raise InvalidInput(
                "the Trainer has min_steps or min_epochs, and a round its own length: leave them out"
            )
        return trainer, base

    def _begin(self, before: int, trainer: Any, module: Any) -> None:
        # in a round after so many others
        an_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        self._length = self.steps or (self.epochs or 1) * an_epoch
        if (whole := trainer.estimated_stepping_batches) < self._length:
            raise InvalidInput(
                f"the Trainer's {whole} steps end in a round, which has {self._length}: set max_epochs (or max_steps) "
                "to those of all rounds"
            )
        for config in [] if self.restart_schedule else trainer.lr_scheduler_configs:
            done = before * self._length // (an_epoch if config.interval == "epoch" else 1)
            _advance(config.scheduler, 0 if config.reduce_on_plateau else done // config.frequency)

    def _step(self, trainer: Any, *found: Any) -> None:
        trainer.should_stop |= trainer.global_step == self._length
