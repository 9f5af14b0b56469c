"""The README's picture: four methods on the digits task at the rates of `make run`, five seeds each.

    python experiments/digits/picture.py

Line: geometric mean over seeds; band: their range. The seeds are not those on which the rates were tuned.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np

import fedsolve as fs
from fedsolve.studies.pictures import log_scale, new_figure, save, styles, tidy

HERE = Path(__file__).parent
METHODS = ("SCAFFOLD", "FedAvg", "FedAdam", "FedDuAdam")
SEEDS = (0, 3, 4, 5, 6)


def curves(name: str, config: dict) -> tuple[np.ndarray, np.ndarray]:
    """Rounds, and the training loss of each seed, shape (seeds, evaluations)."""
    settings = next(m["settings"] for m in config["method"] if m["name"] == name)
    grid = {"client_lr": (settings.pop("client_lr"),)}
    options = {
        **config["task_options"],
        "partition": fs.data.Dirichlet(config["task_options"]["partition"]["alpha"]),
    }
    task = fs.tasks.digits(**options)
    run = {key: value for key, value in config["run"].items() if key != "seed"}
    found = fs.sweep(
        lambda client_lr: fs.build(name, {**settings, "client_lr": client_lr}), task, grid, seeds=SEEDS, **run
    )
    return found.rounds, found.metrics["train_loss"].reshape(len(SEEDS), -1)


def main() -> None:
    """Run, print the ends, draw."""
    config = tomllib.loads((HERE / "compare.toml").read_text(encoding="utf-8"))
    figure = new_figure(7.6, 3.8)
    axes = figure.subplots()
    look, ends = styles(METHODS), {}
    found = {name: curves(name, config) for name in METHODS}
    rounds, _ = found[METHODS[0]]
    for name, (_, losses) in found.items():
        colour, dash = look[name]
        middle = np.exp(np.log(losses).mean(axis=0))
        axes.fill_between(
            rounds, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.15, linewidth=0
        )
        axes.plot(rounds, middle, color=colour, dashes=dash or (None, None), linewidth=1.8)
        ends[name] = float(middle[-1])
        print(
            f"{name}: {middle[-1]:.2g} at round {rounds[-1]}, {losses[:, -1].min():.2g} to {losses[:, -1].max():.2g}"
        )
    log_scale(axes)
    # each name at its line's end, at least 13 points above the one below it
    below = -np.inf
    for name, end in sorted(ends.items(), key=lambda item: item[1]):
        at = axes.transData.transform((0, end))[1] * 72 / figure.dpi
        above = max(at, below + 13)
        axes.annotate(
            name,
            (rounds[-1], end),
            (6, above - at),
            textcoords="offset points",
            color=look[name][0],
            va="center",
        )
        below = above
    axes.set_xlim(0, rounds[-1])
    axes.set_xlabel("Communication round")
    axes.set_ylabel("Training loss (mean per example)")
    axes.set_title(
        "Handwritten digits, 100 clients, 20 a round: geometric mean and range of five seeds",
        loc="left",
        fontsize=10,
    )
    tidy(axes)
    save(figure, HERE.parents[1] / "docs" / "digits.png")


if __name__ == "__main__":
    main()
