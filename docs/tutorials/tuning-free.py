# %% [markdown]
# # Without tuning
#
# Some methods set learning rates themselves: on the server (FedDuAdam, FedExP), or on the clients by a line search
# (FedLiLS). All methods below run with their defaults.

# %%
import fedsolve as fs

task = fs.tasks.digits()
untuned = {
    "FedAvg": fs.FedAvg(),
    "FedAdam": fs.FedAdam(),
    "FedDuAdam": fs.FedDuAdam(),
    "FedLiLS": fs.FedLiLS(),
}
found = fs.compare(untuned, task, seeds=2, rounds=60, clients_per_round=20)
found

# %%
found.plot("train_loss")

# %% [markdown]
# ## Which learning rate is set
#
# FedDuAdam logs its server rate as `server_lr`; you still choose the client rate. FedLiLS logs the largest step of
# the cohort.

# %%
print("FedDuAdam's server steps:", found["FedDuAdam"][0].rounds["server_lr"][:6].round(2))
searched = found["FedLiLS"][0].rounds
print("FedLiLS's client steps:", searched["client_step"][:6].round(2))
print("loss evaluations per participant and round:", searched["loss_evaluations"].mean().round(1))

# %% [markdown]
# ## Sensitivity to the client rate

# %%
rates = {"client_lr": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0]}
swept = [fs.sweep(name, task, rates, rounds=40, clients_per_round=20) for name in ("FedAvg", "FedDuAdam")]

# %%
from fedsolve.report.sweep_plots import best_over_grid

best_over_grid(swept, "client_lr")

# %% [markdown]
# [Tuning-free methods](../tuning-free) has results on twelve problems.
