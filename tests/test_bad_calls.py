"""Calls with arguments of a wrong type or shape: each is refused in one line, before anything is compiled."""

import contextlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from fedsolve.config.build import arguments, build, example_of
from fedsolve.config.catalogue import ALGORITHMS
from fedsolve.core.errors import check_range
from fedsolve.core.fleets import profile
from fedsolve.core.schedules import as_rate
from fedsolve.data import FederatedData, checksum, read_idx
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


# Paths, callbacks and types that are none: each is refused in one line that names the argument.

NUL = "a\0b"


def run_paths(**options):
    return fs.run(**{"algorithm": fs.FedAvg(), "task": TASK, "rounds": 1} | options)


def called_with(callback):
    return lambda: run_paths(callbacks=[callback])


def task_paths(**parts):
    return fs.Task.from_arrays(**{"loss": loss, "params": jnp.zeros(2), "clients": CLIENTS} | parts)


class EndsWith3:
    ended = 3

    def __call__(self, at):
        pass


PATHS_CALLS = {
    "out": (lambda: run_paths(out=NUL), "out = "),
    "KeepBest text": (lambda: fs.callbacks.KeepBest("train_loss", NUL), "folder = "),
    "KeepBest": (lambda: fs.callbacks.KeepBest("train_loss", 3), "folder = 3 must be a path"),
    "load": (lambda: fs.load(3), "folder = 3"),
    "load text": (lambda: fs.load(NUL), "folder = "),
    "load task": (lambda: fs.load("x", 3), "task = 3 must be a fedsolve.Task"),
    "open": (lambda: fs.data.open(3), "folder = 3"),
    "write": (lambda: fs.data.write(TASK.data, 3), "folder = 3"),
    "write names": (lambda: fs.data.write(CLIENTS, "x", names=3), "names are an int"),
    "npz": (lambda: fs.data.read_npz(3, ["x"]), "path = 3"),
    "data_dir": (lambda: fs.data.data_dir(3), "data_dir = 3"),
    "EachClient": (lambda: fs.callbacks.EachClient(rounds=3), "rounds = 3 must be a list"),
    "EachClient text": (lambda: fs.callbacks.EachClient(rounds="ab"), "rounds = 'ab'"),
    "EachClient flag": (lambda: fs.callbacks.EachClient(unseen=3), "unseen = 3"),
    "FineTuning": (lambda: fs.callbacks.FineTuning(1, 0.1, rounds=[0.5]), "a round = 0.5"),
    "a class": (called_with(fs.callbacks.EarlyStopping), r"EarlyStopping is a class: .*EarlyStopping\(\.\.\.\)"),
    "no argument": (called_with(lambda: None), "<lambda>.* must take one argument, the evaluation"),
    "two arguments": (called_with(lambda a, b: None), "must take one argument"),
    "ended": (called_with(EndsWith3()), "`ended` of .*EndsWith3"),
    "of no seed": (lambda: run_paths(seeds=2, callbacks=lambda: []), "must be a function of the seed"),
    "complex loss": (lambda: run_paths(task=task_paths(loss=lambda w, b: 1j * jnp.mean(b @ w))), "type complex64"),
    "long": (lambda: task_paths(clients=[np.ones((2, 2), np.longdouble)]), "convert it to float64"),
    "mixed keys": (lambda: task_paths(params={"a": jnp.zeros(2), 1: jnp.zeros(2)}), "keys of several types"),
    "shapes": (lambda: task_paths(params=jax.ShapeDtypeStruct((2,), jnp.float32)), "without values"),
    "groups": (
        lambda: fs.FederatedData.from_groups(np.ones(3), np.array([1, "a", 2.5], object)),
        "ids of several types",
    ),
    "groups NaN": (lambda: fs.FederatedData.from_groups(np.ones(3), np.array([1, 2, np.nan])), "example 2"),
    "metric": (lambda: task_paths(metrics={"a\nb": loss}), "text on one line"),
    "alone": (lambda: fs.baselines.alone(TASK, "a"), "client = 'a'"),
    "fista": (lambda: fs.baselines.fista(3), "task = 3 must be a fedsolve.Task"),
}  # fmt: skip


