# %% [markdown]
# # Gallery
#
# Plots, each below its code. All code was executed when the site was built.

# %%
import dataclasses

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fedsolve as fs
from fedsolve.geometry import L1, L1Ball
from fedsolve.report import sweep_plots
from fedsolve.report.figures import labels_by_client

digits = fs.tasks.digits()

# %% [markdown]
# ## Labels of each client

# %%
labels_by_client(digits.data, title="100 clients, Dirichlet(0.3)")

# %% [markdown]
# ## Several seeds, with a band for the range

# %%
methods = {"FedAvg": fs.FedAvg(0.3), "FedDuAdam": fs.FedDuAdam(0.1)}
found = fs.compare(methods, digits, seeds=3, rounds=40, clients_per_round=20)
found.plot("train_loss")

# %% [markdown]
# ## Convergence against traffic

# %%
softmax = fs.tasks.digits(model="softmax", num_clients=20)
frank_wolfe = fs.FedFWPlus(L1Ball(50.0), steps=fs.frank_wolfe.Convex(lam0=1e-4))
inside = fs.run(frank_wolfe, softmax, rounds=100, eval_every=5)
inside.plot("gap", x="megabytes")

# %% [markdown]
# ## Heat map of a sweep

# %%
grid = {"client_lr": [0.1, 0.3, 1.0, 3.0], "server_lr": [0.01, 0.03, 0.1, 0.3]}
adam = fs.sweep("FedAdam", softmax, grid, seeds=2, rounds=20, clients_per_round=10)
sweep_plots.heat_map(adam, "client_lr", "server_lr")

# %% [markdown]
# ## Best setting along one axis, and share of good settings

# %%
adagrad = fs.sweep("FedAdagrad", softmax, grid, seeds=2, rounds=20, clients_per_round=10)
sweep_plots.best_over_grid([adam, adagrad], "server_lr")

# %%
sweep_plots.share_within([adam, adagrad])

# %% [markdown]
# ## Simulated time
#
# A run with a synthetic fleet with stragglers: rounds end after 15 of 20 messages.

# %%
clocked = fs.run(fs.FedAvg(0.3), digits, rounds=30, clients_per_round=20, systems="stragglers", quorum=15)
clocked.plot_fleet()

# %%
clocked.plot("accuracy", x="time")

# %% [markdown]
# ## Deciles over clients

# %%
each = fs.callbacks.EachClient()
fs.run(fs.FedAvg(0.3), digits, rounds=40, eval_every=4, clients_per_round=20, callbacks=[each])
rounds = sorted(each.found)
deciles = np.array([each.found[r].deciles("accuracy") for r in rounds])
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for low in range(5):
    axes.fill_between(rounds, deciles[:, low], deciles[:, 10 - low], color="C0", alpha=0.18, linewidth=0)
axes.plot(rounds, deciles[:, 5], color="C0", label="median; bands: deciles")
axes.set(xlabel="round", ylabel="accuracy on a client's own examples")
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
# ## Regularisation path
#
# One program for all weights of the penalty: the weight is a leaf of the method, so a sweep can use it as an axis.

# %%
draw = np.random.default_rng(0)
truth = {"w": np.r_[draw.choice([-2.0, -1.0, 1.0, 2.0], 10), np.zeros(190)]}
inputs = [draw.normal(size=(n, 200)) for n in draw.integers(10, 40, 30)]
clients = [(x, x @ truth["w"] + 0.5 * draw.normal(size=len(x))) for x in inputs]


def squares(params, batch):
    return jnp.mean((batch[0] @ params["w"] - batch[1]) ** 2)


problem = fs.Task.from_arrays(squares, {"w": np.zeros(200)}, clients, batch_size=10)
problem = dataclasses.replace(problem, diagnostics=(fs.diagnostics.Density(), fs.diagnostics.Support(truth)))


def sparse(weight):
    return fs.FedDualAvg(L1(weight), client_lr=0.003)


weights = np.geomspace(0.01, 3, 8).tolist()
path = fs.sweep(sparse, problem, {"weight": weights}, rounds=150, clients_per_round=10, label="FedDualAvg")
figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for name, what in {"density": "share of weights above 0.01", "f1": "F1 of the support"}.items():
    axes.plot(weights, [path.curve(i, name).mean(0)[-1] for i in range(len(weights))], "o-", label=what)
axes.set(xlabel="weight of the penalty", xscale="log", ylim=(0, 1.02))
axes.legend()
plt.show()

# %% [markdown]
# ## Mean ranks with a critical difference
#
# Mean ranks over problems; methods under one bar do not differ significantly at the 5 % level (Friedman's test and
# Nemenyi's critical difference, as in [studies](studies)).

# %%
from fedsolve.studies.rules.ranks import rank

tried = {"FedAvg": fs.FedAvg(0.1), "FedAdam": fs.FedAdam(0.1, server_lr=0.03), "FedDuAdam": fs.FedDuAdam(0.1)}
tried["SCAFFOLD"] = fs.SCAFFOLD(0.1)
losses = {name: [] for name in tried}
for alpha in (0.1, 0.3, 1.0, 10.0):
    problem = fs.tasks.digits(20, fs.data.Dirichlet(alpha), "softmax")
    found = fs.compare(tried, problem, rounds=20, clients_per_round=10)
    for name, value in found.final("test_loss").items():
        losses[name].append(value)
ranks = rank(losses)

figure, axes = plt.subplots(figsize=(6.4, 2.2), layout="constrained")
axes.plot(ranks.mean, np.zeros(len(tried)), "o")
for name in tried:
    axes.annotate(name, (ranks.of(name), 0.05), rotation=35, ha="left", va="bottom")
for depth, group in enumerate(ranks.groups, 1):
    axes.plot([ranks.of(group[0]), ranks.of(group[-1])], [-0.12 * depth] * 2, color="0.5", linewidth=4)
axes.set(xlabel="mean rank on four problems, 1 is best", yticks=[], ylim=(-0.5, 0.8), xlim=(1, len(tried)))
axes.set_title(f"Friedman's p = {ranks.p:.2g}, critical difference {ranks.critical_difference:.2f}")
plt.show()
