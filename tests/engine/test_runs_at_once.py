"""Methods and seeds at once: the bits of runs alone, each traced once, told in their order, stopped together."""

import gc
import itertools
import os
import signal
import threading
import time
import weakref
from contextvars import copy_context
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine import scheduler
from fedsolve.engine.loop import CompileClock
from fedsolve.engine.scheduler import DeviceSlots
from fedsolve.folders.files import STOP
from fedsolve.tasks import Linear, SquaredError

ROUNDS: dict[str, Any] = {"rounds": 2, "clients_per_round": 2, "progress": False}


def small(loss: Any = SquaredError):
    draw, model = np.random.default_rng(0), Linear(11)
    clients = [fs.Examples(draw.normal(size=(n, 11)), draw.normal(size=n)) for n in (4, 7, 5)]
    return fs.Task("small", model.init, loss(model), fs.FederatedData.from_clients(clients))


def own(model):
    """A user's loss."""
    return lambda params, batch: SquaredError(model)(params, batch)


@pytest.fixture
def traced():
    """The name of the thread that traced rounds, each time."""
    names = []

    def listen(event: str, duration_secs: float, **about: Any) -> None:
        if event.endswith("jaxpr_trace_duration") and about.get("fun_name") == "on_all_devices":
            names.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(listen)  # there is no way to remove one
    return names


def methods(rate):
    return {
        "a": fs.FedAvg(rate),
        "b": fs.FedAvgM(client_lr=rate, server_lr=0.5),
        "c": fs.SCAFFOLD(rate),
    }


def assert_same(one, other):
    for a, b in zip(one.histories, other.histories, strict=True):
        np.testing.assert_array_equal(a.evaluations["train_loss"], b.evaluations["train_loss"])


@pytest.mark.full
def test_each_methods_rounds_are_traced_once_and_give_the_same_bits(traced, monkeypatch):
    jax.clear_caches()
    task = small()
    found = fs.compare(methods(0.01), task, seeds=2, **ROUNDS)
    assert len(traced) == 3
    assert threading.current_thread().name not in traced
    monkeypatch.setattr(scheduler, "_MOST_BYTES", 0)
    jax.clear_caches()
    assert_same(found, fs.compare(methods(0.01), task, seeds=2, **ROUNDS))
    for label, method in methods(0.01).items():
        for seed in range(2):
            alone = fs.run(method, task, seed=seed, **ROUNDS)
            np.testing.assert_array_equal(alone.params.weight, found[label].runs[seed].params.weight)


@pytest.mark.full
def test_where_data_are_large_one_method_follows_another(monkeypatch):
    order, prepare, finish = [], scheduler.prepare, scheduler.MethodProgress.finish

    def prepared(*given: Any) -> Any:
        order.append(given[3])
        return prepare(*given)

    def finished(self: Any, seed: int, over: bool) -> None:
        order.append("ended")
        finish(self, seed, over)

    monkeypatch.setattr(scheduler, "_MOST_BYTES", 0)
    monkeypatch.setattr(scheduler, "prepare", prepared)
    monkeypatch.setattr(scheduler.MethodProgress, "finish", finished)
    fs.compare(methods(0.01), small(own), **ROUNDS)
    assert order == ["a", "ended", "b", "ended", "c", "ended"]


def test_a_users_loss_is_traced_by_what_runs_alone(traced):
    fs.run(fs.FedAvg(0.01), small(own), **ROUNDS)
    assert traced == [threading.current_thread().name]


def test_methods_are_traced_one_after_another():
    """Code of a user may count its calls, or draw."""
    model, order, tracing = Linear(11), [], []

    def loss(params, batch):
        assert tracing in ([], [threading.get_ident()])
        tracing.append(threading.get_ident())
        time.sleep(0.01)
        order.append(tracing.pop())
        return SquaredError(model)(params, batch)

    fs.compare(methods(0.01), small(lambda model: loss), **ROUNDS)
    switches = sum(a != b for a, b in itertools.pairwise(order))
    assert switches == len(set(order)) - 1


def test_one_method_is_told_after_another(monkeypatch):
    """Though the first is the last to begin: what the others told is kept until their turn."""
    told, compiled, c_ended = [], [], threading.Semaphore(0)
    run_rounds = scheduler.run_rounds

    def a_comes_last(prepared, *rest):
        if prepared.label == "a":
            rest[4].method.compiled.set()  # which the next method waits for
            assert c_ended.acquire(timeout=60)
        result = run_rounds(prepared, *rest)
        if prepared.label == "c":
            c_ended.release()
        return result

    def show(at):
        told.append((at.label, at.done))

    show.compiling = lambda label: compiled.append((label, len(told)))
    monkeypatch.setattr(scheduler, "run_rounds", a_comes_last)
    monkeypatch.setattr(scheduler, "batches_at_once", lambda: 3)
    fs.compare(
        methods(0.01), small(), seeds=2, **(ROUNDS | {"rounds": 40, "eval_every": 4, "progress": show})
    )
    labels = [label for label, _ in told]
    assert labels == sorted(labels)
    done = {at: [n for label, n in told if label == at] for at in "abc"}
    assert all(rounds == sorted(rounds) and rounds[-1] == 80 for rounds in done.values())
    assert len(done["a"]) > 10
    assert done["b"] == done["c"] == [80]
    assert {label for label, _ in compiled} <= {"a"}


