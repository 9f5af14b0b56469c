# %% [markdown]
# # Sparse models
#
# Minimise $F(w) + \psi(w)$, where $F$ is the mean of the clients' losses and $\psi$ a penalty that sets weights to
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
# Choose what is evaluated: here the density of the model, and how well it recovers the true support.

# %%
true = {"w": truth, "b": np.zeros(())}
measured = (fs.diagnostics.Density(zero=0.0, on="w"), fs.diagnostics.Support(true, on="w"))
task = dataclasses.replace(task, diagnostics=measured)

# %% [markdown]
# Subgradient steps leave no weight at exactly 0; proximal steps do. FedMiD takes proximal steps on the clients and on
# the server, so that the effective penalty is about $2\psi$. FedDualAvg averages first and then thresholds, with the
# sum of all learning rates so far. Below, FedMiD finds the support sooner, and FedDualAvg has fewer nonzero weights
# on the way.

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
axes[0].set(xlabel="round", ylabel="share of nonzero weights", yscale="log")
axes[1].set(xlabel="round", ylabel="F1 of the support")
axes[0].legend()
plt.show()

# %% [markdown]
# ## The centralised solution
#
# For comparison, `fs.baselines` solves the same problem with all data in one place.

# %%
exact = fs.baselines.fista(task, psi)
w = np.asarray(exact.params["w"])
dual = found["FedDualAvg"]
print(f"{np.sum(w != 0)} nonzero weights, among them {np.sum(w[:10] != 0)} of the 10 true ones")
print(
    f"F + psi: {exact.value:.4f} centralised, {dual.metrics['objective'][-1]:.4f} by FedDualAvg after 200 rounds"
)

# %% [markdown]
# See [composite problems](../composite) for all penalties, the requirements of each method, and results.
