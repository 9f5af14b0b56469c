"""FedBuff and FedAsync against an event-driven transcript: an agenda of who is due next, one model a client at work.

Who is asked when there is a choice comes in as data, like cohorts elsewhere; everything else (who is due when, which
messages an update takes, which model each began with) the transcript works out for itself.
"""

from __future__ import annotations

from queue import PriorityQueue

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedsolve as fs
from equations.transcript import Federation, LocalSGD
from fedsolve.core.fleets import Fleet, asynchronous
from fedsolve.core.sampling import Uniform
from fedsolve.engine import prepare as engine_prepare
from fedsolve.engine.options import RunOptions
from harness import BATCH, EPOCHS, SIZES, draws, make_clients, make_task, relative
from verbs_harness import play, vector

UPDATES, LR = 14, 0.3
FLEET = Fleet(clients=5, step_seconds=[0.11, 0.53, 0.23, 1.07, 0.31], download=1e4, upload=3e3, latency=0.05)
STEPS = np.array([EPOCHS * -(-n // BATCH) for n in SIZES])


def run(method, concurrency, fleet=FLEET):
    """Models after each update, the run's times, whom it asked in which order, and its shuffles for the transcript."""
    task = make_task(make_clients())
    options = RunOptions(
        rounds=UPDATES, clients_per_round=concurrency, systems=fleet, dtype="float64", eval_every=1
    )
    with jax.enable_x64(True):
        setup = engine_prepare.prepare(method, task, options)
        state, models = setup.state, []
        for _ in range(UPDATES):
            models.append(np.array(ravel_pytree(setup.algorithm.export(state.server))[0]))
            state, _ = setup.advance(state, 1)
        models.append(np.array(ravel_pytree(setup.algorithm.export(state.server))[0]))
        orders = jax.device_get(draws(setup.program.work, UPDATES, setup.sampling, setup.packed, setup.key))[
            2
        ]
    tasks = setup.timeline.tasks
    asked = tasks.client[np.lexsort((np.arange(len(tasks.client)), tasks.begin))]
    return np.stack(models), setup.timeline, asked, orders, (setup.traffic.down, max(setup.traffic.up))


def transcript(server, buffer, concurrency, found):
    """Events as they happen; `server` makes of the model and the buffer the next model."""
    models, _, asked, orders, (down, up) = found
    fed = Federation(make_clients(), [], orders, BATCH, epochs=EPOCHS)
    local, seconds = LocalSGD(LR), 0.05 + down / 1e4 + STEPS * FLEET.step_seconds + up / 3e3
    agenda, w, t, now = PriorityQueue(), models[0], 0, 0.0
    order, asks, idle, messages, path, times = iter(asked), 0, set(range(5)), [], [models[0]], []
    while t < UPDATES:
        while agenda.qsize() < concurrency and idle:
            client = int(next(order)) if asks < len(asked) else min(idle)  # the last are never due
            assert client in idle
            idle.remove(client)
            agenda.put((now + seconds[client], asks, client, t, w))
            asks += 1
        now, _, client, version, begun = agenda.get()
        messages.append((client, t - version, begun))
        if len(messages) == buffer:
            ends = [
                (i, late, begun, begun + (local(fed, t, i, begun) - begun)) for i, late, begun in messages
            ]
            w, t = server(fed, w, ends), t + 1
            idle |= {i for i, *_ in messages}
            messages = []
            path.append(w)
            times.append(now)
    return np.stack(path), np.array(times)


def fedbuff(power, weighting):
    def server(fed, w, ends):
        n = np.array([fed.size(i) if weighting == "examples" else 1.0 for i, *_ in ends])
        return w + 0.7 * sum(
            p * (1 + late) ** -power * (y - begun)
            for p, (_, late, begun, y) in zip(n / n.sum(), ends, strict=True)
        )

    return server


def fedasync(s):
    def server(fed, w, ends):
        [(_, late, _, y)] = ends
        return (1 - 0.8 * s(late)) * w + 0.8 * s(late) * y

    return server


@pytest.mark.parametrize(
    ("method", "server", "buffer", "concurrency"),
    [
        (fs.FedBuff(LR, buffer=2, server_lr=0.7), fedbuff(0.5, "uniform"), 2, 5),
        pytest.param(
            fs.FedBuff(LR, buffer=3, power=0.9, server_lr=0.7, weighting="examples"),
            fedbuff(0.9, "examples"),
            3,
            3,
            marks=pytest.mark.full,
        ),
        (fs.FedAsync(LR, mixing=0.8), fedasync(lambda late: (1 + late) ** -0.5), 1, 4),
        pytest.param(
            fs.FedAsync(LR, mixing=0.8, staleness="hinge", a=10.0, b=1.0),
            fedasync(lambda late: 1.0 if late <= 1 else 1 / (10 * (late - 1) + 1)),
            1,
            5,
            marks=pytest.mark.full,
        ),
    ],
    ids=["FedBuff", "FedBuff-chosen", "FedAsync", "FedAsync-hinge"],
)
def test_updates_as_the_events_come(method, server, buffer, concurrency):
    found = run(method, concurrency)
    models, times = transcript(server, buffer, concurrency, found)
    np.testing.assert_allclose(found[1].time, times, rtol=1e-13)
    assert relative(found[0], models) < 1e-12
    late = np.arange(UPDATES)[:, None] - found[1].versions
    assert late.min() == 0 < late.max()  # fresh messages and late ones


def test_staleness_weights():
    """FedAsync's s at alpha = 1 on a displacement of 1 from the newest model."""
    late = np.arange(8)
    for given, s in (
        ({"staleness": "constant"}, np.ones(8)),
        ({"a": 0.8}, (1.0 + late) ** -0.8),
        ({"staleness": "hinge", "a": 2.0, "b": 3.0}, np.where(late <= 3, 1, 1 / (2.0 * (late - 3) + 1))),
    ):
        method = fs.FedAsync(mixing=1.0, **given)
        got = [float(method.weigh(jnp.ones(()), jnp.zeros(()), k)) for k in late]
        np.testing.assert_allclose(got, s, rtol=1e-6)


def test_all_alike_and_a_buffer_of_all_is_synchronous():
    """Nobody is late where all begin and end together: the inner method, to the bit."""
    even = Fleet(clients=5, step_seconds=1e-9, download=1e9, upload=1e9, latency=1.0)
    task = make_task(make_clients(SIZES[:1] * 5), batch=None)  # nothing is shuffled
    given = {"rounds": 3, "dtype": "float64"}
    late = fs.run(fs.FedBuff(LR, buffer=5), task, systems=even, **given)
    plain = play(fs.FedAvg(LR, weighting="uniform"), task, Uniform(5), 3)
    np.testing.assert_allclose(vector(late.params), plain.iterates[-1], rtol=1e-13)
    without = fs.run(fs.FedBuff(LR, buffer=5), task, **given)
    assert any("no systems were given: nobody is late" in note for note in without.history.notes)


def test_dropouts_and_traces_among_those_at_work():
    """Never more at work than asked for, nobody twice at once, nobody asked who is away; a lost task counts nowhere."""
    random = np.random.default_rng(5)
    trace = random.random((6, 30)) < 0.4
    trace[0] |= ~trace.any(axis=0)
    trace[3] = False
    fleet = Fleet(clients=30, step_seconds=1, download=1, upload=1, dropout=0.3, available=trace, slot=2.0)
    seconds = random.exponential(2.0, 30)
    found = asynchronous(fleet, seconds, 50, 1, buffer=4, concurrency=8)
    tasks = found.tasks
    assert (np.diff(found.time) >= 0).all()
    np.testing.assert_allclose(tasks.due, tasks.begin + seconds[tasks.client])
    for n, (client, begin) in enumerate(zip(tasks.client, tasks.begin, strict=True)):
        assert trace[int(begin / 2.0 + 1e-9) % 6, client]
        others = np.arange(len(tasks.client)) != n
        assert not (others & (tasks.client == client) & (tasks.begin <= begin) & (begin < tasks.end)).any()
        assert ((tasks.begin <= begin) & (begin < tasks.due)).sum() <= 8
    lost = ~tasks.counts & (tasks.update >= 0)  # the others are at work at the end
    assert 0.1 < lost.mean() < 0.5
    assert found.asked.sum() >= found.ids.size + lost.sum()


STEADY = {"clients_per_round": 4, "systems": FLEET, "eval_every": 5}


def test_a_resumed_run_has_the_same_bits(tmp_path):
    task, given, method = make_task(make_clients()), STEADY, fs.FedBuff(LR, buffer=2)
    whole = fs.run(method, task, rounds=20, **given)
    fs.run(method, task, rounds=10, out=tmp_path, **given)
    resumed = fs.run(method, task, rounds=20, out=tmp_path, resume=True, **given)
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(resumed.params), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(whole.rounds["time"], resumed.rounds["time"])


@pytest.mark.full
def test_a_streamed_run_has_the_same_bits():
    task, method = make_task(make_clients()), fs.FedBuff(LR, buffer=2)
    whole, streamed = (
        fs.run(method, task, rounds=20, **STEADY, **where) for where in ({}, {"residency": "stream"})
    )
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(streamed.params), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.full
def test_a_sweep_is_the_runs_alone():
    task, given = make_task(make_clients()), {"clients_per_round": 4, "systems": FLEET, "dtype": "float64"}
    sweep = fs.sweep(
        lambda client_lr: fs.FedBuff(client_lr, buffer=2), task, {"client_lr": [0.1, LR]}, rounds=6, **given
    )
    alone = fs.run(fs.FedBuff(LR, buffer=2), task, rounds=6, **given)
    np.testing.assert_allclose(sweep.metrics["train_loss"][1, 0], alone.metrics["train_loss"], rtol=1e-12)


def test_a_sweep_differs_in_numbers():
    with pytest.raises(
        fs.InvalidInput, match="settings of a sweep with simulated time may differ in numbers only"
    ):
        fs.sweep("FedBuff", make_task(make_clients()), {"buffer": [2, 3]}, rounds=6, systems=FLEET)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fs.Buffered(fs.SCAFFOLD(0.1)), "FedBuff cannot wrap SCAFFOLD: c must stay the mean"),
        (
            lambda: fs.Buffered(fs.FedDuAdam(0.1)),
            "DoublyAdaptive steps by what clients measured at one model",
        ),
        (lambda: fs.Mixing(fs.FedNova(0.1)), "FedAsync cannot wrap FedNova: .* measured at one model"),
        (lambda: fs.build("FedBuff+Robust", {}), "unknown algorithm"),
        (
            lambda: fs.build("FedBuff+Robust+FedAvg", {"reduction": "median"}),
            "sent all their clients the same model",
        ),
        (lambda: fs.Buffered(fs.FedAvg(0.1), 0), "buffer = 0 must be an integer of at least 1"),
        (lambda: fs.FedBuff(power=-1.0), "power = -1.0 must be finite and >= 0"),
        (lambda: fs.FedAsync(mixing=1.5), "mixing = 1.5 must be finite and > 0 and <= 1"),
        (
            lambda: fs.FedAsync(staleness="old"),
            "staleness = 'old' must be one of constant, polynomial, hinge",
        ),
    ],
)
def test_what_cannot_be_late_is_refused(make, message):
    with pytest.raises(fs.InvalidInput, match=message):
        make()


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        (fs.FedBuff(LR, buffer=6), {}, "buffer = 6 but there are 5 clients"),
        (fs.FedBuff(LR, buffer=5), {"rounds": 10**8}, "100,000,000 rounds of 5 clients .* take fewer rounds"),
        (fs.FedBuff(LR), {"quorum": 2}, "FedBuff has no rounds that a quorum could end"),
        (fs.FedAsync(LR), {"sampling": fs.sampling.Bernoulli(0.5)}, "in place of sampling = Bernoulli"),
        (fs.Proximal(fs.FedBuff(LR), 0.1), {}, "with systems, FedBuff must be the outermost wrapper"),
    ],
)
def test_a_clock_that_a_late_method_cannot_have(method, given, message):
    with pytest.raises(fs.InvalidInput, match=message):
        fs.run(method, make_task(make_clients()), **({"rounds": 2, "systems": FLEET} | given))
