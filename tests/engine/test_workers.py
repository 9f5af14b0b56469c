"""Runs on the workers of an executor: the bits of one process, what is lost repeated, what is finished kept."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import replace
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from worker_parts import KilledOnce, problem_task, small

import fedsolve as fs
from fedsolve.core.errors import Interrupted, Unavailable
from fedsolve.core.xla import compiler
from fedsolve.engine.compute import workers
from fedsolve.engine.progress import Progress
from fedsolve.studies import Method, Problem, Statement, Study
from fedsolve.studies.experiment import PARTS, read_part
from fedsolve.studies.reproduce import reproduce
from fedsolve.studies.rules.comparisons import better
from fedsolve.studies.runner import experiment

ROUNDS: dict[str, Any] = {"rounds": 3, "clients_per_round": 2, "eval_every": 1, "progress": False}


METHODS = {"a": fs.SCAFFOLD(0.05), "b": fs.FedAvgM(client_lr=0.05, server_lr=0.5)}


@pytest.fixture(scope="module")
def cluster():
    """The text of an executor: two processes of Dask."""
    distributed = pytest.importorskip("distributed")
    given = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 40}
    with distributed.LocalCluster(processes=True, **given) as found:
        yield f"dask:{found.scheduler_address}"


class Here:
    """Does its work in this process when it is submitted; what `lose` raises is a worker's end."""

    def __init__(self, lose: Any = lambda unit: None) -> None:
        self.units: list[str] = []
        self.lose, self.lock = lose, threading.Lock()

    def submit(self, function: Any, order: dict[str, Any]) -> Future[bytes]:
        future: Future[bytes] = Future()
        with self.lock:  # threads of the caller submit at once
            self.units.append(order["unit"])
            error = self.lose(order["unit"])
            future.set_exception(error) if error else future.set_result(function(order))
        return future


def numbers(results: Any) -> list[dict[str, np.ndarray]]:
    """All that a method's runs hold but the time that they took."""
    return [
        {k: v for k, v in run.metrics.items() if k != "seconds"}
        | run.rounds
        | {f"leaf {i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(run.params))}
        for run in results
    ]


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(numbers(found), numbers(expected), strict=True):
        assert one.keys() == other.keys()
        for name, x in one.items():
            assert x.dtype == other[name].dtype
            np.testing.assert_array_equal(x, other[name], name)


def executor_of(request: pytest.FixtureRequest, there: str) -> Any:
    return Here() if there == "here" else request.getfixturevalue("cluster")


@pytest.mark.full_rows("float64-cluster")
@pytest.mark.parametrize(
    ("dtype", "there"), [("float32", "cluster"), ("float64", "here"), ("float64", "cluster")]
)
def test_seeds_and_methods_have_the_bits_of_one_process(request, dtype, there):
    task, cluster = small(), executor_of(request, there)
    expected = fs.compare(METHODS, task, seeds=2, dtype=dtype, **ROUNDS)
    found = fs.compare(METHODS, task, seeds=2, dtype=dtype, executor=cluster, **ROUNDS)
    for label in METHODS:
        assert_same(found[label].runs, expected[label].runs)
        assert found[label].runs[0].history.settings == expected[label].runs[0].history.settings
    x = np.ones((2, 5), np.float32)
    np.testing.assert_array_equal(found["a"].runs[1].predict(x), expected["a"].runs[1].predict(x))


def test_a_run_whose_process_is_killed_is_repeated_and_named(tmp_path, caplog):
    def callbacks(seed: int) -> list[Any]:
        return [KilledOnce(tmp_path / "killed", seed)]

    given: dict[str, Any] = {"seeds": 2, "callbacks": callbacks, **ROUNDS}
    found = fs.run(fs.FedAvg(0.1), small(), executor="processes:1", out=tmp_path / "out", **given)
    assert (tmp_path / "killed").exists()
    expected = fs.run(fs.FedAvg(0.1), small(), **given)
    assert_same(found, expected)
    assert [len(run.notes) for run in found] == [0, 1]
    assert "FedAvg, seed 1 was lost and is repeated: BrokenProcessPool" in found[1].notes[0]
    assert "FedAvg, seed 1 was lost" in caplog.text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.toml",
        "page.html",
        "seed-0",
        "seed-1",
    ]


