"""Theorems 3.2, 3.3 and 4.1 of Takakura et al. 2025: FedDuA's step beside steps and models that a search finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments.feddua.feddua_theorems.step_figures import ratios_by_geometry, worst_case_by_rate
from experiments.feddua.feddua_theorems.step_geometries import NAMES, PRECONDITIONED
from experiments.feddua.feddua_theorems.step_search import WorstCase, least_worst_case, step_ratios
from experiments.margins import margin
from fedsolve.studies.experiment import Claim, Context, Experiment, Outcome, Verdict
from fedsolve.studies.public import ResultTable

RUNS, ROUNDS, FEATURES, CLIENTS = 30, 20, 10, 5
SEARCHES, DIMENSIONS, FEW = 30, (2, 3, 5), 3
ROUNDING = margin("feddua-theorems", "step")
"""Of the searches for a step: a best step shorter than FedDuA's by this share contradicts the theorem."""
LOWER, NEAR = margin("feddua-theorems", "lower"), margin("feddua-theorems", "apart")
"""Of the searches for a model: a worst case lower by the first share contradicts the theorem; a minimiser farther away
than the second share of FedDuA's step would be another one."""
STEPS = {"without momentum": False, "with momentum 0.9": True}


def run(context: Context) -> Outcome:
    """Every search, and what follows."""
    runs, searches = (2, 2) if context.quick else (RUNS, SEARCHES)
    plan = {"runs": runs, "rounds": ROUNDS, "features": FEATURES, "clients": CLIENTS}
    advance, ratios = context.progress("step sizes"), {}
    for words, momentum in STEPS.items():
        for name in (*NAMES, *PRECONDITIONED):
            part = context.part(f"steps-{name}-{words}", plan, lambda n=name, m=momentum: _ratios(n, m, runs))
            ratios[words, name] = part["ratios"]
        advance(len(ratios), 2 * len((*NAMES, *PRECONDITIONED)))
    found = {}
    advance = context.progress("worst cases")
    for name in NAMES:
        for d in DIMENSIONS:
            kept = {"searches": searches, "dimensions": d, "clients": FEW}
            part = context.part(f"worst-{name}-{d}", kept, lambda n=name, d=d: _worst(n, d, searches))
            found[name, d] = WorstCase(*(part[field] for field in WorstCase._fields))
        advance(len(found), len(NAMES) * len(DIMENSIONS))
    return Outcome(
        claims(ratios, found),
        {
            "steps": lambda: (
                "The best step size over FedDuA's, by geometry: range, middle half and median of all rounds. At 1 the "
                "bound is tight.",
                ratios_by_geometry(ratios, tuple(STEPS)),
            ),
            "worst": lambda: (
                "V, the worst case over all w* for which A.P.C. holds, along each geometry's step by its length over "
                "FedDuA's: ten draws in five dimensions.",
                worst_case_by_rate(NAMES, DIMENSIONS[-1], FEW),
            ),
        },
        {"steps": _steps(ratios), "searches": _searches(found)},
        DEVIATIONS,
        plan | {"searches": searches, "dimensions": list(DIMENSIONS), "clients of searches": FEW},
    )


def _ratios(name: str, momentum: bool, runs: int) -> dict[str, np.ndarray]:
    with jax.enable_x64(True):
        every = [step_ratios(name, seed, ROUNDS, FEATURES, CLIENTS, momentum) for seed in range(runs)]
    return {"ratios": np.stack(every)}


def _worst(name: str, features: int, searches: int) -> dict[str, np.ndarray]:
    with jax.enable_x64(True):
        every = [least_worst_case(name, seed, features, FEW) for seed in range(searches)]
    return dict(zip(WorstCase._fields, np.array(every).T, strict=True))


Ratios = Mapping[tuple[str, str], np.ndarray]
Found = Mapping[tuple[str, int], WorstCase]


