# %% [markdown]
# # For PyTorch users
#
# Train an unchanged PyTorch module with PyTorch's losses, as a compiled JAX program, and get a `state_dict` back.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedsolve as fs

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32").reshape(-1, 1, 8, 8)
rows = fs.data.Dirichlet(0.3)(y[:1500], 50, seed=0)  # labels differ between clients
clients = [(torch.tensor(x[i]), torch.tensor(y[i])) for i in rows]

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(288, 10)
)
task = fs.tasks.from_torch(net, nn.CrossEntropyLoss(), clients, test=(x[1500:], y[1500:]), batch_size=10)
task

# %%
result = fs.run(fs.FedAdam(0.1, server_lr=0.03), task, rounds=30, clients_per_round=10)
result

# %% [markdown]
# `module()` returns a trained copy, with running statistics; the original module is unchanged. PyTorch computes the
# same accuracy:

# %%
trained = result.module().eval()
with torch.no_grad():
    right = trained(torch.tensor(x[1500:])).argmax(1) == torch.tensor(y[1500:])
print(
    f"PyTorch: {100 * right.float().mean():.2f} %, the run: {100 * result.metrics['test_accuracy'][-1]:.2f} %"
)
torch.save(trained.state_dict(), "digits.pt")

# %% [markdown]
# ## The same gradient
#
# Losses and gradients equal PyTorch's up to rounding:

# %%
import jax
import numpy as np

batch = fs.Examples(x[:16], y[:16])
gradient = jax.grad(lambda p: task.loss(p, batch, buffers=task.buffers)[0].mean())(task.init(None))
net.eval()
nn.CrossEntropyLoss()(net(torch.tensor(x[:16])), torch.tensor(y[:16])).backward()
largest = max(
    float(np.abs(np.asarray(gradient[name]) - theirs.grad.numpy()).max())
    for name, theirs in net.named_parameters()
)
print(f"largest difference between gradient entries: {largest:.1e}")

# %% [markdown]
# [PyTorch modules](../pytorch) describes which modules cannot be translated, and how they run.
