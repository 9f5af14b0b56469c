# %% [markdown]
# # A network of your own
#
# Parameters may be the result of a flax module's `init`, or an equinox module. This tutorial trains a small residual
# network in plain JAX with dropout, on clients of different sizes, and evaluates it on held-out clients.

# %%
import jax
import jax.numpy as jnp
import optax

import fedsolve as fs

digits = fs.tasks.digits(num_clients=40)  # only its data are used
WIDTH = 48


def init(key):
    a, b, c = jax.random.split(key, 3)
    return {
        "inner": jax.random.normal(a, (64, WIDTH)) / 8,
        "block": jax.random.normal(b, (WIDTH, WIDTH)) / WIDTH**0.5,
        "outer": jax.random.normal(c, (WIDTH, 10)) / WIDTH**0.5,
    }


def logits(params, x, key=None):
    hidden = jax.nn.gelu(x @ params["inner"])
    update = jax.nn.gelu(hidden @ params["block"])
    if key is not None:  # in local training only; the key follows from seed, round, client and step
        update = jnp.where(jax.random.bernoulli(key, 0.9, update.shape), update / 0.9, 0)
    return (hidden + update) @ params["outer"]


def loss(params, batch, key=None):
    """The loss of each example, shape (n,): fast with clients of different sizes."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, batch.x, key), batch.y)


def accuracy(params, batch):
    return jnp.mean(jnp.argmax(logits(params, batch.x), axis=1) == batch.y)


# %%
parts = [digits.data.client(m) for m in range(40)]
task = fs.Task.from_arrays(
    loss,
    init(jax.random.key(0)),
    parts[:32],
    unseen=parts[32:],
    test=digits.test,
    metrics={"accuracy": accuracy},
    batch_size=10,
)
result = fs.run(fs.FedAvgM(0.1), task, rounds=60, clients_per_round=8)
result.plot("accuracy")

# %% [markdown]
# The metrics of the eight held-out clients: over all their examples, and the mean and spread over clients:

# %%
{
    name: round(float(values[-1]), 3)
    for name, values in result.metrics.items()
    if name.startswith("unseen_accuracy")
}

# %% [markdown]
# ## Optax optimisers on the clients

# %%
adamw = fs.FedOpt(fs.client.Optax(optax.adamw, learning_rate=0.003), fs.server.ServerSGD(1.0))
found = fs.compare({"SGD": fs.FedAvg(0.1), "AdamW": adamw}, task, rounds=60, clients_per_round=8)
found.plot("test_accuracy")

# %% [markdown]
# [Networks in JAX](../networks) describes BatchNorm, masks and frozen parameters.
