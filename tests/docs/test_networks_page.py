"""docs/networks.md and its example run, and their BatchNorms are averaged as a transcript in JAX averages them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from harness import relative

pytestmark = pytest.mark.full
RATE, ROUNDS, STEPS, KEPT = 0.1, 3, 2, 0.9


@pytest.fixture(scope="module")
def programs():
    """The names of the page, after its blocks have run as one reader would type them, and of its example."""
    for package in ("flax", "equinox"):
        pytest.importorskip(package)
    root = Path(__file__).parents[2]
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", (root / "docs" / "networks.md").read_text(), re.DOTALL):
        exec(block, names)
    return {"page": names, "example": runpy.run_path(str(root / "examples" / "batch_normalisation.py"))}


def loss(trained, encoder, x, y):
    """Cross-entropy of a dense layer, normalisation by the batch, ReLU and a dense layer; the statistics."""
    hidden = x @ encoder["kernel"] + encoder["bias"]
    mean = hidden.mean(0)
    variance = ((hidden - mean) ** 2).mean(0)
    hidden = (hidden - mean) / jnp.sqrt(variance + 1e-5) * trained["scale"] + trained["shift"]
    logits = jnp.maximum(hidden, 0) @ trained["kernel"] + trained["bias"]
    own = jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, y[:, None], 1)[:, 0]
    return own.mean(), (mean, variance)


def by_hand(trained, encoder, statistics, clients):
    """FedAvg of full batches: parameters averaged by examples, statistics plainly."""
    for _ in range(ROUNDS):
        ends = []
        for x, y in clients:
            own, kept = trained, statistics
            for _ in range(STEPS):
                slope, now = jax.grad(loss, has_aux=True)(own, encoder, x, y)
                own = jax.tree.map(lambda a, b: a - RATE * b, own, slope)
                kept = jax.tree.map(lambda a, b: KEPT * a + (1 - KEPT) * b, kept, now)
            ends.append((own, kept))
        sizes = [len(y) for _, y in clients]
        total = sum(sizes)
        weighted = [
            jax.tree.map(lambda a, n=n / total: a * n, e[0]) for n, e in zip(sizes, ends, strict=True)
        ]
        trained = jax.tree.map(lambda *a: sum(a), *weighted)
        statistics = jax.tree.map(lambda *a: sum(a) / len(a), *[e[1] for e in ends])
    return trained, statistics


def flat(*trees):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(trees)])


def trained(task):
    options = {"rounds": ROUNDS, "batch_size": "full", "epochs": STEPS, "dtype": "float64"}
    return fs.run(fs.FedAvg(RATE), task, **options)


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_flax_with_uneven_clients(programs, kind):
    page, example = programs["page"], programs["example"]
    task, first, writers = {
        "linen": (page["with_flax"], page["variables"]["params"], page["writers"]),
        "nnx": (example["with_nnx"], example["learned"], example["writers"]),
    }[kind]

    def plain(tree):
        """nnx keeps each array in a variable, linen the arrays themselves."""
        return tree if kind == "linen" else example["nnx"].to_pure_dict(tree)

    def parts(params):
        norm, head = params["norm"], params["head"]
        return {"scale": norm["scale"], "shift": norm["bias"], "kernel": head["kernel"], "bias": head["bias"]}

    result = trained(task)
    ended, found = plain(result.params), plain(result.buffers)["norm"]
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(a, float), plain(first))
        wanted = by_hand(parts(wide), wide["encoder"], (jnp.zeros(16), jnp.ones(16)), writers)
    assert relative(flat(parts(ended), found["mean"], found["var"]), flat(*wanted)) < 1e-10
    np.testing.assert_array_equal(ended["encoder"]["kernel"], plain(first)["encoder"]["kernel"])


def test_equinox_with_even_clients(programs):
    example = programs["example"]

    def parts(model):
        norm, head = model.norm, model.head
        return {"scale": norm.weight, "shift": norm.bias, "kernel": head.weight.T, "bias": head.bias}

    result, first = trained(example["with_equinox"]), example["layers"]
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(a, float), parts(first))
        encoder = {
            "kernel": jnp.asarray(first.encoder.weight.T, float),
            "bias": jnp.asarray(first.encoder.bias, float),
        }
        wanted = by_hand(wide, encoder, (jnp.zeros(16), jnp.ones(16)), example["even"])
    statistics = result.buffers.get(result.params.norm.batch_state_index)
    assert relative(flat(parts(result.params), *statistics), flat(*wanted)) < 1e-10
    assert int(result.buffers.get(result.params.norm.batch_counter)) == ROUNDS * STEPS
