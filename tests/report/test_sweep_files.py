"""A sweep goes to files and comes back with the same arrays; other programs can read what is in them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from sweep_made_up import make_search, make_sweep

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.sealed import unsealed
from fedsolve.results.sweep import Selection, load, save

pytest.importorskip("pyarrow")
import pyarrow.parquet as parquet

MIXED = {"clip_norm": (None, 0.5, 2.0), "weighting": ("uniform", "examples"), "ema": (True, False)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("grid", [None, MIXED, {"client_lr": (0.1,)}, {"k": (1, 2, 3)}])
def test_a_sweep_comes_back_with_the_same_arrays(tmp_path, grid, dtype):
    sweep = make_sweep(grid, seeds=(3, 0), selection=Selection("test_accuracy", 5))
    sweep.metrics.update({k: v.astype(dtype) for k, v in sweep.metrics.items()})
    back = load(save(sweep, tmp_path / "new"))
    assert list(back.metrics) == list(sweep.metrics)
    for name, values in sweep.metrics.items():
        assert back.metrics[name].dtype == dtype
        np.testing.assert_array_equal(back.metrics[name], values)
    for name in ("rounds", "diverged"):
        np.testing.assert_array_equal(getattr(back, name), getattr(sweep, name))
        assert getattr(back, name).dtype == getattr(sweep, name).dtype
    for name in ("label", "task", "grid", "seeds", "selection", "settings", "seconds", "notes"):
        assert getattr(back, name) == getattr(sweep, name)
    kinds = [[type(v) for v in values] for values in back.grid.values()]
    assert kinds == [[type(v) for v in values] for values in sweep.grid.values()]
    np.testing.assert_array_equal(back.scores, sweep.scores)


def test_a_random_search_comes_back_with_its_settings_and_stops(tmp_path):
    search = make_search()
    back = load(save(search, tmp_path))
    assert (back.points, back.search, back.best) == (search.points, search.search, search.best)
    assert "12 at random: client_lr x server_lr, 3 seeds" in repr(back)
    np.testing.assert_array_equal(back.stopped, search.stopped)
    rows = parquet.read_table(tmp_path / "sweep.parquet").to_pylist()
    assert [r["stopped"] for r in rows[::3]] == search.stopped.tolist()
    assert [(r["client_lr"], r["server_lr"]) for r in rows[::3]] == [tuple(p.values()) for p in search.points]
    # an axis without a value for each setting is none of them
    text = (tmp_path / "sweep.json").read_text()
    values = json.loads(text)["grid"]["server_lr"]
    (tmp_path / "sweep.json").write_text(
        json.dumps(json.loads(text) | {"grid": {"a": values, "b": values[1:]}})
    )
    with pytest.raises(InvalidInput):
        load(tmp_path)


def test_the_lanes_are_rows_that_another_program_reads(tmp_path):
    sweep = make_sweep({"client_lr": (0.1, 10.0), "clip_norm": (None, 2.0)}, seeds=(0, 5))
    save(sweep, tmp_path)
    rows = parquet.read_table(tmp_path / "sweep.parquet").to_pylist()
    assert len(rows) == 8
    assert [(r["client_lr"], r["clip_norm"], r["seed"]) for r in rows[:4]] == [
        (0.1, None, 0), (0.1, None, 5), (0.1, 2.0, 0), (0.1, 2.0, 5),
    ]  # fmt: skip
    assert [r["setting"] for r in rows] == [0, 0, 1, 1, 2, 2, 3, 3]
    for row in rows:
        i, j = row["setting"], (0, 5).index(row["seed"])
        assert row["score"] == sweep.scores[i, j]
        assert row["diverged"] == sweep.diverged[i, j]
        np.testing.assert_equal(row["final_train_loss"], sweep.metrics["train_loss"][i, j, -1])
    assert rows[-1]["diverged"] == 35
    curves = parquet.read_table(tmp_path / "curves.parquet").to_pylist()
    lane = [c["train_loss"] for c in curves if (c["setting"], c["seed"]) == (1, 5)]
    np.testing.assert_array_equal(lane, sweep.metrics["train_loss"][1, 1])
    assert [c["round"] for c in curves[:21]] == list(range(0, 201, 10))


def test_the_summary_says_what_was_chosen(tmp_path):
    sweep = make_sweep()
    save(sweep, tmp_path)
    found = json.loads((tmp_path / "sweep.json").read_text())
    assert found["best"]["values"] == {"client_lr": 0.1, "server_lr": 0.1}
    assert found["best"]["score"] == sweep.scores[sweep.best].mean()
    assert found["share_within_5_percent"] == sweep.share_within(0.05)
    assert found["lanes_diverged"] == int((sweep.diverged >= 0).sum()) > 0
    save(make_sweep(limit=0), tmp_path / "none")
    found = json.loads((tmp_path / "none/sweep.json").read_text())
    assert (found["best"], found["share_within_5_percent"]) == (None, 0.0)


def test_an_axis_named_like_a_column_and_values_that_json_does_not_know(tmp_path):
    sweep = make_sweep(
        {"seed": (1.0, 2.0), "rate": ({"schedule": "x", "initial": 0.1}, (1, 2), complex(1, 2))}
    )
    back = load(save(sweep, tmp_path))
    assert back.grid["rate"] == ({"schedule": "x", "initial": 0.1}, (1, 2), "(1+2j)")
    table = parquet.read_table(tmp_path / "sweep.parquet")
    assert table.column("axis_seed").to_pylist()[:10] == [1.0] * 9 + [2.0]
    assert table.column("seed").to_pylist()[:3] == [0, 1, 2]


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidInput, match=r"pip install 'fedsolve\[sweep\]'"):
        save(make_sweep(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_that_are_missing_damaged_or_of_another_sweep_are_named(tmp_path):
    with pytest.raises(InvalidInput, match="holds no finished sweep"):
        load(tmp_path)
    save(make_sweep(), tmp_path)
    whole = (tmp_path / "curves.parquet").read_bytes()
    (tmp_path / "curves.parquet").write_bytes(whole[:-50])
    with pytest.raises(InvalidInput, match=r"curves\.parquet is damaged \(it is not what was written"):
        load(tmp_path)
    without = unsealed(tmp_path / "sweep.json", (tmp_path / "sweep.json").read_bytes())[0]
    (tmp_path / "sweep.json").write_text(without)
    with pytest.raises(InvalidInput, match=r"curves\.parquet is not a Parquet file, or is cut short"):
        load(tmp_path)
    save(make_sweep({"client_lr": (0.1, 0.2)}), tmp_path / "other")
    (tmp_path / "curves.parquet").write_bytes((tmp_path / "other/curves.parquet").read_bytes())
    with pytest.raises(InvalidInput, match="not of one sweep"):
        load(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"sweep\.json is not the JSON of a sweep"):
        load(tmp_path)
