"""Frozen leaves: what trains is all that travels and is kept; the run is that of a loss that knows them by heart."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.geometry import L1, L1Ball
from fedsolve.geometry.diagnostics import FrankWolfeGap
from harness import compiled_rounds

RNG = np.random.default_rng(0)
SIZES = (5, 3, 4)
CLIENTS = [(RNG.normal(size=(n, 3)), RNG.normal(size=(n, 2))) for n in SIZES]
TEST = (RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2)))
HEAD = {"bias": RNG.normal(size=2), "weight": RNG.normal(size=(4, 2))}
BODY = {"bias": RNG.normal(size=4), "weight": RNG.normal(size=(3, 4))}
MODEL = {"body": BODY, "head": HEAD, "act": jnp.tanh}
GIVEN = {"rounds": 3, "eval_every": 1, "dtype": "float64", "sampling": fs.sampling.Uniform(2)}


def predict(model, x):
    hidden = model["act"](x @ model["body"]["weight"] + model["body"]["bias"])
    return hidden @ model["head"]["weight"] + model["head"]["bias"]


def squared(model, batch):
    return jnp.mean((predict(model, batch[0]) - batch[1]) ** 2)


def by_heart(head, batch):
    """The same loss as a function of the head alone."""
    body = {name: jnp.asarray(a) for name, a in BODY.items()}
    return squared({"body": body, "head": head, "act": jnp.tanh}, batch)


def largest(model, batch):
    return jnp.max(jnp.abs(predict(model, batch[0])))


def frozen(loss=squared, **more):
    return fs.Task.from_arrays(
        loss,
        MODEL,
        CLIENTS,
        test=TEST,
        metrics={"largest": largest},
        freeze=("body.*",),
        batch_size=2,
        **more,
    )


def known(**more):
    return fs.Task.from_arrays(by_heart, HEAD, CLIENTS, test=TEST, batch_size=2, **more)


def same(found, wanted, names=("train_loss", "test_loss", "test_loss_averaged", "client_loss_worst")):
    for name in names:
        np.testing.assert_allclose(found.metrics[name], wanted.metrics[name], rtol=1e-12, err_msg=name)


def test_a_run_is_that_of_the_rest_alone(tmp_path):
    """Training, evaluation, means and whole sets, bytes, checkpoints: all as if the frozen part were in the loss."""
    found = fs.run(fs.FedAvg(0.1), frozen(), out=tmp_path / "a", **GIVEN)
    wanted = fs.run(fs.FedAvg(0.1), known(), out=tmp_path / "b", **GIVEN)
    same(found, wanted)
    np.testing.assert_array_equal(found.rounds["bytes_up"], wanted.rounds["bytes_up"])
    np.testing.assert_array_equal(found.rounds["bytes_down"], wanted.rounds["bytes_down"])
    with jax.enable_x64(True):  # on a whole set
        assert found.metrics["test_largest"][-1] == pytest.approx(float(largest(found.params, TEST)))
    for name, a in BODY.items():
        np.testing.assert_array_equal(found.params["body"][name], a)
        np.testing.assert_allclose(found.params["head"][name], wanted.params[name], rtol=1e-12)
    loaded = fs.load(tmp_path / "a", frozen()).params  # the activation, which no file holds, is the task's
    assert loaded["act"] is jnp.tanh
    np.testing.assert_array_equal(loaded["head"]["weight"], found.params["head"]["weight"])
    sizes = [sum(f.stat().st_size for f in (tmp_path / x).glob("checkpoint.safetensors")) for x in "ab"]
    assert abs(sizes[0] - sizes[1]) < 8 * sum(a.size for a in BODY.values())


@pytest.mark.full
def test_other_frozen_values_need_no_other_program(tmp_path):
    """They are arguments of the program, not constants in it; and another run than the folder's is refused."""
    task = frozen()
    first = fs.run(fs.FedAvg(0.1), task, out=tmp_path, **GIVEN)
    programs = compiled_rounds()
    other = replace(task, frozen=jax.tree.map(lambda a: a + 1, task.frozen))
    moved = fs.run(fs.FedAvg(0.1), other, **GIVEN)
    assert compiled_rounds() == programs
    assert moved.metrics["train_loss"][0] != pytest.approx(first.metrics["train_loss"][0])
    with pytest.raises(InvalidInput, match="start"):
        fs.run(fs.FedAvg(0.1), other, out=tmp_path, resume=True, **GIVEN)


