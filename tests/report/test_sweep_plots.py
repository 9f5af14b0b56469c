"""The pictures of sweeps show the sweep's numbers, in their place, with what they are written on them."""

from __future__ import annotations

import numpy as np
import pytest
from sweep_made_up import HALVES, make_search, make_sweep, stop

from fedsolve.core.errors import Diverged, InvalidInput
from fedsolve.report.sweep_plots import best_over_grid, heat_map, pairs, sensitivity, share_within
from fedsolve.results.sweep import Selection

pytest.importorskip("matplotlib")


def cells(axes):
    return {(round(t.get_position()[0]), round(t.get_position()[1])): t.get_text() for t in axes.texts}


def lines(axes):
    return {line.get_label(): line for line in axes.lines}


def test_each_cell_of_the_map_has_its_score_and_the_best_a_frame():
    sweep = make_sweep()
    axes = heat_map(sweep, "server_lr", "client_lr").axes[0]
    found = cells(axes)
    for i, point in enumerate(sweep.points):
        at = HALVES.index(point["server_lr"]), HALVES.index(point["client_lr"])
        want = f"{sweep.score[i]:.3g}" if np.isfinite(sweep.score[i]) else "div."
        assert found[at] == want
    assert found[(6, 6)] == "div."
    assert list(found.values()).count("div.") == int((~np.isfinite(sweep.score)).sum())
    frames = {tuple(np.round(p.get_xy(), 2)) for p in axes.patches}
    assert frames == {(HALVES.index(0.1) - 0.5, HALVES.index(0.1) - 0.5)}
    assert axes.get_xlabel() == "Server learning rate (server_lr), log scale"
    assert axes.get_ylabel() == "Client learning rate (client_lr), log scale"
    assert [t.get_text() for t in axes.get_xticklabels()][:3] == ["$10^{-3}$", "$10^{-2.5}$", "$10^{-2}$"]
    title = axes.get_title("left")
    assert "FedAdam · digits · 3 seeds: 0, 1, 2" in title
    assert "chosen by: lowest training loss, mean of 10 evaluations, rounds 110 to 200" in title


@pytest.mark.full
def test_plots_of_one_sweep_fit_on_a_page_of_400_pixels():
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    sweep = make_sweep({"client_lr": (0.1, 1.0), "server_lr": (0.1, 0.2, 0.3)}, limit=0.5)
    for figure in (
        heat_map(sweep, "server_lr", "client_lr"),
        best_over_grid(sweep, "client_lr"),
        sensitivity(sweep),
    ):
        FigureCanvasAgg(figure).draw()
        assert figure.axes[0]._left_title.get_window_extent().x1 <= figure.bbox.x1
        assert 130 * figure.get_size_inches()[0] / 2 <= 368  # as `picture` shrinks them; 16 on each side


def test_the_map_can_be_turned():
    sweep = make_sweep({"client_lr": (0.1, 1.0), "server_lr": (0.1, 0.2, 0.3)})
    one = cells(heat_map(sweep, "server_lr", "client_lr").axes[0])
    other = cells(heat_map(sweep, "client_lr", "server_lr").axes[0])
    assert one == {(y, x): text for (x, y), text in other.items()}
    assert len(one) == 6


def test_a_cell_says_in_how_many_seeds_it_diverged():
    sweep = make_sweep(limit=0)
    sweep.diverged[:] = -1
    for values in sweep.metrics.values():
        values[:] = 1.0
    sweep.diverged[8, 1] = 40  # client_lr 1, server_lr 1 of a grid of 7 x 7
    found = cells(heat_map(sweep, "server_lr", "client_lr").axes[0])
    assert found[(1, 1)] == "div.\n1 of 3"
    assert sum("div." in text for text in found.values()) == 1


def test_the_map_takes_the_best_over_other_axes():
    sweep = make_sweep({"client_lr": (0.1, 1.0), "tau": (0.1, 0.001), "server_lr": (0.1, 1.0)}, limit=0.2)
    axes = heat_map(sweep, "server_lr", "client_lr").axes[0]
    score = sweep.score.reshape(2, 2, 2)
    assert cells(axes)[(1, 0)] == f"{score[0, :, 1].min():.3g}"
    assert "best over adaptivity τ" in axes.get_title("left").replace("\n", " ")


