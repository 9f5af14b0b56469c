"""fedsolve: solvers for federated optimisation, one interface from simulation to deployment.

    import fedsolve as fs
    result = fs.run(fs.FedDuAdam(client_lr=0.1), fs.tasks.digits(), rounds=200, clients_per_round=20)

Names are loaded when first used, so that importing the package does not wait for JAX. Methods are those of
`fedsolve.catalogue`; for editors and type checkers `__init__.pyi` has them all (`make generate` writes it).
"""

import importlib
from functools import cache
from typing import Any

from fedsolve._version import __version__ as __version__

_MODULES = (
    "attacks baselines callbacks catalogue client data diagnostics flower frank_wolfe geometry privacy robust sampling "
    "schedules server systems tasks trackers wire"
)
_NAMES = {
    "algorithm": "Algorithm Cohort",
    "server.fedopt": "FedOpt",
    "building": "build",
    "comparisons": "compare",
    "data.examples": "Examples SparseRows",
    "data.federated": "FederatedData",
    "engine.result": "Result Results load",
    "engine.run": "run",
    "errors": "Diverged FedsolveError Interrupted InvalidInput",
    "oracle": "Oracle",
    "sweeps": "sweep",
    "tasks.task": "Task",
    "wrappers.personal": "Personal",
}
# where names went that stood here before
_MOVED = {
    "catalogue": "ALGORITHMS",
    "attacks": "Attacked GaussianNoise Scaled SignFlip choose_attackers flip_labels",
    "frank_wolfe": "Convex FrankWolfe FrankWolfeSteps NonConvex OwnSteps SplitSets Stochastic",
    "privacy": "DifferentialPrivacy LocalDifferentialPrivacy",
    "robust": "GeometricMedian Krum Median MultiKrum NormClipping Robust TrimmedMean",
    "sampling": "Bernoulli Sampling Trace Uniform Weighted",
    "tasks": "Whole",
}
_INSTEAD = {name: f"fs.{home}.{name}" for home, names in _MOVED.items() for name in names.split()} | {
    "DouglasRachford": "fs.FedDR",
    "SubgradientFedAvg": "fs.Subgradient(fs.FedAvg(...), psi)",
    "local": "fs.client",
    "measures": "fs.diagnostics",
    "rules": "fs.server",
    "wrappers": "fs.robust, fs.privacy or fs.attacks",
}


@cache
def _homes() -> dict[str, str]:
    """Where each name of the package is, as `module:name` or `module:`, in the order of the alphabet."""
    from fedsolve.catalogue import ALGORITHMS

    homes = {name: f"{name}:" for name in _MODULES.split()}
    homes |= {name: f"{module}:{name}" for module, names in _NAMES.items() for name in names.split()}
    for method, entry in ALGORITHMS.items():
        homes[method] = entry.home
        if entry.wrapper:
            homes[entry.wrapper.partition(":")[2]] = entry.wrapper
    return dict(sorted(homes.items()))


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *_homes()]
    if name.startswith("__") or name not in _homes():
        instead = f": it is now {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise AttributeError(f"module 'fedsolve' has no attribute '{name}'{instead}")
    module, _, inside = _homes()[name].partition(":")
    value = importlib.import_module(f"fedsolve.{module}")
    value = getattr(value, inside) if inside else value
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *_homes()]
