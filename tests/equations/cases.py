"""Running one method twice, by its verbs and as a transcript, with everyone and with a few clients taking part.

`by=engine` (of `harness`) runs a case in whole rounds of the engine instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from equations.transcript import Federation, fedopt, scaffold
from fedsolve.core.sampling import Trace
from harness import BATCH, EPOCHS, SIZES, Trajectory, make_clients, make_task
from verbs_harness import play

ROUNDS = 10
CLOSE = 1e-10

# five clients over ten rounds: rounds of 1 to 5 clients, client 2 (the largest) seldom, nobody in round 7
PARTIAL = [[0, 1], [3], [0, 2, 4], [1, 2, 3, 4], [0, 1, 2, 3, 4], [4, 1], [], [0, 3], [1], [2, 4]]


def availability(cohorts: list[list[int]]) -> np.ndarray:
    return np.array([[i in cohort for i in range(5)] for cohort in cohorts])


FULL = Trace(np.ones((ROUNDS, 5), bool), 5)
SOME = Trace(availability(PARTIAL), 5)
TWO_OF_AVAILABLE = Trace(availability(PARTIAL), 2)
SAMPLINGS = {"full": FULL, "partial": SOME}
EVERY = pytest.mark.parametrize(
    "sampling",
    [pytest.param(FULL, id="full", marks=pytest.mark.full), pytest.param(SOME, id="partial")],
)
"""One of the partial rounds has all five clients, so that the gate sees both; a few tests take all of SAMPLINGS."""


def federation(run: Trajectory, clients: list[Any], **local: Any) -> Federation:
    local = local or {"epochs": EPOCHS}
    return Federation(clients, run.cohorts, run.orders, BATCH, local.get("epochs"), local.get("local_steps"))


def check_fedopt(
    algorithm: Any,
    rule: Callable[[], Any],
    local: Any,
    weighting: str,
    sampling: Any,
    *,
    start: np.ndarray | None = None,
    dead: bool = False,
    close: float = CLOSE,
    sizes: tuple[int, ...] = SIZES,
    by: Callable[..., Trajectory] = play,
    **work: Any,
) -> Trajectory:
    """Every exported iterate and every server_lr agree with the transcript to `close`."""
    clients = make_clients(sizes, dead=dead)
    run = by(algorithm, make_task(clients, start, **work), sampling, ROUNDS)
    fed = federation(run, clients, **work)
    iterates, rates = fedopt(fed, run.iterates[0], local, rule(), weighting)
    compare(run, iterates, rates, close)
    return run


def check_scaffold(
    algorithm: Any,
    rule: Callable[[], Any],
    local: Any,
    option: str,
    sampling: Any,
    *,
    by: Callable[..., Trajectory] = play,
    uncorrected: bool = False,
    **work: Any,
) -> Trajectory:
    """As `check_fedopt`, and c and every c_i agree at the end."""
    clients = make_clients()
    run = by(algorithm, make_task(clients, **work), sampling, ROUNDS)
    fed = federation(run, clients, **work)
    iterates, rates, c, ci = scaffold(fed, run.iterates[0], local, rule(), option, uncorrected)
    compare(run, iterates, rates)
    server, states = run.state.server.control, run.state.clients.control
    assert displacement_error(flat(server)[None], c[None], 0 * c) < CLOSE
    got = np.concatenate([np.reshape(x, (5, -1)) for x in states], axis=1)
    assert np.abs(got - ci).max() < CLOSE * np.abs(ci).max()
    return run


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in tree])


def compare(run: Trajectory, iterates: np.ndarray, rates: np.ndarray, close: float = CLOSE) -> None:
    assert run.iterates.dtype == np.float64
    assert np.abs(iterates[1:] - iterates[0]).max() > 1e-3, "nothing moved: the test would prove nothing"
    error = displacement_error(run.iterates[1:], iterates[1:], iterates[0])
    assert error < close
    if not np.isnan(run.logs["server_lr"]).all():
        np.testing.assert_allclose(run.logs["server_lr"], rates, rtol=close, atol=0)


def displacement_error(got: np.ndarray, want: np.ndarray, start: np.ndarray) -> float:
    """|got - want| relative to how far the model has moved from the start, at its largest over the rounds."""
    moved = np.linalg.norm(want - start, axis=1)
    return float((np.linalg.norm(got - want, axis=1) / moved).max())