def test_settings_that_stopped_are_marked_with_their_last_round():
    sweep = stop(
        make_sweep({"client_lr": (0.01, 0.1), "server_lr": (0.1, 0.2, 9.0)}), {0: 20, 1: 60, 4: 20, 5: 20}
    )
    found = cells(heat_map(sweep, "server_lr", "client_lr").axes[0])
    assert [found[x, y] for y in (0, 1) for x in (0, 1, 2)] == [
        "stop.\n20", "stop.\n60", f"{sweep.score[2]:.3g}", f"{sweep.score[3]:.3g}", "stop.\n20", "div."
    ]  # fmt: skip
    # the best over the other axis: of those that ended, and where there is none the mark
    assert (
        lines(best_over_grid(sweep, "client_lr").axes[0])["FedAdam"].get_ydata().tolist()
        == sweep.score[2:4].tolist()
    )
    assert [t.get_text() for t in best_over_grid(sweep, "server_lr").axes[0].texts] == ["stop."]
    grey = [line for line in sensitivity(sweep).axes[0].lines if line.get_color() == "0.75"]
    np.testing.assert_array_equal(
        [line.get_ydata() for line in grey], sweep.metrics["train_loss"][[0, 1, 4]].mean(axis=1)
    )


def test_a_random_search_is_drawn_as_dots():
    """Rings for the best, hollow dots for what stopped and crosses for what diverged, each at its own place."""
    search = make_search(limit=0.1)
    axes = heat_map(search, "server_lr", "client_lr").axes[0]
    at = np.array([[p["server_lr"], p["client_lr"]] for p in search.points])
    stopped = search.stopped >= 0
    lost = ~np.isfinite(search.score) & ~stopped
    assert 0 < lost.sum() < 12 - stopped.sum()
    hollow, crosses, ring, dots = (c.get_offsets() for c in axes.collections)
    np.testing.assert_array_equal(hollow, at[stopped])
    np.testing.assert_array_equal(crosses, at[lost])
    np.testing.assert_array_equal(ring, at[[search.best]])
    np.testing.assert_array_equal(
        dots, at[np.argsort(search.score, kind="stable")][: 12 - stopped.sum() - lost.sum()]
    )
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    along = best_over_grid(search, "client_lr").axes[0]
    line = lines(along)["FedAdam"]
    assert line.get_linestyle() == "None"
    shown = np.isfinite(line.get_ydata())
    assert sorted(line.get_ydata()[shown]) == pytest.approx(sorted(search.score[np.isfinite(search.score)]))
    assert {t.get_text() for t in along.texts} == {"○", "×"}
    assert along.get_xlim() == (min(at[:, 1]), max(at[:, 1]))
    with pytest.raises(InvalidInput, match="no scores by row and column"):
        search.matrix("server_lr", "client_lr")


def test_colours_follow_the_rule():
    accuracy = make_sweep(selection=Selection("test_accuracy", 5))
    axes = heat_map(accuracy, "server_lr", "client_lr").axes
    assert axes[1].get_ylabel() == "Test accuracy (%)"
    image = axes[0].images[0]
    assert image.cmap.name == "viridis"
    assert cells(axes[0])[(4, 4)] == "98.0"
    loss = make_sweep()
    loss.metrics["train_loss"][0, :, 1:] = 1e9  # worse than the initial model: the colours are not for it
    image = heat_map(loss, "server_lr", "client_lr").axes[0].images[0]
    assert image.cmap.name == "viridis_r"
    assert image.norm.vmax == pytest.approx(loss.metrics["train_loss"][..., 0].mean())


def test_the_best_over_the_grid_with_the_range_over_seeds():
    sweep = make_sweep(limit=0.05)
    axes = best_over_grid(sweep, "client_lr").axes[0]
    line = lines(axes)["FedAdam"]
    scores = sweep.scores.reshape(7, 7, 3)
    chosen = [scores[i, int(np.argmin(scores[i].mean(axis=1)))] for i in range(7)]
    np.testing.assert_allclose(line.get_ydata(), np.mean(chosen, axis=1))
    np.testing.assert_allclose(line.get_ydata(), sweep.best_over_grid("client_lr"))
    np.testing.assert_allclose(line.get_xdata(), HALVES)
    band = axes.collections[0].get_paths()[0].vertices
    for i, x in enumerate(HALVES):
        at = band[np.isclose(band[:, 0], x), 1]
        assert (at.min(), at.max()) == pytest.approx((np.min(chosen[i]), np.max(chosen[i])))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylabel() == "Training loss (mean per example)"


def test_several_methods_share_an_axis_and_gaps_are_marked():
    sweeps = [make_sweep(label="FedAvg", limit=2e-4), make_sweep(label="FedAdam", seeds=(0,))]
    figure = best_over_grid(sweeps, "client_lr")
    axes = figure.axes[0]
    assert {"FedAvg", "FedAdam"} <= lines(axes).keys()
    gaps = np.isnan(lines(axes)["FedAvg"].get_ydata())
    assert 0 < gaps.sum() < 7
    assert [t.get_text() for t in axes.texts] == ["div."] * int(gaps.sum())
    assert sorted(t.xy[0] for t in axes.texts) == [x for x, gap in zip(HALVES, gaps, strict=True) if gap]
    assert {t.get_text() for t in figure.legends[0].get_texts()} == {"FedAvg", "FedAdam"}
    assert "3 seeds: 0, 1, 2; seed 0" in axes.get_title("left")


