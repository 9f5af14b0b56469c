# %% [markdown]
# # Deployment, step by step
#
# Flower transports the messages between machines. To show the protocol, this tutorial first runs server and clients in
# one process, without a network.

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
# The server has the method and a model, but no data. A client has its data and a folder for its state. The server's
# order names the method as plain data: the client imports and calls nothing that a message contains.

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
        order = server.train_request(client)  # sent to the client
        reply = Worker(problems[client], folders[client]).train(order)  # sent back to the server
        accepted[client] = server.validate_reply(client, reply)
    print(round + 1, server.finish_round(accepted, len(drawn)))

# %% [markdown]
# ## The same numbers as in simulation
#
# `fs.run` with the same method, trained one client at a time (`chunk=1`), gives the same model bit for bit.

# %%
simulated = fs.run(method, dataclasses.replace(task, init=lambda key: start), rounds=ROUNDS, chunk=1)
same = jax.tree.map(np.array_equal, jax.device_get(simulated.params), server.model)
assert all(jax.tree.leaves(same))
same

# %% [markdown]
# ## A forged reply
#
# The server checks every reply before aggregation: its sender, round, length, shapes, and that all values are finite.

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

# %%
client_app = fs.flower.client_app(lambda node: fs.flower.JaxOracle.of_task(task, node.client))
server_app = fs.flower.server_app(method, start, rounds=20, population=3)
type(client_app).__name__, type(server_app).__name__

# %% [markdown]
# ## A real federation
#
# `fedsolve federate demo` runs two methods with three PyTorch clients on this machine. One round of each:

# %%
folder = Path(tempfile.mkdtemp()) / "demo"
command = ["federate", "demo", "--rounds", "1", "--out", str(folder)]
done = subprocess.run(
    [sys.executable, "-m", "fedsolve", *command], capture_output=True, text=True, check=True
)
print(done.stderr.replace(str(folder), "demo"))
print(done.stdout.replace(str(folder), "demo"))

# %% [markdown]
# The server writes a folder for each method. `rounds.jsonl` has, for every round, the clients that replied, the
# rejected replies, and the bytes of Flower's records.

# %%
for line in (folder / "SCAFFOLD" / "rounds.jsonl").read_text().splitlines():
    print(line)

# %% [markdown]
# `fedsolve federate new myapp --framework torch` writes an app for your model and data. Next: [your first
# federation](../deployment).
