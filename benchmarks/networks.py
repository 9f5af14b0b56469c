"""Networks, W2, W5 and N1 to N3: the engine beside plain JAX and plain PyTorch, in turns.

    python benchmarks/bench.py w2 w5 n1 n2 n3

N in milliseconds per 1,000 examples, since clients of N1 are uneven in the engine and in PyTorch and even by hand.
FedAvg runs as it does where nothing is chosen: each core of a CPU is a device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedsolve as fs
import handwritten
import networks_jax as jax_by_hand
from fedsolve.tasks import CNN, LSTM, CrossEntropy, Examples, NextToken, ResNet18
from measure import Setting, by_hand, compare, library, task, torch_works

RATE = handwritten.RATE
WRITERS = [157, 155, 119, 161, 152, 163, 150, 138, 125, 62]
"""Images of ten writers of the FEMNIST sample, drawn at random (seed 0)."""
PER_THOUSAND = "ms per 1,000 examples"
_W2_OPERATIONS = 72e9  # of a round's direct convolutions and products, forward and backward


def pictures(sizes: list[int], shape: tuple[int, ...], classes: int) -> fs.FederatedData:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (sum(sizes), *shape)).astype(np.uint8)
    return fs.FederatedData(Examples(x, rng.integers(0, classes, len(x)).astype(np.int32)), np.array(sizes))


def padded(data: fs.FederatedData) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels (clients, largest client, ...) for the PyTorch loops."""
    counts = np.asarray(data.counts)
    starts = np.cumsum(counts) - counts

    def of(a: Any) -> np.ndarray:
        out = np.zeros((len(counts), counts.max(), *a.shape[1:]), a.dtype)
        for i, (start, n) in enumerate(zip(starts, counts, strict=True)):
            out[i, :n] = a[start : start + n]
        return out

    x, y = jax.tree.leaves(data.examples)
    return of(np.asarray(x)), of(np.asarray(y))


def n1_task(sizes: list[int]) -> fs.Task:
    model = CNN(dropout=(0.25, 0.5))
    return fs.Task("n1", model.init, CrossEntropy(model), pictures(sizes, (28, 28, 1), 62))


def n2_task(n: int, hidden: int = 256, time: int = 80, clients: int = 4 * jax_by_hand.COHORT) -> fs.Task:
    model = LSTM(90, hidden=hidden)
    text = np.random.default_rng(0).integers(1, 90, (clients * n, time + 1)).astype(np.int32)
    data = fs.FederatedData(Examples(text[:, :-1], text[:, 1:]), np.full(clients, n))
    return fs.Task("n2", model.init, NextToken(model), data)


def n3_task(n: int, width: int = 16, clients: int = 2 * jax_by_hand.COHORT, size: int = 32) -> fs.Task:
    model = ResNet18(100, width, groups=2)
    data = pictures([n] * clients, (size, size, 3), 100)
    return fs.Task("n3", model.init, CrossEntropy(model), data)


def fedavg(work: fs.Task, **local: Any) -> dict[str, Callable[[], None]]:
    """FedAvg, ten clients a round, as a run chooses its devices, and on one where it has several to choose from."""
    programs = {"FedAvg": library(fs.FedAvg(RATE), work, 10, 1, **local)}
    if len(jax.devices()) > 1:
        programs["FedAvg, 1 device"] = library(fs.FedAvg(RATE), work, 10, 1, devices=1, **local)
    return programs


def torch_row(model: str, arguments: Any, work: fs.Task, batch: int, setting: Setting) -> dict[str, Any]:
    if (torch := torch_works()) is None:
        return {}
    module, (x, y) = getattr(torch, model)(*arguments), padded(work.data)
    place = {"sizes": np.asarray(work.data.counts).tolist(), **setting.on_torch()}
    return {"PyTorch loop": torch.program(module, x, y, batch, **place)}


def n1(setting: Setting) -> None:
    writers = setting.pick(WRITERS, [7, 5, 9, 3, 8, 6, 4, 7, 2, 9])
    even = setting.pick(20 * round(sum(WRITERS) / len(WRITERS) / 20), 20)
    local = {"batch_size": 20, "epochs": 1}
    work = n1_task(writers)
    programs = {
        "by hand, even": by_hand(lambda: jax_by_hand.make_n1(even), 1),
        **fedavg(work, **local),
        "FedAvg, even": library(fs.FedAvg(RATE), n1_task([even] * 10), 10, 1, **local),
        **torch_row("cnn", (62, (0.25, 0.5)), work, 20, setting),
    }
    examples = {name: (10 * even if "even" in name else sum(writers)) / 1e3 for name in programs}
    about = "CNN with dropout, ten writers' uneven numbers of 28 x 28 images, batches of 20"
    compare("N1", about, programs, examples, setting.pick(7, 2), base="by hand, even", unit=PER_THOUSAND)


