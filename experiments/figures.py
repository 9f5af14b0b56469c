"""Every figure, table and theorem of the five papers, with the experiments that reproduce it or the reason for none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Size = Literal["full", "smaller", "stand-in", "none"]
SIZES: dict[Size, str] = {
    "full": "the paper's problem and protocol",
    "smaller": "fewer data or a smaller model",
    "stand-in": "other data or another problem",
    "none": "no experiment",
}

OURS = "Beyond the paper"
"""The name of what no paper says: the claims of an experiment that are our own."""


@dataclass(frozen=True)
class Item:
    """A figure, table or theorem of a paper.

    Attributes:
        paper: key of the bibliography.
        name: as the paper numbers it.
        shows: what it shows, in a few words.
        size: how the experiments' problem stands to the paper's.
        experiments: names for `fedsolve reproduce`.
        note: why there is none, or what the experiments leave out.
        found: the outcome in a sentence, without the full stop; "" while nothing has run.
    """

    paper: str
    name: str
    shows: str
    size: Size
    experiments: tuple[str, ...] = ()
    note: str = ""
    found: str = ""


_FEDOPT, _FEDDUA = "reddi2021fedopt", "takakura2025feddua"
_FEDFW, _FCO, _FEDLI = "dadras2024fedfw", "yuan2021fco", "geetika2024fedli"
_PAINLESS = "geetika2025painless"  # the second version of the last
_NETWORKS = ("femnist", "cifar")
_SETTINGS = "learning rates"
_NO_DATA = "original data not available"

_ORDER = "bounds up to a constant that is not given"
_FEDOPT_THEOREMS = ("Theorem 1", "Corollary 1", "Theorem 2", "Corollary 2")
_SMALL_RATE = "for an unknown client rate"
_SHADOW = "bounds on models between local steps"
_LASSO = (
    (
        3,
        "I",
        "FedDualAvg finds the support, fastest on the paper's grid; FedMiD is not poor on a wider one",
    ),
    (6, "II", "FedDualAvg leads on the paper's grid; a perfect F1 score in 100 rounds is not found"),
    (7, "III", "a perfect F1 score in 100 rounds with rates chosen by F1 score or a lambda of 0.3"),
    (
        8,
        "IV",
        "FedDualAvg is significantly better at round 200 on the paper's grid; on our grid, only than FedMiD",
    ),
)
_LOW_RANK = (
    (4, "I", "FedDualAvg finds the rank within 100 rounds"),
    (
        9,
        "II",
        "FedDualAvg is faster on the paper's grid; with tuned rates there is no significant difference in rank",
    ),
    (10, "III", "FedDualAvg finds the rank sooner than some methods; losses do not differ significantly"),
    (11, "IV", "FedDualAvg finds the rank within 200 rounds, sooner than the others"),
)

ITEMS = (
    Item(_FEDDUA, "Table 1", "properties of methods", "none", note="no measurement"),
    Item(
        _FEDDUA, "Table 2", "accuracies of eight methods on four tasks", "smaller", _NETWORKS,
        "not CIFAR-100 and Shakespeare",
        "FedDuAdagrad is significantly better than FedAdagrad and FedAvg on both, not than FedExP; on FEMNIST without "
        "one of five seeds, which collapsed",
    ),
    Item(
        _FEDDUA, "Figure 1, synthetic", "training loss by round", "full", ("feddua-synthetic",),
        found="FedDuA's losses are significantly lower, by 7 and 14 orders of magnitude",
    ),
    Item(
        _FEDDUA, "Figure 1, networks", "accuracy by round", "smaller", _NETWORKS, "not CIFAR-100 and Shakespeare",
        "FedDuAdam is significantly better than the others with momentum on CIFAR-10, not on FEMNIST",
    ),
    Item(
        _FEDDUA, "Figure 2", "sensitivity to eps_g and to the server rate", "stand-in",
        ("feddua-synthetic",), "on the synthetic problem",
        "less sensitive than FedOpt; eps = 0 suffices for one of two",
    ),
    Item(
        _FEDDUA, "Figure 3", "with SCAFFOLD", "stand-in", ("feddua-combinations",), "on regression and digits",
        "FedDuA's steps are worse with SCAFFOLD than without on regression",
    ),
    Item(
        _FEDDUA, "Figure 4", "a vision transformer on CIFAR-100", "stand-in", ("vit",), "on CIFAR-10",
        "FedDuAdagrad is significantly better than FedExP on the transformer, and on the convolutional network, "
        "but not in cifar with three comparisons",
    ),
    Item(
        _FEDDUA, "Figure 5", "2,000 rounds", "stand-in", ("feddua-synthetic",), "on the synthetic problem",
        "FedDuA ends lowest",
    ),
    Item(
        _FEDDUA, "Figure 6", "with FedProx", "stand-in", ("feddua-combinations",), "on regression and digits",
        "FedProx improves some of the five server steps on regression",
    ),
    Item(
        _FEDDUA, "Figure 7", "server rates by round", "none",
        note="no claim",
    ),
    Item(
        _FEDDUA, "Figure 8", "training loss by round", "stand-in", ("feddua-synthetic",), "on the synthetic problem",
        "FedDuAdam is below all from round 25, FedDuAdagrad not significantly in early rounds",
    ),
    Item(
        _FEDDUA, "Theorem 3.2", "lower bound on the best step size", "stand-in", ("feddua-theorems",),
        "random instances", "no best step is shorter in 3,600 rounds",
    ),
    Item(
        _FEDDUA, "Theorem 3.3", "the same with momentum", "stand-in", ("feddua-theorems",), "random instances",
        "with momentum, the best step is at least 1.9 times as long",
    ),
    Item(
        _FEDDUA, "Theorem 4.1", "minimax optimality", "stand-in", ("feddua-theorems",), "random instances",
        "in 360 searches FedDuA's next model has the smallest worst case",
    ),
    Item(
        _FEDDUA, "Theorem 4.3", "convergence", "stand-in", ("feddua-dimension",), "on regression",
        "runs stay within the bound, with the constant of its proof",
    ),
    Item(
        _FEDDUA, "Corollary 4.4", "convergence of FedDuAdagrad", "stand-in", ("feddua-dimension",), "on regression",
        "as Theorem 4.3",
    ),
    Item(
        _FEDDUA, "Section 4.2.1", "rates by dimension", "stand-in", ("feddua-dimension",), "on regression",
        "FedExP's rounds do not grow with the dimension either: only its bound does",
    ),
    Item(_FEDDUA, "Tables 3 to 6", "settings and best rates", "none", note=_SETTINGS),
    Item(
        _FEDOPT, "Table 1, CIFAR-10", "five methods, ResNet-18", "smaller", ("cifar",),
        found="FedAvgM, FedAdam and FedYogi are significantly better than FedAvg, which collapses on two of five seeds",
    ),
    Item(
        _FEDOPT, "Table 1, CIFAR-100", "five methods, ResNet-18", "stand-in", ("cifar",), "on CIFAR-10",
        "a hundred classes are not learnt within the budget; ten classes: see the row above",
    ),
    Item(
        _FEDOPT, "Table 1, EMNIST CR", "five methods, CNN", "smaller", ("femnist", "fedopt-tuning"),
        "other handwriting in fedopt-tuning",
        "adaptive methods beat FedAvg on digits, not significantly on FEMNIST in 60 rounds",
    ),
    Item(
        _FEDOPT, "Table 1, EMNIST AE", "five methods, autoencoder", "smaller", ("autoencoder",),
        found="not learnt: after all 3,000 rounds on 300 writers three methods reconstruct the mean picture",
    ),
    Item(
        _FEDOPT, "Table 1, Shakespeare", "five methods, recurrent network", "smaller", ("shakespeare",),
        found="FedAdam and FedYogi are 3 to 4 points below FedAvg after 150 of 1,500 rounds",
    ),
    Item(
        _FEDOPT, "Table 1, Stack Overflow NWP", "five methods, next word", "stand-in", ("next-word",), _NO_DATA,
        "after 360 of 1,500 rounds, below half of the paper's accuracies, FedAdam and FedYogi are significantly better "
        "than FedAvg, not than FedAvgM",
    ),
    Item(
        _FEDOPT, "Table 1, Stack Overflow LR", "five methods, tags", "stand-in", ("fedopt-tuning",), _NO_DATA,
        "adaptive methods are significantly better than FedAvg and FedAvgM on tags",
    ),
    Item(
        _FEDOPT, "Figure 1", "curves on six tasks", "smaller",
        ("cifar", "femnist", "autoencoder", "shakespeare", "next-word", "fedopt-tuning"), "without SCAFFOLD",
        "curves as in the rows of Table 1",
    ),
    Item(
        _FEDOPT, "Figure 2", "maps of client and server rate", "stand-in", ("fedopt-tuning",), _NO_DATA,
        "FedAdam and FedYogi have significantly more good rates than FedAvgM on digits, on handwriting only FedYogi",
    ),
    Item(
        _FEDOPT, "Figure 3", "sensitivity to tau", "stand-in", ("fedopt-tuning",), _NO_DATA,
        "tau = 1e-3 is almost as good as the best on digits, not on tags",
    ),
    Item(
        _FEDOPT, "Appendix E.4", "inverse relation of client and server rate", "stand-in", ("fedopt-tuning",),
        _NO_DATA, "the relation holds for FedAdam and FedYogi on three problems",
    ),
    *(Item(_FEDOPT, name, "rates for losses that are not convex", "none", note=_ORDER) for name in _FEDOPT_THEOREMS),
    Item(
        _FEDOPT, "Appendices E.1 to E.3, E.6", "more curves and maps, full test sets, learning rate decay", "none",
        note="their text was not available",
    ),
    Item(
        _FEDFW, "Figure 1", "leakage from gradients and vertices", "smaller", ("fw-privacy",),
        found="a vertex of the l1 ball hides images (5 dB against 58), one of the l2 ball does not",
    ),
    Item(
        _FEDFW, "Table 1", "convex problems", "smaller", ("fw-convex",),
        found="FedFW is above FedDR in some columns; the order depends on FedDR's rate",
    ),
    Item(
        _FEDFW, "Table 2", "networks", "smaller", ("fw-nonconvex",),
        found="FedFW is in no column above a tuned FedDR",
    ),
    Item(
        _FEDFW, "Table 3", "stochastic variants", "stand-in", ("fw-stochastic",),
        found="FedFW is above the public code's FedDR in 8 of 8 columns, above a tuned one in 1",
    ),
    Item(
        _FEDFW, "Figures 2 and 3", "participation", "smaller", ("fw-participation",),
        found="more clients converge faster",
    ),
    Item(
        _FEDFW, "Figure 4", "the penalty lam0", "smaller", ("fw-penalty",),
        found="a larger lam0 has larger first gaps in some problems",
    ),
    Item(
        _FEDFW, "Theorems 1 to 3, Section 6", "rates of convergence", "stand-in", ("fw-rates",),
        "on other problems", "all bounds hold; FedFW+ is nearer to the optimum than FedFW",
    ),
    Item(
        _FEDFW, "Section 4.3", "split constraints", "stand-in", ("fw-split",), "the paper shows no run",
        "clients that know parts of the constraints find the same solution",
    ),
    Item(
        _FEDFW, "Appendix A", "averaged Frank-Wolfe steps do not converge", "full", ("fw-averaging",),
        found="the counter-example stays where it starts",
    ),
    Item(
        _FCO, "Figures 1, 5 and 12", "fMRI: sparse and accurate", "stand-in", ("fmri",), "one subject of six",
        "FedDualAvg is as accurate and sparse as the centralised solution, FedMiD denser, not significantly worse",
    ),
    Item(_FCO, "Figure 2", "an illustration", "none", note="it shows no data"),
    *(
        Item(_FCO, f"Figure {figure}", f"LASSO, data set {roman}", "full", (f"lasso-{k}",), found=found)
        for k, (figure, roman, found) in enumerate(_LASSO, 1)
    ),
    *(
        Item(_FCO, f"Figure {figure}", f"low rank, data set {roman}", "full", (f"lowrank-{k}",), found=found)
        for k, (figure, roman, found) in enumerate(_LOW_RANK, 1)
    ),
    Item(
        _FCO, "Figures 13 to 15", "handwriting under constraints", "stand-in", ("constrained-handwriting",),
        "other handwriting, fewer rounds", "FedDualAvg is significantly better in l1 balls, in part in the l2 ball",
    ),
    Item(_FCO, "Theorem 4.1", "rate of FedMiD and FedDualAvg", "none", note=_SMALL_RATE),
    *(Item(_FCO, f"Theorem 4.{k}", "rate of FedDualAvg", "none", note=_SHADOW) for k in (2, 3)),
    Item(
        _FEDLI, "Tables 1 and 2, Figures 1 to 3", "seven methods on four tasks", "smaller", ("fedli-neural",),
        "four methods on FEMNIST", "FedLi-LS is significantly better than FedAvg, FedLi-LU significantly worse",
    ),
    Item(
        _FEDLI, "abstract", "at par or better, untuned", "stand-in", ("tuning-free-league", "fedli-convex"),
        "on other tasks",
        "no significant difference between FedLi and five others on 12 problems; on four convex ones FedLi-LS is worse "
        "than tuned FedAvg",
    ),
    Item(
        _FEDLI, "Lemmas 2 and 3, Theorems 1 and 2, Remark 2, Sections 6 and 8",
        "descent, linear convergence, cost of the line search", "stand-in", ("fedli-convex",),
        "on convex problems",
        "of version 1: Theorem 1 holds; Lemmas 2 and 3 and Theorem 2 have counter-examples",
    ),
    Item(
        _PAINLESS, "abstract of version 2", "at par or better, untuned; a linear rate", "smaller", ("fedsls",),
        "FEMNIST and MNIST, fewer rounds",
        "untuned, both are significantly better than five methods on MNIST, FedSLS worse than FedAdam on FEMNIST; "
        "linear on least squares",
    ),
    Item(
        _PAINLESS, OURS, "tuned baselines, FedDuAdam, resets, evaluations", "smaller", ("fedsls",),
        "claims of our own on the same runs",
        "tuned FedAdam is significantly better on FEMNIST; searches take 2.5 to 3.6 times FedAvg's evaluations; resets "
        "1 and 2 are significantly worse on FEMNIST, better on MNIST",
    ),
    Item(
        _PAINLESS, "Theorems 1 to 4", "rates of FedSLS and FedExpSLS", "none",
        note="for clients with one minimiser, in place of version 1's Lemmas 2 and 3 and Theorem 2; text not available",
    ),
)  # fmt: skip

BESIDE = {
    "robustness": "robust reductions against six attacks",
    "diloco": "few clients, many local steps (Douillard et al. 2023)",
    "diloco-bytes": "DiLoCo, its sparse, streaming and Muon forms, AdamW and GPA by bytes and tokens",
    "composite-league": "nine methods for F + psi, equal tuning budgets",
    "control-variates": "at short local work control variates halve FedDuA's steps; own gradients restore them",
    "control-variates-femnist": "on FEMNIST's network own gradients are best with all writers",
    "first-round": "FedDuAdagrad's collapsed runs by network, local work and eps, and other first rounds",
    "phase-diagram": "methods by label skew and local steps",
    "bytes-to-accuracy": "accuracy against bytes sent up",
    "compressed-extrapolation": "extrapolated server steps with compressed client updates",
    "composite-drift": "composite methods on skewed clients, with exact gradients and with noise",
    "private-extrapolation": "FedExP and FedDuA under privacy beside tuned baselines",
    "privacy-utility": "central, shared and local noise at equal epsilon",
    "fairness": "fair methods, mean and worst decile",
    "fleet-clock": "buffered and over-selected rounds by simulated time",
    "low-rank-finetuning": "low-rank fine-tuning",
    "personal-writers": "unseen writers after a few steps",
    "fedada2": "FedAda2 and FedAda2++ beside four methods under label skew (Lee et al. 2025)",
    "muon-bias": "Muon with and without correction of its bias",
}
"""Experiments on other papers or questions, with their subjects."""

NEWER = ("private-extrapolation", "composite-league", "composite-drift", "fedada2")
"""Of those, the experiments on papers that follow the five."""
