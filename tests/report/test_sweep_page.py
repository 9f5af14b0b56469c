"""The page and the table of a sweep: the best first, what diverged last and marked, nothing from outside."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from sweep_made_up import HALVES, make_search, make_sweep

from fedsolve.engine.sweep_result import Sweep
from fedsolve.report.sweep_page import pictures, sweep_html, write_sweep_page
from fedsolve.report.sweep_plots import outcome_lines, ranking, row_texts, setting_rows, setting_table
from fedsolve.results.sweep import Selection

pytest.importorskip("matplotlib")


class Reader(HTMLParser):
    """The rows of tables, and whatever would be fetched."""

    def __init__(self):
        super().__init__()
        self.rows, self.fetched, self.cell = [], [], None

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        self.cell = [] if tag in ("td", "th") else self.cell
        self.fetched += [v for k, v in attrs if k in ("src", "href") and not v.startswith("data:")]

    def handle_data(self, data):
        if self.cell is not None:
            self.cell.append(data)

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self.cell is not None:
            self.rows[-1].append("".join(self.cell).strip())
            self.cell = None


def read(page):
    reader = Reader()
    reader.feed(page.read_text())
    return reader


@pytest.mark.full
def test_the_page_has_every_setting_the_best_first_and_makes_no_request(tmp_path):
    sweep = make_sweep(limit=0.05, settings={"task.path": "<b>&"})
    page, *files = write_sweep_page(tmp_path, sweep, command="fedsolve run digits --set 'a={b=\"<c>\"}'")
    reader = read(page)
    assert reader.fetched == []
    head, *rows = reader.rows
    assert head == ["Rank", "client_lr", "server_lr", "Mean training loss", "Range over 3 seeds"]
    assert len(rows) == 49
    assert rows[0][:4] == ["1", "0.1", "0.1", f"{sweep.score.min():.4f}"]
    lost = [i for i, row in enumerate(rows) if "diverged" in row[3]]
    assert lost == list(range(49 - len(lost), 49))
    assert len(lost) == int((~np.isfinite(sweep.score)).sum()) > 3
    text = page.read_text()
    assert "fedsolve run digits --set &#x27;a={b=&quot;&lt;c&gt;&quot;}&#x27;" in text
    assert "&lt;b&gt;&amp;" in text
    assert "<li>in 2 parts</li>" in text
    assert text.count("<figure ") == len(files) == 4
    names = {"map-client_lr-server_lr.png", "best-client_lr.png", "best-server_lr.png", "best-setting.png"}
    assert {f.name for f in files} == names
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in files)


def test_the_page_of_a_sweep_of_which_nothing_is_left(tmp_path):
    page, *files = write_sweep_page(tmp_path, make_sweep(limit=0))
    text = page.read_text()
    assert "All 49 settings of FedAdam diverged; the smallest tried were client_lr = 0.001" in text
    assert [f.name for f in files] == ["map-client_lr-server_lr.png"]
    assert len(read(page).rows) == 50


def test_without_pictures_the_page_needs_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    (page,) = write_sweep_page(tmp_path, make_sweep(), draw=False)
    assert "<figure" not in page.read_text()


def test_one_axis_needs_no_map():
    assert list(pictures(make_sweep({"client_lr": HALVES, "mu": (0.1,)}))) == ["best-setting"]


def test_rows_are_sorted_by_the_rule_and_ties_keep_the_order_of_the_grid():
    for selection in (Selection("train_loss", 100), Selection("test_accuracy", 1)):
        sweep = make_sweep(selection=selection, limit=0.05)
        rows = setting_rows(sweep)
        assert rows[0]["setting"] == sweep.best
        scores = [r["score"] for r in rows if r["score"] is not None]
        assert scores == sorted(scores, reverse=selection.most)
        assert rows[0]["scores"] == sweep.scores[sweep.best].tolist()
        assert rows[-1]["score"] is None
        assert rows[-1]["diverged"] == 3
        assert rows[-1]["round"] == 30
    same = make_sweep()
    for values in same.metrics.values():
        values[:] = 1.0
    same.diverged[:] = -1
    assert ranking(same) == list(range(49))


def test_a_row_says_the_range_and_where_it_diverged():
    sweep = make_sweep({"client_lr": (0.1, 30.0)}, selection=Selection("test_accuracy", 5))
    best, lost = (row_texts(sweep, row) for row in setting_rows(sweep))
    low, high = 100 * sweep.scores[0].min(), 100 * sweep.scores[0].max()
    assert best == ["1", "0.1", f"{100 * sweep.score[0]:.2f}", f"{low:.2f} … {high:.2f}"]
    assert lost == ["-", "30", "diverged in 3 of 3 seeds, from round 30", ""]
    one = make_sweep({"client_lr": (0.1, 30.0)}, seeds=(4,))
    assert [row_texts(one, row)[2:] for row in setting_rows(one)][1] == ["diverged, from round 34"]
    assert len(setting_table(sweep, 1).rows) == 1


def test_a_search_with_halving_on_its_page(tmp_path):
    """Stopped settings come after those that ended, the last ones first, and before the diverged ones."""
    search = make_search(limit=0.1)
    kinds = ["diverged" if r["diverged"] else r["stopped"] or "ended" for r in setting_rows(search)]
    assert kinds == sorted(
        kinds, key=lambda k: (k != "ended", k == "diverged", -k if isinstance(k, int) else 0)
    )
    assert set(kinds) == {"ended", 60, 20, "diverged"}
    row = next(r for r in setting_rows(search) if r["stopped"] == 60)
    assert (row["score"], row["diverged"], row["round"]) == (None, 0, None)
    assert row_texts(search, row)[-2:] == ["stopped after round 60", ""]
    (page,) = write_sweep_page(tmp_path, search, draw=False)
    text = page.read_text()
    assert "12 settings (12 at random: client_lr × server_lr)" in text
    assert text.count("stopped after round") == (search.stopped >= 0).sum()
    assert text.count("1e-3:1:log") == 2
    assert f"<dd>{(search.stopped >= 0).sum()} settings</dd>" in text
    latex = Sweep(**{f.name: getattr(search, f.name) for f in dataclasses.fields(search)}).to_latex(
        metrics=["accuracy"]
    )
    assert latex.count("stopped after 60") == (search.stopped == 60).sum()
    about = outcome_lines(search)[1]
    assert about.startswith("share of settings within 5 % of the best: not known; ")
    assert about.endswith(f", {(search.stopped >= 0).sum()} were stopped early")
    captions = " ".join(text for text, _ in pictures(search).values())
    assert "circles were stopped early" in captions
    assert "Grey: settings that were stopped early" in captions


def test_the_outcome_in_words():
    sweep = make_sweep(limit=0.05)
    best, share = outcome_lines(sweep)
    averaged = "(mean of 10 evaluations, rounds 110 to 200)"
    at = "best: client_lr = 0.1, server_lr = 0.1"
    assert best == f"{at}, with training loss {sweep.score.min():.4f} {averaged}"
    lost = int((~np.isfinite(sweep.score)).sum())
    assert re.search(rf": 2 % of 49; {lost} of 49 settings diverged$", share)
    edge = outcome_lines(make_sweep({"client_lr": (0.001, 0.01, 0.1)}))[-1]
    assert edge == "the best client_lr is the largest tried: larger ones may be better"
    record = make_sweep({"client_lr": (0.001, 0.01, 0.1)})
    sweep = Sweep(**{f.name: getattr(record, f.name) for f in dataclasses.fields(record)})
    assert sweep.notes == (*record.notes, edge)
    assert sweep._repr_html_().count(edge) == sweep_html(record).count(edge) == 1
    assert outcome_lines(make_sweep(limit=0)) == ["all 49 settings diverged"]