def n2(setting: Setting) -> None:
    n, hidden, time = setting.pick((20, 256, 80), (2, 16, 8))
    local, work = {"batch_size": 10, "epochs": 1}, n2_task(n, hidden, time)
    make = partial(jax_by_hand.make_n2, n, hidden=hidden, time=time, batch=min(10, n))
    programs = {
        "by hand": by_hand(make, 1),
        "by hand, vmap": by_hand(partial(make, "vmap"), 1),
        **fedavg(work, **local),
        "FedAvg, ten side by side": library(fs.FedAvg(RATE), work, 10, 1, devices=1, chunk=10, **local),
        **torch_row("Recurrent", (hidden,), work, 10, setting),
    }
    about = f"LSTM, 2 x {hidden}, sequences of {time}, 10 of 40 clients a round, batches of 10"
    compare("N2", about, programs, n / 100, setting.pick(7, 2), base="by hand", unit=PER_THOUSAND)


def n3(setting: Setting) -> None:
    n, width = setting.pick((20, 16), (2, 2))
    local, work = {"batch_size": 20, "epochs": 1}, n3_task(n, width)
    programs = {
        "by hand": by_hand(lambda: jax_by_hand.make_n3(n, width=width, batch=min(20, n)), 1),
        **fedavg(work, **local),
        **torch_row("resnet", (width,), work, 20, setting),
    }
    about = f"ResNet-18 with group norm, width {width}, 10 of 20 clients a round, batches of 20"
    compare("N3", about, programs, n / 100, setting.pick(7, 2), base="by hand", unit=PER_THOUSAND)


def w2(setting: Setting) -> None:
    clients, n, batch = setting.pick((100, 100, 20), (10, 4, 2))
    work = task("w2", CNN(), clients, n, (28, 28, 1), 62)
    local = {"batch_size": batch, "epochs": 1}
    programs = {
        "by hand": by_hand(partial(handwritten.make_w2, clients=clients, n=n, batch=batch), 1),
        **fedavg(work, **local),
        **torch_row("cnn", (), work, batch, setting),
    }
    products, rounds = matrix_products(setting)
    programs["matrix products"] = products
    units = dict.fromkeys(programs, 1.0) | {"matrix products": rounds}
    about = f"CNN 28 x 28, 62 classes, {clients} clients x {n}, 10 a round, {n // batch} steps of {batch}"
    compare("W2", about, programs, units, setting.pick(9, 2), base="by hand")


def matrix_products(setting: Setting, times: int = 2) -> tuple[Callable[[], None], float]:
    """Large float32 matrix products, and how many of W2's rounds have as many operations.

    Minimal filtering needs fewer products than the direct sums that are counted, so that a round may take less time.
    """
    size = setting.pick(2048, 128)
    a, product = jnp.ones((size, size)), jax.jit(lambda x: x @ x)

    def run() -> None:
        for _ in range(times):
            product(a).block_until_ready()

    run()
    return run, times * 2 * size**3 / _W2_OPERATIONS


def w5(setting: Setting) -> None:
    """A user's own CNN: what the library costs beside the loop that the user would have written."""
    try:
        import flax_loop as own
    except ImportError:
        print("flax is not installed: a user's flax CNN is left out")
        return
    for kind, sizes in (("even", own.EVEN), ("uneven", own.UNEVEN)):
        sizes = setting.pick(sizes, [n // 20 for n in sizes])
        local, work = {"batch_size": own.BATCH, "epochs": 1}, own.task(sizes)
        programs = {"Python loop": own.program(sizes), **fedavg(work, **local)}
        for chunk in (2, own.COHORT):
            on_one = {"chunk": chunk, "devices": 1, **local}
            programs[f"FedAvg, {chunk} side by side"] = library(fs.FedAvg(RATE), work, 10, 1, **on_one)
        if torch := torch_works():
            x, y = padded(work.data)
            loop = torch.program(torch.small_cnn(), x, y, own.BATCH, sizes=sizes, **setting.on_torch())
            programs["PyTorch loop"] = loop
        about = f"flax CNN of 105,866 parameters, 28 x 28, {kind} clients, 10 a round, batches of 20"
        compare(f"W5 {kind}", about, programs, 1, setting.pick(15, 2), base="Python loop")
