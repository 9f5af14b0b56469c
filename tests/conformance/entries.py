"""The methods under test: every row of the catalogue, and compositions that exercise what rows do not."""

from __future__ import annotations

import optax
import pytest

import fedsolve as fs
from fedsolve.config.build import example_of
from fedsolve.config.catalogue import ALGORITHMS
from fedsolve.geometry import L1, ElasticNet, L1Ball, L2Ball, PNorm

CLIENT_LR = 0.3

# rows that are given more than a client rate and the catalogue's example (no rate for the Frank-Wolfe methods)
PSI = L1(0.02).on("w") + L1Ball(1.5).on("b")
BALL = L2Ball(9.0).on("w") + L1Ball(20.0).on("b") + L2Ball(3.0).on("scale") + L1Ball(3.0).on("shift.*")
NEEDS = {
    "FedKSeed": lambda lr: {"client_lr": lr / 10, "seeds": 8},
    "FedMiD": lambda lr: {"client_lr": lr, "psi": PSI},
    "FedMiDOSP": lambda lr: {"client_lr": lr, "psi": PSI},
    "FastFedDA": lambda lr: {"psi": PSI, "gamma": 1 / lr},
    "CFedDA": lambda lr: {"psi": PSI, "gamma": 1 / lr},
    "MCFedDA": lambda lr: {
        "psi": L1(0.02),
        "gamma": 1 / lr,
        "stages": (2,),
        "scales": (2, 1),
        "radii": (3.0, 1.0),
    },
    "ProxTracking": lambda lr: {"psi": PSI, "client_lr": lr},
    "FedDualAvg": lambda lr: {"client_lr": lr, "psi": PSI},
    "FedDualAvgOSP": lambda lr: {"client_lr": lr, "psi": PSI},
    "Subgradient": lambda lr: {"client_lr": lr, "psi": L1(0.02)},
    "FedFW": lambda lr: {"constraint": BALL, "steps": fs.frank_wolfe.Convex(lr, 0.5)},
    "FedFWPlus": lambda lr: {"constraint": L1Ball(30.0), "steps": fs.frank_wolfe.Convex(lr, 0.5)},
    "FedFWSto": lambda lr: {"constraint": BALL, "steps": fs.frank_wolfe.Stochastic(lr)},
    "FedDR": lambda lr: {"client_lr": lr, "psi": PSI, "eta": 0.7, "alpha": 1.3},
    "FedLiLS": lambda lr: {"eta_max": 8 * lr},
    "FedSLS": lambda lr: {"eta_max": 8 * lr},
    "FedExpSLS": lambda lr: {"eta_max": 8 * lr},
    "FedAdamSLS": lambda lr: {"eta_max": 8 * lr},
    "FedAdamExpSLS": lambda lr: {"eta_max": 8 * lr, "server_lr": 0.1},
    "FedLiLU": lambda lr: {"client_lr": lr, "server_lr": 30.0, "momentum": 0.5},
    "PAdaMFed": lambda lr: {"horizon": 10},
    "Newton": lambda lr: {"psi": ElasticNet(0.02, l2=lr)},
    "FedDeltaSGD": lambda lr: {"first": lr},
    "EF21Muon": lambda lr: {"server_lr": lr / 10, "smallest": 4, "down": {"name": "TopK", "share": 0.5}},
    "GPA": lambda lr: {"server_lr": lr},
    "SparseLoCo": lambda lr: {"client_lr": lr, "smallest": 4},
    "SCALLION": lambda lr: {"client_lr": lr, "smallest": 4},
    "SCAFCOM": lambda lr: {"client_lr": lr, "smallest": 4},
    "FedComLoc": lambda lr: {"client_lr": lr, "smallest": 4},
    "SPPMAS": lambda lr: {"client_lr": lr, "local_rounds": 2},
    "FedPer": lambda lr: {"client_lr": lr, "leaves": ("b", "shift.*")},
    "pFedMe": lambda lr: {"client_lr": lr, "lam": 2.0, "personal_lr": lr, "personal_steps": 2},
    "FedBN": lambda lr: {"client_lr": lr, "leaves": ("scale", "shift.*")},
    "IFCA": lambda lr: {"client_lr": lr, "first_rounds": 1},
    "PerFedAvg": lambda lr: {"client_lr": lr, "alpha": 0.2},
    "FedRep": lambda lr: {"client_lr": lr, "personal_lr": lr, "passes": 2, "leaves": ("b", "shift.*")},
}
SPLIT = fs.frank_wolfe.SplitSets((L2Ball(12.0), L1Ball(40.0)), (0, 1, 0, 1, 1, 0))
COMPOSED = {
    "SCAFFOLD+FedDuAdam": lambda lr: fs.build("SCAFFOLD+FedDuAdam", {"client_lr": lr}),
    "FedProx+FedAdam": lambda lr: fs.build("FedProx+FedAdam", {"client_lr": lr}),
    "optax": lambda lr: fs.FedOpt(
        fs.client.Optax(optax.adam, learning_rate=lr),
        fs.server.Optax(optax.adam, learning_rate=0.1),
        weighting="uniform",
    ),
    "FedFW(split)": lambda lr: fs.FedFW(L2Ball(12.0), steps=fs.frank_wolfe.Convex(lr, 0.5), split=SPLIT),
    "FedDualAvg(PNorm)": lambda lr: fs.FedDualAvg(L1(0.02), lr, mirror=PNorm(1.5)),
    "SCAFFOLD+FedMiDOSP": lambda lr: fs.build("SCAFFOLD+FedMiDOSP", {"client_lr": lr, "psi": PSI}),
    "SCAFFOLD+FedFW": lambda lr: fs.ControlVariates(
        fs.FedFW(BALL, steps=fs.frank_wolfe.Convex(lr, 0.5)), option="I"
    ),
    "FedLiLS(max, keep)": lambda lr: fs.FedLiLS(eta_max=8 * lr, reset=0, server="max", weighting="examples"),
    "SCAFFOLD+FedLiLS": lambda lr: fs.ControlVariates(fs.FedLiLS(eta_max=8 * lr), option="I"),
    "SCAFFOLD+FedSLS": lambda lr: fs.build("SCAFFOLD+FedSLS", {"eta_max": 8 * lr, "accept": "original"}),
    "FedProx+FedLiLS": lambda lr: fs.build("FedProx+FedLiLS", {"eta_max": 8 * lr}),
    "FedExProx(StoPS)": lambda lr: fs.FedExProx(lr, extrapolation="StoPS"),
    "Polyak": lambda lr: fs.FedOpt(fs.client.SGD(lr), fs.server.Polyak(0.2), weighting="uniform"),
    "Robust+FedAdam": lambda lr: fs.build(
        "Robust+FedAdam", {"client_lr": lr, "reduction": fs.robust.TrimmedMean(0.3)}
    ),
    "Personal+SCAFFOLD": lambda lr: fs.Personal(fs.SCAFFOLD(lr), "b", personal_lr=0.2),
    "Compressed+FedDuAdam": lambda lr: fs.Compressed(
        fs.FedDuAdam(lr),
        fs.compression.TopK(0.5),
        memory="ef21",
        momentum=0.5,
        down=fs.compression.Cast(),
        smallest=4,
    ),
    "Secure+FedDuAdam": lambda lr: fs.Secure(
        fs.FedDuAdam(lr, weighting="examples"), bound=20.0, max_clients=9, max_examples=16
    ),
    "LowRank+SCAFFOLD": lambda lr: fs.LowRank(fs.SCAFFOLD(lr), 1, leaves="w"),
    "LowRank(exact)+FedAdam": lambda lr: fs.LowRank(fs.FedAdam(lr), 1, "exact"),
    "LowRank(stack)+FedDuAdam": lambda lr: fs.LowRank(fs.FedDuAdam(lr), 1, "stack"),
    "FedProx+FedDualAvg": lambda lr: fs.Proximal(fs.FedDualAvg(PSI, lr), 0.1),
}


