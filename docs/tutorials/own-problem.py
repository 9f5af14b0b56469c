# %% [markdown]
# # Your own problem
#
# A problem is a loss, initial parameters, and arrays for each client. Clients may have different numbers of examples.

# %%
import jax.numpy as jnp
import numpy as np

import fedsolve as fs

draw = np.random.default_rng(0)
shift = draw.normal(size=(30, 2))  # the mean of each client's inputs


def client(m, examples):
    """Inputs (n, 2) and noisy targets (n,) of one client."""
    x = shift[m] + draw.normal(size=(examples, 2))
    return x, np.sin(x[:, 0]) * x[:, 1] + 0.1 * draw.normal(size=examples)


clients = [client(m, draw.integers(5, 60)) for m in range(30)]
test = tuple(np.concatenate(parts) for parts in zip(*(client(m, 20) for m in range(30)), strict=True))

# %% [markdown]
# The loss is a mean over the first axis of its batch. Parameters are any pytree, such as this dict.

# %%
HIDDEN = 32
start = {
    "inner": draw.normal(size=(2, HIDDEN)),
    "bias": np.zeros(HIDDEN),
    "outer": draw.normal(size=HIDDEN) / HIDDEN,
}


def predict(params, x):
    return jnp.tanh(x @ params["inner"] + params["bias"]) @ params["outer"]


def loss(params, batch):
    x, y = batch
    return jnp.mean((predict(params, x) - y) ** 2)


def mean_error(params, batch):  # a metric has the arguments of a loss
    x, y = batch
    return jnp.mean(jnp.abs(predict(params, x) - y))


task = fs.Task.from_arrays(
    loss, start, clients, test=test, metrics={"mean_error": mean_error}, batch_size=10, epochs=2
)
task

# %% [markdown]
# Invalid data raise an error before training, with the client and the row:

# %%
try:
    broken = [(x, np.where(x[:, 0] > 3, np.nan, y)) for x, y in clients]
    fs.run(fs.FedAvg(0.05), fs.Task.from_arrays(loss, start, broken, batch_size=10), rounds=5)
except fs.InvalidInput as error:
    print(error)

# %% [markdown]
# ## Run it, with validation data and callbacks
#
# `hold_out` reserves a share of every client's examples for validation. Callbacks run after each evaluation; a
# callback that returns a string stops the run.

# %%
held = task.hold_out(0.2)
stop = fs.callbacks.EarlyStopping("validation_loss", patience=8)
each = fs.callbacks.EachClient()
result = fs.run(
    fs.FedAdam(0.05, server_lr=0.02),
    held,
    rounds=400,
    clients_per_round=10,
    eval_every=5,
    callbacks=[stop, each],
)
print(*result.history.notes, sep="\n")
result.plot("loss")

# %% [markdown]
# `EachClient` records the loss of every client, because a mean hides the clients with a poor model:

# %%
last = each.found[max(each.found)]
print("deciles of the clients' losses:", np.round(last.deciles("loss"), 2))
print("the three worst:", last.worst("loss", 3))
print("by size:", last.by_group("loss", ["small" if n < 30 else "large" for n in last.examples]))

# %% [markdown]
# See [networks in JAX](../networks) for random numbers, masks and buffers, `examples/own_table.py` in the repository
# for pandas tables, and [ready tasks](../tasks).
