"""Sparse logistic regression on brain voxels: Figures 1, 5 and 12 of Yuan, Zaheer and Reddi 2021, on one subject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array

import fedsolve as fs
from experiments.fco.fmri.statements import ALONE, NAME, ROUNDS, SHOWN, SPLITS, shown, statements
from experiments.fco.methods import CENTRAL, METHODS, PAPER_GRID, beside, method, solved
from fedsolve.geometry import L1
from fedsolve.studies import Cells, Problem, Study
from fedsolve.studies.pictures import Several, new_figure, styles, tidy
from fedsolve.studies.public import module, static
from fedsolve.tasks import BinaryAccuracy, Linear, Logistic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAMBDA, ZERO = 0.003, 1e-4
BEYOND = {
    "client_lr": (*PAPER_GRID["client_lr"], 3.0, 10.0),
    "server_lr": (0.001, 0.003, *PAPER_GRID["server_lr"]),
}
"""The paper's, and what lies beyond its corner where FedDualAvg-OSP is best and still gains."""
VALIDATION = 4
"""Runs of the scanner that choose the rates; one other is tested, the rest are clients."""
PENALTY = L1(LAMBDA).on("weight")
_AT = (10, 30, 100, 300)
"""Rounds of the paper's panels."""


@module
class HeldOut(fs.diagnostics.Diagnostic):
    """`NAME_objective`, mean logistic loss plus penalty, and `NAME_accuracy`, on examples that train nothing."""

    name: str = static()
    examples: fs.Examples
    model: Linear = static()

    def __call__(self, point: fs.diagnostics.Point) -> dict[str, Array]:
        """The loss in nats, the accuracy as a share of 1."""
        loss, accuracy = Logistic(self.model), BinaryAccuracy(self.model)
        return {
            f"{self.name}_objective": loss(point.params, self.examples) + PENALTY.value(point.params),
            f"{self.name}_accuracy": accuracy(point.params, self.examples),
        }


def split(runs: Sequence[Any], number: int) -> fs.Task:
    """Of the examples of runs, four runs validate in every split, one other is tested, and the rest are clients."""
    order = np.random.default_rng(0).permutation(len(runs))
    validation = jax.tree.map(lambda *x: np.concatenate(x), *(runs[i] for i in order[:VALIDATION]))
    tested = order[VALIDATION + number]
    clients = sorted(set(order[VALIDATION:].tolist()) - {int(tested)})
    model = Linear(runs[0].x.shape[1], bias=True)
    task = fs.Task(
        name="voxels", init=model.init, loss=Logistic(model),
        data=fs.FederatedData.from_clients([runs[i] for i in clients], [f"run {i}" for i in clients]),
        batch_size=1, epochs=1, citation="haxby2001",
        diagnostics=(
            fs.diagnostics.Density(ZERO, "weight"),
            HeldOut("validation", validation, model), HeldOut("test", runs[tested], model),
        ),
    )  # fmt: skip
    own = [solved(fs.baselines.alone(task, i), PENALTY) for i in range(task.data.num_clients)]
    alone = {name: np.mean([one[name] for one in own]) for name in own[0]}
    return beside(task, {CENTRAL: solved(task, PENALTY), ALONE: alone})


@lru_cache(maxsize=8)
def task(data_dir: Path | None, seed: int) -> fs.Task:
    """One split of the subject's twelve runs."""
    found = fs.tasks.build("voxels", **({"data_dir": data_dir} if data_dir else {}), test_runs=1)
    return split([*map(found.data.client, range(found.data.num_clients)), found.test], seed)


