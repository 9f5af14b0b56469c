"""Settings at random, compared with a transcript in NumPy, and successive halving: which settings stop, and when."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.engine.sweep_grid import Search, check_grid
from fedsolve.engine.sweep_trials import RunningBatch
from fedsolve.results.sweep import Selection
from harness import make_clients, make_task, quartic

# Settings at random.

RANGES = {
    "lr": "1e-3:10:log",
    "beta": "-0.5:1",
    "k": "1:8:int",
    "width": "1:64:logint",
    "name": ("a", "b", "c"),
}


def drawn(trials, seed=3, ranges=RANGES):
    return check_grid(ranges, 1, Search(kind="random", trials=trials, seed=seed))


def test_a_draw_is_its_transcript():
    """Setting by setting and axis by axis, the next number of Python's generator; numbers to 6 digits."""
    found = drawn(200)
    next_number = random.Random(3).random
    u = np.array([[next_number() for _ in RANGES] for _ in range(200)])
    np.testing.assert_allclose(found["lr"], 10.0 ** (-3 + 4 * u[:, 0]), rtol=6e-6)
    np.testing.assert_allclose(found["beta"], -0.5 + 1.5 * u[:, 1], atol=6e-7)
    assert found["k"] == tuple(np.ceil(8 * u[:, 2]).astype(int).tolist())
    assert found["width"] == tuple(np.exp2(np.log2(65) * u[:, 3]).astype(int).tolist())
    assert found["name"] == tuple("abc"[int(3 * x)] for x in u[:, 4])
    assert all(float(f"{x:.6g}") == x for axis in ("lr", "beta") for x in found[axis])


def test_the_distributions_are_those_that_were_asked_for():
    """Kolmogorov's distance below its 1 % point, and counts within 4 standard deviations; the seed is fixed."""
    found, n = drawn(4000), 4000
    assert len(set(zip(*found.values(), strict=True))) == n
    for shares in ((np.log10(found["lr"]) + 3) / 4, (np.array(found["beta"]) + 0.5) / 1.5):
        ordered = np.sort(shares)
        assert 0 <= ordered[0] <= ordered[-1] <= 1
        assert np.abs(ordered - (np.arange(n) + 0.5) / n).max() < 1.63 / np.sqrt(n)
    numbers = np.arange(1, 65)
    for axis, chances in (("k", np.full(8, 1 / 8)), ("width", np.log1p(1 / numbers) / np.log(65))):
        counts = np.bincount(found[axis], minlength=len(chances) + 1)[1:]
        assert counts.sum() == n
        assert (np.abs(counts - n * chances) < 4 * np.sqrt(n * chances) + 1).all()


def test_a_search_of_more_trials_begins_with_those_of_fewer_and_a_seed_says_which():
    few, many = drawn(20), drawn(40)
    assert all(many[axis][:20] == few[axis] for axis in RANGES)
    assert drawn(20, seed=4) != few
    # of 12 settings each is found once, and no setting twice
    small = drawn(12, ranges={"k": "0:3:int", "name": ["a", None, True]})
    assert len(set(zip(*small.values(), strict=True))) == 12


# Successive halving: the settings that a transcript chooses by the scores of a sweep without it.


@pytest.mark.parametrize(
    ("settings", "eta", "rounds", "every", "by_hand"),
    [
        (9, 3, 81, 1, {9: 3, 27: 1}),
        (60, 3, 200, 4, {8: 20, 24: 6, 68: 2}),  # 200 / 27 = 7.4, 200 / 9 = 22.2, 200 / 3 = 66.7
        (27, 3, 27, 1, {1: 9, 3: 3, 9: 1}),
        (
            16,
            2,
            100,
            30,
            {30: 2, 60: 1},
        ),  # after 6.25, 12.5, 25 and 50 rounds: the first three at one evaluation
        (5, 4, 8, 2, {2: 1}),
    ],
)
def test_the_stops_are_those_by_hand(settings, eta, rounds, every, by_hand):
    assert Search(halving=eta).stops(settings, rounds, every) == by_hand


RATES = [1e-3, 0.3, 1e150, 0.02, 0.1, 2.0, 0.005, 1.0, 0.05]
OPTIONS = {
    "rounds": 9,
    "clients_per_round": 3,
    "eval_every": 1,
    "dtype": "float64",
    "parallel_trials": 2,
    "seeds": 2,
}


def swept(rates=tuple(RATES), **more):
    task = dataclasses.replace(make_task(make_clients()), loss=quartic)
    return fs.sweep("FedAdagrad", task, {"client_lr": [r * 1e-2 for r in rates]}, **OPTIONS | more)


@pytest.fixture(scope="module")
def whole():
    return swept()