@pytest.mark.full
def test_it_goes_on_from_a_result():
    """Fine-tuning: what was trained is frozen, the rest trains from where it was."""
    first = fs.run(fs.FedAvg(0.1), known(), **GIVEN).params
    task = fs.Task.from_arrays(squared, MODEL | {"head": first}, CLIENTS, freeze=("head.*",), batch_size=2)
    second = fs.run(fs.FedAvg(0.1), task, **GIVEN)
    np.testing.assert_array_equal(second.params["head"]["weight"], first["weight"])
    assert second.metrics["train_loss"][-1] < second.metrics["train_loss"][0]


@pytest.mark.full
def test_sweeps_diagnostics_and_deployments_see_the_whole_model():
    """Evaluations and gaps of a sweep, and the oracle of one client's own process."""
    measures = (FrankWolfeGap(L1Ball(9.0)),)
    grid = {"client_lr": [0.05, 0.1]}
    found, wanted = (
        fs.sweep("FedAvg", task, grid, diagnostics=measures, **GIVEN) for task in (frozen(), known())
    )
    for name in ("train_loss", "test_loss", "gap"):
        np.testing.assert_allclose(found.metrics[name], wanted.metrics[name], rtol=1e-12)
    key = jax.random.key(3)
    with jax.enable_x64(True):
        (loss, gradient), (other, wanted) = (
            JaxOracle.of_task(task, 0).begin(key, 0, jnp.float64)(
                HEAD if task.frozen == () else task.init(key), 0
            )
            for task in (frozen(), known())
        )
    np.testing.assert_allclose(loss, other, rtol=1e-12)
    np.testing.assert_allclose(gradient["head"]["weight"], wanted["weight"], rtol=1e-12)


@pytest.mark.full
def test_baselines_train_the_rest():
    """FISTA on the gathered problem."""
    found, wanted = (
        fs.baselines.fista(t, L1(0.01), iterations=5, dtype="float64") for t in (frozen(), known())
    )
    np.testing.assert_allclose(found.value, wanted.value, rtol=1e-12)


def test_patterns_that_cannot_be():
    with pytest.raises(InvalidInput, match=r"'bodi\.\*' matches no leaf.* nearest paths are body.bias"):
        fs.Task.from_arrays(squared, MODEL, CLIENTS, freeze=("bodi.*",))
    with pytest.raises(InvalidInput, match="leaves nothing to train"):
        fs.Task.from_arrays(squared, MODEL, CLIENTS, freeze=("*",))
    with pytest.raises(InvalidInput, match="must be patterns"):
        fs.Task.from_arrays(squared, MODEL, CLIENTS, freeze="body.*")


@pytest.mark.full
@pytest.mark.parametrize("library", ["equinox", "flax"])
def test_models_of_libraries(library):
    """The first layer of an equinox or flax model stays, to the bit, and the second moves; classes stay their own."""
    if library == "equinox":
        eqx, keys = pytest.importorskip("equinox"), jax.random.split(jax.random.key(0))
        first, last = (eqx.nn.Linear(*size, key=k) for size, k in zip(((3, 4), (4, 2)), keys, strict=True))
        model, apply = eqx.nn.Sequential([first, eqx.nn.Lambda(jnp.tanh), last]), lambda m, x: jax.vmap(m)(x)
    else:
        nnx = pytest.importorskip("flax.nnx")
        first, last = nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 2, rngs=nnx.Rngs(1))
        graph, model = nnx.split(nnx.Sequential(first, jnp.tanh, last))
        apply = lambda state, x: nnx.merge(graph, state)(x)  # noqa: E731

    def loss(model, batch):
        return jnp.mean((apply(model, batch[0]) - batch[1]) ** 2)

    task = fs.Task.from_arrays(loss, model, CLIENTS, freeze=("layers.0.*",), batch_size=2)
    params = fs.run(fs.FedAvg(0.1), task, rounds=1).params
    assert jax.tree.structure(params) == jax.tree.structure(model)
    old, new = (jax.tree_util.tree_leaves_with_path(m) for m in (model, params))
    arrays = [(jax.tree_util.keystr(path), a, b) for (path, a), (_, b) in zip(old, new, strict=True)]
    stays = {path: np.array_equal(a, b) for path, a, b in arrays if hasattr(a, "dtype")}
    assert stays == {path: "0" in path for path in stays}
    assert len(stays) == 4
