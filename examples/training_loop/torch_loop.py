"""A PyTorch training loop as it is, with its own optimiser, at five sites: first simulated, then deployed.

Run it: python examples/training_loop/torch_loop.py
"""

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import fedsolve as fs

SITES = 5
x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
rows = fs.data.Dirichlet(0.5)(y[:1500].numpy(), SITES, seed=0)  # labels differ between sites


def site(number):
    """The examples of a site; of number SITES the server's, which no site has."""
    chosen = torch.tensor(rows[number]) if number < SITES else torch.arange(1500, len(x))
    return torch.utils.data.TensorDataset(x[chosen], y[chosen])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))


def train(model, round, data):
    """Two epochs in mixed precision, with gradients of two minibatches, and Adam's state from the last round."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    kept = round.folder / "optimizer.pt"  # this site's own, still there after a restart
    if kept.exists():
        optimizer.load_state_dict(torch.load(kept, weights_only=True))
    loader, steps = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True), 0
    model.train()
    for _ in range(2):
        for i, (inputs, targets) in enumerate(loader, 1):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            if i % 2 == 0 or i == len(loader):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
    torch.save(optimizer.state_dict(), kept)
    return {"examples": len(data), "steps": steps}


@torch.no_grad()
def evaluate(model, data):
    """Loss and accuracy on the examples of a site."""
    inputs, targets = data.tensors
    outputs = model.eval()(inputs)
    right = (outputs.argmax(1) == targets).float().mean()
    return {"loss": F.cross_entropy(outputs, targets), "accuracy": right}


def client_for(node):
    """What a node does: `client-id` in its configuration says which site it is."""
    data = site(node.client)
    return fs.flower.TrainedClient(
        model, lambda model, round: train(model, round, data), evaluate=lambda model: evaluate(model, data)
    )


method = fs.FedAvg()  # or FedAdam, FedNova, ...: `fedsolve list algorithms --json` says which take a loop
client = fs.flower.client_app(client_for)
server = fs.flower.server_app(
    method,
    fs.flower.trained_parameters(model),
    rounds=10,
    population=SITES,
    client_metrics=("loss", "accuracy"),
)

if __name__ == "__main__":
    clients = [site(number) for number in range(SITES)]
    sizes = [len(data) for data in clients]
    task = fs.tasks.from_training(model, train, clients, evaluate=evaluate, test=site(SITES), examples=sizes)
    result = fs.run(method, task, rounds=10)
    print(f"accuracy on unseen digits: {100 * result.metrics['test_accuracy'][-1]:.1f} %")
    Path("runs").mkdir(exist_ok=True)
    torch.save(result.module().state_dict(), "runs/digits.pt")
