"""`fedsolve federate statistics` and `evaluate` on a real SuperLink and three SuperNodes with a CSV file each."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest

import fedsolve as fs
import printed
from fedsolve.cli.federation.local import LocalFederation
from fedsolve.cli.federation.new import write_app
from fedsolve.cli.main import main
from fedsolve.results.clients import read_client_metrics

SITES = ("north", "south", "west")
SCHEMA = 'target = "ill"\nclasses = [0, 1]\n\n'


def table(seed):
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 10, 80).round(1)
    rows = {"age": age, "smoker": rng.choice(["no", "yes"], 80), "ill": (age + rng.normal(0, 5, 80) > 50) * 1}
    return pd.DataFrame(rows)


TABLES = [table(i) for i in range(3)]


class Sites(LocalFederation):
    """Nodes whose configuration names their file."""

    def start_node(self, client, config=""):
        file = self.folder / f"{SITES[client]}.csv"
        TABLES[client].to_csv(file, index=False)
        return super().start_node(client, f'data="{file}"')


def stop_once_begun(folder):
    """Ctrl-C as soon as the server's app has taken the folder of a run."""
    end = time.monotonic() + 120
    while not list(folder.glob("*/.lock")) and time.monotonic() < end:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def command(capsys, *arguments):
    code = main(["federate", *map(str, arguments), "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return printed.document(["federate", *arguments], said.out)


@pytest.mark.alone
@pytest.mark.full
def test_from_statistics_to_an_evaluated_model(tmp_path, monkeypatch, capsys):
    """A schema without constants; statistics give them; a run with them; its model evaluated; Ctrl-C stops the run."""
    app = tmp_path / "sites"
    write_app(app, "csv", "sklearn", 3)
    schema = app / "sites" / "schema.toml"
    schema.write_text(SCHEMA + "[columns.age]\n[columns.smoker]\n")
    with Sites(tmp_path / "flower", 3, environment={"JAX_PLATFORMS": "cpu"}) as federation:
        for name in ("FLWR_HOME", "FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK"):
            monkeypatch.setenv(name, federation.env[name])
        monkeypatch.chdir(app)
        found = command(capsys, "statistics", "age", "smoker", "--out", tmp_path / "statistics")
        pooled = pd.concat(TABLES)
        assert found["columns"]["age"]["mean"] == pytest.approx(pooled["age"].mean(), rel=1e-12)
        assert found["columns"]["age"]["variance"] == pytest.approx(pooled["age"].var(), rel=1e-12)
        assert found["columns"]["smoker"]["counts"] == pooled["smoker"].value_counts().to_dict()
        schema.write_text((tmp_path / "statistics" / "schema.toml").read_text())
        federation.submit(app, {"rounds": 1, "out": str(tmp_path / "run")})
        end = time.monotonic() + 120
        while not (tmp_path / "run" / "history.json").exists():
            assert time.monotonic() < end
            time.sleep(0.3)
        measured = command(
            capsys, "evaluate", tmp_path / "run", "--superlink", "here", "--out", tmp_path / "measured"
        )
        assert measured["train"]["clients"] == list(SITES)
        after = read_client_metrics(tmp_path / "run")[1]
        assert measured["train"]["metrics"]["accuracy"]["by_client"] == after.column("accuracy").tolist()
        assert fs.load(tmp_path / "measured").history.final("train_loss") == (
            fs.load(tmp_path / "run").history.final("train_loss")
        )
        assert main(["federate", "statistics", "--run-config", "populaton=4"]) == 2
        assert "flwr run failed: " in capsys.readouterr().err
        federation.kill(federation.nodes[2])  # on Flower's list for a minute more: it is waited for
        threading.Thread(target=stop_once_begun, args=(app / "runs",), daemon=True).start()
        code = main(["federate", "statistics"])
        assert (code, "interrupted; the run of" in capsys.readouterr().err) == (130, True)
        runs = json.loads(federation.flwr("list", "here", "--format", "json"))["runs"]
        assert sorted(run["status"] for run in runs) == ["finished:completed"] * 3 + ["finished:stopped"]
