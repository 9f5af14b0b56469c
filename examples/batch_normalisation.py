"""BatchNorm of flax (nnx) and of equinox: its running statistics are buffers, and the first layer is frozen.

docs/networks.md has the same for flax's linen. Run it: python examples/batch_normalisation.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import fedsolve as fs

rng = np.random.default_rng(0)
truth = rng.normal(size=(8, 3))


def writer(examples: int) -> fs.Examples:
    """One client: the class is the largest of three linear functions of the inputs."""
    x = rng.normal(size=(examples, 8))
    return fs.Examples(x, np.argmax(x @ truth, axis=1))


writers = [writer(n) for n in (120, 70, 90)]


class Block(nnx.Module):
    """Two dense layers with BatchNorm between them, in flax's nnx."""

    def __init__(self, rngs):
        self.encoder, self.head = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)

    def __call__(self, x, train, mask=None):
        """The logits; the statistics change in training."""
        x = self.norm(self.encoder(x), use_running_average=not train, mask=mask)
        return self.head(nnx.relu(x))


graph, learned, statistics = nnx.split(Block(nnx.Rngs(0)), nnx.Param, nnx.BatchStat)


def nnx_loss(params, batch, key=None, weights=None, buffers=None):
    """The mask keeps padded examples of uneven clients out of the statistics."""
    mask = jnp.ones(len(batch.y)) if weights is None else weights
    model = nnx.merge(graph, params, buffers, copy=True)  # a module writes into its own variables
    logits = model(batch.x, train=key is not None, mask=mask[:, None] > 0)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch.y), nnx.state(model, nnx.BatchStat)


with_nnx = fs.Task.from_arrays(
    nnx_loss, learned, writers, buffers=statistics, freeze=("encoder.*",), batch_size=10
)
result = fs.run(fs.FedAvg(0.1), with_nnx, rounds=30)
trained = nnx.merge(graph, result.params, result.buffers)
print(f"nnx: training loss {result.metrics['train_loss'][-1]:.3f}")


class Layers(eqx.Module):
    """The same in equinox; its BatchNorm has no mask, so clients and minibatches have one size."""

    encoder: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.encoder, self.head = eqx.nn.Linear(8, 16, key=first), eqx.nn.Linear(16, 3, key=second)
        self.norm = eqx.nn.BatchNorm(16, axis_name="batch", momentum=0.9, mode="batch")  # not "ema"

    def __call__(self, x, state):
        """The logits and the new statistics."""
        x, state = self.norm(self.encoder(x), state)
        return self.head(jax.nn.relu(x)), state


layers, state = eqx.nn.make_with_state(Layers)(jax.random.key(0))


def equinox_loss(model, batch, key=None, buffers=None):
    """equinox's `State` is the buffers."""
    each = jax.vmap(
        eqx.nn.inference_mode(model, key is None), axis_name="batch", in_axes=(0, None), out_axes=(0, None)
    )
    logits, new = each(batch.x, buffers)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch.y), new


even = [fs.Examples(w.x[:60], w.y[:60]) for w in writers]
with_equinox = fs.Task.from_arrays(
    equinox_loss, layers, even, buffers=state, freeze=("encoder.*",), batch_size=10
)
result = fs.run(fs.FedAvg(0.1), with_equinox, rounds=30)
print(f"equinox: training loss {result.metrics['train_loss'][-1]:.3f}")
