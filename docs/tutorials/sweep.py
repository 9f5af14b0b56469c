# %% [markdown]
# # A sweep
#
# Every setting of a grid with every seed, side by side in one compiled program.

# %%
import fedsolve as fs
from fedsolve.report import sweep_plots

task = fs.tasks.digits(num_clients=50)
grid = {"client_lr": [0.01, 0.03, 0.1, 0.3, 1.0], "server_lr": [0.003, 0.01, 0.03, 0.1, 0.3]}
found = fs.sweep("FedAdam", task, grid, seeds=2, rounds=40, clients_per_round=10, progress=False)
found

# %% [markdown]
# `found` knows its selection criterion (here the mean training loss of the last 4 of 40 rounds), the best setting by
# it, and how much of the grid is about as good, which is how easy the method is to tune.

# %%
print(found.best_settings, f"{100 * found.share_within(0.05):.0f} % of the grid within 5 % of the best")
sweep_plots.heat_map(found, "client_lr", "server_lr")

# %% [markdown]
# ## Another rule
#
# The training loss is not what one wants in the end. With a validation share the rule may look at that, at no test
# data:

# %%
held = task.hold_out(0.2)
chosen = fs.sweep(
    "FedAdam", held, grid, seeds=2, rounds=40, clients_per_round=10, select="validation_accuracy:5"
)
chosen.best_settings

# %% [markdown]
# ## Two methods on one grid

# %%
plain = fs.sweep("FedAvg", task, grid, seeds=2, rounds=40, clients_per_round=10)
sweep_plots.best_over_grid([found, plain], "client_lr")

# %% [markdown]
# From the command line, with files, pages and resuming: [sweeps](../sweep).
