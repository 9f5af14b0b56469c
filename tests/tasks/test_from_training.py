"""Training loops of one's own in a simulation: FedAvg by hand, metrics, buffers, what loops keep, and what fails."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import fedsolve as fs

SIZES = np.array([4, 1, 3])
DATA = [0.0, 1.0, 2.0]
STILL = {"progress": False, "rounds": 3}


def start():
    return {"layer": {"w": np.arange(3, dtype=np.float32)}, "b": np.ones(1, np.float32)}


def pull(model, round, data):
    """A loop on arrays: towards the client's number, in a step that depends on the round."""
    model["layer"]["w"] += 0.25 * (data - model["layer"]["w"]) / round
    model["b"][:] = model["b"] + np.float32(0.5)
    return {"examples": int(SIZES[int(data)]), "steps": 2}


def evaluate(model, data):
    w = model["layer"]["w"].astype(np.float64)
    return {"loss": float(np.square(w - data).sum()), "first": float(w[0]), "examples": 9}


def by_hand(rounds=3):
    w, p = start()["layer"]["w"].astype(np.float64), SIZES / SIZES.sum()
    for round in range(1, rounds + 1):
        w = w + p @ np.array([0.25 * (data - w) / round for data in DATA])
    return w


def test_fedavg_by_hand_and_what_is_measured():
    task = fs.tasks.from_training(start(), pull, DATA, evaluate=evaluate, test=1.0, examples=SIZES.tolist())
    result = fs.run(fs.FedAvg(client_lr=0.1), task, eval_every=1, **STILL)
    w = by_hand()
    np.testing.assert_allclose(result.params["layer"]["w"], w, rtol=2e-6)
    np.testing.assert_allclose(result.params["b"], [2.5], rtol=1e-6)
    own = np.array([np.square(w - data).sum() for data in DATA])
    seen = result.metrics
    assert seen["train_loss"][-1] == pytest.approx(SIZES @ own / SIZES.sum(), rel=1e-5)
    assert seen["test_loss"][-1] == pytest.approx(own[1], rel=1e-5)
    assert seen["client_loss_worst"][-1] == pytest.approx(own.max(), rel=1e-5)
    assert seen["train_first"][-1] == pytest.approx(w[0], rel=1e-5)
    assert seen["train_loss"][0] == pytest.approx(
        SIZES @ [np.square(np.arange(3) - data).sum() for data in DATA] / 8
    )
    copied = result.module()
    np.testing.assert_allclose(copied["layer"]["w"], w, rtol=2e-6)


def test_what_the_loop_returns_is_recorded_and_a_loop_that_trains_a_copy_is_noted():
    def train(model, round, data):
        own = copy.deepcopy(model) if data == 1.0 else model
        return pull(own, round, data) | {"loss": 1.0 + data, "accuracy": round / 4}

    task = fs.tasks.from_training(start(), train, DATA, evaluate=["accuracy"])
    result = fs.run(fs.FedAvg(client_lr=0.1), task, eval_every=1, **STILL)
    np.testing.assert_array_equal(result.metrics["train_accuracy"], [np.nan, 0.25, 0.5, 0.75])
    np.testing.assert_array_equal(result.metrics["train_loss"], [np.nan, 2.0, 2.0, 2.0])
    (note,) = [note for note in result.history.notes if "training loop" in note]
    assert note.startswith("client 1: its training loop left the model as it was")


def test_float64_and_partial_cohorts():
    """A client that does not take part is not trained, also where a program has places for more."""
    seen = []

    def train(model, round, data):
        seen.append((int(round), data))
        return pull(model, round, data)

    model = {"layer": {"w": np.arange(3.0)}, "b": np.ones(1)}
    task = fs.tasks.from_training(model, train, DATA)
    result = fs.run(fs.FedAvg(client_lr=0.1), task, dtype="float64", **STILL)
    np.testing.assert_allclose(result.params["layer"]["w"], by_hand(), rtol=1e-12)
    assert sorted(seen) == [(r, d) for r in (1, 2, 3) for d in DATA]
    seen.clear()
    fs.run(fs.FedAvg(client_lr=0.1), task, sampling=fs.sampling.Bernoulli(0.5), seed=1, **STILL)
    assert 0 < len(seen) < 9
    assert len(set(seen)) == len(seen)


