# %% [markdown]
# # Differential privacy
#
# `fs.privacy.DifferentialPrivacy` wraps a method: messages are clipped, the server adds noise, and the log has
# $\varepsilon$ after every round. See [what federated learning protects](../what-is-protected) first.

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
cohorts = fs.sampling.Bernoulli(COHORT / 100)  # as the accountant assumes; other samplings are refused
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
# Rényi accounting gives a larger $\varepsilon$ for the same run. You can compute the noise for other budgets before
# training:

# %%
spent, bound = log["epsilon"][-1], log["epsilon_renyi"][-1]
print(
    f"privacy loss distributions: {spent:.2f} (before the run: {epsilon(z, ROUNDS, **who):.2f}); Rényi: {bound:.2f}"
)
for wanted in (16, 8, 4, 2):
    print(f"epsilon {wanted:2}: noise multiplier {noise_multiplier_for(wanted, rounds=ROUNDS, **who):.2f}")

# %% [markdown]
# A run whose sampling differs from the accounted one is refused:

# %%
try:
    fs.run(private, task, rounds=ROUNDS, clients_per_round=COHORT)
except fs.InvalidInput as error:
    print(error)

# %% [markdown]
# [Privacy](../privacy) defines the guarantee, and describes local noise, unsupported methods and limits.
