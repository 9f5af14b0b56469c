# %% [markdown]
# # Models inside a set
#
# Minimise $F(w)$ over a convex set, $w \in \mathcal D$. Frank-Wolfe methods need no projection: a client minimises a
# linear function over the set and sends the extreme point that attains the minimum, which is one integer for an
# $\ell_1$ ball.

# %%
import fedsolve as fs
from fedsolve.geometry import L1Ball, L2Ball, NuclearBall

task = fs.tasks.digits(model="softmax", num_clients=20)
ball = L1Ball(50.0)

# %%
frank_wolfe = fs.run(
    fs.FedFWPlus(ball, steps=fs.frank_wolfe.Convex(lam0=1e-4)), task, rounds=150, eval_every=10
)
dual = fs.run(fs.FedDualAvg(ball, client_lr=0.3), task, rounds=60, clients_per_round=10)
both = fs.Results((frank_wolfe, dual))
both

# %% [markdown]
# The methods differ in bytes, not in rounds. `x="megabytes"` plots against the traffic:

# %%
for run in both.runs:
    up = run.rounds["bytes_up"].sum() / run.rounds["participants"].sum()
    outside = run.metrics["infeasibility"][-1]
    print(f"{run.history.label}: {up:,.0f} bytes up per client and round, {outside:.0e} outside the ball")
frank_wolfe.plot("gap", x="megabytes")

# %% [markdown]
# The Frank-Wolfe gap is a certificate that needs no knowledge of the minimum: for a convex $F$ and a $w$ in the set,
# $F(w) - \min F \le$ gap. The centralised solution shows how tight the bound is:

# %%
central = fs.baselines.frank_wolfe(task, ball, iterations=200)
loss = both.runs[0].metrics["train_loss"][-1]
print(
    f"F(w) = {loss:.4f}, certified within {frank_wolfe.metrics['gap'][-1]:.4f}; centralised: {central.value:.4f}"
)

# %% [markdown]
# ## Sets by leaf
#
# A set acts on the whole model, on each leaf (`.each()`), or on the leaves that match a pattern (`.on()`). If a set
# lacks an operation that the method needs, construction fails, and the error suggests sets that have the operation:

# %%
fs.FedFW(NuclearBall(20.0).on("weight") + L2Ball(1.0).on("bias"))
try:
    fs.FedFW(fs.geometry.L1(0.1))
except fs.InvalidInput as error:
    print(error)

# %% [markdown]
# `fedsolve list geometries` prints all sets and their operations; see also [composite problems](../composite).
