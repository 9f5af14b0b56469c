# %% [markdown]
# # A first run
#
# `fs.run` takes a method, a task and a number of rounds. It compiles one program for all rounds, and returns the
# trained model with its record.

# %%
import fedsolve as fs

task = fs.tasks.digits()  # 1,438 handwritten digits, 100 clients, label skew
result = fs.run(fs.FedDuAdam(client_lr=0.1), task, rounds=100, clients_per_round=20)
result

# %% [markdown]
# `metrics` has an array for each metric, with one value per evaluation, and `rounds` one value per round.

# %%
result.metrics["test_accuracy"][-3:], result.rounds["server_lr"][:5], result.rounds["bytes_up"].sum()

# %%
result.plot("accuracy")

# %% [markdown]
# ## Several seeds, several methods
#
# One seed is not enough for a conclusion. `seeds=3` runs three seeds in one compiled program, and tables and plots
# then show mean and spread. `fs.compare` runs several methods with the same cohorts. The learning rates below were
# chosen by `make tune`.

# %%
methods = {"FedAvg": fs.FedAvg(0.3), "FedDuAdam": fs.FedDuAdam(0.1), "SCAFFOLD": fs.SCAFFOLD(0.3)}
found = fs.compare(methods, task, seeds=3, rounds=100, clients_per_round=20)
found

# %%
found.plot("test_accuracy")

# %% [markdown]
# ## Save the result
#
# `save` writes the model as safetensors and the record as JSON; `fs.load` reads both. With `out=FOLDER`, `fs.run` also
# writes checkpoints and an HTML page.

# %%
result.save("runs/first")
fs.load("runs/first").metrics["test_accuracy"][-1]

# %%
print(found.to_latex())

# %% [markdown]
# Next: [your own problem](own-problem), or [choosing a method](../choosing).
