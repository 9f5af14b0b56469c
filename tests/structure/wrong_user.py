"""Lines marked `# wrong` pyright must refuse, and no others: arguments of methods, wrappers and their parts."""

import jax
import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from fedsolve.geometry import L1, L1Ball, L2Ball, LpBall


def halved(round: jax.Array) -> jax.Array:
    """A schedule as optax's are."""
    return 0.1 * 0.5**round


def swept(lr: jax.Array) -> fs.Algorithm:
    """A traced rate."""
    return fs.FedAvg(lr, server_lr=lr)


def wrong() -> None:
    """Never called."""
    fs.FedAvg("0.1")  # wrong
    fs.FedAvg([0.1, 0.2])  # wrong
    fs.FedAvg(0.1, clip_norm="x")  # wrong
    fs.SCAFFOLD(None)  # wrong
    fs.FedFW(L1(0.1))  # wrong
    fs.FedFWPlus(3)  # wrong
    fs.FedDualAvg(3)  # wrong
    fs.FedMiD("l1")  # wrong
    fs.FedDR(LpBall(1.5, 2.0))  # wrong
    fs.Subgradient(fs.FedAvg(0.1), L1Ball(1.0))  # wrong
    fs.Proximal(0.1, 0.1)  # wrong
    fs.ControlVariates(fs.FedAvg)  # wrong
    fs.FedProx(0.1, mu="x")  # wrong
    fs.robust.Robust(fs.FedAvg(0.1), 3)  # wrong
    fs.robust.TrimmedMean("0.1")  # wrong
    fs.robust.Krum("x")  # wrong
    fs.server.Adaptive("0.1")  # wrong
    fs.client.SGD(0.1, momentum="x")  # wrong
    fs.geometry.L1("x")  # wrong
    fs.geometry.L1Ball([1.0])  # wrong
    fs.schedules.Exponential("x", 0.9)  # wrong
    fs.sampling.Bernoulli("x")  # wrong
    fs.geometry.Box(0.0, "x")  # wrong
    fs.geometry.PNorm("x")  # wrong
    fs.FedAvg(0.1, weighting="all")  # wrong
    fs.FedAdam(preset="keras")  # wrong
    fs.FedDuA(L1(0.1))  # wrong
    fs.frank_wolfe.FrankWolfe(L1(0.1))  # wrong
    fs.diagnostics.FrankWolfeGap(L1(0.1))  # wrong
    fs.diagnostics.FrankWolfeGap(L1Ball(1.0))
    fs.diagnostics.ProxGradient(LpBall(1.5, 2.0))  # wrong
    fs.diagnostics.ProxGradient(L1(0.1).on("weight"), step=0.1)
    fs.diagnostics.Objective("l1")  # wrong
    fs.diagnostics.Feasibility(3)  # wrong
    fs.diagnostics.Suboptimality("l1", 0.0)  # wrong
    fs.diagnostics.Suboptimality(None, 0.0)
    fs.FedDualAvg(L1(0.1), mirror=L1(0.1))  # wrong
    fs.FedDR(L1(0.1), solver="newton")  # wrong
    fs.FedFW(L1Ball(1.0), steps=3)  # wrong
    fs.FedOpt(3, fs.server.Adaptive(0.1))  # wrong
    fs.FedOpt(fs.client.SGD(0.1), 3)  # wrong
    fs.privacy.LocalDifferentialPrivacy(fs.FedAvg(0.1), 1.0, "x", delta=0.1)  # wrong
    fs.callbacks.EarlyStopping("train_loss", patience="x")  # wrong
    fs.Task.from_arrays(3, {"w": np.zeros(3)}, [])  # wrong
    fs.FederatedData.from_clients(3)  # wrong
    fs.build(3)  # wrong
    fs.load(3)  # wrong
    task = fs.tasks.digits()
    fs.run(fs.FedAvg, task, rounds=3)  # wrong
    fs.run("FedAvg", task, rounds=3)  # wrong
    fs.run(fs.FedAvg(0.1), task, rounds="3")  # wrong
    fs.compare(fs.FedAvg(0.1), task, rounds=3)  # wrong
    fs.sweep("FedAvg", task, {"client_lr": 0.1}, rounds=3)  # wrong
    fs.run(fs.FedAvg(0.1), task, rounds=3).plot(3)  # wrong


def right() -> None:
    """Never called either."""
    fs.FedAvg(1)
    fs.FedAvg(np.float32(0.1), server_lr=np.float64(1.0), clip_norm=np.int64(3))
    fs.FedAvg(jnp.float32(0.1), server_lr=halved)
    fs.FedAvg(lambda t: 0.1 * t, server_lr=fs.schedules.Exponential(jnp.float32(0.1), 0.9))
    fs.FedFW(L1Ball(2.0).on("w") + L2Ball(1.0).on("b"))
    fs.FedDualAvg(L1(np.float32(0.1)).on("w"), client_lr=halved)
    fs.FedMiD(L1Ball(1.0), 0.1)
    fs.FedDR(L1(0.1))
    fs.Subgradient(fs.FedAvg(0.1), L1(0.1))
    fs.robust.Robust(fs.Proximal(fs.FedAvg(0.1), np.float32(0.1)), fs.robust.Krum(1))
    fs.geometry.Box(0.0, [1.0, 2.0])
    fs.geometry.Box(np.zeros(2), jnp.float32(1))
    fs.FedOpt(fs.client.SGD(halved), fs.server.Adaptive(0.1, beta1=jnp.float32(0.5)))
