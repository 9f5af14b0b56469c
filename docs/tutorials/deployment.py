# %% [markdown]
# # Deployment
#
# The same method, on machines that are far apart. Flower carries messages; here the whole protocol runs in one
# process first, without a network, so that it can be looked at.

# %%
import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

import fedsolve as fs
from fedsolve.deploy.client.worker import Worker
from fedsolve.deploy.server.coordinator import Coordinator, Federation

task = fs.tasks.digits(num_clients=3, model="softmax")
method = fs.SCAFFOLD(client_lr=0.1)

# %% [markdown]
# ## Two sides
#
# The server has the method and a model, no data. A client has its own data and a folder for its state; which method
# it trains it learns from the order, as plain data: nothing in a message is imported or called.

# %%
start = jax.device_get(task.init(jax.random.key(0)))
everybody = fs.sampling.Uniform(3)
server = Coordinator(
    method, start, Federation(population=3, sampling=everybody, seed=0, experiment="tutorial")
)
problems = [fs.flower.JaxOracle.of_task(task, client) for client in range(3)]
folders = [Path(tempfile.mkdtemp()) for _ in range(3)]

ROUNDS = 5
for round in range(ROUNDS):
    accepted = {}
    drawn = server.draw_cohort()
    for client in drawn:
        order = server.train_request(client)  # this is what travels down,
        reply = Worker(problems[client], folders[client]).train(order)  # and this comes back
        accepted[client] = server.validate_reply(client, reply)
    print(round + 1, server.finish_round(accepted, len(drawn)))

# %% [markdown]
# ## The simulation's numbers
#
# The engine runs the same method. If it trains one client at a time, its model has the same bits.

# %%
simulated = fs.run(method, dataclasses.replace(task, init=lambda key: start), rounds=ROUNDS, chunk=1)
same = jax.tree.map(np.array_equal, jax.device_get(simulated.params), server.model)
assert all(jax.tree.leaves(same))
same

# %% [markdown]
# ## A reply that lies
#
# Every reply is checked before it counts: who sent it, for which round, its length, its shapes, whether it is
# finite.

# %%
server.draw_cohort()
order = server.train_request(0)
honest = Worker(problems[0], folders[0]).train(order)
print(f"{len(order.broadcast):,} bytes down, {len(honest.message):,} bytes up")
for what, forged in {
    "another round": dataclasses.replace(honest, round=2),
    "too short": dataclasses.replace(honest, message=honest.message[:-4]),
    "not finite": dataclasses.replace(honest, message=b"\xff" * len(honest.message)),
}.items():
    try:
        server.validate_reply(0, forged)
    except fs.InvalidInput as refused:
        print(f"{what}: {refused}")

# %% [markdown]
# ## On Flower
#
# The two sides as Flower's apps are two lines. With PyTorch or scikit-learn on the clients the first takes another
# oracle.

# %%
client_app = fs.flower.client_app(lambda node: fs.flower.JaxOracle.of_task(task, node.client))
server_app = fs.flower.server_app(method, start, rounds=20, population=3)
type(client_app).__name__, type(server_app).__name__

# %% [markdown]
# ## A real one
#
# `fedsolve federate demo` starts a SuperLink and three SuperNodes on this machine, as processes that speak over the
# loopback network, runs two methods with PyTorch clients, and stops all that it started. One round of each:

# %%
folder = Path(tempfile.mkdtemp()) / "demo"
command = ["federate", "demo", "--rounds", "1", "--out", str(folder)]
done = subprocess.run(
    [sys.executable, "-m", "fedsolve", *command], capture_output=True, text=True, check=True
)
print(done.stderr.replace(str(folder), "demo"))
print(done.stdout.replace(str(folder), "demo"))

# %% [markdown]
# Each method's folder holds what the server wrote: every round with who answered, what was refused, and the bytes of
# Flower's records.

# %%
for line in (folder / "SCAFFOLD" / "rounds.jsonl").read_text().splitlines():
    print(line)

# %% [markdown]
# An app to put your model and data into:
#
#     fedsolve federate new myapp --framework torch
#
# and `examples/flower-app` is a small one that is complete. What can be relied on when machines die, nodes lie and
# networks stall: [on a real federation](../deployment).