def test_each_run_has_a_folder_of_its_own():
    """Also two methods of a comparison, which may run at once; a folder that is given is shared."""
    seen = []

    def train(model, round, data):
        kept = round.folder / "kept"
        seen.append((data, int(round), kept.read_text() if kept.exists() else ""))
        kept.write_text(str(int(round)))
        return pull(model, round, data)

    task = fs.tasks.from_training(start(), train, DATA)
    methods = {"a": fs.FedAvg(client_lr=0.1), "b": fs.FedAdam(client_lr=0.1)}
    results = fs.compare(methods, task, **STILL)
    assert len(results) == 2
    wanted = [(d, r, str(r - 1) if r > 1 else "") for d in DATA for r in (1, 2, 3)]
    assert sorted(seen) == sorted(wanted * 2)


def test_what_fails_ends_the_run_as_it_was_raised(tmp_path, caplog):
    def train(model, round, data):
        if round == 2 and data == 1.0:
            raise KeyError("patient 7")
        return pull(model, round, data)

    task = fs.tasks.from_training(start(), train, DATA, folder=tmp_path)
    with pytest.raises(
        fs.InvalidInput, match=r"^the training loop of client 1 in round 2 failed: KeyError: 'patient 7'$"
    ):
        fs.run(fs.FedAvg(client_lr=0.1), task, **STILL)
    assert "callback failed" not in caplog.text  # JAX's own traceback
    silent = fs.tasks.from_training(start(), lambda model, round, data: 1, DATA)
    with pytest.raises(fs.InvalidInput, match="needs 'steps' from the training loop"):
        fs.run(fs.FedNova(client_lr=0.1), silent, **STILL)
    with pytest.raises(fs.InvalidInput, match="SCAFFOLD needs the gradient, corrected by control variates"):
        fs.run(fs.SCAFFOLD(client_lr=0.1), task, **STILL)


def test_buffers_are_averaged():
    torch = pytest.importorskip("torch")

    def train(model, round, data):
        model.running_mean.add_(data)
        model.num_batches_tracked.add_(3)
        with torch.no_grad():
            model.weight.add_(data)
        return 1

    task = fs.tasks.from_training(torch.nn.BatchNorm1d(2), train, DATA)
    result = fs.run(fs.FedAvg(client_lr=0.1, weighting="uniform"), task, **STILL)
    np.testing.assert_allclose(result.buffers["running_mean"], [3.0, 3.0], rtol=1e-6)
    assert int(result.buffers["num_batches_tracked"]) == 9
    np.testing.assert_allclose(result.params["weight"], [4.0, 4.0], rtol=1e-6)
    assert result.module().running_mean.tolist() == pytest.approx([3.0, 3.0])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clients": []}, "give a number for each, at least one"),
        ({"clients": "ab"}, "clients = a str must be a list"),
        ({"evaluate": 3}, "evaluate = 3 must be a function"),
        ({"test": 1.0}, "give evaluate"),
        ({"examples": [1, 2]}, "of 3 clients"),
        ({"model": 3}, "model = 3 must be a torch.nn.Module"),
        ({"model": {"n": np.arange(3)}}, "'n' of the model is"),
        ({"model": {}}, "has no parameters to train"),
        ({"train": 3}, "train = 3 must be a function"),
        ({"evaluate": lambda model, data: 0.5}, "evaluate returned 0.5"),
    ],
)
def test_what_is_refused(given, words):
    arguments = {"model": start(), "train": pull, "clients": DATA} | given
    with pytest.raises(fs.InvalidInput) as error:
        fs.tasks.from_training(**arguments)
    assert words in str(error.value)


def test_a_client_that_is_measured_again_beside_another():
    """Room for further models is made between the two."""
    loops = fs.tasks.from_training(start(), pull, DATA, evaluate=evaluate).loss.loops
    loops.measure(start(), {}, [2])
    for i in range(20):
        model = start() | {"b": np.full(1, 2 + i, np.float32)}
        (first,) = loops.measure(model, {}, [0])
        assert loops.measure(model, {}, [0, 1])[0] == first
