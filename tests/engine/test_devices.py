"""Several devices share a cohort: the trajectory is that of one device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fedsolve as fs
from harness import make_clients, make_task

CODE = """
import sys, tempfile
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
import fedsolve as fs
from fedsolve.engine import streaming
from fedsolve.sampling import Bernoulli
from fedsolve.core.types import module, static
from fedsolve.engine.compute import sharding
from harness import Listed, make_clients, make_task
assert len(jax.devices()) == 3
task, even = make_task(make_clients()), make_task(make_clients(sizes=[6] * 7))
usual, everything = sharding._GATHER_BYTES, sys.argv[2] == "everything"
cases = {
    "SCAFFOLD, Bernoulli": (fs.SCAFFOLD(0.3), {"sampling": Bernoulli(0.5)}),
    "SCAFFOLD+FedDuAdam, 3 of 5, one at a time": (
        fs.build("SCAFFOLD+FedDuAdam", {"client_lr": 0.3}), {"clients_per_round": 3, "chunk": 1}),
    "Robust, messages of both devices meet on each": (
        fs.robust.Robust(fs.FedAdam(0.3), fs.robust.MultiKrum(0, 2)), {"sampling": Bernoulli(0.7), "chunk": 2}),
    "FedAvg, 1 to 4 of 5": (fs.FedAvg(0.3), {"sampling": Listed.of([[0], [1, 2, 3, 4], [], [4, 2, 0]])}),
}
sharded = {
    "one at a time": (fs.SCAFFOLD(0.3), task, {"sampling": Listed.of([[0, 1, 2], [], [4, 3]]), "chunk": 1}),
    "of random size": (fs.SCAFFOLD(0.3), even, {"sampling": Bernoulli(0.6), "chunk": 2, "local_steps": 1}),
    "own models": (fs.Ditto(fs.FedAvg(0.3)), even, {"clients_per_round": 4, "local_steps": 1}),
}
if not everything:
    cases = {name: case for name, case in cases.items() if "Bernoulli" in name}
    sharded = {name: case for name, case in sharded.items() if "one at a time" in name}
sharding._GATHER_BYTES = 0
for name, (algorithm, work, options) in sharded.items():
    given, devices = {"eval_every": 2, "dtype": "float64"} | options, 2 if "random" in name else 3
    one, several = (fs.run(algorithm, work, rounds=6, devices=d, **given) for d in (1, devices))
    runs = [several]
    if "one at a time" in name:
        third = 2 if everything else 1  # where the programs are there already
        for places in ([1, 3, third], [3, 3]):
            with tempfile.TemporaryDirectory() as out:
                for rounds, d in zip((2, 6) if len(places) == 2 else (2, 4, 6), places):
                    runs.append(fs.run(algorithm, work, rounds=rounds, devices=d, out=out, resume=rounds > 2, **given))
        runs = [several, moved := runs[3], resumed := runs[5]]
        noted = [[note[17:43] for note in run.notes if "other devices" in note] for run in (moved, resumed)]
        assert noted == [["2 ran on other devices (3)", f"4 ran on other devices ({third})"], []], noted
        for a, b in zip(jax.tree.leaves(several.params), jax.tree.leaves(resumed.params), strict=True):
            assert (np.asarray(a) == np.asarray(b)).all(), name
    for run in runs:
        for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(run.params), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14, err_msg=name)
    for client in range(7) if "own" in name else ():
        ours, theirs = (jax.tree.leaves(run.client_models(client)) for run in (one, several))
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
    for column in set(one.metrics) - {"seconds"}:
        np.testing.assert_allclose(one.metrics[column], several.metrics[column], rtol=1e-12, err_msg=name)
sharding._GATHER_BYTES = usual
for name, (algorithm, options) in cases.items():
    one, two = (
        fs.run(algorithm, task, rounds=9, eval_every=3, dtype="float64", devices=d, **options) for d in (1, 2)
    )
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(two.params)):
        worst = np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(a)).max()
        assert worst < 1e-12, (name, worst)
    assert set(one.rounds) == set(two.rounds)
    for column, values in one.rounds.items():
        np.testing.assert_allclose(values, two.rounds[column], rtol=1e-12, err_msg=name)
    assert one.rounds["participants"].max() > one.rounds["participants"].min() or "3 of 5" in name
    if "SCAFFOLD, Bernoulli" in name:
        streaming.WINDOW_BYTES = 2**8
        options |= {"residency": "stream", "devices": 2}
        streamed = fs.run(algorithm, task, rounds=9, eval_every=3, dtype="float64", **options)
        for a, b in zip(jax.tree.leaves(streamed.params), jax.tree.leaves(two.params)):
            assert (np.asarray(a) == np.asarray(b)).all(), name
class AllNorms:
    def __call__(self, stacked, weights, used):
        return {"delta": jax.tree.map(lambda x: x[0], stacked["delta"]), "norms": stacked["norm"]}
