"""Models of equinox, flax and users' own classes, with every method: a round's verbs keep their structure."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core import introspect
from fedsolve.core.algorithm import Cohort
from fedsolve.core.trees import named_leaves
from fedsolve.core.types import reports
from fedsolve.deploy import communication
from fedsolve.engine.compute.train import reduce_stacked
from fedsolve.tasks.leaves import split_leaves
from harness import crossed

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(n, 3)), RNG.normal(size=(n, 1))) for n in (9, 4, 6)]


class Pair(NamedTuple):
    """Fields named as a message's are."""

    delta: Any
    loss: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Affine:
    delta: Any
    loss: Any
    width: int = dataclasses.field(default=1, metadata={"static": True})


def squared(predict):
    return lambda model, batch: jnp.mean((predict(model, batch[0]) - batch[1]) ** 2)


def equinox_linear():
    eqx = pytest.importorskip("equinox")
    return eqx.nn.Linear(3, 1, key=jax.random.key(0)), lambda m, x: jax.vmap(m)(x)


def linen():
    nn = pytest.importorskip("flax.linen")
    model = nn.Dense(1)
    return model.init(jax.random.key(0), jnp.ones((1, 3))), model.apply


def linen_frozen():
    params, apply = linen()
    return pytest.importorskip("flax.core").freeze(params), apply


def nnx_module():
    nnx = pytest.importorskip("flax.nnx")
    layers = [nnx.Linear(3, 4, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(4, 1, rngs=nnx.Rngs(1))]
    return nnx.Sequential(*layers), lambda model, x: model(x)


def nnx_state():
    nnx = pytest.importorskip("flax.nnx")
    graph, state = nnx.split(nnx_module()[0])
    return state, lambda state, x: nnx.merge(graph, state)(x)


def named_tuple():
    return Pair(np.ones((3, 1), np.float32), np.zeros(1, np.float32)), lambda p, x: x @ p.delta + p.loss


def own_dataclass():
    return Affine(np.ones((3, 1), np.float32), np.zeros(1, np.float32)), lambda p, x: x @ p.delta + p.loss


def exported(algorithm, params):
    """The shapes of the model after a round of the verbs as the engine calls them; nothing is compiled."""
    server = algorithm.init(params)
    cohort = Cohort(jnp.int32(0), jnp.int32(4), 4, jax.random.key(0))

    def one(server):
        broadcast = algorithm.broadcast(server, cohort)
        client = algorithm.enrol(broadcast, params)
        message, after = algorithm.train(broadcast, client, introspect.ShapeOracle())
        message, _ = algorithm.receive(broadcast, message, client)
        assert jax.tree.structure(after) == jax.tree.structure(client)
        messages = jax.tree.map(lambda x: jnp.stack([x, x]), message)
        reduced = reduce_stacked(algorithm, messages, jnp.ones(2), jnp.ones(2, bool))
        new = algorithm.update(server, reduced, cohort)
        assert reports(new).keys() == reports(server).keys()
        return algorithm.export(new)

    return jax.eval_shape(one, server)


LIBRARIES = (equinox_linear, linen, linen_frozen, nnx_module, nnx_state)
OWN = (named_tuple, own_dataclass)


@pytest.mark.gate("nnx_state-4-40", "linen_frozen-2-40")
@pytest.mark.parametrize(
    ("kind", "first", "step"),
    [
        *((kind, i, len(OWN)) for i, kind in enumerate(OWN)),
        *((kind, i, 8 * len(LIBRARIES)) for i, kind in enumerate(LIBRARIES)),
        *(pytest.param(kind, 0, 1, marks=pytest.mark.full) for kind in (*OWN, *LIBRARIES)),
    ],
)
def test_every_method_takes_the_model(kind, first, step):
    """All methods of the catalogue, and what wraps them, each on a model with the names of its own fields, and a few
    on a model of each library: it comes out as it went in.
    """
    params = split_leaves(kind()[0]).trained
    more = {"Robust(Krum)": fs.build("Robust+FedAdam", {"reduction": fs.robust.Krum(1)})}
    last = named_leaves(params)[0][-1]
    for name, algorithm in list((communication.examples() | more).items())[first::step]:
        if isinstance(algorithm, fs.Personal):  # of whatever the model calls its leaves
            algorithm = dataclasses.replace(algorithm, leaves=(last,))
        if hasattr(algorithm, "smallest"):  # leaves of any size
            every = fs.compression.TopK(1.0) if name.startswith("SCAFCOM") else fs.compression.RandomK(1.0)
            algorithm = dataclasses.replace(algorithm, compressor=every, smallest=1)
        after = exported(algorithm, params)
        assert jax.tree.structure(after) == jax.tree.structure(params), name
        shapes = [(x.shape, x.dtype) for x in jax.tree.leaves(after)]
        assert shapes == [(x.shape, x.dtype) for x in jax.tree.leaves(params)], name


@pytest.mark.parametrize(
    "kind", crossed((equinox_linear, nnx_module), (nnx_module,)), ids=lambda f: f.__name__
)
@pytest.mark.full
def test_the_model_trains_and_comes_back(kind, tmp_path):
    """A run with checkpoints gives the model back, trained, in its own class and to the same bits when resumed."""
    model, predict = kind()
    task = fs.Task.from_arrays(squared(predict), model, CLIENTS, batch_size=4)
    given = {"rounds": 4, "eval_every": 4, "out": tmp_path}
    result = fs.run(fs.FedDuAdam(0.05), task, **given)
    again = fs.run(fs.FedDuAdam(0.05), task, resume=True, **given)
    assert type(result.params) is type(model)
    assert result.metrics["train_loss"][-1] < 0.9 * result.metrics["train_loss"][0]
    x = CLIENTS[0][0].astype(np.float32)
    np.testing.assert_array_equal(predict(result.params, x), predict(again.params, x))
