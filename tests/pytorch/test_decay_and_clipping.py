"""Weight decay and clipping, of clients and of the server, act on exactly the parameters of PyTorch's optimisers."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

import fedsolve as fs

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

STEPS, RATE, DECAY, BOUND = 4, 0.05, 0.3, 0.1
DRAW = np.random.default_rng(0)
TOKENS, Y = DRAW.integers(0, 5, (12, 3)), DRAW.integers(0, 5, 12)


class Tied(nn.Module):
    """A tied table, a frozen layer, a parameter that is one number, one that plays no part, and buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.still, self.norm = nn.Embedding(5, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 5)
        self.last.weight = self.table.weight
        self.still.requires_grad_(False)
        self.size = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("places", torch.arange(3))

    def forward(self, x):
        return self.last(self.norm(self.size * self.still(self.table(x + 0 * self.places).mean(1))))


def adamw():
    return fs.client.Optax(optax.adamw, learning_rate=RATE, weight_decay=DECAY)


CASES = {
    "decay": (
        lambda: fs.client.SGD(RATE, weight_decay=DECAY),
        lambda p: torch.optim.SGD(p, RATE, weight_decay=DECAY),
        None,
    ),
    "decay, momentum": (
        lambda: fs.client.SGD(RATE, weight_decay=DECAY, momentum=0.9),
        lambda p: torch.optim.SGD(p, RATE, weight_decay=DECAY, momentum=0.9),
        None,
    ),
    "clipping": (lambda: fs.client.SGD(RATE, clip_norm=BOUND), lambda p: torch.optim.SGD(p, RATE), BOUND),
    "AdamW": (adamw, lambda p: torch.optim.AdamW(p, RATE, weight_decay=DECAY), None),
    "pull to the start": (
        lambda: fs.client.SGD(RATE, weight_decay=DECAY),
        lambda p: torch.optim.SGD(p, RATE, weight_decay=DECAY),
        None,
    ),
}
PULL = 0.7
# the server's, whose gradient is the step that the clients took back; clipped before a PyTorch step
SERVERS = {
    "decay": (
        lambda: fs.server.Optax(optax.adamw, learning_rate=RATE, weight_decay=DECAY),
        lambda p: torch.optim.AdamW(p, RATE, weight_decay=DECAY),
        None,
    ),
    "decay, momentum": (
        lambda: fs.server.Optax(with_decay, learning_rate=RATE),
        lambda p: torch.optim.SGD(p, RATE, weight_decay=DECAY),
        None,
    ),
    "clipping": (
        lambda: fs.server.Optax(with_clipping, learning_rate=1.0),
        lambda p: torch.optim.SGD(p, 1.0),
        BOUND,
    ),
}


def with_decay(learning_rate):
    return optax.chain(optax.add_decayed_weights(DECAY), optax.sgd(learning_rate))


def with_clipping(learning_rate):
    return optax.chain(optax.clip_by_global_norm(BOUND), optax.sgd(learning_rate))


def after_server(module, make, bound):
    """A step of the server's optimiser from the first model; buffers are the clients'."""
    server = Tied().double()
    for name, buffer in module.named_buffers():
        server.get_buffer(name).copy_(buffer)
    optimiser = make(server.parameters())
    for p, own in zip(server.parameters(), module.parameters(), strict=True):
        if p.requires_grad:
            p.grad = (p - own).detach()
    if bound is not None:
        nn.utils.clip_grad_norm_(server.parameters(), bound)
    optimiser.step()
    return server


def theirs(make, bound, pull):
    """PyTorch's own loop; the gradient of what plays no part is 0, as fedsolve has it, and not None."""
    module, start = Tied().double().train(), dict(Tied().double().named_parameters())
    optimiser = make(module.parameters())
    for _ in range(STEPS):
        optimiser.zero_grad()
        F.cross_entropy(module(torch.as_tensor(TOKENS)), torch.as_tensor(Y)).backward()
        module.unused.grad = torch.zeros(3, dtype=torch.float64)
        if bound is not None:
            nn.utils.clip_grad_norm_(module.parameters(), bound)
        for n, p in module.named_parameters():
            if p.grad is not None:
                p.grad += pull * (p - start[n]).detach()
        optimiser.step()
    return module


@pytest.mark.parametrize(
    "name", ["decay", *(pytest.param(n, marks=pytest.mark.full) for n in CASES if n != "decay")]
)
def test_the_same_parameters_as_in_pytorch(name):
    solver, make, bound = CASES[name]
    task = fs.tasks.from_torch(
        Tied().double(), F.cross_entropy, [(TOKENS, Y)], batch_size=None, local_steps=STEPS
    )
    assert task.notes == ()
    pull = PULL if name == "pull to the start" else 0.0
    server, *step = SERVERS.get(name, (fs.server.ServerSGD,))
    method = fs.FedProx(RATE, mu=pull, weight_decay=DECAY) if pull else fs.FedOpt(solver(), server())
    result = fs.run(method, task, rounds=1, dtype="float64", progress=False)
    wanted = theirs(make, bound, pull)
    if step:
        wanted = after_server(wanted, *step)
    own = result.module()
    for (name_of, ours), expected in zip(own.state_dict().items(), wanted.state_dict().values(), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-8, err_msg=name_of)
    assert not np.allclose(own.table.weight.detach(), Tied().table.weight.detach(), atol=1e-3)
    assert jax.tree.structure(result.params).num_leaves >= len(dict(wanted.named_parameters()))