def test_what_is_lost_too_often_is_told_and_the_others_go_on(tmp_path):
    executor = Here(lambda unit: OSError("node gone") if unit == "FedAvg, seed 0" else None)
    out, given = tmp_path / "out", {"seeds": 3, **ROUNDS}
    with pytest.raises(
        Unavailable, match=r"FedAvg, seed 0 was lost 2 times: OSError: node gone; what is done is kept"
    ):
        fs.run(fs.FedAvg(0.1), small(), executor=fs.Workers(executor, retries=1), out=out, **given)
    assert sorted(executor.units) == [f"FedAvg, seed {seed}" for seed in (0, 0, 1, 2)]
    # another executor goes on, and none of the finished runs has a round again
    saved = {path: path.stat().st_mtime_ns for path in out.glob("seed-*/checkpoint.safetensors")}
    assert len(saved) == 2
    found = fs.run(fs.FedAvg(0.1), small(), executor=Here(), out=out, resume=True, **given)
    assert saved == {path: path.stat().st_mtime_ns for path in saved}
    assert_same(found, fs.run(fs.FedAvg(0.1), small(), **given))


def test_a_broken_executor_of_the_user_is_not_made_anew():
    executor = Here(lambda unit: BrokenExecutor("terminated"))
    with pytest.raises(Unavailable, match="is not made anew; nothing was saved: give out=FOLDER"):
        fs.run(fs.FedAvg(0.1), small(), seeds=1, executor=executor, **ROUNDS)


def test_a_diverged_run_and_one_that_is_refused_are_told_as_in_one_process():
    methods = {"good": fs.FedAvg(0.1), "bad": fs.FedAvg(1e30)}
    expected = fs.compare(methods, small(), seeds=2, **ROUNDS)
    found = fs.compare(methods, small(), seeds=2, executor=Here(), **ROUNDS)
    assert found.failures == expected.failures
    assert found.failures

    def callbacks(seed: int) -> list[Any]:
        raise LookupError("no tracker")

    with pytest.raises(LookupError, match="no tracker"):
        fs.run(fs.FedAvg(0.1), small(), seeds=2, executor=Here(), callbacks=callbacks, **ROUNDS)


NO_EXECUTORS = (
    "proceses:4", "processes", "processes:0", "processes:many", "processes:2,cores=3", "dask", 
    "mpi:4,retries=x",
)  # fmt: skip


@pytest.mark.parametrize(
    ("executor", "says"),
    [
        *((text, f"executor = '{text}' must be such as processes:4, dask:") for text in NO_EXECUTORS),
        (3, "must have `submit`, or be text"),
        ("mpi", "pip install 'mpi4py'"),
    ],
)
def test_what_is_no_executor(executor, says):
    with pytest.raises(fs.InvalidInput, match=says):
        fs.run(fs.FedAvg(0.1), small(), seeds=2, executor=executor, **ROUNDS)


def test_an_executor_is_of_several_seeds():
    with pytest.raises(fs.InvalidInput, match="executor runs several seeds: give seeds"):
        fs.run(fs.FedAvg(0.1), small(), executor=Here(), **ROUNDS)


def test_forked_processes_are_refused():
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as forked,
        pytest.raises(fs.InvalidInput, match="forked, in which JAX hangs"),
    ):
        fs.run(fs.FedAvg(0.1), small(), seeds=2, executor=forked, **ROUNDS)


class Replies(Here):
    """Changes what is sent to a worker, or what comes back."""

    def __init__(self, order: dict[str, Any], reply: Any = None) -> None:
        super().__init__()
        self.order, self.reply = order, reply

    def submit(self, function: Any, order: dict[str, Any]) -> Future[bytes]:
        future = super().submit(function, order | self.order)
        if self.reply is not None:
            future = Future()
            future.set_result(workers._pickled("", self.reply))
        return future


@pytest.mark.parametrize(
    ("executor", "says"),
    [
        (
            Replies({"versions": "fedsolve 0.0"}),
            r"worker .* has fedsolve .*, its caller fedsolve 0\.0: install the same",
        ),
        (Replies({"folder": "nowhere"}), "does not see nowhere: give out="),
        (Replies({"unit": "another"}), "the worker replied of 'another'"),
        (Replies({}, ("FedAvg, seed 0", 3, None)), "the worker's reply is of another run: 3"),
    ],
)
def test_workers_and_replies_that_do_not_fit_are_refused(executor, says):
    with pytest.raises(fs.InvalidInput, match=says):
        fs.run(fs.FedAvg(0.1), small(), seeds=1, executor=executor, **ROUNDS)


def test_a_run_of_another_seed_is_refused():
    other = fs.run(fs.FedAvg(0.1), small(), seed=7, **ROUNDS)
    with pytest.raises(fs.InvalidInput, match="the worker's reply is of another run"):
        fs.run(
            fs.FedAvg(0.1), small(), seeds=1, executor=Replies({}, ("FedAvg, seed 0", other, None)), **ROUNDS
        )