def test_an_axis_of_words_has_a_place_for_each():
    sweep = make_sweep({"weighting": ("uniform", None, "examples"), "client_lr": (0.1, 0.2)})
    axes = best_over_grid(sweep, "weighting").axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["uniform", "none", "examples"]
    np.testing.assert_allclose(lines(axes)["FedAdam"].get_ydata(), sweep.best_over_grid("weighting"))
    assert axes.get_xscale() == "linear"


def test_a_linear_axis_is_not_drawn_as_logarithmic():
    axes = best_over_grid(make_sweep({"beta1": (0.0, 0.3, 0.6, 0.9)}), "beta1").axes[0]
    assert axes.get_xscale() == "linear"
    assert axes.get_xlabel() == "β₁ (beta1)"


@pytest.mark.full
def test_sensitivity_is_the_best_setting_by_seed():
    sweep = make_sweep()
    figure = sensitivity(sweep)
    (axes,) = figure.axes
    curves = sweep.metrics["train_loss"][sweep.best]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), curves.mean(axis=0))
    band = axes.collections[0].get_paths()[0].vertices
    at = band[np.isclose(band[:, 0], 50), 1]
    assert (at.min(), at.max()) == pytest.approx((curves[:, 5].min(), curves[:, 5].max()))
    assert "client_lr 0.1, server_lr 0.1" in axes.get_title("left")
    accuracy = sensitivity(sweep, "test_accuracy").axes[0]
    assert accuracy.get_ylabel() == "Test accuracy (%)"
    one = sensitivity(make_sweep({"client_lr": HALVES}))
    assert [a.get_xlabel() for a in one.axes] == [
        "Communication round", "Client learning rate (client_lr), log scale",
    ]  # fmt: skip
    with pytest.raises(Diverged, match=r"the smallest tried were client_lr = 0\.001"):
        sensitivity(make_sweep(limit=0))


def test_the_share_of_the_grid_by_method():
    sweeps = [make_sweep({"client_lr": (0.1, 0.1001, 0.5, 0.01)}, label="easy", limit=5), make_sweep(limit=0)]
    axes = share_within(sweeps).axes[0]
    assert [t.get_text() for t in axes.texts] == ["50 % of 4", "all 49 div."]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["easy", "FedAdam"]
    assert axes.get_xlabel() == "Share of the grid within 5 % of the best score (%)"


def test_pairs_put_the_server_rate_along_x_and_leave_out_axes_of_one_value():
    grid = {"client_lr": (1, 2), "server_lr": (1, 2), "tau": (1, 2), "mu": (1,)}
    assert pairs(make_sweep(grid)) == [
        ("server_lr", "tau"), ("server_lr", "client_lr"), ("tau", "client_lr"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda s: heat_map(s, "client_lr", "sever_lr"), "did you mean 'server_lr'"),
        (lambda s: heat_map(s, "client_lr", "client_lr"), "two axes, not 'client_lr' twice"),
        (lambda s: best_over_grid(s, "client"), "did you mean 'client_lr'"),
        (lambda s: best_over_grid([], "client_lr"), "give at least one"),
        (lambda s: sensitivity(s, "test_acuracy"), "did you mean 'test_accuracy'"),
        (
            lambda s: share_within([s, make_sweep(selection=Selection("train_loss", 5))]),
            "different selection criteria",
        ),
    ],
)
def test_what_cannot_be_drawn_is_said(draw, message):
    with pytest.raises(InvalidInput, match=message):
        draw(make_sweep())


def test_the_band_is_that_of_the_setting_with_the_best_mean_not_of_the_luckiest_lanes():
    sweep = make_sweep({"client_lr": (0.1, 0.2), "mu": (0.1, 0.2)}, seeds=(0, 1))
    sweep.metrics["train_loss"][:] = np.array([[1.0, 5.0], [2.0, 3.0], [4.0, 4.0], [9.0, 9.0]])[..., None]
    axes = best_over_grid(sweep, "client_lr").axes[0]
    np.testing.assert_allclose(lines(axes)["FedAdam"].get_ydata(), [2.5, 4.0])
    band = axes.collections[0].get_paths()[0].vertices
    at = band[np.isclose(band[:, 0], 0.1), 1]
    assert (at.min(), at.max()) == (2.0, 3.0)
