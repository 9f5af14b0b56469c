"""A sweep: each lane is the run it would be alone, a diverged one changes no other, interrupted ones go on."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.engine.compute.layout import parallel_trials
from fedsolve.engine.sweep_trials import RunningBatch, plan_batches
from fedsolve.geometry import L1, L1Ball
from fedsolve.geometry.diagnostics import Density
from fedsolve.tasks import Examples
from harness import make_clients, make_task, quartic

OPTIONS = {"rounds": 8, "clients_per_round": 3, "eval_every": 2, "dtype": "float64"}
GRIDS = {
    "FedAvg": (fs.FedAvg, {"client_lr": [0.3, 0.05, 0.1], "server_lr": [0.5, 1.0]}),
    "FedAdam": (
        fs.FedAdam,
        {"tau": [1e-3, 0.1]},
    ),  # its accumulator starts at tau^2: every setting its own start
    "SCAFFOLD": (fs.SCAFFOLD, {"client_lr": [0.05, 0.1, 0.2]}),  # clients keep a state
    "FedDualAvg": (partial(fs.FedDualAvg, L1(0.01).on("weight")), {"client_lr": [0.3, 0.05]}),
    "FedFW": (
        lambda radius: fs.FedFW(L1Ball(radius), steps=fs.frank_wolfe.Convex(0.1)),
        {"radius": [60.0, 40.0]},
    ),
    "FedLiLS": (fs.FedLiLS, {"eta_max": [1.0, 0.3]}),
}


def alone(make, task, sweep, setting, seed):
    return fs.run(make(**sweep.points[setting]), task, seed=seed, **OPTIONS)


# six trials in two uneven batches, and a state of clients; for every kind of method see tests/conformance; the cross
# is in `make test-all`
GATE = {("SCAFFOLD", 2)}
CUT = [(name, parallel) for name in GRIDS for parallel in (None, 2)]
CUT += [(name, parallel) for name in ("FedAvg", "SCAFFOLD") for parallel in (1, 5)]


@pytest.mark.parametrize(
    ("name", "parallel"), [pytest.param(*row, marks=[] if row in GATE else [pytest.mark.full]) for row in CUT]
)
def test_a_sweep_is_its_runs(name, parallel):
    """Same cohorts, shuffles and starts as `fs.run` with each setting and seed: metrics agree to 1e-12."""
    make, grid = GRIDS[name]
    task = make_task(make_clients())
    found = fs.sweep(make, task, grid, seeds=[4, 7], parallel_trials=parallel, **OPTIONS)
    assert found.rounds.tolist() == [0, 2, 4, 6, 8]
    assert (found.diverged == -1).all()
    for k in range(len(found.points)):
        for j, seed in enumerate(found.seeds):
            run = alone(make, task, found, k, seed)
            for metric in set(found.metrics) & set(run.metrics):
                np.testing.assert_allclose(
                    found.metrics[metric][k, j], run.metrics[metric], rtol=1e-12, atol=1e-14
                )
            assert "train_loss" in found.metrics
            for reported in set(found.metrics) & set(run.rounds):
                logged = run.rounds[reported][found.rounds[1:] - 1]
                np.testing.assert_allclose(found.metrics[reported][k, j, 1:], logged, rtol=1e-12)
                assert np.isnan(found.metrics[reported][k, j, 0])
    assert "server_lr" in found.metrics or "server_lr" not in run.rounds


@pytest.mark.full
def test_several_programs_in_one_sweep():
    """An axis that is part of the program (an option of SCAFFOLD) makes groups, each compiled."""
    task = make_task(make_clients())
    grid = {"option": ["I", "II"], "client_lr": [0.05, 0.1]}
    found = fs.sweep("SCAFFOLD", task, grid, seeds=[3], **OPTIONS)
    for k in range(4):
        run = alone(fs.SCAFFOLD, task, found, k, 3)
        np.testing.assert_allclose(found.metrics["train_loss"][k, 0], run.metrics["train_loss"], rtol=1e-12)
    first, second = found.metrics["train_loss"][[0, 2], 0, -1]
    assert abs(first - second) > 1e-6


def quartic_task():
    return dataclasses.replace(make_task(make_clients()), loss=quartic)


@pytest.mark.full
def test_a_diverged_lane_changes_no_bit_of_another():
    """The same grid with rates that overflow in place of two that do not: the other lanes have the same bits."""
    task = quartic_task()
    quiet = fs.sweep(
        "FedAvg", task, {"client_lr": [2e-3, 1e-3, 5e-4, 1e-4]}, seeds=2, parallel_trials=8, **OPTIONS
    )
    loud = fs.sweep(
        "FedAvg", task, {"client_lr": [1e6, 1e-3, 1e5, 1e-4]}, seeds=2, parallel_trials=8, **OPTIONS
    )
    assert (quiet.diverged == -1).all()
    assert (loud.diverged[[0, 2]] > 0).all()
    assert np.isnan(loud.metrics["train_loss"][[0, 2], :, -1]).all()
    for k in (1, 3):
        assert loud.metrics["train_loss"][k].tobytes() == quiet.metrics["train_loss"][k].tobytes()


LOUD = {1e6, 1e5, 3e5}
QUIET = {1e6: 2e-3, 1e5: 4e-4, 3e5: 3e-4}
PLACES = {
    "a batch is lost": [1e6, 1e5, 1e-3, 1e-4, 5e-4, 2e-4],
    "two batches become one": [1e6, 1e-3, 1e-4, 1e5, 5e-4, 3e5],
    "columns that meet stay apart": [1e-4, 1e6, 1e-3, 1e5, 5e-4],
}


@pytest.mark.full_rows("two batches become one")
@pytest.mark.parametrize("rates", PLACES.values(), ids=PLACES)
def test_trials_that_share_a_batch_when_others_have_diverged_keep_their_bits(rates):
    """Batches of two; in the grid beside it no rate diverges, so that every trial stays where it began."""
    task, common = quartic_task(), {"seeds": 2, "parallel_trials": 2, **OPTIONS}
    loud = fs.sweep("FedAdagrad", task, {"client_lr": rates}, **common)
    quiet = fs.sweep("FedAdagrad", task, {"client_lr": [QUIET.get(r, r) for r in rates]}, **common)
    assert (quiet.diverged == -1).all()
    for k, rate in enumerate(rates):
        assert (loud.diverged[k] > 0).all() == (rate in LOUD)
        for name in quiet.metrics if rate not in LOUD else ():
            assert loud.metrics[name][k].tobytes() == quiet.metrics[name][k].tobytes(), (name, rate)


def test_diverged_trials_are_left_out(monkeypatch):
    """Of five batches three lose all trials, and two one column each: one batch is left, which alone goes on."""
    sizes = []
    advance = RunningBatch.advance
    monkeypatch.setattr(
        RunningBatch,
        "advance",
        lambda self, **rest: sizes.append(self.batch.settings.tolist()) or advance(self, **rest),
    )
    rates = [1e6, 1e-3, 1e5, 2e5, 1e-4, 3e5, 4e5, 5e5, 6e5, 7e5]
    found = fs.sweep("FedAvg", quartic_task(), {"client_lr": rates}, parallel_trials=2, **OPTIONS)
    assert (found.diverged[:, 0] == -1).nonzero()[0].tolist() == [1, 4]
    assert sizes[:5] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert sizes[-3:] == [[1, 4]] * 3


@pytest.mark.full
def test_an_interrupted_sweep_goes_on_without_its_diverged_trials(tmp_path):
    """The folder knows which trials share a batch."""
    rates = {"client_lr": [1e6, 1e-3, 1e-4, 1e5]}
    common = {"parallel_trials": 2, **OPTIONS}
    whole = fs.sweep("FedAdagrad", quartic_task(), rates, **common)
    stop = StopAfter(4, tmp_path)
    with pytest.raises(Interrupted):
        fs.sweep("FedAdagrad", quartic_task(), rates, out=tmp_path, progress=stop, **common)
    again = fs.sweep("FedAdagrad", quartic_task(), rates, out=tmp_path, resume=True, **common)
    assert (again.diverged == whole.diverged).all()
    for name, values in whole.metrics.items():
        assert again.metrics[name].tobytes() == values.tobytes()


def test_diverged_lanes_say_when_and_are_the_worst():
    """The round is that of `Diverged` of a single run; a diverged setting is never the best, all of them an error."""
    task = quartic_task()
    found = fs.sweep("FedAvg", task, {"client_lr": [1e6, 1e-3]}, diagnostics=[Density()], **OPTIONS)
    with pytest.raises(Diverged) as caught:
        alone(fs.FedAvg, task, found, 0, 0)
    assert found.diverged[0, 0] == caught.value.history.evaluations["round"][-1]
    assert np.isnan(found.metrics["density"][0, 0, -1])
    assert found.best_settings == {"client_lr": 1e-3}
    assert found.share_within() == 0.5
    lost = fs.sweep("FedAvg", task, {"client_lr": [1e6, 1e5]}, **OPTIONS)
    with pytest.raises(
        Diverged, match=r"all 2 settings of FedAvg diverged; the smallest tried were client_lr"
    ):
        _ = lost.best


@pytest.mark.full
def test_a_model_that_overflows_in_the_last_round_has_diverged():
    """Clients' updates are finite, the server's step is not, and nobody trains from it to notice."""
    task, rates = make_task(make_clients()), [1e308, 1.0]
    single = {**OPTIONS, "rounds": 1, "eval_every": 1}
    found = fs.sweep(
        lambda server_lr: fs.FedAvg(50.0, server_lr=server_lr), task, {"server_lr": rates}, **single
    )
    with pytest.raises(Diverged, match="not finite any more"):
        fs.run(fs.FedAvg(50.0, server_lr=1e308), task, **single)
    assert found.diverged[:, 0].tolist() == [1, -1]


class StopAfter:
    """Asks a sweep to stop after some reports, by the file in its folder."""

    def __init__(self, reports, folder):
        self.left, self.folder = reports, folder

    def __call__(self, progress):
        self.left -= 1
        if self.left == 0:
            (self.folder / "stop").touch()


@pytest.mark.gate("5-0")
@pytest.mark.parametrize(("reports", "free"), [(2, 0), (5, 0), (9, 0), (3, None)])
def test_an_interrupted_sweep_goes_on_with_the_same_bits(tmp_path, reports, free, monkeypatch):
    """Stopped in the first, between and in a later batch, where few fit the memory together; and where all do."""
    if free is not None:
        monkeypatch.setattr("fedsolve.engine.sweep_rounds.free_bytes", lambda: free)
    task, grid = make_task(make_clients()), {"client_lr": [0.3, 0.05, 0.1]}
    common = {"seeds": 2, "parallel_trials": 2, **OPTIONS}
    whole = fs.sweep("SCAFFOLD", task, grid, **common)
    with pytest.raises(Interrupted, match="saved in"):
        fs.sweep("SCAFFOLD", task, grid, out=tmp_path, progress=StopAfter(reports, tmp_path), **common)
    assert not (tmp_path / "stop").exists()
    seen = []
    again = fs.sweep("SCAFFOLD", task, grid, out=tmp_path, resume=True, progress=seen.append, **common)
    assert seen[0].done > 0
    assert again.metrics["train_loss"].tobytes() == whole.metrics["train_loss"].tobytes()
    assert (again.diverged == whole.diverged).all()
    finished = fs.sweep("SCAFFOLD", task, grid, out=tmp_path, resume=True, **common)
    assert finished.metrics["train_loss"].tobytes() == whole.metrics["train_loss"].tobytes()


@pytest.mark.full
def test_a_folder_holds_one_sweep(tmp_path):
    task, grid = make_task(make_clients()), {"client_lr": [0.3, 0.05]}
    fs.sweep("FedAvg", task, grid, out=tmp_path, **OPTIONS)
    with pytest.raises(InvalidInput, match="holds a sweep already"):
        fs.sweep("FedAvg", task, grid, out=tmp_path, **OPTIONS)
    with pytest.raises(InvalidInput, match=r"has grid = .*0.3.*, this run .*0.4"):
        fs.sweep("FedAvg", task, {"client_lr": [0.4, 0.05]}, out=tmp_path, resume=True, **OPTIONS)
    with pytest.raises(InvalidInput, match="resume needs the folder"):
        fs.sweep("FedAvg", task, grid, resume=True, **OPTIONS)


def test_validation_examples_are_not_trained_on():
    """A share of every client's examples is held out: none of them is among the others, each client keeps one."""
    clients = make_clients((8, 1, 12))
    task = make_task(clients)
    kept, held_out = task.data.hold_out(0.25)
    assert kept.counts.tolist() == [6, 1, 9]
    both = np.concatenate([kept.examples.x, held_out.x])
    assert np.array_equal(np.sort(both, axis=0), np.sort(task.data.examples.x, axis=0))


