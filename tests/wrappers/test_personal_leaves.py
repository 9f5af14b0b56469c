"""Personal leaves and models: what goes with them, what is refused with its reason, and what never travels."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve import wire
from fedsolve.core.algorithm import Cohort, client_update_of
from fedsolve.core.introspect import ShapeOracle, first_cohort
from fedsolve.methods.compression import EDEN, RandomK
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


@pytest.mark.full
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


# What low-rank updates go around, what goes around them, and what is said of all else.

AVG = fs.FedAvg(0.1, weighting="uniform")
LOW_RANK_MODEL = {"w": jnp.zeros((6, 5)), "deep": {"w": jnp.zeros((2, 3, 2)), "b": jnp.zeros(5)}}
PRIVATE = fs.privacy.DifferentialPrivacy(AVG, 1.0, 0.5, cohort=5, population=10, delta=1e-5, sampling="none")


def low_rank(inner: Any = AVG, average: Any = "both", **options: Any) -> fs.Algorithm:
    return fs.LowRank(inner, **{"rank": 2, "average": average} | options)


REFUSED = {
    "rank = 0": lambda: low_rank(rank=0),
    "average = 'all' must be 'both', 'A', 'exact' or 'stack'": lambda: low_rank(average="all"),
    "alpha = 0": lambda: low_rank(alpha=0),
    r"leaves = \[\] must be patterns": lambda: low_rank(leaves=[]),
    "FLoRA cannot wrap LoRA, which has factors already": lambda: low_rank(low_rank(), "stack"),
    "LoRA cannot wrap FedBuff: its clients start from models of different age": lambda: low_rank(
        fs.FedBuff(0.1)
    ),
    "LoRA cannot wrap FedPer, whose clients have personal models": lambda: low_rank(fs.FedPer("w")),
    "FedEx-LoRA cannot wrap FedNova: it sends no plain client updates": lambda: low_rank(
        fs.FedNova(0.1), "exact"
    ),
    "FLoRA cannot wrap FedDualAvg: it sends no plain": lambda: low_rank(
        fs.FedDualAvg(fs.geometry.L1(0.1)), "stack"
    ),
    r"FedEx-LoRA cannot wrap Compressed: it sends no plain": lambda: low_rank(
        fs.Compressed(AVG, EDEN(1), memory="ef21"), "exact"
    ),
    r"FedEx-LoRA cannot wrap Robust: the residual is of means": lambda: low_rank(
        fs.robust.Robust(AVG, fs.robust.Median()), "exact"
    ),
    "Robust cannot wrap FedEx-LoRA: the residual is of means": lambda: fs.robust.Robust(
        low_rank(average="exact"), fs.robust.Median()
    ),
    "FLoRA cannot wrap DP: products of factors exceed its bound": lambda: low_rank(PRIVATE, "stack"),
    "LocalDP around FLoRA: its server multiplies": lambda: fs.privacy.LocalDifferentialPrivacy(
        low_rank(average="stack"), 0.5, 1.0, delta=1e-5
    ),
    "Compressed cannot wrap LoRA, whose client updates are factors: build LowRank around Compressed": lambda: (
        fs.Compressed(low_rank(), EDEN(1))
    ),
    "SCAFFOLD cannot wrap FLoRA, whose client updates are factors": lambda: fs.ControlVariates(
        low_rank(average="stack")
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_low_rank_refusals(words):
    """In a line, when the method is built."""
    with pytest.raises(fs.InvalidInput, match=words):
        REFUSED[words]()


def started(method: fs.Algorithm) -> Any:
    """The shapes of a message as its server reads it."""
    server = method.init(LOW_RANK_MODEL)
    broadcast = method.broadcast(server, first_cohort(4))
    client = method.enrol(broadcast, LOW_RANK_MODEL)
    return jax.eval_shape(
        lambda: method.receive(broadcast, method.train(broadcast, client, ShapeOracle())[0], client)[0]
    )


@pytest.mark.parametrize(
    ("words", "method"),
    [
        ("leaves = 'wide': no leaf of the model has this name; the nearest paths are w", low_rank(leaves="wide")),
        ("leaves: deep.b are no matrices", low_rank(leaves="b")),
        ("new factors, and the clients of SCAFFOLD keep a state", low_rank(fs.SCAFFOLD(0.1), "stack")),
        ("and SPPMAS sends more", low_rank(fs.ProximalPoint(AVG), "stack")),
        ("decodes their mean alone", low_rank(fs.Compressed(AVG, RandomK(0.5), smallest=4), "exact")),
    ],
)  # fmt: skip
def test_refusals_at_the_start(words, method):
    """Of what depends on the model."""
    with pytest.raises(fs.InvalidInput, match=words):
        started(method)


def test_leaves():
    """Matrices that a pattern matches and that are larger than their factors have them; others train in full."""
    for average, a in {"both": (2, 5), "A": None, "exact": (2, 5)}.items():
        update = client_update_of(started(low_rank(average=average)))
        assert update["w"].b.shape == (6, 2)
        assert (update["w"].a.shape if a else update["w"].a) == a
        assert update["deep"]["w"].shape == (2, 3, 2)  # 12 entries, its factors 16
        assert update["deep"]["b"].shape == (5,)
