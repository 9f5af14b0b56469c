# %% [markdown]
# # Sparse models
#
# Minimise $F(w) + \psi(w)$, where $F$ is the mean of the clients' losses and $\psi$ a penalty that makes weights
# exactly 0.

# %%
import dataclasses

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fedsolve as fs
from fedsolve.geometry import L1

draw = np.random.default_rng(0)
truth = np.zeros(200)
truth[:10] = draw.choice([-2.0, -1.0, 1.0, 2.0], 10)
inputs = [draw.normal(size=(n, 200)) for n in draw.integers(10, 40, 30)]
clients = [(x, x @ truth + 0.5 * draw.normal(size=len(x))) for x in inputs]


def loss(params, batch):
    x, y = batch
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


start = {"w": np.zeros(200), "b": np.zeros(())}
task = fs.Task.from_arrays(loss, start, clients, batch_size=10)

# %% [markdown]
# Evaluations measure what they are told to: here how dense the model is, and how well its support is that of the
# truth.

# %%
true = {"w": truth, "b": np.zeros(())}
measured = (fs.diagnostics.Density(zero=0.0, on="w"), fs.diagnostics.Support(true, on="w"))
task = dataclasses.replace(task, diagnostics=measured)

# %% [markdown]
# A step along a subgradient leaves no weight at exactly 0; a proximal step does. FedMiD takes it on the clients and on
# the server, so that $\psi$ counts for about twice what it says; FedDualAvg averages before it thresholds, by all rates
# so far. Below, the former finds the support sooner, and the latter has fewer weights on the way.

# %%
psi = L1(0.3).on("w")  # the bias stays free
rate = {"client_lr": 0.003}
methods = {
    "subgradients": fs.Subgradient(fs.FedAvg(**rate), psi),
    "FedMiD": fs.FedMiD(psi, **rate),
    "FedDualAvg": fs.FedDualAvg(psi, **rate),
}
found = fs.compare(methods, task, rounds=200, clients_per_round=10)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for name in methods:
    run = found[name]
    axes[0].plot(run.metrics["round"], run.metrics["density"], label=name)
    axes[1].plot(run.metrics["round"], run.metrics["f1"])
axes[0].set(xlabel="round", ylabel="share of weights that are not 0", yscale="log")
axes[1].set(xlabel="round", ylabel="F1 of the support")
axes[0].legend()
plt.show()

# %% [markdown]
# ## The answer of the gathered problem
#
# `fs.baselines` solves the same problem with all data in one place, to compare with.

# %%
exact = fs.baselines.fista(task, psi)
w = np.asarray(exact.params["w"])
dual = found["FedDualAvg"]
print(f"{np.sum(w != 0)} weights are not 0, among them {np.sum(w[:10] != 0)} of the 10 true ones")
print(
    f"F + psi: {exact.value:.4f} gathered, {dual.metrics['objective'][-1]:.4f} by FedDualAvg after 200 rounds"
)

# %% [markdown]
# All penalties, which method asks what of them, and what was measured: [composite problems](../composite).
