"""Methods of every kind: a run that was stopped and resumed has the bits of one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import fedsolve as fs
from conformance.entries import CLIENT_LR, METHODS, WITH_EACH_PROPERTY, methods
from conformance.properties import CAPACITY, SAMPLING, task

_WHOLE: dict[str, fs.Result] = {}


def run(name, rounds=12, **options):
    options |= {"rounds": rounds, "sampling": SAMPLING, "eval_every": CAPACITY}
    return fs.run(METHODS[name](CLIENT_LR), task(), **options)


def whole(name):
    if name not in _WHOLE:
        _WHOLE[name] = run(name)
    return _WHOLE[name]


def same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    for one, other in ((a.metrics, b.metrics), (a.rounds, b.rounds)):
        assert set(one) == set(other)
        for column in set(one) - {"seconds"}:
            np.testing.assert_array_equal(one[column], other[column])


@methods(["SCAFFOLD"])
def test_same_seed_same_bits(name):
    """Everything random follows from the seed; of all other methods a resumed run repeats the first six rounds."""
    same_bits(run(name), whole(name))


@pytest.mark.gate("FedAvg", "SCAFFOLD+FedFW", "SCAFFOLD")
@WITH_EACH_PROPERTY
def test_resumed_run_has_the_same_bits(name, tmp_path):
    """6 rounds in a folder (in the middle of an evaluation interval of 4), then on to 12: model, metrics,
    log.
    """
    run(name, rounds=6, out=tmp_path / "run")
    resumed = run(name, out=tmp_path / "run", resume=True)
    keep = [r in (0, 4, 8, 12) for r in resumed.metrics["round"]]  # stopping at 6 evaluates there, too
    kept = {k: v[keep] for k, v in resumed.metrics.items()}
    for x, y in zip(jax.tree.leaves(resumed.params), jax.tree.leaves(whole(name).params), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    for column in set(kept) - {"seconds"}:
        np.testing.assert_array_equal(kept[column], whole(name).metrics[column])
    for column, values in whole(name).rounds.items():
        np.testing.assert_array_equal(resumed.rounds[column], values)


KILLED = """
    import sys
    sys.path.insert(0, sys.argv[2])
    import fedsolve.engine.loop as loop, fedsolve.folders.run_folder as run_folder
    from conformance.entries import METHODS
    from conformance.properties import SAMPLING, task
    import fedsolve as fs, numpy as np, jax, time
    loop._CALL_SECONDS = 0.0  # a call of one round ...
    run_folder._SECONDS_BETWEEN = run_folder._TIMES_BETWEEN = 0.0  # ... and a checkpoint after each
    def slow(p):  # the kill comes before the end, however late
        print("ROUND", p.round, flush=True)
        time.sleep((0.01 if p.round < 30 else 600) if sys.argv[4] == "to be killed" else 0)
    result = fs.run(METHODS["SCAFFOLD+FedDuAdam"](0.3), task(), rounds=40, sampling=SAMPLING, eval_every=4,
                    out=sys.argv[1], resume=sys.argv[3] == "resume", progress=slow)
    np.save(sys.argv[1] + "/model.npy", np.concatenate([np.ravel(x) for x in jax.tree.leaves(result.params)]))
"""


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.full
def test_killed_and_resumed(tmp_path, subprocess_env, times):
    """kill -9 at some moment, perhaps twice, with a checkpoint after every round; then resume to the end: same bits."""
    here, folder = str(Path(__file__).parent.parent), tmp_path / "run"
    rng = np.random.default_rng()
    for attempt in range(times):
        mode = "resume" if attempt else "new"
        child = start_child(folder, here, mode, "to be killed", subprocess_env)
        for line in child.stdout:
            if line.startswith("ROUND"):
                break
        time.sleep(float(rng.uniform(0, 0.25)))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert child.returncode == -signal.SIGKILL
    child = start_child(folder, here, "resume", "to its end", subprocess_env)
    assert child.wait(300) == 0
    options = {"rounds": 40, "sampling": SAMPLING, "eval_every": 4}
    undisturbed = fs.run(METHODS["SCAFFOLD+FedDuAdam"](0.3), task(), **options)
    want = np.concatenate([np.ravel(x) for x in jax.tree.leaves(undisturbed.params)])
    np.testing.assert_array_equal(np.load(folder / "model.npy"), want)


def start_child(folder, here, mode, until, env):
    code = textwrap.dedent(KILLED)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), here, mode, until],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )
