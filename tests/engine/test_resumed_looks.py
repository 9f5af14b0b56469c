"""A run that goes on with other evaluations: refused where they decide a bit of the model, told in a note where not."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.schedules import ReduceOnPlateau

RNG = np.random.default_rng(0)
CLIENTS = [(RNG.normal(size=(6, 2)), RNG.normal(size=6)) for _ in range(3)]
TASK = fs.Task.from_arrays(lambda w, b: jnp.mean((b[0] @ w - b[1]) ** 2), jnp.zeros(2), CLIENTS, batch_size=2)
FIXED = fs.FedAvg(0.1)
PLATEAU = fs.FedAvg(ReduceOnPlateau(0.3, "train_loss", patience=1))
STOPPING = fs.callbacks.EarlyStopping("train_loss", 50)


def run(folder, rounds, every=4, method=FIXED, callbacks=(), **more):
    options = {"rounds": rounds, "eval_every": every, "callbacks": callbacks, "dtype": "float64"} | more
    return fs.run(method, TASK, out=folder, **options)


def looks(at):
    """A callback of one's own."""


@pytest.mark.full_rows("method2-callbacks2-its callback .*looks may end the run at an evaluation")
@pytest.mark.parametrize(
    ("method", "callbacks", "why"),
    [
        (PLATEAU, (), "its rate reacts to evaluations"),
        (FIXED, (STOPPING,), r"its callback EarlyStopping\(.*\) may end the run at an evaluation"),
        (FIXED, (looks,), "its callback .*looks may end the run at an evaluation"),
    ],
)
def test_other_evaluations_are_refused_where_something_follows_from_them(tmp_path, method, callbacks, why):
    run(tmp_path, 4, method=method, callbacks=callbacks)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(
        fs.InvalidInput, match=rf"has eval_every = 4, this run 1, and {why}: give eval_every = 4"
    ):
        run(tmp_path, 8, every=1, method=method, callbacks=callbacks, resume=True)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    whole = run(None, 8, method=method, callbacks=callbacks)
    again = run(tmp_path, 8, method=method, callbacks=callbacks, resume=True)
    np.testing.assert_array_equal(again.params, whole.params)
    assert not [note for note in again.history.notes if "up to round" in note]


@pytest.mark.full
def test_the_refused_evaluations_change_the_model():
    """So the refusal is no formality: at the rate that reacts to every round it is another model."""
    models = [run(None, 24, every, PLATEAU).params for every in (4, 1)]
    assert not np.array_equal(*models)


def test_other_evaluations_of_a_run_that_follows_none_are_told(tmp_path):
    """Also once the run has gone on, and once more; the model is that of the undisturbed run."""
    keep = fs.callbacks.KeepBest("train_loss", tmp_path / "best")
    run(tmp_path / "a", 4, callbacks=(keep,))
    run(tmp_path / "a", 6, every=1, callbacks=(keep,), resume=True)
    found = run(tmp_path / "a", 8, every=1, callbacks=(keep,), resume=True)
    told = [note for note in found.history.notes if "up to round" in note]
    assert told == ["evaluated every 4 rounds up to round 4, from there on every 1"]
    np.testing.assert_array_equal(found.params, run(None, 8).params)


def test_other_callbacks_are_told(tmp_path):
    run(tmp_path, 4, callbacks=(STOPPING, looks))
    found = run(tmp_path, 8, callbacks=(fs.callbacks.EarlyStopping("train_loss", 9),), resume=True)
    (told,) = [note for note in found.history.notes if "up to round" in note]
    assert told.startswith(
        "callbacks up to round 4: EarlyStopping(metric='train_loss', patience=50, min_delta=0.0), "
    )
    assert told.endswith(
        "looks; from there on: EarlyStopping(metric='train_loss', patience=9, min_delta=0.0)"
    )


def test_a_finished_run_has_nothing_left_to_look_at(tmp_path):
    run(tmp_path, 4, method=PLATEAU)
    again = run(tmp_path, 4, every=1, method=PLATEAU, resume=True)
    assert not [note for note in again.history.notes if "up to round" in note]


def test_each_seed_of_several_is_refused_too(tmp_path):
    run(tmp_path, 4, method=PLATEAU, seeds=2)
    with pytest.raises(fs.InvalidInput, match="has eval_every = 4, this run 2, and its rate reacts"):
        run(tmp_path, 8, every=2, method=PLATEAU, seeds=2, resume=True)