def halved_by_hand(whole, eta=3):
    """The round after which each setting stops: the mean of the losses over the last tenth of the rounds so far."""
    last, left = np.full(9, -1), np.arange(9)
    loss = np.where(whole.diverged[..., None] >= 0, np.inf, whole.metrics["train_loss"]).mean(axis=1)
    for count, done in ((3, 1), (1, 3)):
        best = left[np.argsort(loss[left, done], kind="stable")]
        last[best[count:]], left = done, best[:count]
    return np.where((whole.diverged >= 0).any(axis=1), -1, last)


def check_same(found, whole):
    """The bits of the sweep without halving up to the stop, and none after it."""
    np.testing.assert_array_equal(found.stopped, halved_by_hand(whole))
    for name, values in whole.metrics.items():
        for setting, stop in enumerate(found.stopped):
            seen = 10 if stop < 0 else stop + 1
            if found.diverged[setting].max() < 0:
                assert found.metrics[name][setting, :, :seen].tobytes() == values[setting, :, :seen].tobytes()
                assert np.isnan(found.metrics[name][setting, :, seen:]).all()


@pytest.fixture
def lanes(monkeypatch):
    """Rounds x trials of every call, as it grows; no pictures, which are tested where they are drawn."""
    found, advance = [], RunningBatch.advance
    monkeypatch.setattr("fedsolve.engine.sweep.write_sweep_page", lambda *args, **rest: None)

    def counted(self, rounds, **rest):
        found.append(rounds * self.failed.size)
        return advance(self, rounds, **rest)

    monkeypatch.setattr(RunningBatch, "advance", counted)
    return found


ALL_LANES = 2 * 2 * (5 * 1 + 2 * 2 + 1 * 6)
"""2 settings with each of 2 seeds: in 5 batches for a round, in 2 for two rounds, in one for six."""


def test_settings_stop_by_their_scores_and_the_others_keep_their_bits(whole, lanes):
    """Of 9 settings, of which one overflows, 3 go on after a round and one after 3; what has stopped costs nothing."""
    found = swept(halving=3)
    assert (whole.diverged >= 0).any(axis=1).tolist() == [r == 1e150 for r in RATES]
    check_same(found, whole)
    assert sorted(found.stopped.tolist()) == [-1, -1, 1, 1, 1, 1, 1, 3, 3]
    assert found.stopped[found.best] == -1
    assert found.diverged[2].max() >= 0
    assert sum(lanes) == ALL_LANES
    # 5 settings saved 8 rounds with either seed, 2 saved 6
    assert "successive halving by 3 saved 104 of 162 rounds of all trials" in found.notes
    assert found.search == {"halving": 3}
    assert not whole.search


@pytest.mark.full_rows("4")
@pytest.mark.parametrize("reports", [2, 4])
def test_an_interrupted_halving_goes_on_with_the_same_bits(whole, lanes, reports, tmp_path):
    """Stopped between the two stops and after them; what has ended does not run again."""
    told = []

    def stop(progress):
        told.append(progress.done)
        if len(told) == reports:
            (tmp_path / "stop").touch()

    with pytest.raises(Interrupted):
        swept(halving=3, out=tmp_path, progress=stop)
    assert 0 < sum(lanes) < ALL_LANES
    again = swept(halving=3, out=tmp_path, resume=True)
    assert sum(lanes) == ALL_LANES
    check_same(again, whole)
    with pytest.raises(InvalidInput, match=r"has search = .*3.*, this run .*2"):
        swept(halving=2, out=tmp_path, resume=True)


def test_a_random_search_is_the_sweep_of_what_it_draws(lanes, tmp_path):
    """With halving, from the folder that it leaves; every setting of it is the run of the same numbers."""
    task = dataclasses.replace(make_task(make_clients()), loss=quartic)
    ranges = {"client_lr": "1e-5:1e-2:log", "tau": [1e-3, 1e-2]}
    common = {"search": "random", "trials": 4, "search_seed": 5, **OPTIONS}
    found = fs.sweep("FedAdagrad", task, ranges, out=tmp_path, halving=2, **common)
    expected = check_grid(ranges, 2, Search(kind="random", trials=4, seed=5))
    assert found.points == [dict(zip(expected, v, strict=True)) for v in zip(*expected.values(), strict=True)]
    assert "4 settings drawn at random: search_seed = 5 draws the same, another one others" in found.notes
    same = fs.load(tmp_path)
    assert (same.points, same.search, repr(same)) == (found.points, found.search, repr(found))
    assert same.search == {"kind": "random", "trials": 4, "seed": 5, "ranges": ranges, "halving": 2}
    np.testing.assert_array_equal(same.stopped, found.stopped)
    assert same[found.best].best_settings == found.best_settings
    alone = fs.sweep("FedAdagrad", task, {a: [v] for a, v in found.best_settings.items()}, **OPTIONS)
    np.testing.assert_allclose(
        found.metrics["train_loss"][found.best], alone.metrics["train_loss"][0], rtol=1e-12
    )


