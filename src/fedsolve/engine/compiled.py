"""How the engine's two programs are compiled."""

from __future__ import annotations

import os
from typing import Any

import jax


def compiler_options() -> dict[str, Any]:
    """Options of the default backend's compiler.

    On a CPU the first level of optimisation: measured (benchmarks/FINDINGS.md), the programs run as fast as at
    the default level and compile in four fifths of the time. A level given in XLA_FLAGS stands.
    """
    if "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", ""):
        return {}
    return {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else {}
