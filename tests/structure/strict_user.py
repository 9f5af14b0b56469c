"""A user's file: every name that a first program takes from fedsolve, checked by pyright in its strict mode."""

import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from fedsolve.geometry import L1, L1Ball

clients = [(np.ones((n, 3)), np.ones(n)) for n in (4, 5, 6)]


def loss(params: dict[str, jnp.ndarray], batch: tuple[jnp.ndarray, jnp.ndarray]) -> jnp.ndarray:
    """Mean squared error."""
    x, y = batch
    return jnp.mean((x @ params["w"] - y) ** 2)


task = fs.Task.from_arrays(loss, {"w": np.zeros(3)}, clients, batch_size=2)
method = fs.ControlVariates(fs.FedDuAdam(0.1))
own = fs.FedOpt(fs.client.SGD(0.1), fs.server.Adaptive(0.1))
result = fs.run(method, task, rounds=3, callbacks=[fs.callbacks.EarlyStopping("train_loss", patience=2)])
final = float(result.metrics["train_loss"][-1])
figure = result.plot("loss")
weights: dict[str, jnp.ndarray] = result.params
found = fs.sweep("FedAvg", task, {"client_lr": [0.1, 0.2]}, rounds=3)
best = found.best_settings
several = fs.compare({"a": fs.FedAvg(0.1), "b": fs.FedFW(L1Ball(2.0))}, task, seeds=2, rounds=3)
each = fs.compare([method, own], task, callbacks=lambda label: [fs.callbacks.EachClient()], rounds=3)
table = several.to_latex(metrics=["train_loss"], target=0.5)
first = several["a"][0].final("train_loss") + float(several.final("train_loss")["b"].mean())
seeds = fs.run(method, task, rounds=3, seeds=2)
spread = seeds.final("train_loss").std(ddof=1) + seeds[0].final("train_loss")
band = fs.load("folder").plot("train_loss", bands="ci")
sparse = fs.FedDualAvg(L1(0.01).on("w"), client_lr=0.05)
data = fs.FederatedData.from_clients([fs.Examples(x, y) for x, y in clients])
digits = fs.tasks.digits()
rate = fs.schedules.Exponential(0.1, 0.99)
cohorts = fs.sampling.Bernoulli(0.2)
robust = fs.robust.Robust(fs.FedAvg(0.1), fs.robust.Median())
tracker = fs.trackers.TensorBoard("board")
fleet = fs.systems.profile("even", clients=10)
built = fs.build("SCAFFOLD+FedDuAdam", {"client_lr": 0.1})
