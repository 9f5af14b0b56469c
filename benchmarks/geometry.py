"""Prox, projection and linear minimisation against their formulas by hand; the nuclear lmo against a full SVD.

    python benchmarks/geometry.py             some minutes
    python benchmarks/geometry.py --quick     sizes up to 500 and vectors of 100,000

Medians of interleaved repetitions (bench.py says why), in float32. `error` is 1 - <G, s> / (-radius sigma_1),
with sigma_1 from NumPy in float64. Warm: from the vertex of G before 1 % of noise was added.
Low rank: a product of rank 5 plus noise.
The bounds: an oracle costs at most twice its formula by hand; the nuclear lmo less than the decomposition.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

from fedsolve.geometry import L1, ElasticNet, GroupL1, LInf, NuclearNorm, SquaredL2
from fedsolve.geometry.balls import Box, L1Ball, L2Ball, LInfBall, LpBall
from fedsolve.geometry.simplex import GroupL1Ball, KSupportBall, Polytope, Simplex
from fedsolve.geometry.spectral import NuclearBall, SpectralBall, leading_pair

console = Console(width=140)


def interleave(programs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each program, by repetition; each runs once before, to be compiled."""
    for program in programs.values():
        jax.block_until_ready(program())
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            begun = time.perf_counter()
            jax.block_until_ready(program())
            times[name].append(1e3 * (time.perf_counter() - begun))
    return times


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))


def nuclear(shapes: list[tuple[int, int]]) -> None:
    table = Table(title="nuclear ball: lmo against a full SVD (float32)", title_justify="left")
    for column in ("shape", "matrix", "tolerance", "SVD ms", "cold ms", "warm ms", "SVD / cold", "SVD / warm",
                   "products cold, warm", "error cold", "error warm"):  # fmt: skip
        table.add_column(column, justify="right")
    rng = np.random.default_rng(0)
    svd = jax.jit(lambda g: jnp.linalg.svd(g, full_matrices=False))
    lmo = jax.jit(leading_pair)  # what NuclearBall.vertex calls; it tells its products as well
    for shape in shapes:
        before = rng.standard_normal(shape)
        low = rng.standard_normal((shape[0], 5)) @ rng.standard_normal((5, shape[1]))
        for name, old in (("Gaussian", before), ("low rank", low + before)):
            g64 = old + 1e-2 * rng.standard_normal(shape)
            g, top = jnp.asarray(g64, jnp.float32), np.linalg.norm(g64, 2)
            near = lmo(jnp.asarray(old, jnp.float32), None, 1e-6)
            calls = {f"{kind} {t}": (start, t) for t in (1e-3, 1e-6)
                     for kind, start in (("cold", None), ("warm", (near.u, near.v)))}  # fmt: skip
            programs: dict[str, Callable[[], Any]] = {"svd": lambda g=g: svd(g)}
            programs |= {key: lambda g=g, call=call: lmo(g, *call) for key, call in calls.items()}
            times = interleave(programs, 3 if min(shape) >= 1000 else 9)
            for t in (1e-3, 1e-6):
                keys = (f"cold {t}", f"warm {t}")
                found = [lmo(g, *calls[key]) for key in keys]
                errors = [1 - np.asarray(p.u, float) @ g64 @ np.asarray(p.v, float) / top for p in found]
                table.add_row(
                    f"{shape[0]}x{shape[1]}", name, f"{t:.0e}",
                    *(f"{statistics.median(times[k]):.2f}" for k in ("svd", *keys)),
                    *(f"{ratio(times, 'svd', k):.0f}" for k in keys),
                    ", ".join(str(int(p.products)) for p in found), *(f"{e:.1e}" for e in errors),
                )  # fmt: skip
    console.print(table)


