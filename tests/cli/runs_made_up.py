"""Folders of runs as the command leaves them."""

from __future__ import annotations

import numpy as np

from fedsolve.engine.record import Recorder, RecordFile
from fedsolve.folders.run_folder import RUN, save_tree
from fedsolve.results.history import History

CONFIG = """task = "digits"
[run]
rounds = 100
clients_per_round = 2
[[method]]
name = "FedAvg"
"""


def write_run(folder, rounds, losses, seed=0):
    """A run of 100 rounds that has done so many; evaluated at so many of them as there are losses."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    recorder = Recorder()
    for at, loss in zip(np.linspace(0, rounds, len(losses)).astype(int), losses, strict=True):
        recorder.evaluation(int(at), float(at), {"train_loss": loss, "test_accuracy": 1 - loss})
    columns = {
        "round": np.arange(1, rounds + 1),
        "participants": np.full(rounds, 2),
        "dropped": np.zeros(rounds, int),
    }
    recorder.rounds.add(columns | {"bytes_up": np.full(rounds, 1000), "bytes_down": np.full(rounds, 1000)})
    recorder.seconds = float(rounds)
    (folder / "record.bin").unlink(missing_ok=True)
    facts = RecordFile(folder).append(recorder)
    save_tree(
        folder / RUN.file, {"x": np.zeros(1)}, {"identity": {"seed": seed}, "round": rounds, "record": facts}
    )


def finish(folder, label, losses):
    """The same with its record, as a finished run leaves it."""
    write_run(folder, 100, losses)
    rounds = np.linspace(0, 100, len(losses)).astype(int)
    evaluations = {"round": rounds, "seconds": rounds * 1.0, "train_loss": np.array(losses)}
    history = History(label, "digits", {"seed": 0}, evaluations, {"round": np.arange(1, 101)}, 100.0)
    (folder / "history.json").write_text(history.to_json())
