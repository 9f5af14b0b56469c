"""The sweep that chose the rates of `make run`: every method over a grid of two knobs, on the digits task.

Selected as in Reddi et al. 2021: the smallest mean training loss over the last quarter of the evaluations, here the
mean over two tuning seeds that are none of the seeds shown. The test examples play no part. Writes sweep.csv
(every setting) and compare.toml (the winners) beside this file. About five minutes on 2 cores.
"""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import fedsolve as fs

HERE = Path(__file__).parent
ROUNDS, COHORT, SEEDS, SHOWN = 200, 20, (1, 2), (0, 3, 4)
WORK: dict[str, Any] = {"batch_size": 10, "local_steps": 10}

CLIENT_LR = ("client_lr", (0.01, 0.03, 0.1, 0.3, 1.0))
SERVER_LR = ("server_lr", (0.3, 1.0, 3.0, 10.0))
ADAPTIVE_LR = ("server_lr", (0.01, 0.03, 0.1, 0.3, 1.0))
EPS_G = ("eps_g", (0.0, 0.001, 0.01, 0.1))
MU = ("mu", (0.001, 0.01, 0.1, 1.0))

GRIDS = {
    "FedAvg": SERVER_LR,
    "FedAvgM": SERVER_LR,
    "FedAdagrad": ADAPTIVE_LR,
    "FedAdam": ADAPTIVE_LR,
    "FedYogi": ADAPTIVE_LR,
    "FedExP": EPS_G,
    "FedExPM": EPS_G,
    "FedDuAdagrad": EPS_G,
    "FedDuAdam": EPS_G,
    "SCAFFOLD": SERVER_LR,
    "FedProx": MU,
    "SCAFFOLD+FedDuAdam": EPS_G,
}


def listed(knob: tuple[str, tuple[float, ...]]) -> str:
    """The values of a knob, for the page."""
    return ", ".join(f"{v:g}" for v in knob[1])


HEADER = f"""\
# Written by tune.py from its sweep; `make run` reads it.
task = "digits"
seeds = {list(SHOWN)}
how_tuned = \"\"\"
Each method ran on a grid of its client rate ({listed(CLIENT_LR)}) and one knob of its
own: server_lr ({listed(SERVER_LR)}) for FedAvg, FedAvgM and SCAFFOLD,
({listed(ADAPTIVE_LR)}) for FedAdagrad, FedAdam and FedYogi, eps_g
({listed(EPS_G)}) for FedExP, FedExPM and FedDuA, mu ({listed(MU)})
for FedProx. The setting with the smallest training loss, mean of the last quarter of the evaluations over
seeds {" and ".join(map(str, SEEDS))}, was kept; the test examples played no part. All else is at its default,
clients weighted by their examples. The whole sweep is experiments/digits/sweep.csv; `make tune` repeats it.
\"\"\"

[task_options]
num_clients = 100
partition = {{ name = "dirichlet", alpha = 0.3 }}

[run]
rounds = {ROUNDS}
clients_per_round = {COHORT}
batch_size = {WORK["batch_size"]}
local_steps = {WORK["local_steps"]}
eval_every = 4
"""


def score(name: str, settings: dict[str, float], task: fs.Task) -> float:
    """The rule's value of a setting: the smaller the better, infinite if it diverged."""
    algorithm = fs.build(name, {**settings, "weighting": "examples"})
    found = []
    for seed in SEEDS:
        try:
            run = fs.run(
                algorithm, task, rounds=ROUNDS, clients_per_round=COHORT, seed=seed, eval_every=10, **WORK
            )
        except fs.Diverged:
            return float("inf")
        loss = run.metrics["train_loss"]
        found.append(float(np.mean(loss[-(len(loss) // 4) :])))
    value = float(np.mean(found))
    return value if np.isfinite(value) else float("inf")


def main() -> None:
    """Run the sweep and write its table and its winners."""
    task = fs.tasks.digits()
    rows: list[tuple[str, float, str, float, float]] = []
    jobs = [
        (n, c, k, v) for n, (k, values) in GRIDS.items() for c, v in itertools.product(CLIENT_LR[1], values)
    ]
    for name, client_lr, knob, value in track(jobs, "tuning"):
        rows.append((name, client_lr, knob, value, score(name, {"client_lr": client_lr, knob: value}, task)))
    with open(HERE / "sweep.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("method", "client_lr", "knob", "value", "mean_late_train_loss"))
        table.writerows((*row[:-1], f"{row[-1]:.6g}") for row in rows)
    parts = [HEADER]
    for name in GRIDS:
        _, client_lr, knob, value, loss = min((r for r in rows if r[0] == name), key=lambda r: r[-1])
        print(f"{name:20s} client_lr {client_lr:<6g} {knob} {value:<6g} late training loss {loss:.4g}")
        settings = f'client_lr = {client_lr}\n{knob} = {value}\nweighting = "examples"\n'
        parts.append(f'[[method]]\nname = "{name}"\n[method.settings]\n{settings}')
    (HERE / "compare.toml").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
