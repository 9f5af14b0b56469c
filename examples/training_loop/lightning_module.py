"""A LightningModule at four sites: the Trainer's length is that of all rounds, and a round is one epoch.

Run it: python examples/training_loop/lightning_module.py
"""

import logging
from pathlib import Path

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fedsolve as fs

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # of devices, at every Trainer
SITES, ROUNDS = 4, 10
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def batches(site):
    """The examples of a site; of number SITES the server's, which no site has."""
    chosen = slice(site, 1500, SITES) if site < SITES else slice(1500, None)
    return DataLoader(TensorDataset(x[chosen], y[chosen]), batch_size=32, shuffle=site < SITES)


class Digits(L.LightningModule):
    """A network with the optimiser and the schedule that it trains with."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, index):
        """Cross-entropy of a minibatch."""
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, index):
        """Loss and accuracy of a minibatch."""
        outputs = self.layers(batch[0])
        self.log("val_loss", F.cross_entropy(outputs, batch[1]))
        self.log("val_accuracy", (outputs.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        """Adam, with one cycle of rates over all rounds."""
        optimizer = torch.optim.Adam(self.parameters())
        whole = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=whole)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def trainer():
    """The Trainer of all rounds, made anew in each."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return L.Trainer(max_epochs=ROUNDS, accelerator="cpu", devices=1, enable_model_summary=False, **quiet)


torch.manual_seed(0)
module = Digits()


def client_for(node):
    """What a node does: `client-id` in its configuration says which site it is."""
    loop = fs.flower.LightningLoop(trainer, batches(node.client), epochs=1, loss="val_loss")
    return fs.flower.TrainedClient(module, loop)


client = fs.flower.client_app(client_for)
server = fs.flower.server_app(
    fs.FedAvg(), fs.flower.trained_parameters(module), rounds=ROUNDS, population=SITES,
    buffers=fs.flower.torch_buffers(module),
)  # fmt: skip

if __name__ == "__main__":  # the same on one machine
    loop = fs.flower.LightningLoop(trainer, batches(0), epochs=1)  # each client has its own batches
    clients = [batches(site) for site in range(SITES)]
    task = fs.tasks.from_training(module, loop, clients, evaluate=loop.evaluate, test=batches(SITES))
    result = fs.run(fs.FedAvg(), task, rounds=ROUNDS, eval_every=ROUNDS)
    print(f"accuracy on unseen digits: {100 * result.metrics['test_accuracy'][-1]:.1f} %")
    Path("runs").mkdir(exist_ok=True)
    torch.save(result.module().state_dict(), "runs/digits.pt")