def by_hand(d: int) -> list[tuple[str, Callable, Callable, Any]]:
    """(name, the library's function, the formula by hand, argument)."""
    rng = np.random.default_rng(1)
    w = jnp.asarray(rng.standard_normal(d), jnp.float32)
    rows = w.reshape(-1, 100)
    square = jnp.asarray(rng.standard_normal((300, 300)), jnp.float32)
    corners = jnp.asarray(rng.standard_normal((50, d // 100)), jnp.float32)

    def l1_lmo(g: Any) -> Any:
        j = jnp.argmax(jnp.abs(g))
        return jnp.zeros_like(g).at[j].set(-100 * jnp.sign(g[j]))

    def lp_lmo(g: Any) -> Any:
        power = jnp.abs(g) ** 2.0  # q - 1 for p = 1.5
        return -jnp.sign(g) * power / jnp.sum(jnp.abs(g) ** 3.0) ** (2 / 3)

    def group_lmo(g: Any) -> Any:
        norms = jnp.sqrt(jnp.sum(g * g, 1))
        j = jnp.argmax(norms)
        return jnp.zeros_like(g).at[j].set(-100 * g[j] / norms[j])

    def group_project(w: Any) -> Any:
        norms = jnp.sqrt(jnp.sum(w * w, 1))
        return w * (optax.projections.projection_simplex(norms, 100.0) / norms)[:, None]

    def k_lmo(g: Any) -> Any:
        _, places = jax.lax.top_k(jnp.abs(g), 10)
        return jnp.zeros_like(g).at[places].set(-100 * g[places] / jnp.linalg.norm(g[places]))

    def svd(function: Callable) -> Callable:
        def call(w: Any) -> Any:
            u, s, v = jnp.linalg.svd(w, full_matrices=False)
            return (u * function(s)) @ v

        return call

    def l2(g: Any) -> Any:
        return jnp.sqrt(jnp.sum(g * g))

    def soft(x: Any, t: float) -> Any:
        return jnp.sign(x) * jnp.maximum(jnp.abs(x) - t, 0)

    def group_soft(x: Any) -> Any:
        norms = jnp.sqrt(jnp.sum(x * x, 1, keepdims=True))
        return x * jnp.maximum(1 - 0.1 / norms, 0)

    def l_inf(x: Any) -> Any:
        return x - optax.projections.projection_l1_ball(x, 10.0)

    return [
        ("L1 prox", lambda x: L1(0.1).prox(x, 1.0), lambda x: soft(x, 0.1), w),
        ("ElasticNet prox", lambda x: ElasticNet(0.1, 0.5).prox(x, 1.0), lambda x: soft(x, 0.1) / 1.5, w),
        ("SquaredL2 prox", lambda x: SquaredL2(0.5).prox(x, 1.0), lambda x: x / 1.5, w),
        ("LInf prox (optax)", lambda x: LInf(10.0).prox(x, 1.0), l_inf, w),
        ("GroupL1 prox", lambda x: GroupL1(0.1).prox(x, 1.0), group_soft, rows),
        ("NuclearNorm prox 300x300", lambda x: NuclearNorm(1.0).prox(x, 1.0),
         svd(lambda s: jnp.maximum(s - 1, 0)), square),
        ("L1Ball lmo", L1Ball(100.0).lmo, l1_lmo, w),
        ("L1Ball project (optax)", L1Ball(100.0).project,
         lambda w: optax.projections.projection_l1_ball(w, 100.0), w),
        ("L2Ball lmo", L2Ball(100.0).lmo, lambda g: -100 * g / l2(g), w),
        ("L2Ball project", L2Ball(100.0).project, lambda w: w * jnp.minimum(1, 100 / l2(w)), w),
        ("LInfBall lmo", LInfBall(1.0).lmo, lambda g: -jnp.sign(g), w),
        ("LInfBall project", LInfBall(1.0).project, lambda w: jnp.clip(w, -1, 1), w),
        ("Box lmo", Box(-1.0, 2.0).lmo, lambda g: jnp.where(g > 0, -1.0, 2.0), w),
        ("Box project", Box(-1.0, 2.0).project, lambda w: jnp.clip(w, -1, 2), w),
        ("LpBall(1.5) lmo", LpBall(1.0, 1.5).lmo, lp_lmo, w),
        ("Simplex lmo", Simplex(100.0).lmo, lambda g: jnp.zeros_like(g).at[jnp.argmin(g)].set(100), w),
        ("Simplex project (optax)", Simplex(100.0).project,
         lambda w: optax.projections.projection_simplex(w, 100.0), w),
        ("GroupL1Ball lmo", GroupL1Ball(100.0).lmo, group_lmo, rows),
        ("GroupL1Ball project", GroupL1Ball(100.0).project, group_project, rows),
        ("KSupportBall(10) lmo", KSupportBall(100.0, 10).lmo, k_lmo, w),
        ("Polytope(50) lmo", Polytope(corners).lmo, lambda g: corners[jnp.argmin(corners @ g)], corners[0]),
        ("SpectralBall lmo 300x300", SpectralBall(1.0).lmo, svd(jnp.ones_like), square),
        ("SpectralBall project", SpectralBall(1.0).project, svd(lambda s: jnp.minimum(s, 1)), square),
        ("NuclearBall project", NuclearBall(9.0).project,
         svd(lambda s: optax.projections.projection_simplex(s, 9.0)), square),
    ]  # fmt: skip


def sets(d: int) -> None:
    table = Table(title=f"oracles against their formulas by hand, {d:,} entries", title_justify="left")
    for column in ("oracle", "by hand ms", "library ms", "library / by hand"):
        table.add_column(column, justify="left" if column == "oracle" else "right")
    for name, function, hand, w in by_hand(d):
        ours, theirs = jax.jit(function), jax.jit(hand)
        times = interleave({"ours": lambda f=ours, w=w: f(w), "hand": lambda f=theirs, w=w: f(w)}, 15)
        medians = [f"{statistics.median(times[k]):.3f}" for k in ("hand", "ours")]
        table.add_row(name, *medians, f"{ratio(times, 'ours', 'hand'):.2f}")
    console.print(table)


if __name__ == "__main__":
    quick = "--quick" in sys.argv[1:]
    sets(100_000 if quick else 1_000_000)
    squares = [(n, n) for n in ((100, 500) if quick else (100, 500, 1000, 2000))]
    nuclear([*squares, (400, 100) if quick else (3000, 300)])
