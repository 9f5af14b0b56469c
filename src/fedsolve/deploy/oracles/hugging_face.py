"""A `transformers.Trainer` as a training loop."""

from __future__ import annotations

import inspect
import math
import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any

from fedsolve.core.errors import InvalidInput, check_integer, of_type

_ENDLESS = ("constant", "constant_with_warmup", "inverse_sqrt")  # schedules without a length
_NO_METRICS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def check_length(steps: int | None, epochs: int | None) -> None:
    """Raise `InvalidInput` unless a round is so many steps or epochs, at least 1."""
    if (steps is None) == (epochs is None):
        raise InvalidInput(f"steps = {steps}, epochs = {epochs}: give exactly one of them")
    check_integer("steps", steps, 1, none="epochs")
    check_integer("epochs", epochs, 1, none="steps")


@dataclass
class HuggingFaceLoop:
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
    steps: int | None = None
    epochs: int | None = None
    restart_schedule: bool = False
    loss: bool = True

    def __post_init__(self) -> None:
        check_length(self.steps, self.epochs)
        trainer = self.trainer
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise InvalidInput("the Trainer divides the model by DeepSpeed or FSDP: run it by CommandLoop")
        if trainer.model_init is not None or trainer.args.data_seed is not None:
            raise InvalidInput(
                "the Trainer has model_init or data_seed, by which all rounds begin alike: leave them out"
            )
        self._own = trainer.optimizer, trainer.lr_scheduler

    def __call__(self, model: Any, round: Any) -> dict[str, Any]:
        """Train the Trainer's model in place: its steps, losses and, where the training set tells, examples."""
        from transformers import set_seed  # pyright: ignore[reportMissingImports]

        trainer, before, told = self.trainer, int(round) - 1, {}
        if model is not trainer.model:
            raise InvalidInput(f"the model is {of_type(model)} that is not the Trainer's: give trainer.model")
        if self.loss:
            batches = trainer.get_eval_dataloader(trainer.train_dataset)
            ended = trainer.evaluation_loop(batches, "Loss", True, metric_key_prefix="train")
            told["loss"] = ended.metrics["train_loss"]
        trainer.optimizer, trainer.lr_scheduler = self._own
        set_seed(trainer.args.seed + before * (self.epochs or 1))
        part = _part(self, before)
        trainer.add_callback(part)
        try:
            ended = trainer.train()
        finally:
            trainer.remove_callback(part)
        if hasattr(trainer.train_dataset, "__len__"):
            told["examples"] = len(trainer.train_dataset)
        return told | {"steps": trainer.state.global_step, "training_loss": ended.training_loss}

    def evaluate(self, model: Any) -> dict[str, float]:
        """Metrics of the Trainer's model on its evaluation set: `loss`, and what `compute_metrics` gives."""
        found = self.trainer.evaluate().items()
        named = {name.removeprefix("eval_"): value for name, value in found if name.startswith("eval_")}
        return {name: float(value) for name, value in named.items() if not name.endswith(_NO_METRICS)}


def _part(loop: HuggingFaceLoop, before: int) -> Any:
    # what a Trainer calls back in a round after so many others
    from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

    class Part(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
            schedule, self.left, length = found["lr_scheduler"], loop.epochs, loop.steps
            if length is None:
                length = self.left * math.ceil(
                    len(found["train_dataloader"]) / args.gradient_accumulation_steps
                )
            whole = f"{state.max_steps} of the Trainer: set num_train_epochs (or max_steps) to those of all rounds"
            if state.max_steps < length:
                raise InvalidInput(f"a round has {length} steps, more than the {whole}")
            if (
                loop.restart_schedule
                or loop._own[1]
                or "metrics" in inspect.signature(schedule.step).parameters
            ):
                return
            if before * length >= state.max_steps and args.lr_scheduler_type not in _ENDLESS:
                raise InvalidInput(f"{before} rounds of {length} steps are all of the {whole}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that the optimiser has not stepped yet
                for _ in range(before * length):
                    schedule.step()

        def on_step_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
            control.should_training_stop |= state.global_step == loop.steps

        def on_epoch_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
            if self.left is not None:
                self.left -= 1
                control.should_training_stop |= self.left == 0

    return Part()
