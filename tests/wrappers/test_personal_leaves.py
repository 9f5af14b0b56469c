"""Personal leaves and models: what goes with them, what is refused with its reason, and what never travels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve import wire
from fedsolve.core.algorithm import Cohort
from harness import SIZES, crossed, make_clients, make_task, prepare

TASK = make_task(make_clients())
RUN = {"rounds": 2, "batch_size": 4, "epochs": 1, "chunk": len(SIZES)}
MODEL = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}


@pytest.mark.parametrize("leaves", ["bias", ["bias"], ("*bias", "b*")])
def test_patterns(leaves):
    """One pattern or several, as text or as a list of a configuration; they may meet on a leaf."""
    shared = fs.Personal(fs.FedAvg(), leaves).init(TASK.init(None)).inner.params
    assert shared.bias is None
    assert shared.weight.shape == (4, 3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: fs.FedPer("heads.*").init(MODEL),
            "no leaf of the model has this name; the nearest paths are",
        ),
        (lambda: fs.FedPer("*").init(MODEL), "all 2 of the model: nothing is left to be federated"),
        (lambda: fs.FedPer(()), "must be patterns of paths, such as 'output"),
        (lambda: fs.FedPer(3), "must be patterns of paths, such as 'output"),
        (lambda: fs.FedPer(("b", "")), "must be patterns of paths, such as 'output"),
        (lambda: fs.FedRep("b", passes=0), "passes = 0 must be"),
        (lambda: fs.Personal(fs.FedAvg(), "b", personal_lr=0), "personal_lr = 0 must be"),
        (lambda: fs.Personal("FedAvg", "b"), "wraps an algorithm such as"),
        (lambda: fs.Ditto(fs.FedAvg(), lam=-1.0), "lam = -1.0 must be"),
        (lambda: fs.Personal(fs.FedBuff(0.1), "b"), "its clients start from models of different age"),
        (lambda: fs.Ditto(fs.FedAsync(0.1)), "its clients start from models of different age"),
        (
            lambda: fs.Proximal(fs.FedPer("b")),
            "FedProx cannot wrap FedPer, .* build FedPer around FedProx",
        ),
        (lambda: fs.build("SCAFFOLD+FedPer", {"leaves": "b"}), "build FedPer around SCAFFOLD"),
        (lambda: fs.build("Robust+Ditto", {"reduction": "median"}), "build Ditto around Robust"),
        (lambda: fs.Ditto(fs.FedPer("b")), "personal models: one of the two is enough"),
    ],
)
def test_refusals(make, said):
    with pytest.raises(fs.InvalidInput, match=said):
        make()


@pytest.mark.parametrize(
    "inner", [fs.FedLiLS(), fs.SCAFFOLD(option="I"), fs.FedFW(fs.geometry.L1Ball(10.0))], ids=lambda m: m.name
)
def test_joint_training_refuses_what_asks_for_more_than_gradients(inner):
    """A loss after the gradient would be of other personal leaves; before any compilation, in one line."""
    with pytest.raises(fs.InvalidInput, match=r"move with each minibatch gradient.*passes = 1"):
        fs.run(fs.Personal(inner, "bias"), TASK, **RUN)


INNER = {
    "FedLiLS": lambda: fs.FedLiLS(),
    "FedDR": lambda: fs.FedDR(fs.geometry.L1(0.01).on("weight"), 0.1),
    "FedFW": lambda: fs.FedFW(fs.geometry.L1Ball(10.0)),
    "FedExProx": lambda: fs.FedExProx(solver="exact"),
    "Robust": lambda: fs.robust.Robust(fs.FedAdam(), fs.robust.Median()),
    "LocalDP": lambda: fs.privacy.LocalDifferentialPrivacy(
        fs.FedAvg(weighting="uniform"), clip_norm=0.5, epsilon=8.0, delta=1e-5
    ),
    "DP": lambda: fs.privacy.DifferentialPrivacy(
        fs.FedAvg(weighting="uniform"), 1.0, 0.5, cohort=5, population=5, delta=1e-3, sampling="none"
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", crossed(INNER, ["FedLiLS"]))
def test_leaves_that_train_first_go_with_every_method(name):
    """A line search, a penalty on shared leaves, codes, a solver of its own, a robust reduction, private messages."""
    if name == "DP":
        pytest.importorskip("dp_accounting")
    inner = INNER[name]()
    algorithm = fs.Personal(inner, "bias", passes=1)
    assert algorithm.privacy == inner.privacy
    result = fs.run(algorithm, TASK, **RUN)
    start = TASK.init(None)
    np.testing.assert_array_equal(result.params.bias, np.asarray(start.bias, np.float32))
    assert np.abs(result.params.weight - start.weight).max() > 1e-4


@pytest.mark.parametrize("passes", [0, 2])
def test_messages_do_not_depend_on_how_many_personal_leaves_there_are(passes):
    """Down and up are to the byte what FedAvg of a model without these leaves sends."""
    server = fs.FedAvg().init({"w": MODEL["w"]})
    cohort = Cohort(jnp.int32(0), jnp.int32(2), 2)
    alone = wire.size(fs.FedAvg().broadcast(server, cohort))
    algorithm = fs.Personal(fs.FedAvg(), "b", passes=passes)
    down = algorithm.broadcast(algorithm.init(MODEL), cohort)
    assert wire.size(down) == alone
    assert not any(np.size(x) == 2 for x in jax.tree.leaves(down))


def test_a_run_counts_the_shared_leaves_alone():
    """12 weights of 4 bytes and the mean loss up, without the 3 biases."""
    everyone = fs.sampling.Uniform(len(SIZES))
    one, whole = (
        prepare(m, TASK, everyone, dtype="float32").traffic for m in (fs.FedPer("bias"), fs.FedAvg())
    )
    assert whole.down - one.down == sum(whole.up) - sum(one.up) == 3 * 4


@pytest.mark.full
def test_a_client_whose_own_leaves_are_not_finite_is_left_out():
    """What it sends is finite, what it would keep is not: -3e38 x 100 of float32."""
    start = {"w": np.zeros((), np.float32), "b": np.zeros((), np.float32)}
    clients = [np.ones(2, np.float32)] * 2
    task = fs.Task.from_arrays(lambda p, x: jnp.mean(x * p["w"] + 100 * p["b"]), start, clients)
    algorithm = fs.Personal(fs.FedAvg(), "b", personal_lr=3e38)
    with pytest.raises(fs.Diverged, match="round 1"):
        fs.run(algorithm, task, rounds=2)
