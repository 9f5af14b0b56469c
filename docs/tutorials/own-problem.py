# %% [markdown]
# # Your own problem
#
# A problem is a loss, initial parameters, and arrays for each client. Clients may be of any size.

# %%
import jax.numpy as jnp
import numpy as np

import fedsolve as fs

draw = np.random.default_rng(0)
shift = draw.normal(size=(30, 2))  # each client sees inputs around a point of its own


def client(m, examples):
    """Inputs (n, 2) and targets (n,) of one client: a curve with noise."""
    x = shift[m] + draw.normal(size=(examples, 2))
    return x, np.sin(x[:, 0]) * x[:, 1] + 0.1 * draw.normal(size=examples)


clients = [client(m, draw.integers(5, 60)) for m in range(30)]
test = tuple(np.concatenate(parts) for parts in zip(*(client(m, 20) for m in range(30)), strict=True))

# %% [markdown]
# The loss is a mean over the first axis of its batch. Parameters are any pytree, here a dict.

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


def mean_error(params, batch):  # a metric has the form of a loss
    x, y = batch
    return jnp.mean(jnp.abs(predict(params, x) - y))


task = fs.Task.from_arrays(
    loss, start, clients, test=test, metrics={"mean_error": mean_error}, batch_size=10, epochs=2
)
task

# %% [markdown]
# What does not fit is refused before anything runs, in one line: which client, which row, what would be right.

# %%
try:
    broken = [(x, np.where(x[:, 0] > 3, np.nan, y)) for x, y in clients]
    fs.run(fs.FedAvg(0.05), fs.Task.from_arrays(loss, start, broken, batch_size=10), rounds=5)
except fs.InvalidInput as error:
    print(error)

# %% [markdown]
# ## Run it, with validation data and callbacks
#
# `hold_out` keeps a share of every client's examples from training. A callback sees each evaluation; one that
# returns words ends the run there.

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
# `EachClient` kept the loss of every client. The mean hides who is served badly:

# %%
last = each.found[max(each.found)]
print("deciles of the clients' losses:", np.round(last.deciles("loss"), 2))
print("the three worst:", last.worst("loss", 3))
print("by size:", last.by_group("loss", ["small" if n < 30 else "large" for n in last.examples]))

# %% [markdown]
# Random numbers in the loss, masks, buffers and what else networks need: [networks](../networks). Tables of pandas:
# `examples/own_table.py` in the repository. Problems that are ready to use: [tasks](../tasks).