def claims(ratios: Ratios, found: Found) -> list[Claim]:
    """Verdicts: a theorem is refuted by one case outside of it."""
    theirs = {
        "without momentum": "Theorem 3.2: eta_g* >= h^-1(m), where A.P.C. holds",
        "with momentum 0.9": "Theorem 3.3: eta_g* >= h^-1(m), where the strong A.P.C. holds",
    }
    bounds = [
        _bound(words, source, {name: r for (w, name), r in ratios.items() if w == words})
        for words, source in theirs.items()
    ]
    apart, gain = (np.concatenate([getattr(one, key) for one in found.values()]) for key in ("apart", "gain"))
    others = np.concatenate([one.plain for (name, _), one in found.items() if name != "Euclidean"])
    others = others[np.isfinite(others)]
    agree: Verdict = "consistent" if gain.max() <= LOWER and apart.max() <= NEAR else "refuted"
    worse: Verdict = "consistent" if (others > 0).all() else "refuted"
    return [
        *bounds,
        Claim(
            "The model with the least worst case is FedDuA's next one",
            "Theorem 4.1: there is a “unique minimizer” of V(w), and it is FedDuA's next model",
            f"{len(apart)} searches: the minimiser found is at most {apart.max():.1g} of FedDuA's step away, its worst "
            f"case lower by at most {max(gain.max(), 0):.1g} of FedDuA's",
            agree,
            f"refuted by a worst case lower by {LOWER:g}, or a minimiser farther away than {NEAR:g} of the step",
        ),
        Claim(
            "In another geometry than the Euclidean one FedExP's step has a larger worst case than FedDuA's",
            "Theorem 4.1 and text: FedOpt and FedExP “are suboptimal if their update differs” from FedDuA's",
            f"larger in {np.sum(others > 0)} of {len(others)} cases, by {np.median(others):.2g} of its size (median)",
            worse,
            "models outside the domain of the entropy are left out",
        ),
    ]


def _bound(words: str, source: str, ratios: Mapping[str, np.ndarray]) -> Claim:
    least = {name: float(one.min()) for name, one in ratios.items()}
    name = min(least, key=least.__getitem__)
    every = np.concatenate([one.ravel() for one in ratios.values()])
    return Claim(
        f"The best step along FedDuA's direction is at least as long as FedDuA's, {words}",
        source,
        f"{len(every):,} rounds in {len(ratios)} geometries: at least {least[name]:.3g} times as long ({name}), median "
        f"{np.median(every):.2g}",
        "consistent" if least[name] >= 1 - ROUNDING else "refuted",
        f"refuted by a best step shorter than {1 - ROUNDING:g} of FedDuA's",
    )


def _steps(ratios: Ratios) -> ResultTable:
    rows: list[list[Any]] = []
    for name in dict.fromkeys(name for _, name in ratios):
        cells = [ratios[words, name] for words in STEPS]
        rows.append([name, *(f"{stat(one):.3g}" for one in cells for stat in (np.min, np.median))])
    head = ["Geometry", *(f"{what}, {words}" for words in STEPS for what in ("Least", "Median"))]
    return ResultTable("The best step size over FedDuA's", head, rows)


def _searches(found: Found) -> ResultTable:
    rows: list[list[Any]] = [
        [name, d, f"{one.apart.max():.1g}", f"{max(one.gain.max(), 0):.1g}", f"{np.nanmedian(one.plain):.2g}"]
        for (name, d), one in found.items()
    ]
    head = ["Geometry", "Dimensions", "Largest distance", "Largest gain", "FedExP's step: median loss"]
    return ResultTable("Searches for the least worst case, in shares of FedDuA's", head, rows)


DEVIATIONS = (
    "The paper proves these theorems and shows no run. Instances are ours: clients whose minimisers are random affine "
    "subspaces through one point, updates that go a random part of the way to them.",
    f"Steps: {RUNS} runs of {ROUNDS} rounds, {CLIENTS} clients, {FEATURES} dimensions; the best step by a bounded "
    "scalar search up to 20 times FedDuA's.",
    f"Models: {SEARCHES} instances of {FEW} clients for each geometry and dimension. A box of eight times FedDuA's "
    "step stands for the whole space, and its corners and those of its cut give the exact supremum; SLSQP minimises it "
    "from five random starts.",
    "FedDuA's steps are the library's, in float64; the searches use psi and its gradient alone. Adagrad's and Adam's "
    "geometry is that of each round.",
)

STUDY = Experiment(
    title="FedDuA's step beside exhaustive searches",
    citation="takakura2025feddua",
    summary="Theorems 3.2, 3.3 and 4.1 in random instances: the best step size, and the least worst case.",
    run=run,
    minutes=0.2,
    needs_data=False,
)