@pytest.mark.full
def test_a_sweep_with_validation_examples_is_the_run_without_them():
    """It trains on the rest, and its validation loss is that of a run whose test set they are."""
    task = make_task(make_clients((8, 1, 12)))
    kept, held_out = task.data.hold_out(0.25)
    found = fs.sweep("FedAvg", task, {"client_lr": [0.1]}, validation=0.25, **OPTIONS)
    alone = fs.run(fs.FedAvg(0.1), dataclasses.replace(task, data=kept), **OPTIONS)
    np.testing.assert_allclose(found.metrics["train_loss"][0, 0], alone.metrics["train_loss"], rtol=1e-12)
    tested = dataclasses.replace(task, data=kept, test=Examples(held_out.x, held_out.y))
    judged = fs.run(fs.FedAvg(0.1), tested, **OPTIONS)
    np.testing.assert_allclose(
        found.metrics["validation_loss"][0, 0], judged.metrics["test_loss"], rtol=1e-12
    )


def test_blocks_cover_all_lanes_in_one_shape():
    """Every setting meets every seed once, whatever the width; shapes are equal; padding is at most one block."""
    for settings, seeds, lanes in [(7, 1, 3), (7, 5, 49), (1, 20, 8), (49, 5, 1), (5, 3, 100)]:
        batches = plan_batches(range(settings), seeds, lanes)
        assert len({(len(b.settings), len(b.seeds)) for b in batches}) == 1
        assert len(batches[0].settings) * len(batches[0].seeds) <= lanes
        lane = [(int(k), int(j)) for b in batches for k in np.unique(b.settings) for j in np.unique(b.seeds)]
        assert sorted(lane) == [(k, j) for k in range(settings) for j in range(seeds)]
        assert sum(b.trials for b in batches) == settings * seeds