def test_a_worker_chooses_programs_as_its_caller_does(monkeypatch):
    monkeypatch.setattr(compiler, "_like", [])
    monkeypatch.delenv("NPROC", raising=False)
    here = compiler.cores()
    compiler.begin_as(here + 5, 3)
    assert (compiler.cores(), os.environ["NPROC"]) == (here + 5, str(here + 5))


def test_ctrl_c_stops_all_units_and_what_is_finished_is_kept(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def interrupt(unit: str) -> None:
        if len(executor.units) == 2:  # the first has ended
            os.kill(os.getpid(), signal.SIGINT)
            while signal.getsignal(signal.SIGINT) is not before:  # the main thread has not noticed
                time.sleep(0.01)

    executor, given = Here(interrupt), {"seeds": 3, **ROUNDS}
    with pytest.raises(Interrupted, match="seeds done; saved in"):
        fs.run(fs.FedAvg(0.1), small(), executor=executor, out=tmp_path / "out", **given)
    saved = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/seed-*/checkpoint.safetensors")}
    found = fs.run(fs.FedAvg(0.1), small(), out=tmp_path / "out", resume=True, **given)
    assert_same(found, fs.run(fs.FedAvg(0.1), small(), **given))
    assert saved == {path: path.stat().st_mtime_ns for path in saved}


def test_a_changed_file_of_shared_data_is_refused(monkeypatch):
    written = workers.Units.share

    def damaged(self: Any, what: str, value: Any) -> str:
        digest = written(self, what, value)
        (self._folder / digest).write_bytes(b"other")
        return digest

    monkeypatch.setattr(workers.Units, "share", damaged)
    workers._read.clear()
    with pytest.raises(fs.InvalidInput, match="is not what was written"):
        fs.run(fs.FedAvg(0.1), small(), seeds=1, executor=Here(), **ROUNDS)


@pytest.mark.parametrize("text", ["", "{", '{"label": 1}', '"x"', None])
def test_a_note_that_is_none_says_nothing(tmp_path, text):
    workers._Note(tmp_path / workers.NOTE, "on a node")(at := Progress("FedAvg", 3, 3, {"train_loss": 0.5}))
    assert workers.where_it_runs(tmp_path) == replace(at, remark="on a node")
    workers._Note(tmp_path / workers.NOTE, "on a node")(replace(at, round=2))  # just after another
    assert workers.where_it_runs(tmp_path) == Progress("", 0, 1, {}, remark="on a node")
    note = (tmp_path / workers.NOTE).read_text()
    (tmp_path / workers.NOTE).write_text(note.replace("0, ", '"a", ', 1) if text is None else text)
    assert workers.where_it_runs(tmp_path) is None


GRID = {"client_lr": [0.01, 0.05, 1e30, 0.1, 0.02]}
SWEEP: dict[str, Any] = {"seeds": 2, "parallel_trials": 2, **ROUNDS}


def assert_same_sweep(found: Any, expected: Any) -> None:
    assert found.metrics.keys() == expected.metrics.keys()
    for name, values in found.metrics.items():
        assert values.dtype == expected.metrics[name].dtype
        np.testing.assert_array_equal(values, expected.metrics[name], name)
    np.testing.assert_array_equal(found.diverged, expected.diverged)
    assert found.best_settings == expected.best_settings


@pytest.mark.full_rows("cluster")
@pytest.mark.parametrize("there", ["here", "cluster"])
def test_a_sweeps_batches_have_the_bits_of_one_process(request, there):
    cluster = executor_of(request, there)
    expected = fs.sweep("FedAvg", small(), GRID, **SWEEP)
    assert_same_sweep(fs.sweep("FedAvg", small(), GRID, executor=cluster, **SWEEP), expected)
    assert (expected.diverged > 0).any()


@pytest.mark.full_rows("an executor")
@pytest.mark.parametrize("there", [None, "an executor"])
def test_a_sweep_goes_on_where_batches_were_lost(tmp_path, there):
    executor = Here(lambda unit: OSError("node gone") if unit == "batch 2" else None)
    workers_ = fs.Workers(executor, retries=0)
    with pytest.raises(
        Unavailable, match="batch 2 was lost 1 times: OSError: node gone; what is done is kept"
    ):
        fs.sweep("FedAvg", small(), GRID, executor=workers_, out=tmp_path / "out", **SWEEP)
    batches = set(executor.units)
    assert len(batches) > 2
    goes_on = Here() if there else None
    found = fs.sweep("FedAvg", small(), GRID, executor=goes_on, out=tmp_path / "out", resume=True, **SWEEP)
    assert goes_on is None or goes_on.units == ["batch 2"]
    assert_same_sweep(found, fs.sweep("FedAvg", small(), GRID, **SWEEP))


STUDY = Study(
    "A made-up study",
    "for tests",
    {"small": Problem("small", "all clients", problem_task, {"rounds": 2}, metric="train_loss")},
    {
        "FedAvg": Method(lambda client_lr: fs.FedAvg(client_lr), {"client_lr": 0.01}),
        "SCAFFOLD": Method(lambda client_lr: fs.SCAFFOLD(client_lr), {"client_lr": 0.01}),
    },
    (0, 1),
    (Statement("SCAFFOLD is better", "", better("small", "SCAFFOLD", "FedAvg")),),
    {},
    needs_data=False,
)


@pytest.mark.full_rows("cluster")
@pytest.mark.parametrize("there", ["here", "cluster"])
def test_a_studys_parts_have_the_bits_of_one_process(request, tmp_path, there):
    cluster = executor_of(request, there)
    here = Here(lambda unit: KeyError("lost") if unit.startswith("small-SCAFFOLD") else None)
    folder, other, of = tmp_path / "there", tmp_path / "here", experiment(STUDY)
    said: list[str] = []
    with pytest.raises(Unavailable, match="small-SCAFFOLD-published was lost 1 times"):
        reproduce("a:b", folder, experiment=of, executor=fs.Workers(here, retries=0))
    reproduce("a:b", folder, experiment=of, executor=cluster, say=lambda part, done, total: said.append(part))
    assert [part for part in said if "kept" in part] == ["small-FedAvg-published (kept)"]
    reproduce("a:b", other, experiment=of)
    stored = [sorted((place / PARTS).iterdir()) for place in (folder, other)]
    assert len(stored[0]) == 2
    for one, two in zip(*stored, strict=True):
        found, expected = read_part(folder, one.name), read_part(other, two.name)
        assert found is not None
        assert expected is not None
        assert found.keys() == expected.keys()
        for name in found.keys() - {"processor_seconds_that_it_took"}:
            np.testing.assert_array_equal(found[name], expected[name], name)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in other.iterdir())


