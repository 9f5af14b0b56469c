"""Frank-Wolfe on softmax regression: rules on made-up numbers, the paper's pairs, what clients are dealt."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.fedfw import claims as fw_claims
from experiments.fedfw.claims import CONVEX, NONCONVEX, STOCHASTIC
from experiments.fedfw.columns import Pictures, halved, judged, synthetic
from experiments.fedfw.fw_stochastic.baseline import by_rate, comparison
from experiments.fedfw.fw_stochastic.study import STUDY as STOCHASTIC_STUDY
from experiments.fedfw.rules import columns, with_equal_bytes
from fedsolve.core.errors import InvalidInput
from fedsolve.results.sweep import SENT, Selection, SweepRecord
from fedsolve.studies import Cells, Problem
from fedsolve.studies.cells import Cell
from fedsolve.studies.reproduce import reproduce
from fedsolve.tasks.models.models import MLP
from fedsolve.tasks.task import Examples

SEEDS = (0, 1, 2, 3, 4)
ROUNDS = np.array([0, 10, 20])


def sweep(method, problem, end, sent, grid=(1.0,)):
    """A run whose metrics go from 1 to an end, seeds 1e-3 apart; `end` may be an array of them."""
    ends = end + 1e-3 * np.arange(len(SEEDS))
    values = np.stack([np.ones_like(ends), (1 + ends) / 2, ends], axis=1)[None]
    metrics = {"test_accuracy": values, "train_loss": values}
    lost, select = np.full((1, len(SEEDS)), -1), Selection("train_loss", 1)
    return SweepRecord(method, problem, {"lam0": grid}, SEEDS, ROUNDS, metrics, lost, select, {SENT: sent})


def made_up(ends, sent=100, metric="test_accuracy"):
    """Cells: (problem, method) -> its end, with a grid of three whose last value was chosen for `b`."""
    problems = {
        name: Problem(name, "", lambda data_dir: None, {"rounds": 1}, metric=metric) for name, _ in ends
    }
    cells = {}
    for (name, method), end in ends.items():
        bytes_up = sent[method] if isinstance(sent, dict) else sent
        one = sweep(method, name, end, bytes_up)
        cells[name, method] = Cell(None, sweep(method, name, end, bytes_up, (0.1, 0.5, 1.0)), one)
    return Cells(problems, SEEDS, cells)


PAIRS = [("one", "a", "b"), ("two", "a", "b")]
NOISE = np.array([0.2, -0.2, 0.2, -0.2, 0.0])


@pytest.mark.parametrize(
    ("one", "two", "verdict"),
    [
        (0.9, 0.8, "reproduced"),
        (0.9, 0.2, "partly"),
        (0.2, 0.3, "not reproduced"),
        (0.5 + NOISE, 0.5 + NOISE, "underpowered"),
    ],
)
def test_columns_are_counted(one, two, verdict):
    """`a` against 0.5 in two columns; both settings stand at an edge of their grids."""
    found = columns(PAIRS)(
        made_up({("one", "a"): one, ("one", "b"): 0.5, ("two", "a"): two, ("two", "b"): 0.5})
    )
    assert found.verdict == verdict
    assert found.provisional.startswith("settings at an edge of their grid in 2 of 2: one (a lam0, b lam0)")


def test_columns_say_how_much():
    found = columns(PAIRS)(
        made_up({("one", "a"): 0.9, ("one", "b"): 0.5, ("two", "a"): 0.2, ("two", "b"): 0.5})
    )
    assert found.ours == "Test accuracy: better in 1 (one +40), worse in 1 (two -30), open in 0"


def test_equal_bytes_look_at_what_was_sent_by_then():
    """`a` sends 10 bytes a round and ends at 0.8 after 200; `b`, at 1, 0.75, 0.5, had sent 100 a round."""
    ends = {("one", "a"): 0.8, ("one", "b"): 0.5, ("two", "a"): 0.8, ("two", "b"): 0.5}
    dear = with_equal_bytes(PAIRS)(made_up(ends, {"a": 10, "b": 100}, "train_loss"))
    assert dear.verdict == "reproduced"  # after 0 rounds `b` is at 1
    cheap = with_equal_bytes(PAIRS)(made_up(ends, {"a": 10, "b": 20}, "train_loss"))
    assert cheap.verdict == "not reproduced"  # after 10 rounds it is at 0.75


def test_pairs_are_the_paper_s():
    """FedFW or FedFW+ is above FedDR in 8 of 12 columns of Table 1 and 5 of 8 of Table 2, FedFW-sto in 8 of 8."""
    above = fw_claims.ahead(CONVEX, fw_claims.PLUS, True)
    assert len(above) == 8
    assert ("MNIST, l2, non-IID", "FedFWPlus", "FedDR") in above
    assert ("MNIST, l2, IID", "FedDR", "FedFW") in fw_claims.ahead(CONVEX, fw_claims.PLUS, False)
    assert len(fw_claims.ahead(STOCHASTIC, ("FedFWSto",), True)) == 8
    assert len(fw_claims.ahead(NONCONVEX, fw_claims.PLUS, True)) == 5
    assert ("MNIST CNN, l2, IID", "FedDR", "FedFW") in fw_claims.ahead(NONCONVEX, fw_claims.PLUS, False)


def test_pictures_are_scaled_and_dealt():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (120, 2, 2, 1)).astype(np.uint8), np.arange(120) % 4
    pictures = Pictures(lambda data_dir: (Examples(x, y), Examples(x[:8], y[:8])), classes=4, labels=2)
    task = pictures(None, 0, 6, False, 15)
    assert list(task.data.counts) == [15] * 6
    assert max(len(np.unique(task.data.client(i).y)) for i in range(6)) == 2
    np.testing.assert_allclose(task.test.x, x[:8] / 127.5 - 1, rtol=1e-6, atol=1e-6)
    with pytest.raises(InvalidInput, match="keep fewer"):
        pictures(None, 0, 6, False, 40)


def test_table_3_has_all_images():
    kept = {name.split(",")[0]: p.task.keywords["most"] for name, p in STOCHASTIC_STUDY.problems.items()}
    assert kept == {"FEMNIST-10": None, "FEMNIST-62": None, "synthetic": 190, "CIFAR-10": None}


def test_synthetic_clients_are_alike_in_size():
    """200 to train on and 40 to test on, which few have; client k knows the labels k to k + 2."""
    task = synthetic(None, 0, 10, False, 200)
    assert list(task.data.counts) == [200] * 10
    assert len(task.test.y) == 400
    assert all(set(task.data.client(k).y) <= {k, (k + 1) % 10, (k + 2) % 10} for k in range(10))


def test_images_are_halved_by_means():
    image = np.arange(16.0).reshape(1, 4, 4, 1)
    np.testing.assert_array_equal(halved(image)[0, :, :, 0], [[2.5, 4.5], [10.5, 12.5]])


@pytest.mark.full
def test_networks_start_inside_the_ball():
    task = judged(synthetic(None, 0, 10, False, 20, MLP((60, 20, 20, 10))), "l1")
    start = jax.jit(task.init)(jax.random.key(0))
    assert sum(float(abs(leaf).sum()) for leaf in jax.tree.leaves(start)) == pytest.approx(10.0, rel=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["fw-convex", "fw-stochastic", "fw-nonconvex"])
def test_a_quick_run_writes_its_page(name, tmp_path):
    made = reproduce(name, tmp_path, quick=True)
    assert made.page.exists()
    assert {claim.verdict for claim in made.outcome.claims} <= {None}


def test_the_note_on_table_3_has_the_tables_of_what_is_kept():
    note = (Path(__file__).parents[2] / "paper" / "fedfw-table-3.md").read_text(encoding="utf-8")
    for table in (comparison(), by_rate()):
        assert "\n".join(table) in note
    above = [float(line.split("|")[3].split("[")[1].split(",")[0]) > 0 for line in comparison()[2:]]
    assert above == [True] * 8