@pytest.mark.parametrize("name", PATHS_CALLS)
def test_refused_in_one_line(name):
    call, words = PATHS_CALLS[name]
    with pytest.raises(fs.InvalidInput, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_result_is_written_to_paths_alone(tmp_path):
    result = run_paths()
    for write, path, words in (
        (result.save, 3, "folder = 3 must be a path"),
        (result.save, None, "folder = None"),
        (result.to_csv, 3, "path = 3"),
        (result.to_csv, "/", "cannot write to /: it is a folder"),
        (result.to_csv, tmp_path, "it is a folder"),
    ):
        with pytest.raises(fs.InvalidInput, match=words):
            write(path)


def test_parameters_without_numbers_run_beside_others():
    empty = task_paths(
        params={"w": jnp.zeros(2), "none": jnp.zeros((0, 3))}, loss=lambda p, b: loss(p["w"], b)
    )
    assert run_paths(task=empty).params["none"].shape == (0, 3)


@pytest.mark.parametrize(
    ("kind", "package"),
    [("TensorBoard", "tensorboardX"), pytest.param("WandB", "wandb", marks=pytest.mark.full)],
)
def test_trackers_want_paths(kind, package):
    pytest.importorskip(package)
    with pytest.raises(fs.InvalidInput, match="folder = 3 must be a path"):
        getattr(fs.trackers, kind)(3)


@pytest.mark.parametrize(
    ("uri", "words"), [(3, "uri = 3 must be text"), ("nope://x", "MLflow does not take")]
)
def test_mlflow_wants_an_address_that_it_knows(uri, words):
    pytest.importorskip("mlflow")
    with pytest.raises(fs.InvalidInput, match=words):
        fs.trackers.MLflow(uri)


# A choice that is an array, a list or a table, which Python and NumPy cannot look up, is refused in words.

INNER = fs.FedAvg(0.1, weighting="uniform")
PRIVATE = {"cohort": 2, "population": 4, "delta": 1e-3}
CHOICES_CALLS = {
    "weighting": lambda x: fs.FedAvg(0.1, weighting=x),
    "option": lambda x: fs.ControlVariates(INNER, option=x),
    "staleness": lambda x: fs.FedAsync(0.1, staleness=x),
    "solver of FedDR": lambda x: fs.FedDR(0.1, solver=x),
    "solver of FedExProx": lambda x: fs.FedExProx(0.1, solver=x),
    "extrapolation": lambda x: fs.FedExProx(0.1, extrapolation=x),
    "start": lambda x: fs.FedFW(fs.geometry.L1Ball(1.0), start=x),
    "variant": lambda x: fs.frank_wolfe.FrankWolfe(fs.geometry.L1Ball(1.0), variant=x),
    "reset": lambda x: fs.client.Armijo(reset=x),
    "second": lambda x: fs.server.Adaptive(0.1, second=x),
    "preconditioner": lambda x: fs.server.DoublyAdaptive(preconditioner=x),
    "preset": lambda x: fs.FedLiLU(preset=x),
    "f": lambda x: fs.FedLiLU(f=x),
    "loss_weights": lambda x: fs.FedLiLU(loss_weights=x),
    "direction": lambda x: fs.attacks.MinMax(direction=x),
    "scale": fs.attacks.SignFlip,
    "sampling": lambda x: fs.privacy.epsilon(1.0, 10, **PRIVATE, sampling=x),
    "accountant": lambda x: fs.privacy.epsilon(1.0, 10, **PRIVATE, accountant=x),
    "profile": lambda x: profile(x, 3),
    "tracker": lambda x: fs.trackers.tracker(x, Path()),
    "task": fs.tasks.build,
    "data set": lambda x: fs.tasks.libsvm(dataset=x),
    "names": lambda x: FederatedData.from_clients([np.zeros((2, 1)), np.zeros((2, 1))], names=x),
    "checksum": lambda x: checksum(x, "0" * 64),
    "idx": read_idx,
}


@pytest.mark.parametrize(
    "value", [np.ones(2), ["a", 3], {"a": 1}, 3.5], ids=["array", "list", "table", "number"]
)
@pytest.mark.parametrize("call", CHOICES_CALLS)
def test_what_names_nothing_is_refused_in_one_line(call, value):
    if call == "scale" and isinstance(value, float):
        pytest.skip("a scale")
    with pytest.raises(fs.InvalidInput) as error:
        CHOICES_CALLS[call](value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "weighting" in arguments(name)])
