# %% [markdown]
# # A first run
#
# A method, a task, a number of rounds: `fs.run` compiles one program for all rounds and gives back the model and
# its record.

# %%
import fedsolve as fs

task = fs.tasks.digits()  # 1,438 handwritten digits, split over 100 clients by a skewed draw of labels
result = fs.run(fs.FedDuAdam(client_lr=0.1), task, rounds=100, clients_per_round=20)
result

# %% [markdown]
# A result shows itself as a table. What it holds are arrays: `metrics` has a column for each metric, by evaluation,
# and `rounds` one for everything that is logged each round.

# %%
result.metrics["test_accuracy"][-3:], result.rounds["server_lr"][:5], result.rounds["bytes_up"].sum()

# %%
result.plot("accuracy")

# %% [markdown]
# ## Several seeds, several methods
#
# One seed says little. `seeds=3` runs three with the same compiled program, and every table and plot then shows
# the mean with its spread. `fs.compare` puts methods side by side on the same cohorts; these rates come from the
# sweep behind `make run`.

# %%
methods = {"FedAvg": fs.FedAvg(0.3), "FedDuAdam": fs.FedDuAdam(0.1), "SCAFFOLD": fs.SCAFFOLD(0.3)}
found = fs.compare(methods, task, seeds=3, rounds=100, clients_per_round=20)
found

# %%
found.plot("test_accuracy")

# %% [markdown]
# ## Keep it
#
# `save` writes the model as safetensors and the record as JSON; `fs.load` reads both. `out=` does so by itself,
# with checkpoints to resume from and a page that opens in a browser.

# %%
result.save("runs/first")
fs.load("runs/first").metrics["test_accuracy"][-1]

# %%
print(found.to_latex())

# %% [markdown]
# Next: [your own problem](own-problem), or [which method when](../choosing).
