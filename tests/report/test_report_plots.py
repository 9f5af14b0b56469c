from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.data.federated import FederatedData
from fedsolve.report import plots
from fedsolve.report.figures import label_counts, labels_by_client
from fedsolve.report.style import context, line_styles
from fedsolve.results.metrics import wants_log

pytest.importorskip("matplotlib")


def legend_texts(figure) -> list[str]:
    return [t.get_text() for legend in figure.legends for t in legend.get_texts()]


def test_curves_have_labels_units_title_and_legend(histories):
    figure = plots.curves(histories, "test_accuracy")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "Communication round"
    assert axes.get_ylabel() == "Test accuracy (%)"
    assert axes.get_title("left").endswith("mnist-logistic · 20 clients per round · seed 0")
    assert legend_texts(figure) == [h.label for h in histories]
    line: Any = axes.lines[0]
    np.testing.assert_allclose(line.get_ydata(), 100 * histories[0].evaluations["test_accuracy"])
    np.testing.assert_array_equal(line.get_xdata(), histories[0].evaluations["round"])


def test_every_method_is_drawn_differently(histories):
    lines = [line for line in plots.curves(histories).axes[0].lines if len(np.asarray(line.get_xdata())) > 1]
    looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in lines}
    assert len(looks) == len(histories) == 12
    styles = line_styles(histories).values()
    assert len({(s.colour, s.dash) for s in styles}) == 12  # told apart without the markers too


def test_seeds_share_one_style_and_one_legend_entry(history):
    seeds = [replace(history, settings={"seed": s, "sampling": "Uniform(size=20)"}) for s in (2, 0)]
    figure = plots.curves(seeds)
    assert legend_texts(figure) == ["FedAvg"]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 1
    assert context(seeds) == "mnist-logistic · 20 clients per round · seeds 0, 2"


def test_a_long_title_ends_before_the_legend(history):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    sampling = "Uniform(size=20)"
    seeds = [replace(history, settings={"seed": s, "sampling": sampling}) for s in range(9)]
    figure = plots.curves(seeds, bands="std")
    FigureCanvasAgg(figure).draw()
    title, legend = figure.axes[0]._left_title, figure.legends[0]
    assert "sample standard deviation" in title.get_text()
    assert title.get_window_extent().x1 < legend.get_window_extent().x0


def test_a_diverged_run_ends_in_a_cross(histories):
    crosses = [line for line in plots.curves(histories).axes[0].lines if line.get_marker() == "x"]
    assert [np.ravel(line.get_xdata()).tolist() for line in crosses] == [[120]]


def test_comparison_has_four_labelled_panels(histories):
    figure = plots.comparison(histories)
    assert [a.get_ylabel() for a in figure.axes] == [
        "Test accuracy (%)",
        "Training loss (mean per example)",
        "Global learning rate (no unit)",
        "Test accuracy (%)",
    ]
    assert [a.get_xlabel() for a in figure.axes] == ["Communication round"] * 3 + [
        "Data sent, up and down (MB)"
    ]
    assert [a.get_yscale() for a in figure.axes] == ["linear", "log", "log", "linear"]
    assert legend_texts(figure) == [h.label for h in histories]
    sent = np.ravel(figure.axes[3].lines[0].get_xdata())[-1]
    assert sent == pytest.approx(200 * 2 * 20 * 318_040 / 1e6)


def test_comparison_without_accuracy_shows_the_test_loss(history):
    kept = {k: v for k, v in history.evaluations.items() if "accuracy" not in k}
    figure = plots.comparison([replace(history, evaluations=kept)])
    assert figure.axes[0].get_ylabel() == "Test loss (mean per example)"


@pytest.mark.parametrize(
    ("name", "values", "log"),
    [
        ("train_loss", [10.1, 1.0], True),
        ("train_loss", [9.9, 1.0], False),
        ("train_loss_averaged", [100.0, 1.0], True),
        ("train_loss", [100.0, 1.0, 0.0], False),
        ("train_loss", [100.0, 1.0, -1.0], False),
        ("train_loss", [100.0, 1.0, np.nan, np.inf], True),
        ("train_loss", [np.nan], False),
        ("test_accuracy", [0.9, 0.01], False),
        ("server_lr", [100.0, 1.0], True),
    ],
)
def test_log_scale_is_for_positive_losses_over_a_decade(name, values, log):
    assert wants_log(name, [np.array(values)]) is log


def test_the_decade_counts_over_all_runs():
    assert wants_log("train_loss", [np.array([1.0, 2.0]), np.array([30.0])])
    assert not wants_log("train_loss", [])