def test_no_weighting_is_the_methods_own_or_refused(name):
    """None is not another weighting than the one that the method has when it is left out."""
    own, found = build(name, example_of(name)).traits.weighting, []
    with contextlib.suppress(fs.InvalidInput):
        found.append(build(name, example_of(name) | {"weighting": None}).traits.weighting)
    assert found in ([], [own])


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (fs.FedKSeed, "seeds"),
        (fs.DeComFL, "directions"),
        (fs.FedZO, "directions"),
        (fs.IFCA, "clusters"),
        (fs.pFedMe, "personal_steps"),
        (fs.FedBuff, "buffer"),
        (fs.SPPMAS, "local_rounds"),
    ],
)
def test_a_count_is_one_that_jax_can_count(method, name):
    with pytest.raises(fs.InvalidInput, match=rf"{name} = 1000000000000 must be below 2\^31"):
        method(0.1, **{name: 10**12})


# Numbers that a user gives: one finite number within its range, as an array too; a rate may be a schedule.

BAD = {
    "negative": -0.1,
    "negative array": np.array(-0.1),
    "negative on the device": jnp.float32(-0.1),
    "two elements": np.array([0.1, 0.2]),
    "one element": np.array([0.1]),
    "a list": [0.1],
    "text": "0.1",
    "nothing": None,
    "a truth": True,
    "a truth of NumPy": np.bool_(True),
    "not a number": np.array(np.nan),
    "infinite": jnp.inf,
    "complex": 1j,
    "hundreds of digits": 10**400,
    "an object": object(),
}
TAKERS = {
    "rate": lambda x: fs.FedAvg(x),
    "server rate": lambda x: fs.FedAvg(0.1, server_lr=x),
    "radius": lambda x: L1Ball(x),
    "weight": lambda x: L1(x),
    "probability": lambda x: fs.sampling.Bernoulli(x),
    "schedule": lambda x: fs.schedules.Exponential(x, 0.9),
    "wrapper": lambda x: fs.Proximal(fs.FedAvg(), x),
    "Frank-Wolfe": lambda x: fs.frank_wolfe.Convex(x, 0.5),
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("bad", BAD)
def test_refused_where_it_is_given(taker, bad):
    """In one line, at construction."""
    with pytest.raises(fs.InvalidInput, match=r"^[^\n]{1,200}$"):
        TAKERS[taker](BAD[bad])


@pytest.mark.parametrize("good", [0.1, np.float32(0.1), np.array(0.1), jnp.float32(0.1), 1])
def test_one_number_in_any_form_is_taken(good):
    for taker in TAKERS.values():
        taker(good)


def test_what_stands_for_a_number_inside_a_program_is_not_looked_at():
    """Traced values pass; stacked ones, as a sweep keeps them, are made by transformations and never checked."""
    jax.make_jaxpr(lambda x: check_range("rate", fs.FedAvg(x).server_optimizer.lr, above=0))(0.1)
    many = jax.tree.map(lambda *x: jnp.stack(x), fs.FedAvg(0.1), fs.FedAvg(0.2))
    assert many.local.lr.shape == (2,)
    jax.vmap(lambda a: a.local.lr)(many)


@pytest.mark.parametrize(
    "bad", [float, lambda r: jnp.ones(3), lambda r: [0.1], lambda r: 1, lambda: 0.1, fs.FedAvg]
)
def test_a_function_that_is_no_schedule(bad):
    with pytest.raises(fs.InvalidInput, match="client_lr"):
        as_rate("client_lr", bad)


def test_functions_that_are_schedules():
    for good in (optax.exponential_decay(0.1, 10, 0.9), lambda r: 0.1, lambda r: 0.1 / (r + 1)):
        assert float(as_rate("client_lr", good)(0)) == pytest.approx(0.1)
