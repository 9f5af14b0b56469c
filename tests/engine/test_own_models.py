"""Clients measured with models of their own, against NumPy: in runs, streams and sweeps, and after fine-tuning."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedsolve as fs
from equations.transcript import Federation
from fedsolve.engine import streaming as stream
from fedsolve.engine.evaluation import example_metrics
from fedsolve.engine.streaming import Packer
from fedsolve.results.callbacks import EachClient, FineTuning
from harness import Softmax, cross_entropy, crossed, joined, make_clients, prepare

SIZES = (7, 3, 12, 5, 9)
CLIENTS = make_clients(SIZES)
START = 0.5 * np.random.default_rng(1).standard_normal(15)
HELD_OUT = make_clients((4, 2, 3, 5, 2), seed=5)
OWNERS = np.repeat(np.arange(5), (4, 2, 3, 5, 2))
SHUFFLED = np.random.default_rng(3).permutation(len(OWNERS))
OPTIONS = {"clients_per_round": 2, "epochs": 1, "dtype": "float64"}


def task(**more):
    """Validation examples of all clients in any order; the test set is of nobody."""
    validation = fs.Examples(*(a[SHUFFLED] for a in joined(HELD_OUT)))
    given = {"validation": validation, "validation_clients": OWNERS[SHUFFLED], "test": joined(HELD_OUT)}
    data = fs.FederatedData.from_clients(CLIENTS)
    init = lambda key: Softmax.of(START)  # noqa: E731
    return fs.Task("own", init, cross_entropy, data, batch_size=4, **(given | more))


TASK = task()


def losses(clients, models):
    fed = Federation(clients, [], None, 4)
    return np.array([fed.loss(i, models[i]) for i in range(len(clients))])


def by_hand(method):
    """The state after three rounds, its metrics, every client's own model and the server's, as flat vectors."""
    with jax.enable_x64(True):
        setup = prepare(method, TASK, fs.sampling.Uniform(2), capacity=3)
        state, _ = setup.advance(setup.state, 3)
        found, (state, exported) = (
            setup.evaluate(state),
            jax.device_get((state, setup.algorithm.export(state.server))),
        )
    weights, biases = state.clients.personal if isinstance(method, fs.Ditto) else (None, None)
    if weights is None:
        biases = state.clients.personal.bias
        weights = np.stack([exported.weight] * len(SIZES))
    models = [np.concatenate([w.ravel(), b]) for w, b in zip(weights, biases, strict=True)]
    assert len({m.tobytes() for m in models}) > 3
    return found, models, np.concatenate([exported.weight.ravel(), exported.bias])


@pytest.mark.full
@pytest.mark.parametrize(
    "method",
    [pytest.param(fs.FedPer("bias", 0.3), marks=pytest.mark.full), fs.Ditto(fs.FedAvg(0.3))],
    ids=lambda m: m.name,
)
def test_each_client_is_measured_with_its_own(method):
    """Training and validation by the owner's model, the test set by the server's."""
    found, models, exported = by_hand(method)
    for part, clients, prefix in (("train", CLIENTS, "client"), ("validation", HELD_OUT, "validation")):
        own, sizes = losses(clients, models), [len(c.y) for c in clients]
        wanted = {
            f"{part}_loss": np.average(own, weights=sizes),
            f"{prefix}_loss_mean": own.mean(),
            f"{prefix}_loss_p10": np.percentile(own, 10),
            f"{prefix}_loss_worst": own.max(),
        }
        for name, value in wanted.items():
            assert found[name] == pytest.approx(value, rel=1e-12), name
    alone = np.average(losses(HELD_OUT, [exported] * 5), weights=[len(c.y) for c in HELD_OUT])
    assert found["test_loss"] == pytest.approx(alone, rel=1e-12)
    assert abs(found["test_loss"] - found["validation_loss"]) > 1e-3


@pytest.mark.full
def test_a_sweep_measures_with_the_same_models():
    """Two rates side by side: training and validation losses are those of runs one by one."""
    grid = {"client_lr": [0.1, 0.3], "leaves": ["bias"]}
    found = fs.sweep("FedPer", TASK, grid, seeds=[0], rounds=3, eval_every=3, **OPTIONS)
    for k, rate in enumerate(grid["client_lr"]):
        alone = fs.run(fs.FedPer("bias", rate), TASK, rounds=3, eval_every=3, **OPTIONS).metrics
        for name in ("train_loss", "validation_loss", "test_loss"):
            np.testing.assert_allclose(
                np.ravel(found.metrics[name][k]), alone[name], rtol=1e-12, err_msg=name
            )


def tuned(w, client, steps, lr):
    """Steps of gradient descent on all of a client's examples."""
    fed = Federation([client], [], None, 4)
    for _ in range(steps):
        w = w - lr * fed.gradient(0, w)
    return w


