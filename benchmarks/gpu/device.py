"""The device: its name, memory and rates of matrix products and copies."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp


def best(call: Any, repeats: int = 5) -> float:
    """The least seconds of a call, after one that compiles."""
    jax.block_until_ready(call())
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - begun)
    return min(found)


def main(tiny: bool) -> None:
    device, size = jax.devices()[0], 256 if tiny else 8192
    rows = {"versions": ", ".join(f"{name} {_version(name)}" for name in ("jax", "torch", "numpy"))}
    if stats := device.memory_stats():
        rows["memory"] = f"{stats['bytes_limit'] / 1e9:.0f} GB for JAX"
    product = jax.jit(lambda a, precision: jnp.matmul(a, a, precision=precision), static_argnums=1)
    for name, dtype, precision in (
        ("float32 as JAX does it", "float32", None),
        ("float32 exact", "float32", "highest"),
        ("bfloat16", "bfloat16", None),
    ):
        a = jnp.ones((size, size), dtype)
        rate = 2 * size**3 / best(lambda a=a, p=precision: product(a, p)) / 1e12
        rows[f"matrix products, {name}"] = f"{rate:.2f} TFLOP/s"
    a = jnp.ones(2**20 if tiny else 2**28)
    add = jax.jit(lambda a: a + 1)
    rows["memory read and written"] = f"{2 * a.nbytes / best(lambda: add(a)) / 1e9:.0f} GB/s"
    print(json.dumps({"rows": rows}))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    main("--tiny" in sys.argv)
