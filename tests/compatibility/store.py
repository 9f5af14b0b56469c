"""Write what this version leaves on disk, small, for later versions to read: tests/compatibility/VERSION/.

    python tests/compatibility/store.py

Once for each release, in its clone. The folders are read by test_stored.py and never written again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import fedsolve as fs

sys.path.insert(0, str(Path(__file__).parents[1]))
LEAVE_OUT = ("*.html", "*.png", "*.lock")
METHOD = fs.SCAFFOLD(0.05, server_lr=0.5)


def problem() -> fs.Task:
    """Least squares of three uneven clients."""
    rng = np.random.default_rng(0)
    clients = [
        (x, x @ np.array([1.0, -2.0, 0.5])) for x in (rng.normal(size=(n, 3)).round(2) for n in (4, 7, 5))
    ]
    return fs.Task.from_arrays(loss, {"w": np.zeros(3)}, clients, batch_size=2, name="least-squares")


def loss(params, batch):
    """The mean squared error."""
    x, y = batch
    return ((x @ params["w"] - y) ** 2).mean()


def store(folder: Path) -> None:
    """All of it, below the folder, by relative paths: records hold them."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    fs.run(METHOD, problem(), rounds=4, dtype="float64").save("result")
    fs.run(METHOD, problem(), rounds=4, seeds=2, dtype="float64").save("seeds")
    fs.data.write(problem().data, "data", names=["north", "south", "west"])
    command("run", "digits", "FedDuAdam", "--rounds", "2", "--out", "run")
    command(
        "sweep",
        "digits",
        "FedAvg",
        "--grid",
        "client_lr=0.1,0.3",
        "--seeds",
        "2",
        "--rounds",
        "4",
        "--out",
        "sweep",
    )
    deployment(Path("deployment"))
    for pattern in LEAVE_OUT:
        for path in Path().rglob(pattern):
            path.unlink()


def command(*words: str) -> None:
    """A command of fedsolve."""
    subprocess.run([sys.executable, "-m", "fedsolve", *words], check=True, stdout=subprocess.DEVNULL)


def deployment(folder: Path) -> None:
    """A federation after three rounds: the server's folder and those of its clients."""
    from deploy_small import deploy

    deploy(fs.SCAFFOLD(0.1), folder, rounds=3)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).resolve().parent
    store(target / fs.__version__)
    print(f"written: {target / fs.__version__}")
