"""What one client measures cannot be the mean of all: an answer far beyond the others is left out and named."""

from __future__ import annotations

import numpy as np
import pytest
from test_reply_outliers import APPS, CLIENTS

import fedsolve as fs
from deploy_small import deploy
from fedsolve.deploy.message import PartMetrics
from fedsolve.deploy.server.evaluation import find_metric_outliers
from fedsolve.methods.robust.reductions import FACTOR

NAN = float("nan")


def answers(*losses, part="train"):
    return {
        client: {part: PartMetrics(4, {"loss": x}, {"loss": 4 if np.isfinite(x) else 0})}
        for client, x in enumerate(losses)
    }


@pytest.mark.parametrize(
    ("losses", "first", "far"),
    [
        ((1.0, 2.0, 3 * FACTOR), 0.0, [2]),
        ((1.0, -3.0 * FACTOR), 0.0, [1]),
        ((1.0, 2.0, 0.9 * FACTOR), 0.0, []),
        ((1e-9, 1e-9, 0.5), 2.0, []),  # most have converged
        ((1e-9, 1e-9, 0.5), 0.0, [2]),
        ((0.0, 0.0, 0.5), 0.0, []),
        ((NAN, 1.0, 1e300), 0.0, [2]),
        ((NAN, NAN), 0.0, []),
        ((1e300,), 2.0, []),  # nobody to compare it with: the run may have diverged
    ],
)
@pytest.mark.parametrize("part", ["train", "validation"])
def test_which_are_far(losses, first, far, part):
    assert sorted(find_metric_outliers(answers(*losses, part=part), {"loss": first})) == far


def training_part(what, content):
    """What an answer says of training examples, in a message of its own or beside a reply; None if it says nothing."""
    return content.get("train" if what == "evaluate" else "evaluate.train")


def lies(size, client=0):
    def tamper(node, what, content):
        if node - 101 == client and (measured := training_part(what, content)):
            measured["means"] = [size]
        return content

    return tamper


@pytest.mark.full_rows("-1e+300")
@pytest.mark.parametrize("size", [1e18, -1e300])
def test_it_is_left_out_of_the_means_and_named(size, tmp_path, capsys):
    """The record has the means of the other five, whom the first client's model does not change."""
    given = {"app": APPS["float64"], "params": {"w": np.zeros(2)}, "population": CLIENTS, "rounds": 2}
    _, history, _ = deploy(
        fs.FedAvg(0.1), tmp_path / "a", tamper=lies(size), client_metrics=("loss",), **given
    )
    _, honest, _ = deploy(fs.FedAvg(0.1), tmp_path / "b", client_metrics=("loss",), **given)
    assert history.evaluations["clients_measured"].tolist() == [CLIENTS - 1] * 3
    assert history.evaluations["train_loss"][0] == pytest.approx(np.mean([2 * x**2 for x in range(2, 7)]))
    for name in ("client_loss_worst", "client_loss_p90"):
        np.testing.assert_allclose(history.evaluations[name], honest.evaluations[name], rtol=0.3)
    said = f"client 0 does not count: its train loss is {size:.6g}, in size more than 100,000 times the "
    assert capsys.readouterr().out.count(said) == 3


@pytest.mark.full
def test_a_claim_of_more_examples_than_it_trains_on_is_left_out(tmp_path, capsys):
    """From the first evaluation on after it has trained: only then has it said by how many it counts."""

    def tamper(node, what, content):
        if node == 101 and (facts := training_part(what, content)):
            facts["examples"], facts["counts"] = 100 * facts["examples"], [100 * n for n in facts["counts"]]
        return content

    given = {"app": APPS["float64"], "params": {"w": np.zeros(2)}, "population": CLIENTS, "rounds": 2}
    _, history, _ = deploy(fs.FedAvg(0.1), tmp_path, tamper=tamper, client_metrics=("loss",), **given)
    assert history.evaluations["clients_measured"].tolist() == [CLIENTS, CLIENTS - 1, CLIENTS - 1]
    assert capsys.readouterr().out.count("training examples, and it trains on") == 2