@module
class NormOfEach(fs.Algorithm):  # what its server keeps has one number a message
    weighting: str = static(default="uniform")
    @property
    def reduction(self):
        return AllNorms()
    def init(self, params):
        return {"model": params, "norms": jax.numpy.zeros(1)}
    def broadcast(self, server, cohort):
        return server["model"]
    def init_client(self, broadcast):
        return ()
    def train(self, broadcast, client, oracle):
        loss, gradient = oracle(broadcast, 0)
        return {"delta": gradient, "norm": loss}, ()
    def update(self, server, message, cohort):
        return server | {"norms": message["norms"]}
    def export(self, server):
        return server["model"]
for devices in (1, 2) if everything else (2,):
    try:
        fs.run(NormOfEach(), task, rounds=1, devices=devices)
    except fs.InvalidInput as error:
        assert str(error).startswith("the update changes .server['norms'] from shape (1,) float32 to ("), error
    else:
        raise AssertionError("it ran")
print("same")
"""


@pytest.mark.parametrize("what", ["the most telling", pytest.param("everything", marks=pytest.mark.full)])
def test_two_devices_are_one(subprocess_env, what):
    """Cohorts of odd and random size, empty ones, clients with a state: to 1e-12 in model and logs; streamed alike.

    A run that goes on with another number of devices says so, also when it goes on once more. A server's state
    that changes its shape is told in the same words on one device and on two. Where each device keeps some of the
    clients' states, the trajectory is the same on one, two and three, across moves, and to the bit after a resume.
    """
    env = subprocess_env | {"JAX_NUM_CPU_DEVICES": "3"}
    here = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", CODE, here, what], env=env, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "same"


PERSONAL = """
import sys
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
import fedsolve as fs
from fedsolve.callbacks import FineTuning
from harness import make_clients, make_task
task = make_task(make_clients()).hold_out(0.3)
methods = {
    "FedPer": fs.FedPer("bias", 0.3),
    "FedRep": fs.FedRep("bias", 0.3, passes=2),
    "Ditto": fs.Ditto(fs.FedAdam(0.3)),
    "Personal": fs.Personal(fs.SCAFFOLD(0.3), "bias"),
}
for name, *counts in (word.split(":") for word in sys.argv[2:]):
    runs, tuned = [], []
    for devices in (1, *map(int, counts)):
        tuned.append(FineTuning(2, 0.1, rounds=[4]))
        runs.append(fs.run(methods[name], task, rounds=4, eval_every=2, clients_per_round=3, dtype="float64",
            devices=devices, callbacks=tuned[-1:]))
    for run, look in zip(runs[1:], tuned[1:], strict=True):
        for a, b in zip(jax.tree.leaves(runs[0].params), jax.tree.leaves(run.params), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14, err_msg=name)
        for column in set(run.metrics) - {"seconds"}:
            np.testing.assert_allclose(run.metrics[column], runs[0].metrics[column], rtol=1e-12, err_msg=column)
        for which in ("before", "after"):
            one, more = (getattr(x, which)[4].column("loss") for x in (tuned[0], look))
            np.testing.assert_allclose(one, more, rtol=1e-12, err_msg=which)
    own = runs[0].metrics["validation_loss_worst"] - runs[0].metrics["validation_loss_p10"]
    assert own[-1] > 1e-3
print("same")
"""

ALL = ["FedRep:2:4", "Ditto:2:4", "FedPer:2:4", "Personal:2:4"]


@pytest.mark.parametrize("methods", [["FedRep:4"], pytest.param(ALL, marks=pytest.mark.full)], ids=" ".join)
@pytest.mark.full
def test_models_of_clients_own_are_the_same_on_more_devices(subprocess_env, methods):
    """To 1e-12: the model that is sent, all metrics, each client's loss by its own model and after two steps; each
    method on as many devices as stand after it, four with cohorts of three.
    """
    env = subprocess_env | {"JAX_NUM_CPU_DEVICES": "4"}
    command = [sys.executable, "-c", PERSONAL, str(Path(__file__).parent.parent), *methods]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "same"


BY_LAYOUT = """
import os, sys
from dataclasses import replace
import jax, numpy as np
import fedsolve as fs
from fedsolve.core.xla import compiler
from fedsolve.engine.compute import layout
from fedsolve.engine.options import RunOptions
from fedsolve.engine.resolve import resolve
compiler.cores = layout.cores = lambda: 2
child = os.fork()
if not child:  # there JAX has begun already
    assert len(jax.devices()) == 1
tasks = {
    "small": fs.tasks.synthetic(0.0, 0.0, num_clients=5),
    "large": fs.tasks.digits(5, model=fs.tasks.MLP((64, 500, 10))),
    "largest": fs.tasks.digits(5, model=fs.tasks.MLP((64, 120_000, 10))),
}