@pytest.mark.full
def test_what_ended_keeps_no_data(monkeypatch):
    """Of methods that wait for their turn, or have had it, the results alone are in memory."""
    made, prepare = [], scheduler.prepare

    def noted(*given):
        made.append(weakref.ref(prepared := prepare(*given)))
        return prepared

    def alive(at):
        gc.collect()  # of what this test made: the rest of the process is frozen
        kept.append(sum(ref() is not None for ref in made))

    kept: list[int] = []
    gc.freeze()
    monkeypatch.setattr(scheduler, "prepare", noted)
    monkeypatch.setattr(scheduler, "batches_at_once", lambda: 1)
    five = {str(i): fs.FedAvg(0.01 + 0.001 * i) for i in range(5)}
    fs.compare(
        five, small(), seeds=2, callbacks=lambda label, seed: [alive] if label == "4" else [], **ROUNDS
    )
    gc.unfreeze()
    assert len(made) == 5
    assert 1 <= max(kept) <= 2


def test_a_method_whose_clients_are_streamed_is_alone_in_memory(monkeypatch):
    """The next one is made ready when all its seeds have ended."""
    rounds: dict[tuple[str, int], int] = {}
    made, prepare = [], scheduler.prepare

    def noted(algorithm, task, options, label):
        made.append((label, dict(rounds)))
        return prepare(algorithm, task, options, label)

    def callbacks(label, seed):
        return [lambda at: rounds.__setitem__((label, seed), at.round)]

    monkeypatch.setattr(scheduler, "prepare", noted)
    fs.compare(methods(0.01), small(), seeds=2, residency="stream", callbacks=callbacks, **ROUNDS)
    assert [label for label, _ in made] == [*"aabbcc"]
    for before, (_, ended) in zip("ab", (made[2], made[4]), strict=True):
        assert ended[before, 0] == ended[before, 1] == 2


@pytest.mark.full
def test_what_fails_is_said_in_its_turn_and_stops_what_follows_alone():
    seen: dict[str, int] = {}

    def callbacks(label):
        def count(at):
            seen[label] = at.round
            if label == "b":
                raise ZeroDivisionError(label)

        return [count]

    options = ROUNDS | {"rounds": 30, "eval_every": 1}
    with pytest.raises(ZeroDivisionError, match="b"):
        fs.compare(methods(0.01), small(), callbacks=callbacks, **options)
    assert seen["a"] == 30
    assert seen["b"] == 0


@pytest.mark.full
def test_an_interrupted_comparison_stops_all_and_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """In the turn of the second method; the third, which waits for that, goes no further than a call."""
    options = ROUNDS | {"rounds": 600, "eval_every": 3}
    sent, run_rounds = threading.Event(), scheduler.run_rounds

    def stop(at):
        if at.label == "b" and not sent.is_set():
            handler, last = signal.getsignal(signal.SIGINT), time.monotonic() + 60
            os.kill(os.getpid(), signal.SIGINT)
            while signal.getsignal(signal.SIGINT) is handler and time.monotonic() < last:
                time.sleep(0.001)
            sent.set()

    def c_waits(prepared, *rest):
        assert prepared.label != "c" or sent.wait(60)
        return run_rounds(prepared, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "run_rounds", c_waits)
        with pytest.raises(
            fs.Interrupted, match=r"^[bc] interrupted, [12] of 3 methods ended; saved in .*go on from there"
        ):
            fs.compare(methods(0.01), small(), out=tmp_path, **(options | {"progress": stop}))
    again = fs.compare(methods(0.01), small(), out=tmp_path, resume=True, **options)
    assert_same(again, fs.compare(methods(0.01), small(), **options))


def test_a_run_whose_folder_asks_it_to_stop_stops_all(tmp_path, monkeypatch):
    """As `fedsolve stop` asks one of them: nobody else asks the one before, which everybody waits for."""
    rounds: dict[str, int] = {}

    def callbacks(label):
        def note(at):
            rounds[label] = at.round
            if label == "b" and at.round:
                (tmp_path / "b" / STOP).touch()
            if label == "a" and not rounds.get("b"):
                time.sleep(0.01)

        return [note]

    monkeypatch.setattr(scheduler, "batches_at_once", lambda: 2)
    options = ROUNDS | {"rounds": 6000, "eval_every": 6}
    with pytest.raises(fs.Interrupted, match="go on from there with resume=True"):
        fs.compare(methods(0.01), small(), out=tmp_path, callbacks=callbacks, **options)
    assert all(done < 6000 for done in rounds.values())


def test_a_run_that_takes_all_devices_is_alone_and_nobody_overtakes():
    slots, inside, most, order = DeviceSlots(3), [], {True: 0, False: 0}, []

    def use(alone, name):
        with slots.acquire(alone):
            order.append(name)
            inside.append(alone)
            most[alone] = max(most[alone], len(inside))
            assert not (any(inside) and len(inside) > 1)
            time.sleep(0.02)
            inside.remove(alone)

    threads = []
    for name, alone in enumerate([False, False, True, False, False, False, True, True, False]):
        threads.append(threading.Thread(target=use, args=(alone, name)))
        threads[-1].start()
        time.sleep(0.002)
    for thread in threads:
        thread.join()
    assert order == list(range(9))
    assert most == {True: 1, False: 3}
    with slots.acquire(exclusive=True):  # all places are free again
        pass


def test_a_clock_counts_what_its_own_threads_compile():
    def compile_something(n):
        jax.jit(lambda x: jnp.sin(x) * n).lower(1.0).compile()

    clock = CompileClock()
    with CompileClock() as before:
        compile_something(1.5)
    counted = before.seconds
    assert counted > 0
    with clock:
        context = copy_context()
        other = threading.Thread(target=compile_something, args=(2.5,))
        other.start()
        other.join()
        assert clock.seconds == 0
        given = threading.Thread(target=context.run, args=(compile_something, 3.5))
        given.start()
        given.join()
        by_given = clock.seconds
        assert by_given > 0
        compile_something(4.5)
    assert clock.seconds > by_given
    assert before.seconds == counted
