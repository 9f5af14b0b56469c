"""Python's garbage collector while programs are traced: paused, and as it was before afterwards."""

from __future__ import annotations

import gc
import threading

import pytest

import fedsolve as fs
from fedsolve.core import gc_paused
from harness import make_clients, make_task


def test_it_is_on_again_after_the_last_of_several():
    """Pauses of two threads that overlap, of which the first ends first; and one that ends by an error."""
    begun, go_on = threading.Event(), threading.Event()

    def pause():
        with gc_paused():
            begun.set()
            go_on.wait(60)

    other = threading.Thread(target=pause)
    with gc_paused():
        other.start()
        assert begun.wait(60)
    while_other = gc.isenabled()
    go_on.set()
    other.join()
    assert (while_other, gc.isenabled()) == (False, True)
    with pytest.raises(ZeroDivisionError), gc_paused():
        _ = 1 / 0
    assert gc.isenabled()


def test_one_that_is_off_stays_off():
    """As a program may have it."""
    gc.disable()
    try:
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.full
def test_a_run_traces_without_it_and_calls_back_with_it():
    """The loss, which is traced, sees it off; a callback between evaluations sees it on."""
    traced, called = [], []
    task = make_task(make_clients())

    def loss(params, batch):
        traced.append(gc.isenabled())
        return task.loss(params, batch)

    ours = fs.Task("ours", task.init, loss, task.data, batch_size=4, epochs=1)
    before = len(traced)
    fs.run(fs.FedAvg(0.1), ours, rounds=2, eval_every=1, callbacks=[lambda _: called.append(gc.isenabled())])
    assert traced[before:]
    assert not any(traced[before:])
    assert called[-1]
