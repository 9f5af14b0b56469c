"""A `lightning.Trainer` as a training loop: rounds are the parts of one training."""

from __future__ import annotations

import importlib
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.deploy.oracles.trainers import LightningLoop

EXAMPLES, BATCH = 22, 4  # six batches, the last of two examples


@pytest.fixture(scope="module", params=["lightning.pytorch", "pytorch_lightning"])
def library(request):
    for package in ("torch", request.param.partition(".")[0]):
        pytest.importorskip(package, reason=f"{package} is not installed (make test-all installs it)")
    import torch

    torch.set_num_threads(1)
    package = importlib.import_module(request.param)

    class Regression(package.LightningModule):
        """Least squares, with a schedule by steps or by epochs."""

        def __init__(self, interval="step", plateau=False):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.interval, self.plateau, self.rates = torch.nn.Linear(3, 1), interval, plateau, []

        def loss_of(self, batch):
            x, y = batch
            return ((self.layer(x)[:, 0] - y) ** 2).mean()

        def training_step(self, batch, index):
            self.rates.append(self.optimizers().param_groups[0]["lr"])
            return self.loss_of(batch)

        def validation_step(self, batch, index):
            self.log("val_loss", self.loss_of(batch), batch_size=len(batch[0]))

        def configure_optimizers(self):
            self.optimiser = torch.optim.SGD(self.parameters(), lr=0.1)
            if self.plateau:
                schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimiser)
                return {
                    "optimizer": self.optimiser,
                    "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"},
                }
            whole = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.LambdaLR(self.optimiser, lambda n: 1 / (1 + n) + 1 / whole)
            return [self.optimiser], [{"scheduler": schedule, "interval": self.interval}]

    return SimpleNamespace(torch=torch, package=package, Regression=Regression)


def trainers(library, **options):
    given = {"max_epochs": 4, "devices": 1} | options
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu"}

    def trainer():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return library.package.Trainer(**quiet, **given)

    return trainer


def loader(library, rows=EXAMPLES):
    torch = library.torch
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, 3, generator=draw)
    data = torch.utils.data.TensorDataset(x[:rows], (x @ torch.tensor([1.0, -2.0, 0.5]))[:rows])
    return torch.utils.data.DataLoader(data, batch_size=BATCH)


def weights(module):
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("round", [{"epochs": 1}, {"steps": 6}, {"epochs": 2}])
def test_rounds_are_the_parts_of_one_training(library, interval, round):
    """Plain SGD with a falling rate, at once and by rounds: the same rates and the same weights."""
    whole = library.Regression(interval)
    trainers(library)().fit(whole, loader(library))
    assert len(set(whole.rates)) == (24 if interval == "step" else 4)
    parts = library.Regression(interval)
    loop = LightningLoop(trainers(library), loader(library), **round)
    rounds = 2 if round.get("epochs") == 2 else 4
    for number in range(1, rounds + 1):
        told = loop(parts, number)
        assert told == {"examples": EXAMPLES, "steps": 24 // rounds}
    np.testing.assert_allclose(parts.rates, whole.rates, rtol=1e-12)
    np.testing.assert_allclose(weights(parts), weights(whole), rtol=1e-6)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_parts_of_an_epoch_and_accumulated_gradients(library):
    """Two steps of two batches each; the schedule by steps goes on, and begins anew if asked."""
    module = library.Regression()
    loop = LightningLoop(trainers(library, accumulate_grad_batches=2), loader(library), steps=2)
    whole = 4 * 3  # steps of four epochs
    assert loop(module, 3)["steps"] == 2
    wanted = [1 / (1 + n) + 1 / whole for n in (4, 4, 5, 5)]
    np.testing.assert_allclose(module.rates, 0.1 * np.array(wanted))
    module.rates.clear()
    an_epoch = LightningLoop(trainers(library, accumulate_grad_batches=2), loader(library), epochs=1)
    assert an_epoch(module, 2)["steps"] == 3
    np.testing.assert_allclose(module.rates[0], 0.1 * (1 / 4 + 1 / whole))
    module.rates.clear()
    anew = LightningLoop(trainers(library), loader(library), steps=1, restart_schedule=True)
    anew(module, 3)
    np.testing.assert_allclose(module.rates, [0.1 * (1 + 1 / 24)])


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_the_loss_is_of_the_model_as_received(library):
    module = library.Regression()
    loop = LightningLoop(trainers(library), loader(library), loader(library, 9), epochs=1, loss="val_loss")

    def loss(rows):
        with library.torch.no_grad():
            return float(module.loss_of(loader(library, rows).dataset[:]))

    for number in (1, 2):
        wanted = loss(EXAMPLES)
        assert loop(module, number)["loss"] == pytest.approx(wanted, rel=1e-5)
    found = loop.evaluate(module)
    assert found == {"loss": pytest.approx(loss(9), rel=1e-5)}
    other = LightningLoop(trainers(library), loader(library), epochs=1, loss="loss")
    with pytest.raises(fs.InvalidInput, match=r"validation_step logs val_loss, not loss = 'loss'"):
        other(module, 1)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_a_schedule_by_a_metric_begins_anew(library):
    module = library.Regression(plateau=True)
    loop = LightningLoop(trainers(library), loader(library), loader(library, 9), epochs=1)
    assert loop(module, 3)["steps"] == 6
    assert set(module.rates) == {0.1}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"min_epochs": 2}, r"min_steps or min_epochs"),
        ({"min_steps": 2}, r"min_steps or min_epochs"),
        ({"devices": 2, "strategy": "ddp"}, r"several devices: give devices=1, or run it by CommandLoop"),
        ({"max_epochs": 1}, r"the Trainer's 6 steps end in a round, which has 12: set max_epochs"),
    ],
)
def test_refused_trainers(library, options, reason):
    loop = LightningLoop(trainers(library, **options), loader(library), epochs=2)
    with pytest.raises(fs.InvalidInput, match=reason):
        loop(library.Regression(), 1)


def test_refusals():
    """Before the library is needed."""
    with pytest.raises(fs.InvalidInput, match=r"steps = None, epochs = None: give exactly one"):
        LightningLoop(object, [])
    with pytest.raises(fs.InvalidInput, match=r"steps = 0 must be an integer of at least 1"):
        LightningLoop(object, [], steps=0)
    with pytest.raises(
        fs.InvalidInput, match=r"trainer_for gave an object: it must give a lightning.Trainer"
    ):
        LightningLoop(object, [], steps=1)(None, 1)