@pytest.mark.full
def test_fine_tuning_and_held_out_examples_of_each_client():
    """Before and after three full steps from the global model, on validation examples; the run is as without."""
    models, look, seen = {}, FineTuning(3, 0.4, rounds=[2]), EachClient(validation=True)

    def keep(at):
        flat = jax.tree.leaves(at.result().params)
        models[at.round] = np.concatenate([np.ravel(x) for x in flat])

    options = OPTIONS | {"rounds": 2, "batch_size": "full"}
    result = fs.run(fs.FedAvg(0.3), TASK, callbacks=[keep, look, seen], eval_every=1, **options)
    assert list(look.after) == [2]
    before = losses(HELD_OUT, [models[2]] * 5)
    after = losses(HELD_OUT, [tuned(models[2], c, 3, 0.4) for c in CLIENTS])
    np.testing.assert_allclose(look.before[2].column("loss"), before, rtol=1e-12)
    np.testing.assert_allclose(look.after[2].column("loss"), after, rtol=1e-12)
    np.testing.assert_array_equal(seen.found[2].column("loss"), look.before[2].column("loss"))
    assert look.after[2].examples.tolist() == [4, 2, 3, 5, 2]
    assert np.abs(after - before).min() > 1e-4
    alone = fs.run(fs.FedAvg(0.3), TASK, eval_every=1, **options)
    np.testing.assert_array_equal(result.params.weight, alone.params.weight)


MANY = np.random.default_rng(4).integers(2, 12, 60)


def many(**more):
    """Clients of many sizes, each with a third of its examples held out."""
    data = fs.FederatedData.from_clients(make_clients(MANY))
    init = lambda key: Softmax.of(START)  # noqa: E731
    return fs.Task("many", init, cross_entropy, data, batch_size=4, **more).hold_out(0.34)


STREAMED = {
    "a buffer of messages": (fs.FedBuff(0.3, buffer=3), {"systems": "stragglers"}, {}),
    "leaves of their own": (fs.FedRep("bias", 0.3, passes=2), {}, {}),
    "models of their own, some clients": (fs.Ditto(fs.SCAFFOLD(0.3)), {}, {"eval_examples": 100}),
}


@pytest.mark.parametrize("case", crossed(STREAMED, ["a buffer of messages"]))
def test_streamed_clients_are_measured_alike(case, monkeypatch):
    """A few at a time: each one's metrics on training and held-out examples, as it is and after fine-tuning."""
    monkeypatch.setattr(example_metrics, "WINDOW_BYTES", 2**10)
    monkeypatch.setattr(example_metrics, "ROWS_AT_ONCE", 16)
    monkeypatch.setattr(stream, "WINDOW_BYTES", 2**9)
    most, pack = [], Packer.pack
    monkeypatch.setattr(Packer, "pack", lambda self, some: most.append(len(some)) or pack(self, some))
    method, options, given = STREAMED[case]
    options = OPTIONS | {"rounds": 4, "eval_every": 2, "clients_per_round": 5} | options

    def measured(residency):
        tuning, own, kept = FineTuning(3, 0.4, rounds=[4]), EachClient(rounds=[4]), {}

        def after_steps(at):
            if at.round == 4:
                kept[at.round] = at.clients(steps=2, solver=fs.client.SGD(0.2))

        looks = [tuning, own, after_steps]
        result = fs.run(method, many(**given), callbacks=looks, residency=residency, **options)
        return result.metrics, [tuning.before, tuning.after, own.found, kept]

    (metrics, looks), (wanted, there) = measured("stream"), measured("device")
    assert max(most) < 25
    for found, other in zip(looks, there, strict=True):
        assert list(found) == list(other)
        for done, each in found.items():
            assert each.names == other[done].names
            np.testing.assert_array_equal(each.examples, other[done].examples)
            np.testing.assert_allclose(each.column("loss"), other[done].column("loss"), rtol=1e-12)
    assert np.abs(looks[1][4].column("loss") - looks[0][4].column("loss")).max() > 1e-2
    for name in set(metrics) - {"seconds"}:
        np.testing.assert_allclose(metrics[name], wanted[name], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: FineTuning(0, 0.1), "steps = 0 must be"),
        (lambda: FineTuning(1, -0.1), "client_lr = -0.1 must be"),
        (lambda: task(validation=None), "say whose validation examples are: give validation"),
        (
            lambda: task(validation_clients=OWNERS[:3]),
            r"have shape \(3,\) and type int64 for 16 validation examples",
        ),
        (lambda: task(validation_clients=OWNERS + 1), "hold 5: clients are numbered 0 to 4"),
        (
            lambda: fs.run(
                fs.FedAvg(),
                task(validation=None, validation_clients=None),
                rounds=1,
                callbacks=[FineTuning(1, 0.1)],
            ),
            r"no validation examples of its clients' own: hold some out, task\.hold_out",
        ),
        (
            lambda: fs.run(fs.FedAvg(), TASK, rounds=1, callbacks=[lambda at: at.clients(steps=2)]),
            r"solver = None must be one such as fs\.client\.SGD\(0\.1\), for 2 steps",
        ),
        (
            lambda: fs.run(fs.FedAvg(), TASK, rounds=1, callbacks=[EachClient(unseen=True, validation=True)]),
            "unseen clients have no examples to train on or hold out",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line(call, said):
    with pytest.raises(fs.InvalidInput, match=said):
        call()
