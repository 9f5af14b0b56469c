# %% [markdown]
# # A sweep
#
# A sweep runs every setting of a grid with every seed in one compiled program.

# %%
import fedsolve as fs
from fedsolve.report import sweep_plots

task = fs.tasks.digits(num_clients=50)
grid = {"client_lr": [0.01, 0.03, 0.1, 0.3, 1.0], "server_lr": [0.003, 0.01, 0.03, 0.1, 0.3]}
found = fs.sweep("FedAdam", task, grid, seeds=2, rounds=40, clients_per_round=10, progress=False)
found

# %% [markdown]
# By the mean training loss of the last 4 of 40 rounds: the best setting, and the share of the grid about as good:

# %%
print(found.best_settings, f"{100 * found.share_within(0.05):.0f} % of the grid within 5 % of the best")
sweep_plots.heat_map(found, "client_lr", "server_lr")

# %% [markdown]
# ## Another selection criterion
#
# To select by validation accuracy, hold out validation examples; the test set stays unused:

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
# [Sweeps](../sweep) describes the command line, configuration files, pages and resuming.