def catalogue_entry(name):
    needs = NEEDS.get(name, lambda lr: {"client_lr": lr})
    return lambda lr: fs.build(name, example_of(name) | needs(lr))


METHODS = {name: catalogue_entry(name) for name in ALGORITHMS} | COMPOSED

# every property of a signature (tests/conformance/signatures.py) that a method has: these are run, all others by
# `make test-all`
REPRESENTATIVES = (
    "FedAvg",
    "SCAFFOLD",
    "SCAFFOLD+FedFW",
    "FedLiLS(max, keep)",
    "FedFW(split)",
    "IFCA",
    "Robust+FedAdam",
    "Secure+FedDuAdam",
    "FedZO",
    "SCAFFOLD+FedLiLS",
)


def methods(names, *, full=()):
    """Parametrisation over names, and over those of `full` where everything is run."""
    rows = [*names, *(pytest.param(name, marks=pytest.mark.full) for name in full)]
    return pytest.mark.parametrize("name", rows)


EVERY = methods(METHODS)
OF_ALL = ("Newton", "ProxTracking", "EF21Muon")
"""They refuse cohorts of some clients; tests/equations/test_newton.py and test_muon.py have rounds in the engine."""
RUN = [name for name in METHODS if name not in OF_ALL]
WITH_EACH_PROPERTY = methods(REPRESENTATIVES, full=[name for name in RUN if name not in REPRESENTATIVES])
