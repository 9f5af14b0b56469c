"""The early layers of a torchvision network, which stay as they are and never travel, and a layer that clients train.

Run it: python examples/torchvision_model.py
"""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torchvision.models import resnet18

import fedsolve as fs

images, labels = load_digits(return_X_y=True)
x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
# three channels of 16 x 16: so small an image has no use for the later layers
x = x.repeat(3, 1).repeat(2, 2).repeat(2, 3)
rows = fs.data.Dirichlet(1.0)(labels[:1200], 12, seed=0)
clients = [(x[i], labels[i]) for i in rows]

# random weights, so that nothing is downloaded; resnet18(weights="DEFAULT") has trained ones, with BatchNorm
torch.manual_seed(0)
network = resnet18(weights=None, norm_layer=lambda width: nn.GroupNorm(8, width)).requires_grad_(False)
early = [network.conv1, network.bn1, network.relu, network.layer1, network.layer2]
module = nn.Sequential(*early, nn.Flatten(), nn.Linear(128 * 4 * 4, 10))

test = (x[1200:1500], labels[1200:1500])
task = fs.tasks.from_torch(module, nn.CrossEntropyLoss(), clients, test=test, batch_size=32)
result = fs.run(fs.FedAvg(client_lr=0.05), task, rounds=40, eval_every=10, clients_per_round=6, progress=True)

trained = result.module().eval()
with torch.no_grad():
    right = trained(torch.tensor(x[1500:])).argmax(1) == torch.tensor(labels[1500:])
print(f"loss {result.metrics['train_loss'][0]:.2f} -> {result.metrics['train_loss'][-1]:.2f}")
print(f"accuracy on unseen digits: {100 * right.float().mean():.1f} %")
Path("runs").mkdir(exist_ok=True)
torch.save(trained.state_dict(), "runs/resnet.pt")