def planned(name, **options):  # what a run is asked for, without its programs
    run = resolve(fs.FedAvg(0.1), tasks[name], RunOptions(rounds=2, **options))
    return run.identity["devices"], [note for note in run.remarks if "1 of 2 cores" in note]

def devices(name, **options):
    result = fs.run(fs.FedAvg(0.1), tasks[name], rounds=options.pop("rounds", 2), **options)
    return result.history.settings["devices"], [note for note in result.notes if "1 of 2 cores" in note]

few = {"clients_per_round": 3}
if not child:
    large, notes = planned("large", **few)
    assert (large, len(notes)) == (1, 1), (large, notes)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0

def calling(of):
    return lambda params, batch: of(params, batch) + jax.pure_callback(
        lambda: np.float32(0), jax.ShapeDtypeStruct((), np.float32))

tasks["loss"] = replace(tasks["large"], loss=calling(tasks["large"].loss))
tasks["metric"] = replace(tasks["large"], metrics={"own": calling(lambda params, batch: 0.0)})
for name in ("loss", "metric"):
    assert planned(name, **few) == (1, [])
    try:
        planned(name, devices=2, **few)
    except fs.InvalidInput as error:
        assert "calls Python while it is computed" in str(error), error
    else:
        raise AssertionError(name)
assert planned("small", **few) == planned("largest", **few) == (1, [])
assert planned("large", clients_per_round=1) == (1, [])
assert devices("large", out="two", **few) == (2, [])
assert devices("large", devices=1, out="one", **few) == (1, [])
for folder, had in (("one", 1), ("two", 2)):
    for more in (3, 4):
        assert devices("large", out=folder, resume=True, rounds=more, eval_every=1, **few)[0] == had
assert fs.run(fs.FedAvg(0.1), tasks["large"], seeds=2, rounds=1, **few).histories[0].settings["devices"] == 2
layout.total_bytes = lambda: 10**5
assert planned("large", **few) == (1, [])
print("same")
"""


def test_the_layout_decides_whether_cores_are_devices(subprocess_env, tmp_path):
    """Networks take the cores, where JAX has not begun; small and very large models, and losses and metrics that call
    Python, one device, and the latter are refused more. What was asked for stands, and a resumed run keeps its own.
    """
    env = {name: value for name, value in subprocess_env.items() if name != "JAX_NUM_CPU_DEVICES"}
    command = [sys.executable, "-c", BY_LAYOUT]
    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "same"


TASKS = """
import os, sys
from contextlib import suppress
import jax, numpy as np, torch
import fedsolve as fs
from fedsolve.core.xla import compiler
from fedsolve.tasks import CNN, CrossEntropy, Encoder, Examples
from fedsolve.tasks.shared import classification
from fedsolve.tasks.ready.newsgroups import fine_tuning
compiler.cores = lambda: 2
x, y = np.zeros((4, 28, 28, 1), np.float32), np.arange(4, dtype=np.int32)
pictures = fs.FederatedData(Examples(x, y), np.array([2, 2]))
words = Examples(np.ones((4, 3), np.int32), y)
module = torch.nn.Linear(3, 4)  # which the pictures do not fit: refused once JAX may begin, so nothing is translated
encoder = Encoder(classes=4, vocabulary=5, positions=3, width=4, layers=1, heads=1, inner=4)
shapes = jax.eval_shape(encoder.init, jax.eval_shape(jax.random.key, 0))
weights = jax.tree.map(lambda s: np.zeros(s.shape, np.float32), shapes)
tasks = {
    "a model of one's own choice": lambda: fs.Task("own", CNN(4).init, CrossEntropy(CNN(4)), pictures),
    "from the catalogue": lambda: classification("cnn", CNN(4), 4, pictures, pictures.examples, ""),
    "a module of PyTorch": lambda: fs.tasks.from_torch(
        module, torch.nn.functional.cross_entropy, [(x, y)] * 2),
    "updates of given weights": lambda: fine_tuning(
        encoder, weights, fs.FederatedData(words, np.array([2, 2])), words, "lora"),
}
for name, make in tasks.items():
    child = os.fork()
    if not child:
        try:
            with suppress(fs.InvalidInput):
                make()
            os._exit(len(jax.devices()))
        except BaseException as error:
            print(name, repr(error), flush=True)
            os._exit(99)
    found = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert found == 2, (name, found)
print("same")
"""


def test_a_task_leaves_the_cores_to_the_layout(subprocess_env):
    """Making a task begins JAX, in its model or in what is made of a module: with each core a device, as a run does."""
    pytest.importorskip("torch")
    env = {name: value for name, value in subprocess_env.items() if name != "JAX_NUM_CPU_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", TASKS], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.strip() == "same"


def test_more_devices_than_there_are():
    """Refused, with the flag that makes as many devices as there are cores."""
    with pytest.raises(fs.InvalidInput, match=r"xla_force_host_platform_device_count=\d"):
        fs.run(fs.FedAvg(), make_task(make_clients()), rounds=1, devices=99)
