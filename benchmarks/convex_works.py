"""Softmax regression on few and on many clients (W1, W3), an MLP (W6), and Frank-Wolfe messages of a network (W4)."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax

import fedsolve as fs
import handwritten
from fedsolve.geometry import L1, L1Ball, L2Ball
from fedsolve.tasks import MLP, Softmax
from measure import Setting, by_hand, compare, library, task, torch_works

RATE = handwritten.RATE
METHODS = {
    "FedAvg": lambda: fs.FedAvg(RATE),
    "FedDuAdam": lambda: fs.FedDuAdam(RATE),
    "SCAFFOLD": lambda: fs.SCAFFOLD(RATE),
}


def softmax(make: Any, work: fs.Task, cohort: int, rounds: int, **local: Any) -> dict[str, Any]:
    """The work by hand and with three methods; with FedAvg and SCAFFOLD on all cores where these are devices."""
    programs = {"by hand": by_hand(partial(make, devices=1), rounds)}
    programs |= {name: library(method(), work, cohort, rounds, **local) for name, method in METHODS.items()}
    found = len(jax.devices())
    if found > 1 and cohort >= 100:
        programs["by hand, all cores"] = by_hand(partial(make, devices=found), rounds)
        for name in ("FedAvg", "SCAFFOLD"):
            on_all = library(METHODS[name](), work, cohort, rounds, devices=found, **local)
            programs[f"{name}, all cores"] = on_all
    return programs


def torch_softmax(
    setting: Setting, work: fs.Task, n: int, cohort: int, rounds: int, steps: int | None
) -> dict[str, Any]:
    """The PyTorch loop, on a GPU: on a CPU what is compared is the work by hand."""
    torch = torch_works() if setting.torch != "cpu" or setting.tiny else None
    if torch is None:
        return {}
    examples = work.data.examples
    x, y = (a.reshape(-1, n, *a.shape[1:]) for a in (examples.x, examples.y))
    loop = torch.program(
        torch.mlp(60, 10), x, y, 10, cohort=cohort, steps=steps, rounds=rounds, **setting.on_torch()
    )
    return {"PyTorch loop": loop}


def w1(setting: Setting) -> None:
    clients, n, rounds = setting.pick((100, 100, 200), (10, 20, 3))
    work = task("w1", Softmax(60, 10), clients, n, (60,), 10)
    make = partial(_w1, clients=clients, n=n)
    programs = softmax(make, work, 10, rounds, batch_size=10, epochs=1)
    units = dict.fromkeys(programs, rounds)
    few = max(1, rounds // 20)
    programs |= torch_softmax(setting, work, n, 10, few, None)
    about = f"softmax regression, {clients} clients x {n}, 10 a round, {n // 10} steps of 10"
    compare("W1", about, programs, units | {"PyTorch loop": few}, setting.pick(15, 2), base="by hand")


def _w1(clients: int, n: int, devices: int) -> Any:
    return handwritten.make_w1(clients=clients, n=n)


def w3(setting: Setting) -> None:
    clients, cohort, rounds = setting.pick((10_000, 1000, 25), (200, 100, 2))
    work = task("w3", Softmax(60, 10), clients, 20, (60,), 10)
    make = partial(handwritten.make_w3, clients=clients, size=cohort)
    programs = softmax(make, work, cohort, rounds, batch_size=10, local_steps=1)
    units = dict.fromkeys(programs, rounds)
    programs |= torch_softmax(setting, work, 20, cohort, 1, 1)
    about = f"softmax regression, {clients:,} clients x 20, {cohort:,} a round, 1 step of 10"
    compare("W3", about, programs, units | {"PyTorch loop": 1}, setting.pick(15, 2), base="by hand")


def w6(setting: Setting) -> None:
    clients, cohort, rounds = setting.pick((100, 20, 100), (10, 5, 2))
    work = task("w6", MLP((64, 64, 10)), clients, 100, (64,), 10)
    programs = {"by hand": by_hand(partial(handwritten.make_w6, clients=clients, size=cohort), rounds)}
    local = {"batch_size": 10, "epochs": 1}
    programs |= {name: library(method(), work, cohort, rounds, **local) for name, method in METHODS.items()}
    about = f"MLP 64-64-10, {clients} clients x 100, {cohort} a round, 10 steps of 10"
    compare("W6", about, programs, rounds, setting.pick(15, 2), base="by hand")


def w4(setting: Setting) -> None:
    """FedFW against FedAvg with the same gradients: one step on all of a client's data.

    In processor time of all threads on a CPU: what is compared is the work, and all use the cores alike.
    """
    sizes, n = setting.pick(((784, 900, 300, 62), 100), ((784, 20, 62), 10))
    model = MLP(sizes)
    work = task("w4", model, 20, n, (784,), 62)
    params = sum(x.size for x in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
    ball = L1Ball(1e5)
    methods = {
        "FedAvg": fs.FedAvg(RATE),
        "FedFW": fs.FedFW(ball),
        "FedFWPlus": fs.FedFWPlus(ball),
        "FedFW, l2 ball": fs.FedFW(L2Ball(1e3)),
        "FedFW, a ball a leaf": fs.FedFW(ball.each()),
        "FedMiD, l1": fs.FedMiD(L1(1e-4), RATE),
        "FedDualAvg, l1": fs.FedDualAvg(L1(1e-4), RATE),
    }
    programs = {
        name: library(method, work, 10, 2, batch_size="full", local_steps=1)
        for name, method in methods.items()
    }
    if setting.torch != "cpu" and (torch := torch_works()):
        x, y = (a.reshape(20, n, *a.shape[1:]) for a in (work.data.examples.x, work.data.examples.y))
        programs["PyTorch loop"] = torch.program(torch.mlp(*sizes), x, y, n, rounds=2, **setting.on_torch())
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    about = f"MLP of {params:,} parameters, 20 clients x {n}, 10 a round, 1 step on all examples"
    unit = "ms of processor time a round" if clock is time.process_time else "ms a round"
    compare("W4", about, programs, 2, setting.pick(9, 2), base="FedAvg", unit=unit, clock=clock)
