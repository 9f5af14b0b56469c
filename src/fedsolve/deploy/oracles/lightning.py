"""A `lightning.Trainer` as a training loop."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.deploy.oracles.hugging_face import check_length


@dataclass(frozen=True)
class LightningLoop:
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
    steps: int | None = None
    epochs: int | None = None
    restart_schedule: bool = False
    loss: str | None = None

    def __post_init__(self) -> None:
        check_length(self.steps, self.epochs)

    def __call__(self, model: Any, round: Any) -> dict[str, Any]:
        """Train a LightningModule in place: its steps, loss and, where the training set tells, examples."""
        told: dict[str, Any] = {}
        if self.loss is not None:
            (found,) = self._trainer()[0].validate(model, self.train_dataloaders, verbose=False)
            if self.loss not in found:
                raise InvalidInput(f"validation_step logs {', '.join(found)}, not loss = '{self.loss}'")
            told["loss"] = found[self.loss]
        trainer, base = self._trainer()
        trainer.callbacks.append(_part(base, self, int(round) - 1))
        trainer.fit(model, self.train_dataloaders, self.val_dataloaders)
        examples = getattr(self.train_dataloaders, "dataset", None)
        told |= {"examples": len(examples)} if hasattr(examples, "__len__") else {}
        return told | {"steps": trainer.global_step}

    def evaluate(self, model: Any) -> dict[str, float]:
        """What `validation_step` logs on `val_dataloaders`, by names without `val_`."""
        (found,) = self._trainer()[0].validate(model, self.val_dataloaders, verbose=False)
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


def _part(base: type, loop: LightningLoop, before: int) -> Any:
    # what a Trainer calls back in a round after so many others
    class Part(base):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            an_epoch = math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
            length = loop.steps or loop.epochs * an_epoch
            if (whole := trainer.estimated_stepping_batches) < length:
                raise InvalidInput(
                    f"a round has {length} steps, more than the {whole} of the Trainer: set max_epochs (or max_steps) "
                    "to those of all rounds"
                )
            for config in [] if loop.restart_schedule else trainer.lr_scheduler_configs:
                done = before * length // (an_epoch if config.interval == "epoch" else 1)
                for _ in range(0 if config.reduce_on_plateau else done // config.frequency):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", UserWarning)  # that the optimiser has not stepped yet
                        config.scheduler.step()

        def on_train_batch_end(self, trainer: Any, *found: Any) -> None:
            trainer.should_stop |= trainer.global_step == loop.steps

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop |= trainer.current_epoch + 1 == loop.epochs

    return Part()