@pytest.mark.full
def test_a_grid_too_large_for_memory_runs_in_parts(monkeypatch):
    """What is needed and what fits are named; here 8 MB may be used and a lane needs 2 * 1 MB + 4 * 1 MB."""
    monkeypatch.setattr("fedsolve.engine.compute.layout.free_bytes", lambda: 12 * 10**6 + 2)
    megabyte = np.zeros(250_000, np.float32)
    lanes, note = parallel_trials(None, 100, megabyte, 1, megabyte)
    assert lanes == 1
    assert note == (
        "100 trials side by side need 0.6 GB and 0.0 GB may be used: 1 at a time fit, and they run in parts"
    )
    task = make_task(make_clients())
    monkeypatch.setattr("fedsolve.engine.compute.layout.free_bytes", lambda: 2 * 10**4)
    seen = []
    found = fs.sweep("FedAvg", task, {"client_lr": [0.1, 0.2, 0.3]}, seeds=4, progress=seen.append, **OPTIONS)
    assert "at a time fit" in seen[0].notes[0]
    assert found.notes == seen[0].notes
    wide = fs.sweep("FedAvg", task, {"client_lr": [0.1, 0.2, 0.3]}, seeds=4, parallel_trials=12, **OPTIONS)
    np.testing.assert_allclose(found.metrics["train_loss"], wide.metrics["train_loss"], rtol=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "grid", "options", "says"),
    [
        ("FedAvg", {}, {}, "the grid has no axis"),
        ("FedAvg", {"client_lr": []}, {}, "axis client_lr"),
        ("FedAvg", {"client_lr": 0.1}, {}, "axis client_lr"),
        (
            "FedAvg",
            {"client_lr": np.array([0.1, 1, 0.1])},
            {},
            "axis client_lr of the grid: the value 0.1 comes twice",
        ),
        ("FedAvg", {"cleint_lr": [0.1]}, {}, "did you mean 'client_lr'"),
        (fs.FedAvg, {"servr_lr": [0.1]}, {}, "did you mean 'server_lr'"),
        ("FedAvgg", {"client_lr": [0.1]}, {}, "did you mean 'FedAvg'"),
        ("FedAvg", {"client_lr": [0.1, -1.0]}, {}, "client_lr = -1.0"),
        ("FedAvg", {"client_lr": [0.1]}, {"seeds": 0}, "seeds = 0"),
        ("FedAvg", {"client_lr": [0.1]}, {"seeds": [1, 1]}, "different integers"),
        ("FedAvg", {"client_lr": [0.1]}, {"parallel_trials": 0}, "parallel_trials = 0"),
        ("FedAvg", {"client_lr": [0.1]}, {"select": "train_los"}, "did you mean 'train_loss'"),
        ("FedAvg", {"client_lr": [0.1]}, {"select": "train_loss:many"}, "number of last rounds"),
        ("FedAvg", {"client_lr": [0.1]}, {"validation": 1.5}, "validation = 1.5"),
        (lambda client_lr: client_lr, {"client_lr": [0.1]}, {}, "not an algorithm"),
    ],
)
def test_bad_input(algorithm, grid, options, says):
    with pytest.raises(InvalidInput, match=says.replace("(", r"\(")):
        fs.sweep(algorithm, make_task(make_clients()), grid, **{**OPTIONS, **options})