def test_what_rounds_record_is_drawn_as_the_mean_of_seeds_in_their_range(history):
    seeds = [replace(history, settings={"seed": s}, rounds=history.rounds | {"server_lr": rates}) for s, rates in
             enumerate(np.random.default_rng(0).uniform(0.5, 100, (3, 200)))]  # fmt: skip
    (axes,) = plots.curves(seeds, "server_lr").axes
    rates = np.array([h.rounds["server_lr"] for h in seeds])
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), np.arange(1, 201))
    np.testing.assert_allclose(np.ravel(axes.lines[0].get_ydata()), rates.mean(axis=0))
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].min() == rates.min()
    assert corners[:, 1].max() == rates.max()
    assert axes.get_yscale() == "log"
    with pytest.raises(
        InvalidInput, match=r"server_lr is recorded for each round.* x = 'seconds' must be 'round'"
    ):
        plots.curves(seeds, "server_lr", x="seconds")


def test_an_unknown_metric_is_named(history):
    with pytest.raises(InvalidInput, match="did you mean 'server_lr'"):
        plots.curves([history], "server_rate")
    with pytest.raises(InvalidInput, match="did you mean 'test_accuracy'"):
        plots.curves([history], "test_acuracy")


def test_without_matplotlib_the_error_says_what_to_install(history, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (plots.curves, plots.comparison):
        with pytest.raises(InvalidInput, match=r"pip install 'fedsolve\[plot\]'"):
            draw([history])


def test_a_label_that_is_no_tex_is_drawn_as_it_is(history, recwarn):
    labels = [r"$\foo{$", "$x_$ costs $$", r"$\alpha$", "a_$", "\N{SNOWMAN}\N{CJK UNIFIED IDEOGRAPH-4F60}"]
    figure = plots.curves([replace(history, label=label) for label in labels])
    dpi = figure.dpi
    assert plots.png(figure).startswith(b"\x89PNG")
    assert figure.dpi == dpi
    assert legend_texts(figure) == labels
    assert not recwarn.list


def test_save_writes_a_png_and_no_other_file(history, tmp_path):
    path = plots.save(plots.curves([history]), tmp_path / "new" / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in path.parent.iterdir()] == ["a.png"]


def test_a_failed_save_leaves_the_old_file(history, tmp_path, monkeypatch):
    target = tmp_path / "a.png"
    target.write_bytes(b"old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(InvalidInput, match="No space left"):
        plots.save(plots.curves([history]), target)
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]
    assert target.read_bytes() == b"old"


def test_label_counts_follow_the_order_of_clients():
    data = FederatedData(np.zeros((5, 1)), np.array([2, 3]))
    names, counts = label_counts(data, np.array([7, 4, 7, 7, 9]))
    assert names.tolist() == [4, 7, 9]
    assert counts.tolist() == [[1, 1, 0], [0, 2, 1]]


def test_bars_of_a_client_add_up_to_its_examples():
    from fedsolve.tasks.task import Examples

    y = np.array([0, 1, 1, 2, 2, 2])
    figure = labels_by_client(FederatedData(Examples(np.zeros((6, 2)), y), np.array([1, 5])), title="Toy")
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Examples (count)", "Client")
    assert axes.get_title("left") == "Toy\n2 clients, 6 examples in all"
    assert legend_texts(figure) == ["0", "1", "2"]
    ends = [max(bars[i].get_x() + bars[i].get_width() for bars in axes.containers) for i in range(2)]
    assert ends == [1, 5]


def test_many_clients_are_sampled_and_the_title_says_so():
    data = FederatedData(np.zeros((3000, 1)), np.full(1000, 3))
    axes = labels_by_client(data, np.arange(3000) % 40).axes[0]
    assert "60 of 1,000 clients, drawn at random" in axes.get_title("left")
    assert len(axes.collections[0].get_paths()) == 60
    everyone = labels_by_client(FederatedData(np.zeros((100, 1)), np.ones(100, int)), np.arange(100) % 3)
    bars = everyone.axes[0].collections
    assert [len(label.get_paths()) for label in bars] == [100, 100, 100]
    tops = [float(label.get_paths()[7].get_extents().ymax) for label in bars]
    assert tops == [0, 1, 1]  # client 7 has one example, of label 1
    assert everyone.axes[0].get_ylim()[1] > 1


@pytest.mark.parametrize("labels", [None, np.zeros(3, int), np.zeros(4)])
def test_labels_must_be_one_class_for_each_example(labels):
    with pytest.raises(InvalidInput, match="labels"):
        label_counts(FederatedData(np.zeros((4, 1)), np.array([4])), labels)
