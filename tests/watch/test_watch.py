"""The page that follows runs: what it tells, what it refuses, and how it asks a run to stop."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from watch_made_up import CONFIG, finish, write_run

import fedsolve as fs
from fedsolve.cli.terminal.progress_file import ProgressFile
from fedsolve.cli.watch.runs import Folder
from fedsolve.cli.watch.watch_page import View, state
from fedsolve.engine.records.record import Recorder
from fedsolve.folders.lock import held, locked


def test_runs_are_told_as_they_stand(tmp_path, follow):
    write_run(tmp_path / "a", 40, [0.9, 0.5, 0.3])
    finish(tmp_path / "b", "FedAvg", [0.9, 0.1])
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.toml").write_text("task = ")
    ProgressFile(tmp_path / "d", "A study")("its part", 30, 120)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "results.json").write_text("{}")
    _, client = follow(tmp_path)
    with locked(tmp_path / "a"):
        status, page, headers = client.get()
        runs = Folder(tmp_path).look()
    assert status == 200
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert {name: run.status for name, run in runs.items()} == {
        "a": "running", "b": "finished", "c": "unreadable", "d": "stopped", "e": "finished",
    }  # fmt: skip
    assert runs["a"].seconds_left == 60.0  # 40 rounds took 40 s
    assert (runs["d"].done, runs["d"].total, runs["d"].message) == (30, 120, "its part")
    for words in ("40 of 100", "about 60 s", "70.00 %", "30 of 120", "config.toml", "80.0 kB"):
        assert words in page
    assert page.count("<progress") == 3
    assert '"columns":{"round":[0,20,40]' in page  # what the curves are drawn from
    assert Folder(tmp_path).look()["a"].status == "stopped"
    assert 'aria-label="Draw a"' in state(Folder(tmp_path / "a"), View())["table"]  # by its name there, too


def test_a_comparison_is_its_methods(tmp_path):
    """With a row of its own, which has the rounds of all and the page that its methods link to, too."""
    two = '[[method]]\nname = "FedAdam"\n'
    write_run(tmp_path / "both" / "FedAvg", 10, [0.5, 0.4])
    config = tmp_path / "both" / "FedAvg" / "config.toml"
    (tmp_path / "both" / "config.toml").write_text(config.read_text() + two)
    (tmp_path / "both" / "page.html").write_text("the page")
    runs = Folder(tmp_path).look()
    assert [(n, r.label, r.status, r.done, r.total) for n, r in runs.items()] == [
        ("both", "2 methods", "stopped", 10, 200),
        ("both/FedAvg", "FedAvg", "stopped", 10, 100),
        ("both/FedAdam", "FedAdam", "waiting", 0, 100),
    ]
    assert {run.page for run in runs.values()} == {tmp_path / "both"}
    now = state(Folder(tmp_path), View(chosen=("both",)))
    assert [r["name"] for r in now["data"]["runs"]] == ["both/FedAvg"]
    assert "10 of 200" in now["table"]
    assert now["table"].count('href="page?run=both') == 3


def test_seeds_of_a_method_are_one_row_and_one_line(tmp_path):
    """Losses of 0.2 and 0.4 after 40 rounds: a row with 0.3 and 80 of 200 rounds, and a line with a band."""
    for seed, loss in ((0, 0.2), (1, 0.4)):
        write_run(tmp_path / "a" / f"seed-{seed}", 40, [0.9, loss], seed)
    (tmp_path / "a" / "config.toml").write_text("seeds = 2\n" + CONFIG)
    folder = Folder(tmp_path)
    (run,) = folder.look().values()
    assert (run.name, run.label, run.status, run.done, run.total) == ("a", "FedAvg", "stopped", 80, 200)
    now = state(folder, View())
    (line,) = now["data"]["runs"]
    assert line["columns"]["train_loss"][-1] == pytest.approx(0.3)
    assert (line["low"]["train_loss"][-1], line["high"]["train_loss"][-1]) == (0.2, 0.4)
    assert "80 of 200" in now["table"]
    assert "0.3000" in now["table"]


def test_runs_of_other_lengths_are_drawn_where_they_are_chosen(tmp_path):
    write_run(tmp_path / "a", 40, [0.9, 0.5])
    write_run(tmp_path / "b", 10, [0.9, 0.5])
    config = tmp_path / "b" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 100", "rounds = 1000"))
    folder = Folder(tmp_path)
    assert [r["name"] for r in state(folder, View())["data"]["runs"]] == ["FedAvg, a"]
    assert len(state(folder, View(chosen=("a", "b")))["data"]["runs"]) == 2


def test_what_has_no_rounds_has_none_told(tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "results.json").write_text("{}")
    table = state(Folder(tmp_path), View())["table"]
    assert "<td>all</td>" in table
    assert "<td>0</td>" not in table


def test_filters_and_a_choice(tmp_path):
    finish(tmp_path / "one", "FedAvg", [0.9, 0.1])
    write_run(tmp_path / "two", 40, [0.9, 0.5])
    folder = Folder(tmp_path)
    assert "one" not in state(folder, View(status="stopped"))["table"]
    assert "two" not in state(folder, View(words="FINISHED"))["table"]
    assert [r["name"] for r in state(folder, View())["data"]["runs"]] == ["FedAvg, one", "FedAvg, two"]
    now = state(folder, View(chosen=("two", "one", "none")))
    assert now["table"].count(" checked") == 2
    assert "Side by side" in now["details"]
    assert [r["name"] for r in state(folder, View(chosen=("two",)))["data"]["runs"]] == ["FedAvg, two"]


def test_events_follow_the_record(tmp_path, follow):
    write_run(tmp_path / "a", 40, [0.9, 0.5])
    _, client = follow(tmp_path)
    with urllib.request.urlopen(client.address + "events", timeout=10) as stream:
        first = json.loads(stream.readline().removeprefix(b"data: "))
        stream.readline()
        write_run(tmp_path / "a", 80, [0.9, 0.5, 0.2])
        second = json.loads(stream.readline().removeprefix(b"data: "))
        stream.readline()
        shutil.rmtree(tmp_path)
        gone = json.loads(stream.readline().removeprefix(b"data: "))
    assert len(first["data"]["runs"][0]["columns"]["round"]) == 2
    assert len(second["data"]["runs"][0]["columns"]["round"]) == 3
    assert "80 of 100" in second["table"]
    assert gone["standing"] == "The folder is not there any more."
    assert gone["data"] is None


def test_a_long_record_is_thinned(tmp_path):
    losses = [1 / (i + 1) for i in range(5000)]
    write_run(tmp_path / "a", 10_000, losses)
    (run,) = state(Folder(tmp_path), View())["data"]["runs"]
    assert len(run["columns"]["round"]) <= 1000
    assert run["columns"]["round"][-1] == 10_000


def test_only_who_knows_the_address_is_answered(tmp_path, follow):
    write_run(tmp_path / "a", 40, [0.9, 0.5])
    server, client = follow(tmp_path)
    base = f"http://127.0.0.1:{server.server_port}/"
    refused = [client.__class__(base).get(), client.__class__(base + "wrong/").get()]
    refused += [client.get(Host="evil.example"), client.__class__(base + "wrong/").post("stop", run="a")]
    refused += [
        client.get("nothing"),
        client.get("../../etc/passwd"),
        client.get("page?run=../../etc"),
        client.get("page?run=a"),
    ]
    assert [status for status, _, _ in refused] == [404] * 8
    assert all("passwd" not in text and "FedAvg" not in text for _, text, _ in refused)
    assert server.server_address[0] == "127.0.0.1"


def test_the_page_of_a_run_is_shown_in_a_sandbox(tmp_path, follow):
    write_run(tmp_path / "a", 40, [0.9, 0.5])
    (tmp_path / "a" / "page.html").write_text("<script>fetch('/')</script>")
    _, client = follow(tmp_path)
    status, text, headers = client.get("page?run=a")
    assert (status, text) == (200, "<script>fetch('/')</script>")
    assert headers["Content-Security-Policy"].startswith("sandbox allow-scripts; default-src 'none'")


def test_names_are_text(tmp_path, follow):
    write_run(tmp_path / "<img src=x>", 40, [0.9, 0.5])
    _, client = follow(tmp_path)
    _, page, _ = client.get("?words=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
    assert "<script>alert" not in page
    assert "<img src=x>" not in client.get()[1]


def test_what_is_too_large_or_too_much_is_refused(tmp_path, follow, monkeypatch):
    _, client = follow(tmp_path)
    assert client.post("stop", run="x" * 5000)[0] == 413
    assert client.post("stop", run="none")[0] == 404
    monkeypatch.setattr("fedsolve.cli.watch.server._MOST_AT_ONCE", 1)
    _, client = follow(tmp_path)
    with urllib.request.urlopen(client.address + "events", timeout=10):
        assert client.get()[0] == 503


def test_two_hundred_tabs_are_served(tmp_path, follow):
    write_run(tmp_path / "a", 40, [0.9, 0.5])
    server, client = follow(tmp_path)
    path = client.address.split("/", 3)[3]
    request = f"GET /{path}events HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
    tabs = [socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in range(200)]
    try:
        for tab in tabs:
            tab.sendall(request)
        answers = [tab.recv(4096) for tab in tabs]
    finally:
        for tab in tabs:
            tab.close()
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert client.get()[0] == 200


def test_a_run_is_asked_to_stop_and_resumed(tmp_path, follow):
    """The same bits as of a run that nobody stopped."""
    task, options = fs.tasks.build("regression", num_clients=4), {"rounds": 60, "eval_every": 2}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.toml").write_text(
        'task = "regression"\n[run]\nrounds = 60\n[[method]]\nname = "FedAvg"\n'
    )
    _, client = follow(tmp_path)
    answers = []

    def stop_it(progress):
        if progress.round == 10:
            answers.append(client.post("stop", run="a")[0])

    with pytest.raises(fs.Interrupted, match="resume"):
        fs.run(fs.FedAvg(client_lr=0.1), task, out=tmp_path / "a", progress=stop_it, **options)
    assert answers == [200]  # led back to the page
    assert client.post("stop", run="a")[0] == 409  # it does not run
    assert not (tmp_path / "a" / "stop").exists()
    resumed = fs.run(fs.FedAvg(client_lr=0.1), task, out=tmp_path / "a", resume=True, **options)
    whole = fs.run(fs.FedAvg(client_lr=0.1), task, **options)
    assert (
        resumed.history.evaluations["train_loss"].tobytes()
        == whole.history.evaluations["train_loss"].tobytes()
    )


def test_a_held_folder_is_seen_without_disturbing_who_holds_it(tmp_path):
    assert not held(tmp_path)
    with locked(tmp_path):
        assert held(tmp_path)
    assert not held(tmp_path)


@pytest.mark.full
def test_the_command_says_where(tmp_path):
    command = [sys.executable, "-m", "fedsolve", "watch"]
    missing = subprocess.run([*command, "none"], capture_output=True, text=True, cwd=tmp_path)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    process = subprocess.Popen(
        [*command, "."], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )  # fmt: skip
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert b"No runs yet." in answer.read()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0


def test_rounds_before_the_next_evaluation_are_counted():
    """A long run that was evaluated at its start alone: what it sent is told all the same."""
    recorder = Recorder()
    recorder.evaluation(0, 0.0, {"train_loss": 1.0})
    for number in (1, 2):
        recorder.entry({"round": number, "bytes_up": 10, "bytes_down": 20, "participants": 2, "dropped": 0})
    history = recorder.history("FedAvg", "digits", {}, 0.0, ())
    assert (history.total("bytes_up"), history.total("bytes_down")) == (20, 40)
