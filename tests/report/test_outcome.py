"""What a page shows first: the outcome in a sentence, and the range in which the methods differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsolve.report.figures import labels_by_client
from fedsolve.report.markup import clients_table, settings_html
from fedsolve.report.plots import focus
from fedsolve.report.table import outcome
from fedsolve.results.history import History

AT = np.arange(0, 101, 10)


def run(label, accuracy, loss, **settings):
    """A run whose accuracy rises to a value at once, and whose loss falls to another by equal factors."""
    columns = {
        "round": AT,
        "seconds": 0.1 * AT,
        "train_loss": 2.0 * (loss / 2.0) ** (AT / 100),
        "test_accuracy": np.where(AT == 0, 0.1, accuracy),
    }
    rounds = {"round": np.arange(1, 101), "bytes_up": np.ones(100), "bytes_down": np.ones(100)}
    rounds |= {"dropped": np.zeros(100, int), "participants": np.ones(100)}
    return History(label, "digits", settings, columns, rounds)


CLOSE = [run("A", 0.97, 1e-2), run("B", 0.98, 1e-4)]


def test_a_linear_axis_shows_where_the_methods_differ():
    found = focus([h.evaluations["test_accuracy"] for h in CLOSE])
    assert found is not None
    low, high = found
    assert 0.96 < low < 0.97 < 0.98 < high < 0.99
    assert focus([CLOSE[0].evaluations["test_accuracy"]]) is None
    assert focus([np.linspace(0, 1, 11), np.linspace(0, 0.8, 11)]) is None


@pytest.mark.parametrize(
    ("histories", "sentence"),
    [
        (CLOSE, "After 100 rounds B has the highest test accuracy, 98.00 %, and the lowest training loss, 0.000100."),
        (CLOSE[:1], "After 100 rounds A has a test accuracy of 97.00 % and a training loss of 0.0100."),
        (
            [*CLOSE, run("C", 0.98, 1e-2)],
            "After 100 rounds B and C have the highest test accuracy, 98.00 %, "
            "and B has the lowest training loss, 0.000100.",
        ),
        (
            [*CLOSE, run("D", np.nan, np.nan)],
            "After 100 rounds B has the highest test accuracy, 98.00 %, and the lowest training loss, 0.000100; "
            "D diverged.",
        ),
        (
            [run("A", 0.96, 0.1, seed=0), run("A", 0.98, 0.1, seed=1)],
            "After 100 rounds A has a test accuracy of 97.00 % and a training loss of 0.1000 (means of 2 seeds).",
        ),
    ],
)  # fmt: skip
def test_the_outcome_is_one_sentence(histories, sentence):
    assert outcome(histories).replace("\N{NO-BREAK SPACE}", " ") == sentence


def test_settings_are_written_as_a_person_would():
    """Of a method of the catalogue only what differs from the default; a method of one's own as it is."""
    common = {"rounds": 9, "client_lr": 0.3, "server_lr": 1.0, "weighting": "examples", "preset": None}
    html = settings_html([run("A", 0.9, 0.1, algorithm="FedAvg", **common)])
    assert "<dd>FedAvg(client_lr=0.3)</dd>" in html
    assert "server_lr" not in html
    assert "<dt>rounds</dt><dd>9</dd>" in html
    own = settings_html([replace(CLOSE[0], settings={"algorithm": "mine:Method", **common})])
    assert "<dd>mine:Method</dd>" in own
    assert "<dt>server_lr</dt><dd>1</dd>" in own


def test_a_hundred_clients_take_less_than_half_a_screen():
    pytest.importorskip("matplotlib")
    import fedsolve as fs

    figure = labels_by_client(fs.tasks.digits().data)
    width, height = figure.get_size_inches()
    assert height < 0.5 * width
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()][:2] == ["0", "4"]


def test_few_clients_have_no_percentiles():
    columns = {f"client_loss_{part}": np.ones(11) for part in ("mean", "p10", "p90", "worst")}
    few, many = (
        replace(CLOSE[0], evaluations=CLOSE[0].evaluations | columns, settings={"clients": n})
        for n in (5, 50)
    )
    assert "10th" not in clients_table([few])
    assert "Worst" in clients_table([few])
    assert "10th" in clients_table([many])
