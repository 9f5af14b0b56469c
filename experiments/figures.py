"""Every figure, table and theorem of the five papers, with the experiments that reproduce it or the reason for none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Size = Literal["full", "smaller", "stand-in", "none"]
SIZES: dict[Size, str] = {
    "full": "the paper's problem and protocol",
    "smaller": "the paper's problem with fewer data or a smaller model",
    "stand-in": "other data or another problem",
    "none": "no experiment",
}


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
    """

    paper: str
    name: str
    shows: str
    size: Size
    experiments: tuple[str, ...] = ()
    note: str = ""


_FEDOPT, _FEDDUA = "reddi2021fedopt", "takakura2025feddua"
_FEDFW, _FCO, _FEDLI = "dadras2024fedfw", "yuan2021fco", "geetika2024fedli"
_NETWORKS = ("femnist", "cifar")
_SETTINGS = "learning rates, which the studies use"
_NO_DATA = "original data not available"

ITEMS = (
    Item(_FEDDUA, "Table 1", "properties of methods", "none", note="no experiment"),
    Item(
        _FEDDUA, "Table 2", "accuracies of eight methods on four tasks", "smaller", _NETWORKS,
        "not CIFAR-100 and Shakespeare",
    ),
    Item(_FEDDUA, "Figure 1, synthetic", "training loss by round", "full", ("feddua-synthetic",)),
    Item(
        _FEDDUA, "Figure 1, networks", "accuracy by round", "smaller", _NETWORKS, "not CIFAR-100 and Shakespeare"
    ),
    Item(
        _FEDDUA, "Figure 2", "sensitivity to eps_g and to the server rate", "stand-in",
        ("feddua-synthetic",), "on the synthetic problem",
    ),
    Item(
        _FEDDUA, "Figure 3", "with SCAFFOLD", "stand-in", ("feddua-combinations",), "on regression and digits"
    ),
    Item(_FEDDUA, "Figure 4", "a vision transformer on CIFAR-100", "stand-in", ("vit",), "on CIFAR-10"),
    Item(
        _FEDDUA, "Figure 5", "2,000 rounds", "none",
        note="four times the rounds of cifar at full size",
    ),
    Item(
        _FEDDUA, "Figure 6", "with FedProx", "stand-in", ("feddua-combinations",), "on regression and digits"
    ),
    Item(
        _FEDDUA, "Figure 7", "server rates by round", "none",
        note="plotted by feddua-synthetic; the paper makes no claim",
    ),
    Item(
        _FEDDUA, "Figure 8", "training loss by round", "stand-in", ("feddua-synthetic",), "on the synthetic problem"
    ),
    Item(_FEDDUA, "Tables 3 to 6", "settings and best rates", "none", note=_SETTINGS),
    Item(_FEDOPT, "Table 1, CIFAR-10", "five methods, ResNet-18", "smaller", ("cifar",)),
    Item(_FEDOPT, "Table 1, CIFAR-100", "five methods, ResNet-18", "stand-in", ("cifar",), "on CIFAR-10"),
    Item(
        _FEDOPT, "Table 1, EMNIST CR", "five methods, CNN", "smaller", ("femnist", "fedopt-tuning"),
        "other handwriting in fedopt-tuning",
    ),
    Item(_FEDOPT, "Table 1, EMNIST AE", "five methods, autoencoder", "smaller", ("autoencoder",)),
    Item(_FEDOPT, "Table 1, Shakespeare", "five methods, recurrent network", "smaller", ("shakespeare",)),
    Item(
        _FEDOPT, "Table 1, Stack Overflow NWP", "five methods, next word", "stand-in", ("next-word",), _NO_DATA
    ),
    Item(_FEDOPT, "Table 1, Stack Overflow LR", "five methods, tags", "stand-in", ("fedopt-tuning",), _NO_DATA),
    Item(
        _FEDOPT, "Figure 1", "curves on six tasks", "smaller",
        ("cifar", "femnist", "autoencoder", "shakespeare", "next-word", "fedopt-tuning"), "without SCAFFOLD",
    ),
    Item(_FEDOPT, "Figure 2", "maps of client and server rate", "stand-in", ("fedopt-tuning",), _NO_DATA),
    Item(_FEDOPT, "Figure 3", "sensitivity to tau", "stand-in", ("fedopt-tuning",), _NO_DATA),
    Item(
        _FEDOPT, "Appendix E.4", "inverse relation of client and server rate", "stand-in", ("fedopt-tuning",),
        _NO_DATA,
    ),
    Item(
        _FEDOPT, "Appendices E.1 to E.3, E.6", "more curves and maps, full test sets, learning rate decay", "none",
        note="not implemented",
    ),
    Item(_FEDFW, "Figure 1", "leakage from gradients and vertices", "smaller", ("fw-privacy",)),
    Item(_FEDFW, "Table 1", "convex problems", "smaller", ("fw-convex",)),
    Item(_FEDFW, "Table 2", "networks", "smaller", ("fw-nonconvex",)),
    Item(_FEDFW, "Table 3", "stochastic variants", "stand-in", ("fw-stochastic",)),
    Item(_FEDFW, "Figures 2 and 3", "participation", "smaller", ("fw-participation",)),
    Item(_FEDFW, "Figure 4", "the penalty lam0", "smaller", ("fw-penalty",)),
    Item(
        _FEDFW, "Theorems 1 to 3, Section 6", "rates of convergence", "stand-in", ("fw-rates",),
        "on other problems",
    ),
    Item(_FEDFW, "Section 4.3", "split constraints", "stand-in", ("fw-split",), "the paper shows no run"),
    Item(_FEDFW, "Appendix A", "averaged Frank-Wolfe steps do not converge", "full", ("fw-averaging",)),
    Item(_FCO, "Figures 1, 5 and 12", "fMRI: sparse and accurate", "stand-in", ("fmri",), "one subject of six"),
    Item(_FCO, "Figure 2", "an illustration", "none", note="no experiment"),
    *(
        Item(_FCO, f"Figure {figure}", f"LASSO, data set {roman}", "full", (f"lasso-{k}",))
        for k, (figure, roman) in enumerate(((3, "I"), (6, "II"), (7, "III"), (8, "IV")), 1)
    ),
    *(
        Item(_FCO, f"Figure {figure}", f"low rank, data set {roman}", "full", (f"lowrank-{k}",))
        for k, (figure, roman) in enumerate(((4, "I"), (9, "II"), (10, "III"), (11, "IV")), 1)
    ),
    Item(
        _FCO, "Figures 13 to 15", "handwriting under constraints", "stand-in", ("constrained-handwriting",),
        "other handwriting, fewer rounds",
    ),
    Item(_FEDLI, "Tables 1 and 2, Figures 1 to 3", "seven methods on four tasks", "smaller", ("fedli-neural",)),
    Item(
        _FEDLI, "abstract", "at par or better, untuned", "stand-in", ("tuning-free-league",), "on other tasks"
    ),
    Item(
        _FEDLI, "Lemmas 2 and 3, Theorems 1 and 2, Remark 2, Sections 6 and 8",
        "descent, linear convergence, cost of the line search", "stand-in", ("fedli-convex",),
        "on convex problems",
    ),
)  # fmt: skip

BESIDE = {
    "robustness": "robust reductions against six attacks (Yin et al. 2018, Baruch et al. 2019 and others)",
    "diloco": "few clients, hundreds of local steps, a transformer (Douillard et al. 2023)",
    "composite-league": "six methods for F + psi on ten problems with equal tuning budgets",
    "control-variates": "with full batches, control variates equalise client updates and halve FedDuA's steps",
    "phase-diagram": "methods by label skew and local steps",
    "bytes-to-accuracy": "accuracy against bytes sent up, methods with compressors",
    "compressed-extrapolation": "which norm extrapolated server steps take with compressed client updates",
    "privacy-utility": "accuracy at equal epsilon with central, shared and local noise",
    "fairness": "mean and worst decile of clients with fair methods and FedAvg",
    "fleet-clock": "synchronous, over-selected and buffered training by simulated time",
    "low-rank-finetuning": "fine-tuning by low-rank updates that average exactly",
    "personal-writers": "accuracy of unseen writers after a few steps, mean and worst tenth, nine methods",
    "muon-bias": "Muon on clients that differ, with and without correction of its bias",
}
"""Experiments on other papers or questions, with their subjects."""
