"""The papers' own words on what studies repeat, in short quotations by the place where they stand."""

from __future__ import annotations

import re
from collections.abc import Mapping

QUOTATIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "takakura2025feddua": {
        "Figure 1": ("FedDuA consistently outperforms existing methods across all datasets",),
        "Table 2": (
            "FedDuA consistently outperforms existing methods across all datasets",
            "non-momentum methods perform better or comparable in the other datasets",
        ),
        "Figure 2": (
            "the performance of FedDuA is not sensitive to the choice of epsilon_g. Furthermore, epsilon_g = 0 is "
            "sufficient to achieve good performance",
        ),
        "Figure 3": (
            "vanilla SCAFFOLD does not outperform FedAvg, [...] but FedDuA with SCAFFOLD outperforms the other methods",
        ),
        "Figure 6": ("FedProx-type local training does not improve performance in our setup",),
        "Figure 8": ("FedDuA converges faster than other methods in terms of training loss",),
        "Section 1": ("FedDuA is orthogonal to the existing methods which [modify] the local training procedure",),
    },
    "reddi2021fedopt": {
        "Stack Overflow LR": (
            "adaptive optimizers dramatically outperform non-adaptive ones",
            "FedAdagrad is the best optimizer, and is robust to tau",
        ),
        "Figure 2": (
            "For FedAvgM, there are only a few good values [of the client rate] for each [server rate], while for "
            "FedAdam and FedYogi, there are many",
        ),
        "Figure 3": ("tau = 1e-3 works almost as well all other values",),
        "EMNIST CR": ("FedAdam and FedYogi perform comparably to or better than non-adaptive optimizers throughout",),
        "Appendix E.4": ("the inverse relationship between [the two rates] in Corollary 1 & 2, which we observe",),
    },
    "dadras2024fedfw": {
        "Figure 1 and": (
            "The Deep Leakage Algorithm can recover CIFAR-100 data points from shared gradients. Sharing linear "
            "minimization outputs enhances privacy",
        ),
        "Table 3": ("FedFW-sto outperformed FedDR in our experiments in the stochastic setting",),
        "Figure 2": ("faster convergence for higher participation probability",),
        "Figure 3": ("faster convergence for higher participation probability",),
        "Figure 4": ("A higher [lam0] leads to a larger gap in the initial iterations",),
        "Section 4.3": ("This modification does not affect the solution set, due to the consensus constraint",),
        "Section 6": ("an empirically faster version of FedFW",),
    },
    "geetika2024fedli": {
        "Lemma 3": ("for convex objectives the descent in the global function comes for free",),
    },
    "yuan2021fco": {
        "Figure 3": (
            "FedDualAvg not only identifies most of the sparsity pattern but also is fastest",
            "the less-principled FedDualAvg-OSP is also very competitive",
            "The poor performance of FedMiD",
            "corroborated empirically by the least sparse solution obtained by FedMiD",
        ),
        "A.2.2": (
            "FedDualAvg converges to the perfect F1-score in less than 100 rounds, which outperforms the other "
            "baselines by a margin",
            "The convergence of FedMiD and FedMiD-OSP remains slow",
            "The F1-score of FedDualAvg-OSP converges faster on these sparser datasets",
        ),
        "A.2.3": (
            "all the four algorithms take more rounds to converge",
            "FedDualAvg manages to find perfect F1-score in less than 200 rounds, which outperforms the other "
            "algorithms significantly",
            "FedDualAvg-OSP can recover an almost perfect F1-score after 500 rounds",
            "FedMiD and FedMiD-OSP have very limited progress within 500 rounds",
        ),
        "Figure 4": (
            "FedDualAvg finds the solution with exact rank in less than 100 communication rounds",
            "FedMiD and FedMiD-OSP converge slower in loss and rank",
            "FedDualAvg-OSP can generate low-rank solutions but is far less accurate",
        ),
        "A.3.2": (
            "FedDualAvg can recover the exact rank in less than 100 rounds, which outperforms the other baselines by a "
            "margin",
            "FedDualAvg-OSP can recover a low-rank solution but is less accurate",
            "The convergence of FedMiD and FedMiD-OSP remains slow",
        ),
        "A.3.3": (
            "FedDualAvg manages to find exact rank in less than 200 rounds, which outperforms the other "
            "algorithms significantly",
        ),
        "Figure 1: sig": ("[FedDualAvg] significantly outperforms the local baseline [...] and the FedAvg baseline",),
        "Figure 5": (
            "FedDualAvg yields sparse and accurate solutions that are comparable with the centralized baseline",
            "FedMiD and FedMiD-OSP provides denser solutions that are relatively less accurate",
            "FedDualAvg-OSP can provide sparse solutions but far less accurate",
        ),
        "Figure 12": (
            "FedDualAvg recovers sparse and accurate solutions, and is robust to learning-rate configurations",
        ),
        "Figure 13": (
            "FedDualAvg outperforms the other three algorithms by a margin",
            "the other three algorithms behave very closely in terms of the three metrics tested",
        ),
        "Figure 14": (
            "FedDualAvg outperforms the FedMiD and FedMiD-OSP in all three metrics",
            "FedMiD and FedMiD-OSP share very similar trajectories",
            "FedDualAvg-OSP behaves much worse in training loss",
            "the training accuracy and validation accuracy [of FedDualAvg-OSP] are better",
        ),
        "Figure 15": (
            "FedDualAvg outperforms FedMiD and FedMiD-OSP in all three metrics",
            "FedMiD and FedMiD-OSP share similar trajectories",
            "FedDualAvg-OSP behaves much worse (which is out of the plotting ranges)",
        ),
    },
}  # fmt: skip
"""Key of a paper -> part of the text that names a place -> what stands there."""


def paper_of(theirs: str, citation: str) -> str:
    """The key of the paper that a claim is of: the study's, unless the claim begins with another paper's first author.

    >>> paper_of("Reddi et al., Table 1", "takakura2025feddua"), paper_of("Table 2", "takakura2025feddua")
    ('reddi2021fedopt', 'takakura2025feddua')
    """
    author = re.match(r"(\w+) et al\.", theirs)
    return next((key for key in QUOTATIONS if author and key.startswith(author[1].lower())), citation)
