"""Seconds of a round on a real federation: fedsolve's app beside a bare Flower app that does the same local work.

    python benchmarks/real_round.py [rounds]

Both train the digits' MLP with PyTorch on three SuperNodes of one SuperLink on this machine: FedAvg, one epoch of
batches of ten. The bare app is Flower's own FedAvg strategy and a plain PyTorch loop. Runs alternate.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

import fedsolve as fs
from fedsolve.cli.federation.local import LocalFederation
from fedsolve.cli.federation.new import write_app
from fedsolve.deploy.run_log import ROUNDS
from measure import Setting
from stored import table

CLIENTS = 3
BARE_SERVER = """
import time

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from bare import problem

app = ServerApp()


@app.main()
def main(grid, context):
    out = context.run_config["out"]

    def seen(round, arrays):
        with open(out, "a") as file:
            file.write(f"{time.time()}\\n")

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(problem.module().state_dict()),
        num_rounds=context.run_config["rounds"], evaluate_fn=seen,
    )
"""
BARE_PROBLEM = """
import numpy as np
import torch
from torch import nn

DATA = np.load("{data}")


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
"""
BARE_CLIENT = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader, TensorDataset
from bare import problem

app = ClientApp()


@app.train()
def train(message, context):
    model = problem.module()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = context.node_config["client-id"]
    data = TensorDataset(torch.tensor(problem.DATA[f"x{client}"]), torch.tensor(problem.DATA[f"y{client}"]).long())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, batch_size=10, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(data)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
"""


def bare_app(folder: Path) -> Path:
    """The bare app: the same model and data; it imports neither fedsolve nor JAX."""
    write_app(folder, "digits", "torch", CLIENTS)
    clients = [fs.tasks.digits(num_clients=CLIENTS).data.client(i) for i in range(CLIENTS)]
    arrays = {f"{name}{i}": getattr(c, name) for i, c in enumerate(clients) for name in ("x", "y")}
    np.savez(folder.parent / "data.npz", **arrays)
    (folder / "bare" / "problem.py").write_text(BARE_PROBLEM.format(data=folder.parent / "data.npz").lstrip())
    (folder / "bare" / "server_app.py").write_text(BARE_SERVER.lstrip())
    (folder / "bare" / "client_app.py").write_text(BARE_CLIENT.lstrip())
    return folder


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, bare = folder / "ours", bare_app(folder / "bare")
        write_app(ours, "digits", "torch", CLIENTS)
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        seconds: dict[str, list[float]] = {"bare Flower": [], "fedsolve": []}
        with LocalFederation(folder / "flower", CLIENTS, environment=cache) as federation:
            for turn in range(2):
                out = folder / f"bare-{turn}.txt"
                federation.submit(bare, {"rounds": rounds, "out": str(out)})
                wait(out, rounds + 1)
                times = [float(line) for line in out.read_text().splitlines()]
                seconds["bare Flower"] += [b - a for a, b in pairwise(times[1:])]
                out = folder / f"ours-{turn}"
                federation.submit(ours, {"method": "FedAvg", "rounds": rounds, "out": str(out)})
                wait(out / ROUNDS, rounds)
                times = [json.loads(line)["time"] for line in (out / ROUNDS).read_text().splitlines()]
                seconds["fedsolve"] += [b - a for a, b in pairwise(times)]
        base = statistics.median(seconds["bare Flower"])
        print(
            f"A2  seconds of a real round, three PyTorch clients, {len(seconds['fedsolve'])} rounds each (bound 1.1)"
        )
        for name, values in seconds.items():
            middle = statistics.median(values)
            spread = f"from {min(values):.1f} to {max(values):.1f}"
            print(f"    {name:12} median {middle:5.1f}  {spread}  ratio {middle / base:.2f}")


def federation(setting: Setting) -> None:
    """The adapter's own cost, a real round beside a bare Flower app's, and one without Flower's longest pause."""
    import adapter
    import node_pause

    adapter.measure(table)
    main(4)
    node_pause.main(4)


def wait(path: Path, lines: int) -> None:
    """Until a file has so many lines; Flower's own commands would take part of the machine."""
    end = time.monotonic() + 120 * lines
    while not path.exists() or path.read_text().count("\n") < lines:
        if time.monotonic() > end:
            raise SystemExit(f"{path} does not grow")
        time.sleep(0.5)
    time.sleep(5)  # the run's processes end


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
