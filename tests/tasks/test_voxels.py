"""The fMRI task: on a small file of the same format, and on the real one where it is."""

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import build, voxels
from fedsolve.tasks.ready.voxels import standardise_runs
from tasks.small_files import DATA, needs, write

CLASSES = np.array(["rest", "face", "house", "cat"])


@pytest.fixture
def scans(tmp_path, monkeypatch):
    """5 runs of 12 volumes of 6 voxels: three volumes of each class in each run."""
    rng = np.random.default_rng(0)
    run = np.repeat(np.arange(5, dtype=np.uint8), 12)
    label = np.concatenate([rng.permutation(np.repeat(np.arange(4), 3)) for _ in range(5)]).astype(np.uint8)
    bold = (500 + 40.0 * run[:, None] + 20 * rng.standard_normal((60, 6))).astype(np.int16)
    return write(monkeypatch, tmp_path, "voxels", bold=bold, label=label, run=run, classes=CLASSES)


def test_voxels_holds_out_whole_runs_and_labels_the_first_class_1(scans):
    task = voxels(scans, test_runs=2, seed=3)
    z = np.load(scans / "haxby2001_sub1_slice.npz")
    x = standardise_runs(z["bold"], z["run"])
    assert task.data.counts.tolist() == [6, 6, 6]
    kept = [int(name.removeprefix("run ")) for name in task.data.names]
    for i, run in enumerate(kept):
        rows = (z["run"] == run) & np.isin(z["label"], [1, 2])
        np.testing.assert_array_equal(task.data.client(i).x, x[rows].astype(np.float32))
        np.testing.assert_array_equal(task.data.client(i).y, z["label"][rows] == 1)
    rows = ~np.isin(z["run"], kept) & np.isin(z["label"], [1, 2])
    np.testing.assert_array_equal(task.test.x, x[rows].astype(np.float32))
    np.testing.assert_array_equal(task.test.y, z["label"][rows] == 1)
    assert task.data.examples.x.dtype == np.float32
    assert task.data.examples.y.dtype == np.int32
    assert (task.batch_size, task.epochs) == (1, 1)


def test_voxels_draws_the_test_runs_by_seed_and_takes_other_classes(scans):
    assert voxels(scans, seed=1).data.names == voxels(scans, seed=1).data.names
    assert len({voxels(scans, seed=s).data.names for s in range(8)}) > 1
    swapped, task = voxels(scans, classes=["house", "face"]), voxels(scans)
    np.testing.assert_array_equal(swapped.data.examples.y, 1 - task.data.examples.y)
    assert build("voxels", data_dir=str(scans), classes=["cat", "rest"], test_runs=4).data.num_clients == 1


@pytest.mark.full
def test_voxels_starts_at_log_two_and_learns(scans):
    task = voxels(scans, classes=("face", "cat"))
    start = task.init(jax.random.key(0))
    assert float(task.loss(start, task.test)) == pytest.approx(np.log(2), rel=1e-6)
    result = fs.run(fs.FedAvg(client_lr=0.1), task, rounds=20, eval_every=20)
    assert float(task.loss(result.params, task.data.examples)) < 0.6
    assert float(task.metrics["accuracy"](result.params, task.data.examples)) > 0.7


def test_standardising_removes_each_run_s_line_and_scale():
    """A line plus an alternation in one run, a steeper one in the next: only the alternation is left."""
    time = np.arange(20.0)
    wiggle = np.resize([1.0, -1, -1, 1], 20)  # no mean and no slope over whole periods
    first = np.stack([7 + 3 * time + 2 * wiggle, 5 - time + 0.1 * wiggle, np.full(20, 4.0)], 1)
    second = np.stack([-40 * time + 9 * wiggle, 8 * time, 6 * wiggle], 1)
    found = standardise_runs(np.concatenate([first, second]), np.repeat([4, 2], 20))
    expected = [[1, 1, 0], [1, 0, 1]]
    for part, scales in zip((found[:20], found[20:]), expected, strict=True):
        np.testing.assert_allclose(part, wiggle[:, None] * np.array(scales), atol=1e-9)
        slope = np.polynomial.polynomial.polyfit(time, part, 1)
        np.testing.assert_allclose(slope, 0, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ["face", "horse"]}, "unknown class 'horse': did you mean 'house'"),
        ({"classes": ["face", "face"]}, "two different names"),
        ({"classes": ["face"]}, "two different names"),
        ({"classes": "face"}, "classes = 'face' must be two different names"),
        ({"classes": [1, 2]}, "two different names"),
        ({"test_runs": 0}, "test_runs = 0"),
        ({"test_runs": 5}, "test_runs = 5 of 5 runs: give at most 4"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_voxels_refuses_in_one_line(scans, options, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        build("voxels", data_dir=scans, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.full
@needs("haxby2001_sub1_slice.npz")
def test_the_real_voxels_tell_faces_from_houses():
    task = voxels(DATA)
    assert task.data.counts.tolist() == [18] * 10
    assert task.data.examples.x.shape == (180, 530)
    assert [task.data.client(i).y.sum() for i in range(10)] == [9] * 10
    assert task.test.x.shape == (36, 530)
    result = fs.run(fs.FedAvg(client_lr=0.01), task, rounds=20, eval_every=20)
    assert float(task.metrics["accuracy"](result.params, task.test)) > 0.85
