"""Trackers: what they send is read back by the trackers' own readers."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.report.trackers import Sender
from harness import squares_of_leaf as loss

RNG = np.random.default_rng(0)
CLIENTS = [fs.Examples(RNG.normal(size=(8, 3)), RNG.normal(size=8)) for _ in range(4)]


TASK = fs.Task.from_arrays(loss, {"w": np.zeros(3)}, CLIENTS, batch_size=4)


def run(*callbacks, **options):
    return fs.run(fs.FedAvg(0.1), TASK, **({"rounds": 6, "eval_every": 2} | options), callbacks=callbacks)


class Written(fs.trackers.Tracker):
    """A tracker that writes down what it is told."""

    def __init__(self):
        self.told = []

    def begin(self, label, task, settings):
        self.told.append(("begin", label, settings["seed"]))

    def log(self, round, metrics):
        self.told.append((round, metrics["train_loss"]))

    def keep(self, files):
        self.told.append(("keep", [path.name for path in files]))

    def close(self, finished):
        self.told.append(("close", finished))


@pytest.mark.full
def test_a_tracker_is_told_each_evaluation_once_and_how_it_ended():
    written = Written()
    result = run(written)
    told = list(zip(result.metrics["round"].tolist(), result.metrics["train_loss"].tolist(), strict=True))
    files = ["curves.png", "history.json", "metrics.jsonl", "model.safetensors"]
    assert written.told == [("begin", "FedAvg", 0), *told, ("keep", files), ("close", True)]
    run(written, seed=1)  # another run is another one there
    assert written.told.count(("begin", "FedAvg", 1)) == 1


def test_an_interrupted_run_is_closed_and_resumed_as_one_with_all_evaluations(tmp_path, no_pictures):
    written = Written()

    def stop(progress):
        if progress.round == 2:
            (tmp_path / "stop").touch()

    with pytest.raises(fs.Interrupted):
        run(written, out=tmp_path, progress=stop)
    assert written.told[-1] == ("close", False)
    again = Written()
    run(again, out=tmp_path, resume=True)
    assert [told[0] for told in again.told] == ["begin", 0, 2, 4, 6, "keep", "close"]


def test_a_run_that_is_refused_is_no_run_there():
    written = Written()
    with pytest.raises(fs.InvalidInput):
        run(written, rounds=0)
    assert written.told == []


class Refusing(Written):
    """A tracker that refuses some calls of a round."""

    patience = 0.4

    def __init__(self, times, seed=0):
        super().__init__()
        self.times, self.seed = times, seed

    def log(self, round, metrics):
        if round == 2 and self.told[0][2] == self.seed and self.times > 0:
            self.times -= 1
            raise ConnectionError("the server\nis gone")
        super().log(round, metrics)


@pytest.mark.full
def test_what_a_tracker_refuses_at_first_is_sent_again_in_its_order(no_pictures):
    refusing = Refusing(times=1)
    run(refusing)
    assert [told[0] for told in refusing.told] == ["begin", 0, 2, 4, 6, "keep", "close"]


def test_a_tracker_that_fails_ends_no_run_and_the_next_is_another_one_there(no_pictures):
    refusing = Refusing(times=1000)
    with pytest.warns(UserWarning, match=r"Refusing logged 1 of 4 evaluations, .* 0.4 s \(the server\)"):
        result = run(refusing)
    assert result.metrics["round"][-1] == 6
    assert [told[0] for told in refusing.told] == ["begin", 0]
    refusing.told.clear()
    run(refusing, seed=1)
    assert [told[0] for told in refusing.told] == ["begin", 0, 2, 4, 6, "keep", "close"]


def test_a_tracker_that_does_not_answer_holds_a_run_for_its_patience_alone(no_pictures):
    answer = threading.Event()

    class Silent(Written):
        patience = 0.2

        def begin(self, *told):
            assert answer.wait(60)
            super().begin(*told)

    silent = Silent()
    with pytest.warns(UserWarning, match=r"Silent logged 0 of 4 evaluations, .*\(no answer\)"):
        run(silent)
    answer.set()
    run(silent, seed=1)  # nothing of the first run comes between
    assert [told[0] for told in silent.told if told != ("begin", "FedAvg", 0)] == [
        *("begin", 0, 2, 4, 6, "keep", "close")
    ]


@pytest.mark.full
def test_an_mlflow_server_that_nobody_runs_or_that_is_silent_holds_no_run(monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setattr(fs.trackers.MLflow, "patience", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (9, silent.getsockname()[1]):
            begun = time.monotonic()
            with pytest.warns(UserWarning, match="MLflow logged 0 of 4 evaluations"):
                run(fs.trackers.MLflow(f"http://127.0.0.1:{port}"))
            assert time.monotonic() - begun < 60  # MLflow itself tries for minutes


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = run(fs.trackers.TensorBoard(tmp_path))
    run(fs.trackers.TensorBoard(tmp_path))
    first, second = sorted(tmp_path.iterdir())
    assert second.name == f"{first.name}-2"
    events = accumulator.EventAccumulator(str(first))
    events.Reload()
    sent = [(event.step, event.value) for event in events.Scalars("train_loss")]
    expected = zip(result.metrics["round"].tolist(), result.metrics["train_loss"].tolist(), strict=True)
    assert sent == [(step, np.float32(value)) for step, value in expected]
    (picture,) = events.Images("curves")
    assert picture.width > 100
    settings = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '"seed": 0' in settings


@pytest.mark.full
def test_mlflow_reads_what_was_sent(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'm.db'}"
    result = run(fs.trackers.MLflow(uri))
    client = mlflow.MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("fedsolve").experiment_id])
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [m.step for m in history] == result.metrics["round"].tolist()
    assert [m.value for m in history] == result.metrics["train_loss"].tolist()
    assert found.info.status == "FINISHED"
    assert found.data.params["seed"] == "0"
    names = {item.path for item in client.list_artifacts(found.info.run_id)}
    assert names == {"curves.png", "history.json", "metrics.jsonl", "model.safetensors"}


def wandb_files(folder, runs):
    """By seed, what W&B's own reader finds in its offline files: rows of the history, the configuration, the folder.

    W&B's own process writes them, and goes on for a moment after a run was finished: they are waited for.
    """
    end = time.monotonic() + 60
    while True:
        paths = list(folder.glob("wandb/offline-run-*/*.wandb"))
        found = [wandb_file(path) for path in paths]
        if len(found) == runs and all(whole for *_, whole in found):
            return {settings["seed"]: (sent, settings, files) for sent, settings, files, _ in found}
        assert time.monotonic() < end, f"{paths} are not whole after a minute"
        time.sleep(0.1)


def wandb_file(path):
    """Rows, configuration with its group, the run's files, and whether the end of the run has been written."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store, sent, settings, whole = DataStore(), [], {}, False
    if path.stat().st_size:
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                sent.append(
                    {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                )
            if record.HasField("run"):
                settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
                settings["group"] = record.run.run_group
            whole = whole or record.HasField("exit")
    return sent, settings, path.parent / "files", whole


def is_in_wandb(result, sent):
    assert [line["_step"] for line in sent] == result.metrics["round"].tolist()
    assert [line["train_loss"] for line in sent] == result.metrics["train_loss"].tolist()


@pytest.mark.full
def test_wandb_writes_offline_what_its_reader_finds(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    result = run(fs.trackers.WandB(tmp_path))
    ((sent, settings, files),) = wandb_files(tmp_path, 1).values()
    is_in_wandb(result, sent)
    assert settings["method"] == "FedAvg"
    assert (files / "model.safetensors").is_file()


@pytest.mark.full
def test_wandb_has_a_run_for_each_seed_in_one_group(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    found = run_seeds(lambda seed: [fs.trackers.WandB(tmp_path)])
    written = wandb_files(tmp_path, 3)
    assert sorted(written) == [0, 1, 2]
    for seed, result in enumerate(found.runs):
        sent, settings, files = written[seed]
        is_in_wandb(result, sent)
        assert settings["group"] == "FedAvg on custom"
        assert (files / "model.safetensors").is_file()


def test_what_is_missing_is_one_line_before_anything_runs(monkeypatch):
    from fedsolve.report import trackers as base

    tracker, refused = fs.trackers.tracker, fs.InvalidInput  # public names are imported when first used

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(base.importlib, "import_module", missing)
    with pytest.raises(
        refused, match=r"tensorboardX is not installed: pip install 'fedsolve\[tensorboard\]'"
    ):
        tracker("tensorboard", Path())
    with pytest.raises(refused, match="mlflow"):
        tracker("mlfow", Path())


def test_each_seed_is_a_run_there(tmp_path, no_pictures):
    made = {}

    def callbacks(seed):
        made[seed] = Written()
        return [made[seed]]

    found = run_seeds(callbacks, out=tmp_path)
    for seed, result in enumerate(found.runs):
        losses = result.metrics["train_loss"].tolist()
        rounds = result.metrics["round"].tolist()
        told = [("begin", "FedAvg", seed), *zip(rounds, losses, strict=True)]
        assert made[seed].told[:-2] == told
        assert made[seed].told[-1] == ("close", True)


def test_callbacks_of_seeds_are_called_one_at_a_time_and_end_their_own_run(no_pictures):
    inside, most = [], []

    def callbacks(seed):
        def look(at):
            inside.append(seed)
            most.append(len(inside))
            time.sleep(0.002)
            inside.remove(seed)
            return "enough" if seed == 1 and at.round == 4 else None

        return [look]

    found = run_seeds(callbacks)
    assert set(most) == {1}
    assert [run.metrics["round"][-1] for run in found.runs] == [6, 4, 6]


def test_a_seed_that_diverges_is_closed_as_not_finished(no_pictures):
    made = {}
    with pytest.raises(fs.Diverged):
        fs.run(
            fs.FedAvg(1e30), TASK, rounds=6, eval_every=2, seeds=2,
            callbacks=lambda seed: [made.setdefault(seed, Written())],
        )  # fmt: skip
    assert [made[seed].told[-1] for seed in (0, 1)] == [("close", False)] * 2


def run_seeds(callbacks, **options):
    return fs.run(fs.FedAvg(0.1), TASK, rounds=6, eval_every=2, seeds=3, callbacks=callbacks, **options)


def test_tensorboard_has_a_folder_for_each_seed(tmp_path, no_pictures):
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = run_seeds(lambda seed: [fs.trackers.TensorBoard(tmp_path)])
    folders = sorted(tmp_path.iterdir())
    assert [path.name for path in folders] == [f"FedAvg-custom-{seed}" for seed in range(3)]
    for folder, result in zip(folders, found.runs, strict=True):
        events = accumulator.EventAccumulator(str(folder))
        events.Reload()
        assert [e.value for e in events.Scalars("train_loss")] == [
            np.float32(x) for x in result.metrics["train_loss"]
        ]


@pytest.mark.full
def test_mlflow_has_a_run_for_each_seed(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'm.db'}"
    found = run_seeds(lambda seed: [fs.trackers.MLflow(uri)])
    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("fedsolve").experiment_id])
    last = {int(run.data.params["seed"]): run.data.metrics["train_loss"] for run in runs}
    assert last == {seed: r.metrics["train_loss"][-1] for seed, r in enumerate(found.runs)}


def test_a_late_answer_to_a_call_that_was_dropped_is_none_to_the_next_call():
    sender, answer, made = Sender(), threading.Event(), []
    sender.put(lambda: made.append(answer.wait(60)))
    assert sender.finish(0.05) == 1
    sender.put(lambda: made.append("next"))
    answer.set()
    assert sender.finish(60) == 0
    assert made == [True, "next"]