def made_up(data_dir: Path | None, seed: int) -> fs.Task:
    """A split of ten runs of noise in which three voxels tell the classes apart."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(2, dtype=np.int32), 9)
    shift = np.zeros(40)
    shift[:3] = 1.0
    x = [(rng.standard_normal((18, 40)) + (2 * y[:, None] - 1) * shift).astype(np.float32) for _ in range(10)]
    return split([fs.Examples(one, y) for one in x], seed)


@dataclass(frozen=True)
class Dots:
    """A row a method, a column a round: a dot for each setting of the grid, up and to the left is better.

    Attributes:
        caption: what it shows.
    """

    caption: str

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        names = [m for m in cells.methods(next(iter(study.problems))) if (NAME, m) in cells.by_name]
        grids = {m: grid for m in names if (grid := cells.cell(NAME, m).grid) is not None}
        figure = new_figure(2.3 * len(_AT) + 0.8, 1.9 * max(1, len(grids)) + 1.0)
        axes = figure.subplots(max(1, len(grids)), len(_AT), sharex=True, sharey=True, squeeze=False)
        if not grids:  # a quick run tunes nothing
            axes.flat[0].text(0, 0.5, "nothing was tuned", fontsize=9)
            return self.caption, figure
        colours = styles(list(grids))
        for row, (name, grid) in zip(axes, grids.items(), strict=True):
            for axis, at in zip(row, _AT, strict=True):
                which = int(np.searchsorted(grid.rounds, at))
                here = {key: values[:, 0, which] for key, values in grid.metrics.items()}
                chosen = shown(grid)
                axis.scatter(
                    here["density"][chosen], 100 * here["validation_accuracy"][chosen], s=18, alpha=0.7,
                    color=colours[name][0], label="a pair of rates",
                )  # fmt: skip
                for known, mark, label in ((ALONE, "x", "a client alone"), (CENTRAL, "P", CENTRAL)):
                    point = here[f"{known}_density"][:1], 100 * here[f"{known}_validation_accuracy"][:1]
                    axis.scatter(*point, marker=mark, s=46, color="black", label=label, zorder=3)
                tidy(axis)
                axis.tick_params(labelsize=8)
            row[0].set_ylabel(f"{name}\naccuracy (%)", fontsize=9)
        for axis, at in zip(axes[0], _AT, strict=True):
            axis.set_title(f"round {at}", loc="left", fontsize=9.5)
        for axis in axes[-1]:
            axis.set_xlabel("density", fontsize=9)
        figure.suptitle(study.title, x=0.01, ha="left", fontsize=10.5)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        low, high = SHOWN
        words = f"with client rate times server rate from {low:g} to {high:g}, on split {study.tuning_seed}; up and to"
        return f"{self.caption} {words} the left is better. Crosses: the baselines.", figure


PROBLEM = Problem(
    NAME,
    "one subject of six, half an axial slice of 530 voxels; 7 clients of 18 volumes, 72 volumes for validation and 18 "
    "for testing",
    task,
    {"rounds": ROUNDS, "clients_per_round": 4, "eval_every": 10},
    select="validation_objective",
    tuning={"seeds": tuple(range(SPLITS))},
    data_by_seed=True,
    overlap=1 / 7,  # one run tested, seven trained on
)
STUDY = Study(
    title="Voxels: sparse and accurate by federated methods (Figures 1, 5 and 12)",
    summary="l1 logistic regression of face against house on fMRI voxels: five methods, eight runs each tested once.",
    paper="yuan2021fco",
    problems={NAME: PROBLEM},
    quick=replace(PROBLEM, task=made_up),
    methods={
        name: method(build, PENALTY, BEYOND if name == "FedDualAvgOSP" else PAPER_GRID)
        for name, build in METHODS.items()
    },
    seeds=tuple(range(SPLITS)),
    statements=statements(),
    pictures={
        "curves": Several(
            "At the tuned rates: mean and range over splits, and the centralised solution.",
            ("validation_objective", "density", "test_accuracy"),
            beside=CENTRAL,
        ),
        "dots": Dots("Density against accuracy on the validation runs: a dot for each pair of rates"),
    },
    deviations=(
        "One subject, half an axial slice of 530 voxels, instead of six subjects and 39,912 voxels: no more could be "
        "found. A client is a run of that subject (18 volumes) instead of a session of one of five subjects.",
        "Face against house instead of face against horse: the study has no horses.",
        "4 of 7 clients a round instead of 20 of 59.",
        "Most accuracies are at or near 100 %, where so few volumes tell methods apart by large differences alone.",
        "The paper validates on the sixth subject and shows that. Here four runs choose the rates, by its rule, and "
        "Figure 12's panels show them; in all else each of the other eight runs is tested once, by what the seven "
        "beside it have trained. Splits share most of their training runs: intervals say how sure this subject is, "
        "not how sure another would be.",
        f"The paper does not give lambda: {LAMBDA} for all methods and the baselines.",
        "Rates are chosen by the mean over the eight splits, from the paper's 7 x 7; FedDualAvg-OSP, which gained "
        "at its corner, has client rates of 3 and 10, server rates of 0.001 and 0.003 too. Figure 12 and "
        "what is said of it are of the paper's alone.",
    ),
    minutes=0.9,
)
