"""fedsolve: solvers for federated optimisation, one interface from simulation to deployment.

    import fedsolve as fs
    result = fs.run(fs.FedDuAdam(client_lr=0.1), fs.tasks.digits(), rounds=200, clients_per_round=20)

Names are loaded when first used, so that importing the package does not wait for JAX. Methods are those of
`fedsolve.catalogue`; for editors and type checkers `__init__.pyi` has them all (`make generate` writes it).
"""

import importlib
import sys
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fedsolve.core import __version__ as __version__
from fedsolve.core import gc_paused

_NAMESPACES = {
    "attacks": "methods.attacks",
    "baselines": "engine.baselines",
    "callbacks": "results.callbacks",
    "catalogue": "config.catalogue",
    "client": "methods.client",
    "compression": "methods.compression",
    "data": "data",
    "diagnostics": "geometry.diagnostics",
    "flower": "deploy.flower",
    "frank_wolfe": "methods.frank_wolfe",
    "geometry": "geometry",
    "metrics": "tasks.metrics",
    "privacy": "methods.privacy",
    "robust": "methods.robust",
    "sampling": "core.sampling",
    "schedules": "core.schedules",
    "server": "methods.server",
    "stats": "stats",
    "systems": "core.fleets",
    "tasks": "tasks",
    "trackers": "report.trackers",
    "wire": "core.wire",
}
_NAMES = {
    "config.build": "build",
    "core.algorithm": "Algorithm Cohort",
    "core.errors": "Diverged FedsolveError Interrupted InvalidInput",
    "core.oracle": "Oracle WrappedOracle",
    "data.examples": "Examples SparseRows",
    "data.federated": "FederatedData",
    "engine.compute.workers": "Workers",
    "engine.load": "load",
    "engine.results": "Result Results Seeds",
    "engine.run": "compare run",
    "engine.sweep": "sweep",
    "engine.sweep_result": "Sweep",
    "methods.compression.compressed": "Compressed",
    "methods.low_rank": "LowRank",
    "methods.personal_clusters": "normalization_leaves",
    "methods.secure.secure": "Secure",
    "methods.server.fedopt": "FedOpt",
    "methods.wrappers.personal": "Personal",
    "methods.wrappers.wrapper": "Wrapper",
    "studies.settings": "settings tuned",
    "tasks.task": "Task",
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
    from fedsolve.config.catalogue import ALGORITHMS

    homes = {name: f"{module}:" for name, module in _NAMESPACES.items()}
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
    with gc_paused():
        value = getattr(importlib.import_module(f"fedsolve.{module}"), inside) if inside else _namespace(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *_homes()]


def _namespace(name: str) -> ModuleType:
    """The module of a namespace, of which `dir` shows what it offers and nothing that it imports.

    Packages of the same name within (`data`, `geometry`, `tasks`) may be imported without this, and say it themselves.
    """
    module = importlib.import_module(f"fedsolve.{_NAMESPACES[name]}")
    vars(module).setdefault("__dir__", lambda: sorted(module.__all__))
    return module


class _Namespaces(MetaPathFinder, Loader):
    """Imports a namespace by its public name: `from fedsolve.sampling import Uniform`."""

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == __name__ and name in _NAMESPACES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _namespace(spec.name.rpartition(".")[2])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state  # the module stays what it is under its own name


sys.meta_path.append(_Namespaces())
