# %% [markdown]
# # Privacy
#
# `fs.privacy.DifferentialPrivacy` wraps a method: messages are clipped, the server adds noise, the log has
# $\varepsilon$ of every round. What is protected is all data of one client, against whoever sees the models.

# %%
import matplotlib.pyplot as plt

import fedsolve as fs
from fedsolve.methods.privacy import epsilon, noise_multiplier_for

task = fs.tasks.digits()
ROUNDS, COHORT, DELTA = 50, 20, 1e-3
who = {"cohort": COHORT, "population": 100, "delta": DELTA, "sampling": "poisson"}
z = noise_multiplier_for(8.0, rounds=ROUNDS, **who)
print(f"noise multiplier {z:.3f} for epsilon = 8 after {ROUNDS} rounds")

# %%
inner = fs.FedAdam(client_lr=0.1, server_lr=0.03, weighting="uniform")
cohorts = fs.sampling.Bernoulli(COHORT / 100)  # what the accountant assumes; another is refused
private = fs.privacy.DifferentialPrivacy(inner, noise_multiplier=z, clip_norm=0.1, clipping="adaptive", **who)
runs = {
    "private": fs.run(private, task, rounds=ROUNDS, sampling=cohorts, label="private"),
    "not private": fs.run(inner, task, rounds=ROUNDS, sampling=cohorts, label="not private"),
}
fs.Results(list(runs.values())).plot("test_accuracy")

# %%
log = runs["private"].rounds
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
axes[0].plot(log["round"], log["epsilon"])
axes[0].set(xlabel="round", ylabel="epsilon spent")
axes[1].plot(log["round"], log["clip_norm"])
axes[1].set(xlabel="round", ylabel="clipping norm, adaptive")
plt.show()

# %% [markdown]
# Renyi divergences would say that the same run was dearer. The price of more privacy follows before anything runs:

# %%
spent, bound = log["epsilon"][-1], log["epsilon_renyi"][-1]
print(
    f"privacy loss distributions: {spent:.2f} (before the run: {epsilon(z, ROUNDS, **who):.2f}); Renyi: {bound:.2f}"
)
for wanted in (16, 8, 4, 2):
    print(f"epsilon {wanted:2}: noise multiplier {noise_multiplier_for(wanted, rounds=ROUNDS, **who):.2f}")

# %% [markdown]
# The run is checked against what is accounted for:

# %%
try:
    fs.run(private, task, rounds=ROUNDS, clients_per_round=COHORT)
except fs.InvalidInput as error:
    print(error)

# %% [markdown]
# Whose neighbours, local noise, what is refused and what is not covered: [differential privacy](../privacy).
