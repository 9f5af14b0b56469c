"""Results have the same names, of one run, several seeds, methods and a sweep, returned or read from a folder."""

from __future__ import annotations

import csv

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.results.history import band
from fedsolve.results.sweep import Selection

RNG = np.random.default_rng(0)


def arrays(rows):
    x = RNG.normal(size=(rows, 2))
    return fs.Examples(x, (x @ [1.0, -1.0] + RNG.normal(size=rows) > 0).astype(float))


def loss(w, b):
    return jnp.mean(jnp.logaddexp(0.0, (1 - 2 * b.y) * (b.x @ w["w"])))


def auc(scores, labels):
    """By its definition: pairs of a positive and a negative example in the right order."""
    pairs = scores[labels == 1][:, None] - scores[labels == 0]
    return float(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


TEST = arrays(40)
TASK = fs.Task.from_arrays(
    loss, {"w": np.zeros(2)}, [arrays(12) for _ in range(4)], test=TEST, batch_size=4,
    whole={"auc": fs.tasks.Whole(lambda w, b: (b.x @ w["w"], b.y), auc)},
)  # fmt: skip
OPTIONS = {"rounds": 4, "eval_every": 2, "clients_per_round": 2}
METHODS = {"slow": fs.FedAvg(0.01), "fast": fs.FedAvg(0.1)}


@pytest.mark.full
def test_a_latex_table_with_ones_own_auc():
    """Mean ± sample deviation of five seeds, computed again from the models."""
    found = fs.compare(METHODS, TASK, seeds=5, **OPTIONS)
    table = found.to_latex(metrics=["auc"], target=0.6).splitlines()
    scores = [auc(TEST.x @ np.asarray(run.params["w"]), TEST.y) for run in found["fast"]]
    mean, deviation = np.mean(scores), np.sqrt(np.sum((scores - np.mean(scores)) ** 2) / 4)
    assert table[0] == "% Mean ± sample standard deviation (n - 1) over 5 seeds."
    assert table[3] == r"Method & Final test AUC & Rounds to 0.6 \\"
    shown, spread = table[6].split(" & ")[1].split(r" $\pm$ ")
    assert table[6].startswith("fast & ")
    assert abs(float(shown) - mean) < 0.6 * 10.0 ** -len(shown.partition(".")[2])
    assert float(spread) == pytest.approx(deviation, rel=0.06)  # two significant digits
    assert "Final test AUC" in found.to_latex()
    assert "Final test AUC" in found._repr_html_()


@pytest.mark.full
def test_code_for_one_seed_works_for_several():
    one, several = (fs.run(METHODS["fast"], TASK, **OPTIONS, **more) for more in ({}, {"seeds": 2}))
    both = fs.Results([fs.run(METHODS["slow"], TASK, label="slow", **OPTIONS), several])
    swept = fs.sweep(lambda rate: fs.FedAvg(rate), TASK, {"rate": [0.01, 0.1]}, seeds=2, **OPTIONS)
    assert isinstance(one.final("test_auc"), float)
    assert several.final("test_auc")[0] == one.final("test_auc") == both["FedAvg"][0].final("test_auc")
    assert swept.final("test_auc")[1] == pytest.approx(several.final("test_auc"))
    assert one.metrics["test_loss"].shape == (3,)
    assert several.metrics["test_loss"].shape == both.metrics["FedAvg"]["test_loss"].shape == (2, 3)
    assert [run.label for run in one] == ["FedAvg"] == [one[0].label]
    for result in (one, several, both, swept):
        assert r"\midrule" in result.to_latex(["test_loss"], target=0.5)
        assert "<table>" in result._repr_html_()
        assert len(result.frame()) >= 3
    with pytest.raises(
        fs.InvalidInput, match=r"a sweep stores no models: run its best setting, {'rate': 0.1}"
    ):
        swept.predict(TEST.x)
    with pytest.raises(fs.InvalidInput, match=r"sweep\[2\]: give the number of a setting, 0 to 1"):
        swept[2]
    with pytest.raises(fs.InvalidInput, match=r"result\[1\]: FedAvg is one run"):
        one[1]


def test_the_folder_of_each_is_read_with_the_same_numbers(tmp_path):
    found = fs.compare(METHODS | {"lost": fs.FedAvg(3e38)}, TASK, seeds=2, out=tmp_path / "c", **OPTIONS)
    again = fs.load(tmp_path / "c", TASK)
    assert again.labels == ("slow", "fast", "lost")  # of the configuration, not of the alphabet
    for label, finals in found.final("test_auc").items():
        np.testing.assert_array_equal(again.final("test_auc")[label], finals)
    np.testing.assert_array_equal(again["fast"].params["w"], found["fast"].params["w"])
    assert again["lost"][0].failure == found["lost"][0].failure
    with pytest.raises(fs.InvalidInput, match="lost diverged with seed 0 and has no model there"):
        again["lost"].params  # noqa: B018
    seeds = fs.load(tmp_path / "c" / "fast")
    assert isinstance(seeds, fs.Seeds)
    assert seeds.params["w"].shape == (2, 2)
    kept = fs.load(fs.Results([found["fast"], found["slow"][0]]).save(tmp_path / "kept"))
    assert repr(kept) == "Results(fast x 2, slow x 1 on custom)"
    (tmp_path / "c" / "slow" / "seed-0" / "history.json").unlink()
    (tmp_path / "c" / "slow" / "seed-1" / "history.json").unlink()
    assert fs.load(tmp_path / "c").notes == ("not finished, and left out: slow",)
    with pytest.raises(
        fs.InvalidInput, match=r"holds no history.json: give the folder of a finished run, or"
    ):
        fs.load(tmp_path / "c" / "slow")


def test_a_sweep_is_read_and_written_with_its_axes(tmp_path):
    swept = fs.sweep("FedAvg", TASK, {"client_lr": [0.01, 0.1]}, seeds=2, **OPTIONS)
    assert (swept.selection, swept.notes) == (Selection("train_loss", 1), ())  # a tenth of 4 rounds
    again = fs.load(swept.save(tmp_path / "s"))
    assert again.selection == swept.selection
    assert isinstance(again, fs.Sweep)
    np.testing.assert_array_equal(again.final("test_loss"), swept.final("test_loss"))
    rows = list(csv.DictReader(again.to_csv(tmp_path / "s.csv").open(newline="")))
    assert list(rows[0])[:4] == ["setting", "client_lr", "seed", "round"]
    assert {(r["setting"], r["client_lr"]) for r in rows} == {("0", "0.01"), ("1", "0.1")}
    assert again[swept.best].final("test_loss").tolist() == [swept.final("test_loss")[swept.best].tolist()]


def test_results_that_load_would_mix_do_not_share_a_folder(tmp_path):
    found = fs.compare(METHODS, TASK, seeds=2, **OPTIONS)
    found.save(found.save(tmp_path / "c"))  # the same again
    found["fast"].save(tmp_path / "seeds")
    for other in (found["fast"][0], found["fast"]):
        fs.sweep("FedAvg", TASK, {"client_lr": [0.1]}, **OPTIONS).save(tmp_path / "s")
        with pytest.raises(
            fs.InvalidInput, match=r"s holds (a sweep|another result, sweep.json): choose another"
        ):
            other.save(tmp_path / "s")
    with pytest.raises(fs.InvalidInput, match="seeds holds another result, seed-1: choose another folder"):
        fs.Seeds((found["fast"][0],)).save(tmp_path / "seeds")
    with pytest.raises(fs.InvalidInput, match="c holds another result, slow"):
        fs.Results([found["fast"]]).save(tmp_path / "c")


def test_bands_over_seeds_are_what_is_asked_for():
    """Three seeds, values 1, 2 and 6: mean 3, sample deviation sqrt 7, t at 97.5 % with 2 degrees 4.3027."""
    values = np.array([[1.0], [2.0], [6.0]])
    half = 4.30265 * np.sqrt(7 / 3)
    for bands, ends in (("range", (1, 6)), ("std", (3 - 7**0.5, 3 + 7**0.5)), ("ci", (3 - half, 3 + half))):
        np.testing.assert_allclose(np.ravel(band(values, bands)), ends, rtol=1e-5)
    pytest.importorskip("matplotlib")
    found = fs.run(METHODS["fast"], TASK, seeds=3, **OPTIONS)
    axes = found.plot("test_auc", bands="std").axes[0]
    finals = found.final("test_auc")
    drawn = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert [drawn.min(), drawn.max()][1] >= finals.mean() + finals.std(ddof=1) - 1e-9
    assert "sample standard deviation over seeds" in axes.get_title(loc="left")
    assert len(found.plot().axes[0].lines) == 2  # the loss of the training and of the test examples
    with pytest.raises(fs.InvalidInput, match="bands 'sd': did you mean 'std'"):
        found.plot(bands="sd")