@pytest.mark.full
def test_jobs_of_submitit_have_the_bits_of_one_process(tmp_path):
    pytest.importorskip("submitit")
    text = "slurm:cluster=local,timeout_min=5,retries=0"
    found = fs.run(METHODS["a"], small(), seeds=2, executor=text, out=tmp_path / "out", **ROUNDS)
    assert_same(found, fs.run(METHODS["a"], small(), seeds=2, **ROUNDS))
    with pytest.raises(fs.InvalidInput, match=r"executor 'slurm': .*wheels"):
        fs.run(METHODS["a"], small(), seeds=2, executor="slurm:cluster=local,wheels=4", **ROUNDS)


def test_mpi_is_that_of_mpi4py(monkeypatch):
    class MPIPoolExecutor(Here):
        def __enter__(self) -> MPIPoolExecutor:
            return self

        def __exit__(self, *error: object) -> None:
            ended.append(True)

    ended: list[bool] = []
    monkeypatch.setitem(sys.modules, "mpi4py", ModuleType("mpi4py"))
    futures = ModuleType("mpi4py.futures")
    vars(futures)["MPIPoolExecutor"] = MPIPoolExecutor
    monkeypatch.setitem(sys.modules, "mpi4py.futures", futures)
    found = fs.run(fs.FedAvg(0.1), small(), seeds=1, executor="mpi", **ROUNDS)
    assert_same(found, fs.run(fs.FedAvg(0.1), small(), seeds=1, **ROUNDS))
    assert ended == [True]


def test_halving_compares_all_batches_and_is_refused():
    with pytest.raises(fs.InvalidInput, match="executor: halving compares the trials of all batches"):
        fs.sweep("FedAvg", small(), GRID, halving=2, executor=Here(), **SWEEP)


def test_a_scheduler_that_is_gone_ends_all():
    class Gone(Here):
        class _client:
            status = "closed"

        def submit(self, function: Any, order: dict[str, Any]) -> Future[bytes]:
            return Future()  # which nobody ends

    with pytest.raises(
        Unavailable, match="FedAvg, seed 0: BrokenExecutor: the scheduler is gone; such an executor"
    ):
        fs.run(fs.FedAvg(0.1), small(), seeds=1, executor=Gone(), **ROUNDS)
