"""Calls with arguments of a wrong type or shape: each is refused in one line, before anything is compiled."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.geometry import L1, L1Ball

CLIENTS = [np.ones((4, 2), "f4"), np.zeros((3, 2), "f4")]


def loss(w, b):
    return jnp.mean((b @ w - 1.0) ** 2)


TASK = fs.Task.from_arrays(loss, jnp.zeros(2), CLIENTS)


def run(**k):
    return lambda: fs.run(**{"algorithm": fs.FedAvg(), "task": TASK, "rounds": 1} | k)


def sw(**k):
    return lambda: fs.sweep(
        **{"algorithm": "FedAvg", "task": TASK, "grid": {"client_lr": [0.1]}, "rounds": 1} | k
    )


def task(**k):
    return lambda: fs.Task.from_arrays(**{"loss": loss, "params": jnp.zeros(2), "clients": CLIENTS} | k)


CALLS = {}
for n, vs in {
    "task": [3, None, "digits", CLIENTS],
    "rounds": [0, -1, 1.5, "1", None, True],
    "clients_per_round": [0, 3, 1.5, "2", True],
    "sampling": [3, "x", [0, 1]],
    "batch_size": [0, -1, "all", 1.5],
    "epochs": [0, "1", 1.5],
    "local_steps": [0, "1"],
    "eval_every": [0, "1", 1.5],
    "dtype": ["float16", 32, None, jnp.float32, []],
    "chunk": [0, -1, "1", 1.5],
    "devices": [0, "1", 1.5, True, 10**6],
    "mesh": [3, {}, {"clients": 2}, {"clients": 1.5, "model": 1}, {"clients": 1, "model": 10**6}],
    "out": [3, [], b"x\x00", ""],
    "resume": ["yes", 3],
    "label": [3, []],
    "progress": [3, "x"],
    "algorithm": [fs.FedAvg, None],
}.items():
    for i, v in enumerate(vs):  # numbered: what a value prints as may hold an address
        CALLS[f"run {n} {i}"] = run(**{n: v})
for n, vs in {
    "algorithm": [3, None, "FedAvgg", lambda client_lr: 3],
    "grid": [
        None,
        3,
        [],
        {},
        {"client_lr": 3},
        {"client_lr": []},
        {"client_lr": "ab"},
        {3: [1]},
        {"client_lr": [[1]]},
        {"nope": [1]},
        {"client_lr": np.ones((2, 2))},
    ],
    "seeds": [0, -1, [0, 0], "ab", 1.5, None, [1.5]],
    "select": [3, "nope", "train_loss:x", []],
    "validation": [0, 1, "x", -1],
    "diagnostics": [3, [3], "x"],
    "parallel_trials": [0, -1, "x", 1.5],
    "label": [3],
    "progress": [3],
    "out": [3],
    "resume": [3],
    "task": [3],
    "dtype": ["x"],
}.items():
    for i, v in enumerate(vs):  # numbered: what a value prints as may hold an address
        CALLS[f"sweep {n} {i}"] = sw(**{n: v})
for n, vs in {
    "loss": [3, None],
    "params": [None, 3, "x", [1, 2], {}],
    "clients": [None, 3, "ab", [], [1, 2], [None], {"a": 1}],
    "test": [3, "x", np.zeros((0, 2)), [np.zeros(2), np.zeros(3)]],
    "metrics": [3, {"a": 3}, {3: loss}, ["a"]],
    "whole": [3, {"a": 3}],
    "batch_size": [0, "x", 1.5],
    "epochs": [0, "x"],
    "local_steps": [0, "x"],
    "name": [3],
}.items():
    for i, v in enumerate(vs):  # numbered: what a value prints as may hold an address
        CALLS[f"task {n} {i}"] = task(**{n: v})
more = {
    "Robust 3": lambda: fs.robust.Robust(3, fs.robust.Median()),
    "Robust red": lambda: fs.robust.Robust(fs.FedAvg(), 3),
    "Prox 3": lambda: fs.Proximal(3, 0.1),
    "CV 3": lambda: fs.ControlVariates(3),
    "CV I": lambda: fs.ControlVariates(3, option="I"),
    "CV opt": lambda: fs.ControlVariates(fs.FedAvg(), option="III"),
    "Sub 3": lambda: fs.build("Subgradient", {"psi": 3}),
    "CV list": lambda: fs.ControlVariates(fs.FedAvg(), option=["I"]),
    "weighting list": lambda: fs.FedAvg(weighting=["uniform"]),
    "FedOpt 3": lambda: fs.FedOpt(3, fs.server.ServerSGD()),
    "FedOpt r": lambda: fs.FedOpt(fs.client.SGD(0.1), 3),
    "FedOpt cls": lambda: fs.FedOpt(fs.client.SGD, fs.server.ServerSGD),
    "optax local": lambda: fs.client.Optax(3),
    "optax rule": lambda: fs.server.Optax("adam"),
    "FedDuA": lambda: fs.FedDuA(3),
    "FedMiD": lambda: fs.build("FedMiD", {"psi": 3}),
    "FedDualAvg": lambda: fs.FedDualAvg("x"),
    "FedDualAvg m": lambda: fs.FedDualAvg(L1(0.1), mirror=3),
    "FedFW": lambda: fs.FedFW(3),
    "FedFW steps": lambda: fs.FedFW(L1Ball(1.0), steps=3),
    "FedDR": lambda: fs.build("FedDR", {"psi": None}),
    "build 3": lambda: fs.build(3),
    "build settings": lambda: fs.build("FedAvg", 3),
    "build none": lambda: fs.build(None),
    "preset list": lambda: fs.FedAdam(preset=["paper"]),
    "FedExP preset": lambda: fs.FedExP(preset=[]),
    "L1+3": lambda: L1(0.1) + 3,
    "split neg": lambda: fs.frank_wolfe.SplitSets((L1Ball(1.0),), (1,)),
    "Exp": lambda: fs.schedules.Exponential("x", 0.5),
    "FromOptax": lambda: fs.schedules.FromOptax(3),
    "InvSqrt": lambda: fs.schedules.InverseSqrt(None),
    "Trace": lambda: run(sampling=fs.sampling.Trace(3, 1))(),
    "Weighted": lambda: run(sampling=fs.sampling.Weighted("ab", 1))(),
    "Weighted none": lambda: run(sampling=fs.sampling.Weighted(None, 1))(),
    "Uniform x": lambda: run(sampling=fs.sampling.Uniform("x"))(),
    "Trace floats": lambda: run(sampling=fs.sampling.Trace(np.full((1, 2), 0.5), 1))(),
    "reset": lambda: fs.FedLiLS(reset=[1]),
    "server": lambda: fs.FedLiLS(server=[]),
    "solver": lambda: fs.FedExProx(solver=[]),
    "LU f": lambda: fs.FedLiLU(f=[]),
    "Trimmed": lambda: fs.robust.TrimmedMean("x"),
    "Krum": lambda: fs.robust.Krum(1.5),
    "Krum x": lambda: fs.robust.Krum("x"),
    "NormClip": lambda: fs.build("Robust+FedAvg", {"reduction": "x"}),
    "tasks digits": lambda: fs.tasks.digits(num_clients="x"),
    "digits part": lambda: fs.tasks.digits(partition=3),
    "Measures": lambda: fs.Task("t", TASK.init, TASK.loss, TASK.data, diagnostics=3),
    "data": lambda: fs.Task("t", TASK.init, TASK.loss, CLIENTS),
    "init none": lambda: run(task=fs.Task("t", lambda k: None, TASK.loss, TASK.data))(),
    "init ints": lambda: run(task=fs.Task("t", lambda k: "x", TASK.loss, TASK.data))(),
    "names": lambda: fs.FederatedData(np.ones(3), np.array([3]), 3),
    "names2": lambda: fs.FederatedData(np.ones(3), np.array([3]), ("a", "b")),
    "hold": lambda: TASK.data.hold_out("x"),
    "hold seed": lambda: TASK.data.hold_out(0.5, "x"),
    "client": lambda: TASK.data.client(7),
    "sample": lambda: TASK.data.sample("x"),
    "FedFW split": lambda: fs.FedFW(L1Ball(1.0), split=3),
    "split sets": lambda: fs.frank_wolfe.SplitSets(3, [0, 0]),
    "split clients": lambda: fs.frank_wolfe.SplitSets((L1Ball(1.0),), 3),
    "on": lambda: L1(0.1).on(3),
    "ema": lambda: fs.FedAvgM(ema="yes"),
    "FedOpt name": lambda: fs.FedOpt(fs.client.SGD(0.1), fs.server.ServerSGD(), name=3),
    "synthetic clients": lambda: fs.tasks.synthetic(num_clients=2_000_000_000),
}
CALLS |= more


def test_what_was_meant_is_named(tmp_path):
    """A newcomer's slips: what is said names the argument, the client or the setting at fault."""
    x, y = np.zeros((2, 3)), np.zeros(2)
    fs.run(fs.FedAvg(0.1), TASK, rounds=1, out=tmp_path / "run")
    for call, error, words in (
        (run(round=2), TypeError, r"run\(\) got .* 'round': did you mean 'rounds'\?"),
        (run(num_rounds=2), TypeError, r"run\(\) got .* 'num_rounds': did you mean 'rounds'\?"),
        (lambda: fs.FedAvg(learning_rate=0.1), fs.InvalidInput, "'learning_rate': did you mean 'client_lr'"),
        (lambda: fs.tasks.digits(num_client=3), TypeError, r"digits\(\) got .* 'num_client'"),
        (run(algorithm=fs.FedAvg), fs.InvalidInput, "not <function FedAvg>$"),
        (
            lambda: fs.sweep("FedAvg", TASK, {"lr": [1]}, rounds=1),
            fs.InvalidInput,
            "'lr': did you mean 'client_lr'",
        ),
        (
            task(clients=[([[1.0, 2.0]], [1.0])]),
            fs.InvalidInput,
            r"^\[0\]\[0\]\[0\] of client 0 is one number",
        ),
        (
            task(clients=[(x, y), (x[:, :2], y)]),
            fs.InvalidInput,
            r"^\[0\] of client 1 has rows of shape \(2,\)",
        ),
        (run(task=task(metrics={"m": lambda w, b: "x"})()), fs.InvalidInput, "^m of .* is 'x': it must be"),
        (run(task=task(metrics={"m": lambda w, b: None})()), fs.InvalidInput, "^m of .* is None: it must be"),
        (lambda: fs.load(tmp_path / "run").to_latex("table.tex"), fs.InvalidInput, "metrics = 'table.tex'"),
        (
            run(algorithm=fs.FedAvg(0.2), out=tmp_path / "run", resume=True, rounds=2),
            fs.InvalidInput,
            r"has algorithm = \.\.\.lr=0\.1, .{20,60}\.\.\., this run \.\.\.lr=0\.2, ",
        ),
    ):
        with pytest.raises(error, match=words):
            call()


def test_parameters_of_pytorch_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(fs.InvalidInput, match=r"hold a torch\.Tensor: .* fs\.tasks\.from_torch"):
        task(params={"w": torch.zeros(2)})()


@pytest.mark.parametrize("call", CALLS)
def test_refused(call):
    with pytest.raises(fs.InvalidInput) as error:
        CALLS[call]()
    assert "\n" not in str(error.value)
