"""One federated round in plain PyTorch, which imports nothing from fedsolve."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from zoo.entry import Entry

COUNTS = 5, 3, 4
TEST = 7


class Data(NamedTuple):
    """Examples of each client and of the test, pairs of arrays."""

    clients: list[Any]
    test: Any


class Outcome(NamedTuple):
    """What a round leaves, in float64."""

    params: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]
    test_loss: float


def drawn(entry: Entry) -> Data:
    """The entry's examples, the same at every call."""
    pair = entry.data(np.random.default_rng(0), sum(COUNTS) + TEST)
    ends = np.cumsum((0, *COUNTS, TEST))
    parts = [pytree.tree_map(lambda a, i=i, j=j: a[i:j], pair) for i, j in pairwise(ends)]
    return Data(parts[:-1], parts[-1])


def made(entry: Entry) -> tuple[nn.Module, Any]:
    """The module in float64 and its loss, the same at every call."""
    torch.manual_seed(0)
    found = entry.make()
    module, loss = found if isinstance(found, tuple) else (found, entry.loss)
    return module.double(), loss


def start(entry: Entry) -> dict[str, np.ndarray]:
    """The parameters that train, before they do."""
    return {n: p.detach().numpy().copy() for n, p in made(entry)[0].named_parameters() if p.requires_grad}


def round_by_hand(entry: Entry, steps: int, rate: float) -> Outcome:
    """Steps of gradient descent on all of each client's examples, models averaged by their numbers."""
    data = drawn(entry)
    trained = [_client(entry, examples, steps, rate) for examples in data.clients]
    share = np.array(COUNTS) / sum(COUNTS)
    params, buffers = {}, {}
    for name in trained[0][0]:
        params[name] = sum(s * own[name] for s, (own, _) in zip(share, trained, strict=True))
    for name in trained[0][1]:
        buffers[name] = sum(kept[name] for _, kept in trained) / len(trained)
    return Outcome(params, buffers, _test_loss(entry, data.test, params, buffers))


def _client(entry: Entry, examples: Any, steps: int, rate: float) -> tuple[dict[str, Any], dict[str, Any]]:
    module, loss = made(entry)
    module.train()
    for _ in range(steps):
        x, y = _tensors(examples)
        module.zero_grad()
        loss(module(x), y).mean().backward()
        with torch.no_grad():
            for p in module.parameters():
                if p.requires_grad and p.grad is not None:
                    p -= rate * p.grad
    return _values(module)


def _values(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    params = {n: p.detach().numpy() for n, p in module.named_parameters() if p.requires_grad}
    saved = module.state_dict()
    kept = {n: b for n, b in module.named_buffers() if n in saved and b.dtype is not torch.bool}
    return params, {n: b.detach().double().numpy() for n, b in kept.items()}


def _test_loss(entry: Entry, test: Any, params: dict[str, Any], buffers: dict[str, Any]) -> float:
    module, loss = made(entry)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name in params:
                p.copy_(torch.from_numpy(np.array(params[name])))
        for name, b in module.named_buffers():
            if name in buffers:
                b.copy_(torch.from_numpy(np.array(buffers[name])))
        x, y = _tensors(test)
        module.eval()
        return float(loss(module(x), y).mean())


def _tensors(examples: Any) -> Any:
    """Float64 and int64; bytes and truth values as they are."""

    def tensor(a: np.ndarray) -> Tensor:
        t = torch.tensor(a)  # a copy, which a module may write to
        if t.dtype in (torch.uint8, torch.bool):
            return t
        return t.double() if t.is_floating_point() else t.long()

    return pytree.tree_map(tensor, examples)
