"""The page of a run while it goes on, of one that was stopped, and the one that its end leaves."""

from __future__ import annotations

import json
import re
import threading
import time

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine import running_page as so_far
from fedsolve.engine.record import Recorder, RecordFile
from fedsolve.folders import run_folder
from fedsolve.folders.files import STOP
from fedsolve.folders.run_folder import RUN, save_tree
from fedsolve.report import page as running
from fedsolve.results.record_files import write_failure

REFRESH = '<meta http-equiv="refresh" content="0.01">'
TASK = fs.tasks.build("regression", num_clients=4)
OPTIONS = {"rounds": 20, "eval_every": 5}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Records and pages are written as soon as there is something new."""
    for module, seconds in ((run_folder, 0.0), (running, 0.01)):
        monkeypatch.setattr(module, "_SECONDS_BETWEEN", seconds)
        monkeypatch.setattr(module, "_TIMES_BETWEEN", 0)


def outcome(text):
    return re.search(r'class="outcome">(.*?)</p>', text)[1]


def data(text):
    return json.loads(re.search(r'id="page-data">(.*?)</script>', text)[1])["runs"]


def wait_for(path, words):
    """The page once it holds some words."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if path.exists() and words in (text := path.read_text()):
            return text
        time.sleep(0.01)
    raise AssertionError(f"{path} never held {words}")


def test_it_has_the_numbers_so_far_and_the_last_one_has_no_refresh(tmp_path):
    seen = []

    def look(at):
        if at.round == 10:
            seen.append(wait_for(tmp_path / "page.html", "FedAvg: round 10 of 20"))

    result = fs.run(fs.FedAvg(0.1), TASK, out=tmp_path, progress=look, **OPTIONS)
    assert REFRESH in seen[0]
    assert re.fullmatch(r"Running, \d\d:\d\d:\d\d: FedAvg: round 10 of 20\.", outcome(seen[0]))
    columns = data(seen[0])[0]["columns"]
    assert columns["round"] == [0, 5, 10]
    expected = result.history.evaluations["train_loss"][:3]
    np.testing.assert_allclose(columns["train_loss"], expected, rtol=1e-6)
    last = (tmp_path / "page.html").read_text()
    assert "refresh" not in last
    assert outcome(last).startswith("After 20 rounds FedAvg has")
    assert not any(thread.name.endswith("(follow)") for thread in threading.enumerate())


def test_one_that_is_stopped_says_where(tmp_path):
    def stop(at):
        if at.round == 10:
            (tmp_path / STOP).touch()

    with pytest.raises(fs.Interrupted):
        fs.run(fs.FedAvg(0.1), TASK, out=tmp_path, progress=stop, **OPTIONS)
    text = (tmp_path / "page.html").read_text()
    assert "refresh" not in text
    done = int(re.fullmatch(r"Stopped, [\d:]+: FedAvg: round (\d+) of 20\.", outcome(text))[1])
    assert data(text)[0]["columns"]["round"] == [*range(0, done + 1, 5)]
    fs.run(fs.FedAvg(0.1), TASK, out=tmp_path, resume=True, **OPTIONS)
    assert outcome((tmp_path / "page.html").read_text()).startswith("After 20 rounds")


def test_a_page_that_cannot_be_written_ends_no_run_and_is_tried_again(tmp_path, monkeypatch):
    tried, again = threading.Event(), threading.Event()

    def full(*args, **kwargs):
        (again if tried.is_set() else tried).set()
        raise fs.InvalidInput("the disk is full")

    def wait(at):
        assert at.round != 10 or again.wait(20)

    monkeypatch.setattr(so_far, "write_page", full)
    result = fs.run(fs.FedAvg(0.1), TASK, out=tmp_path, progress=wait, **OPTIONS)
    assert result.history.evaluations["round"][-1] == 20
    assert outcome((tmp_path / "page.html").read_text()).startswith("After 20 rounds")


def write_run(folder, rounds, losses, seed=0):
    """A run that has done so many rounds, evaluated after 0, 10, 20 and so on."""
    folder.mkdir(parents=True)
    recorder = Recorder()
    for number, loss in enumerate(losses):
        recorder.evaluation(10 * number, float(number), {"train_loss": loss})
    recorder.rounds.add({"round": np.arange(1, rounds + 1), "participants": np.full(rounds, 2)})
    facts = RecordFile(folder).append(recorder)
    save_tree(folder / RUN.file, {"x": np.zeros(1)}, {"identity": {"seed": seed}, "record": facts})


def page_after(folder, places, error):
    """The page that a block leaves which stops with an error."""
    with pytest.raises(type(error)), so_far.page_so_far(folder, places, "T", "t", 100):
        raise error
    path = folder / "page.html"
    return path.read_text() if path.exists() else None


def test_seeds_are_cut_where_the_shortest_ends(tmp_path):
    """A mean over seeds of which one is missing would look like one that diverged."""
    write_run(tmp_path / "a", 25, [0.9, 0.5, 0.3], seed=0)
    write_run(tmp_path / "b", 12, [0.9, 0.7], seed=1)
    places = [("FedAvg", tmp_path / "a"), ("FedAvg", tmp_path / "b"), ("other", tmp_path / "c")]
    text = page_after(tmp_path, places, fs.Interrupted("stopped"))
    assert outcome(text).endswith(": FedAvg: 37 of 200 rounds of 2 seeds; other: round 0 of 100.")
    (run,) = data(text)
    assert run["columns"]["round"] == [0, 10]
    assert run["columns"]["train_loss"] == pytest.approx([0.9, 0.6])


def test_one_that_diverged_says_so(tmp_path):
    write_run(tmp_path / "a", 25, [0.9, 0.5, 0.3])
    places = [("FedAvg", tmp_path / "a")]
    history = so_far.run_status("FedAvg", "FedAvg", tmp_path / "a", "t", 100).history
    write_failure(tmp_path / "a", history, "round 26")
    assert outcome(page_after(tmp_path, places, fs.Diverged("round 26"))).endswith(": FedAvg: diverged.")


def test_a_refused_run_writes_no_page(tmp_path):
    write_run(tmp_path / "a", 25, [0.9, 0.5, 0.3])
    assert page_after(tmp_path, [("FedAvg", tmp_path / "a")], fs.InvalidInput("taken")) is None
