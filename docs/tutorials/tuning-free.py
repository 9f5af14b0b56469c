# %% [markdown]
# # Without tuning
#
# Some methods find their rates themselves: on the server (FedDuAdam, FedExP), or on the clients by a line search
# (FedLiLS). How much that is worth shows where nothing was tuned: every method below has its defaults.

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
# ## Which rate disappears
#
# FedDuAdam's server step follows from how much the clients disagree, and is logged as `server_lr`; its client rate
# remains. FedLiLS searches every client step and logs the largest of the cohort.

# %%
print("FedDuAdam's server steps:", found["FedDuAdam"][0].rounds["server_lr"][:6].round(2))
searched = found["FedLiLS"][0].rounds
print("FedLiLS's client steps:", searched["client_step"][:6].round(2))
print("losses evaluated a participant and round:", searched["loss_evaluations"].mean().round(1))

# %% [markdown]
# ## How sensitive each is to the rate that is left

# %%
rates = {"client_lr": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0]}
swept = [fs.sweep(name, task, rates, rounds=40, clients_per_round=20) for name in ("FedAvg", "FedDuAdam")]

# %%
from fedsolve.report.sweep_plots import best_over_grid

best_over_grid(swept, "client_lr")

# %% [markdown]
# A rate that is not needed is not a rate that is right: `eta_max` of a line search, and FedDuAdam's client rate,
# still matter on some problems. [Tuning-free methods](../tuning-free) has what was measured on twelve of them.