def test_if_the_settings_that_went_on_diverge_it_is_said(whole):
    """No setting is the best where those that go on overflow; and where all do at once nothing is left to stop."""
    metrics = {name: values.copy() for name, values in whole.metrics.items()}
    metrics["train_loss"][..., -1] = np.nan
    lost = dataclasses.replace(whole, stopped=np.array([-1, *[1] * 8]), metrics=metrics)
    with pytest.raises(Diverged, match="all 1 settings of FedAdagrad that were not stopped diverged"):
        _ = lost.best
    gone = swept([1e150, 2e150, 3e150], halving=3)
    assert (gone.diverged >= 0).all()
    assert (gone.stopped == -1).all()


def test_the_score_so_far_averages_the_same_share():
    """Half of the rounds: of the last 4 of 8 rounds the last 2 of 4; the most is best of accuracies."""
    rounds, values = (
        np.arange(5),
        np.array([[[9, 9, 9, 1, 3.0], [9, 9, 9, 5, 7]], [[9, 9, 9, 1, np.nan], [9] * 5]]),
    )
    np.testing.assert_array_equal(Selection("train_loss", 4).so_far(rounds, values, 8), [4, np.inf])
    np.testing.assert_array_equal(Selection("test_accuracy", 1).so_far(rounds, values, 8), [-5, np.inf])


RATE = {"client_lr": "1e-3:1:log"}
SIXTY = {"search": "random", "trials": 60}


@pytest.mark.parametrize(
    ("grid", "options", "says"),
    [
        (
            RATE,
            {},
            "axis client_lr = '1e-3:1:log' of the grid must be a list of values (search = 'random' takes",
        ),
        (
            {"client_lr": "1:1e-3:log"},
            SIXTY,
            "axis client_lr = '1:1e-3:log' must be a list of values, or a range from",
        ),
        ({"client_lr": "0.1:0.1"}, SIXTY, "a number to a larger one"),
        ({"client_lr": "0:1:log"}, SIXTY, "low:high:log (log-uniform, above 0)"),
        ({"client_lr": "1:inf"}, SIXTY, "'1:inf' must be"),
        ({"client_lr": "0.5:8:int"}, SIXTY, "'0.5:8:int' must be"),
        ({"client_lr": "1e-3:1:7log"}, SIXTY, "'1e-3:1:7log' must be"),
        ({"client_lr": "small"}, SIXTY, "'small' must be"),
        (
            {"client_lr": [0.1, 1.0]},
            {"search": "random", "trials": 3},
            "trials = 3: there are about 2 different settings",
        ),
        (
            RATE,
            {"search": "random"},
            "search = 'random', trials = None: give trials, such as 60, to a random search",
        ),
        (
            {"client_lr": [0.1]},
            {"trials": 60},
            "search = 'grid', trials = 60: give trials, such as 60, to a random",
        ),
        (RATE, {"search": "random", "trials": 0}, "trials = 0"),
        (RATE, {"search": "random", "trials": 20_001}, "20,001 settings with 2 seeds"),
        (RATE, {**SIXTY, "search_seed": -1}, "search_seed = -1"),
        (RATE, {**SIXTY, "search": "radnom"}, "unknown search 'radnom': did you mean 'random'?"),
        ({"cleint_lr": "1e-3:1:log"}, SIXTY, "did you mean 'client_lr'"),
        ({"client_lr": "-1:1"}, SIXTY, "client_lr = -"),
        (RATE, {**SIXTY, "halving": 1}, "halving = 1"),
        (
            {"client_lr": [0.1, 1.0]},
            {"halving": 3},
            "halving = 3 of 2 settings, evaluated every 1 of 9 rounds: take more",
        ),
        (
            RATE,
            {**SIXTY, "halving": 3, "eval_every": 9},
            "halving = 3 of 60 settings, evaluated every 9 of 9 rounds",
        ),
    ],
)
def test_bad_input(grid, options, says, tmp_path):
    with pytest.raises(InvalidInput) as caught:
        fs.sweep("FedAvg", make_task(make_clients()), grid, out=tmp_path / "new", **{**OPTIONS, **options})
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_states_that_fit_no_memory_are_refused(monkeypatch):
    monkeypatch.setattr("fedsolve.engine.sweep_rounds.trees", SimpleNamespace(nbytes=lambda state: 10**12))
    with pytest.raises(InvalidInput, match=r"for the states of all trials.*take fewer trials, or no halving"):
        swept(halving=3)
