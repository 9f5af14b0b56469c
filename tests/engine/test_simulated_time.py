"""The clock of a fleet: a round lasts as its slowest client, measuring changes no bit, late messages do not count."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.fleets import PROFILES, Fleet, asynchronous, synchronous
from fedsolve.engine.options import FLEETS
from harness import BATCH, EPOCHS, SIZES, Listed, make_clients, make_task

COHORTS = [[0, 1, 2], [3, 4], [2, 4, 0], [1, 3, 2]]
FLEET = Fleet(
    clients=5, step_seconds=[0.1, 0.5, 0.2, 1.0, 0.3], download=[1e3, 2e3, 1e3, 4e3, 500.0], upload=200.0,
    latency=[0.0, 1.0, 2.0, 0.5, 0.0], watts=[1.0, 2.0, 0.0, 4.0, 3.0], download_joules=0.01,
    upload_joules=[0.01, 0.03, 0.02, 0.05, 0.04],
)  # fmt: skip

STEPS = np.array([EPOCHS * -(-n // BATCH) for n in SIZES])


def by_hand(down, up):
    """latency + down / download + steps * step_seconds + up / upload; n examples take 2 ceil(n / 4) steps."""
    rows = zip(STEPS, FLEET.step_seconds, FLEET.download, FLEET.latency, strict=True)
    return np.array([late + down / rate + k * step + up / 200.0 for k, step, rate, late in rows])


def run(rounds=4, cohorts=COHORTS, **clock):
    task = make_task(make_clients())
    return fs.run(
        fs.FedAvg(0.3),
        task,
        rounds=rounds,
        sampling=Listed.of(cohorts),
        dtype="float64",
        eval_every=2,
        **clock,
    )


@pytest.mark.full
def test_measuring_changes_no_bit_and_a_round_lasts_as_its_slowest_client():
    alone, timed = run(), run(systems=FLEET)
    for a, b in zip(jax.tree.leaves(alone.params), jax.tree.leaves(timed.params), strict=True):
        np.testing.assert_array_equal(a, b)
    sent = timed.rounds["bytes_down"][0] / 3, timed.rounds["bytes_up"][0] / 3
    seconds = by_hand(*sent)
    time = np.cumsum([seconds[cohort].max() for cohort in COHORTS])
    np.testing.assert_allclose(timed.rounds["time"], time, rtol=1e-14)
    np.testing.assert_allclose(timed.metrics["time"], [0, time[1], time[3]], rtol=1e-14)
    np.testing.assert_array_equal(timed.rounds["asked"], [3, 2, 3, 3])
    waited = [np.mean(1 - seconds[c] / seconds[c].max()) for c in COHORTS]
    np.testing.assert_allclose(timed.rounds["waited"], waited, rtol=1e-14)
    joules = 0.01 * sent[0] + FLEET.upload_joules * sent[1] + FLEET.watts * STEPS * FLEET.step_seconds
    energy = [joules[cohort].sum() for cohort in COHORTS]
    np.testing.assert_allclose(timed.rounds["energy"], energy, rtol=1e-14)
    np.testing.assert_allclose(timed.metrics["energy"], np.cumsum([0, *energy])[[0, 2, 4]], rtol=1e-14)
    loss = timed.metrics["train_loss"]
    assert timed.history.time_to("train_loss", loss[1]) == pytest.approx(time[1], rel=1e-14)
    assert timed.history.time_to("train_loss", 0.0) is None


def test_a_plot_of_a_fleet_has_the_clients_names():
    pytest.importorskip("matplotlib")
    sites = ["north", "south", "west", "client 3", "east"]
    data = fs.data.FederatedData.from_clients(make_clients(), sites)
    found = fs.run(fs.FedAvg(0.3), replace(make_task(make_clients()), data=data), rounds=1, systems=FLEET)
    (axes,) = found.plot_fleet().axes
    assert {tick.get_text() for tick in axes.get_yticklabels()} == {"north", "south", "west", "3", "east"}


def test_who_is_late_does_not_count_and_was_sent_the_model():
    """Client 3 takes longest wherever it is: a quorum of two leaves it out where there are three."""
    timed, last = run(systems=FLEET, quorum=2), [[0, 1], [3, 4], [0, 4], [1, 2]]
    seconds = by_hand(timed.rounds["bytes_down"][0] / 3, timed.rounds["bytes_up"][0] / 2)
    kept = [sorted(np.array(c)[np.argsort(seconds[c])[:2]], key=c.index) for c in COHORTS]
    assert [sorted(k) for k in kept] == last
    expected = run(cohorts=kept)
    for a, b in zip(jax.tree.leaves(timed.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_array_equal(timed.rounds["participants"], [2, 2, 2, 2])
    np.testing.assert_array_equal(timed.rounds["asked"], [3, 2, 3, 3])


def events(seconds, lost, quorum, deadline):
    """A round second by second: messages come in the order of their times until it ends."""
    kept, waiting, end = [], len(seconds), 0.0
    for i in sorted(range(len(seconds)), key=lambda i: seconds[i]):
        if seconds[i] > deadline:
            return kept, deadline
        end, waiting = seconds[i], waiting - 1
        if not lost[i]:
            kept.append(i)
        if len(kept) == quorum or not waiting:
            break
    return kept, end


@pytest.mark.parametrize(("quorum", "deadline"), [(None, None), (3, None), (None, 1.2), (4, 1.0)])
def test_rounds_end_by_quorum_last_client_or_deadline(quorum, deadline):
    random = np.random.default_rng(3)
    seconds, population, rounds = random.exponential(1.0, 40), 40, 60
    fleet = Fleet(
        clients=population, step_seconds=1, download=1, upload=1, dropout=random.uniform(0, 0.6, 40)
    )
    cohorts = [random.permutation(population)[: 1 + t % 6] for t in range(rounds)]
    drawn = (lambda t, there: cohorts[t], 6)
    found = synchronous(fleet, seconds, drawn, rounds, 7, quorum=quorum, deadline=deadline)
    now, came, asked = 0.0, 0, 0
    assert found.ids is not None
    for t, cohort in enumerate(cohorts):
        lost = np.random.default_rng((7, 0xD209, t)).random(len(cohort)) < fleet.dropout[cohort]
        kept, end = events(seconds[cohort], lost, quorum or 99, deadline or np.inf)
        now += end
        assert found.time[t] == pytest.approx(now, rel=1e-13)
        assert sorted(found.ids[t][found.present[t]]) == sorted(cohort[kept])
        came, asked = came + len(kept), asked + len(cohort)
    assert 0 < came < asked


def test_jitter_makes_each_task_longer_or_shorter_and_who_is_stopped_takes_its_share():
    """A task takes exp(jitter z) times as long, z of the seed and the round; a client without jitter ever the same."""
    fleet = Fleet(clients=3, step_seconds=1, download=1, upload=1, jitter=[0.0, 0.5, 0.5])
    seconds, joules, rounds = np.array([2.0, 3.0, 1.0]), np.array([10.0, 20.0, 40.0]), 50
    given = {"quorum": 2, "joules": joules}
    everyone = (lambda t, there: np.arange(3), 3)
    found = synchronous(fleet, seconds, everyone, rounds, 7, **given)
    now, ratios = 0.0, []
    for t in range(rounds):
        z = np.random.default_rng((7, 0x71773, t)).standard_normal(3)
        own = [2.0, 3.0 * np.exp(0.5 * z[1]), np.exp(0.5 * z[2])]
        end = sorted(own)[1]
        now += end
        spent = sum(
            j * (full / s) * min(full, end) / full for j, s, full in zip(joules, seconds, own, strict=True)
        )
        assert found.time[t] == pytest.approx(now, rel=1e-13)
        assert found.joules[t] == pytest.approx(spent, rel=1e-12)
        ratios += [np.log(own[1] / 3), np.log(own[2])]
    assert np.std(ratios) == pytest.approx(0.5, abs=0.1)
    again = synchronous(fleet, seconds, everyone, rounds, 8, **given)
    assert (again.time != found.time).any()


def test_tasks_of_an_asynchronous_run_have_jitter_and_energy():
    """Two clients at work, an update a message: tasks follow one another, each with its own length and energy."""
    fleet = Fleet(clients=2, step_seconds=1, download=1, upload=1, jitter=[0.0, 0.3])
    seconds, joules = np.array([2.0, 3.0]), np.array([10.0, 20.0])
    found = asynchronous(fleet, seconds, 60, 3, buffer=1, concurrency=2, joules=joules)
    tasks, counts = found.tasks, found.tasks.counts
    lengths = (tasks.due - tasks.begin)[counts]
    normals = iter(np.random.default_rng((3, 0x71773)).standard_normal(100))
    for client, length in zip(tasks.client[counts], lengths, strict=True):
        z = next(normals) if client else 0.0
        assert length == pytest.approx(seconds[client] * np.exp(0.3 * z), rel=1e-12)
    spent = joules[tasks.client[counts]] * lengths / seconds[tasks.client[counts]]
    assert found.joules.sum() == pytest.approx(spent.sum(), rel=1e-12)
    assert asynchronous(fleet, seconds, 60, 3, buffer=1, concurrency=2).joules is None


def test_a_trace_is_waited_for():
    """Client 0 is there in slot 1 alone, client 1 in slot 2: rounds begin then, one client each."""
    trace = np.array([[False, False], [True, False], [False, True]])
    fleet = Fleet(clients=2, step_seconds=1, download=1, upload=1, available=trace, slot=10.0)

    def draw(t, there):
        return np.flatnonzero(there)

    found = synchronous(fleet, np.array([4.0, 9.5]), (draw, 2), 5, 0)
    np.testing.assert_allclose(found.time, [14, 18, 22, 31.5, 44])
    assert found.ids[:, 0].tolist() == [0, 0, 0, 1, 0]


def test_fleets_by_name_have_a_source_and_follow_from_the_seed():
    assert tuple(PROFILES) == FLEETS
    for name in FLEETS:
        assert PROFILES[name].source
        one, same, other = (fs.systems.profile(name, 50, seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one.step_seconds, same.step_seconds)
        assert name == "even" or (one.step_seconds != other.step_seconds).any()
    with pytest.raises(fs.InvalidInput, match="seed = -1 must be an integer of at least 0"):
        fs.systems.profile("even", 5, seed=-1)


EVERYBODY = {"clients": 5, "step_seconds": 1.0, "download": 1.0, "upload": 1.0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step_seconds": -0.5}, "step_seconds of client 0 is -0.5: it must be finite and > 0"),
        ({"upload": [1, 1, 0, 1, 1]}, "upload of client 2 is 0: it must be finite and > 0"),
        ({"download": [1.0, 2.0]}, r"download of shape \(2,\) and type float64 must be one number, or 5"),
        ({"dropout": 1.0}, r"dropout of client 0 is 1: it must be in \[0, 1\)"),
        ({"jitter": -0.1}, r"jitter of client 0 is -0.1: it must be in \[0, 10\)"),
        ({"watts": [0, 1, -3, 1, 1]}, "watts of client 2 is -3: it must be finite and >= 0"),
        ({"upload_joules": np.inf}, "upload_joules of client 0 is inf"),
        ({"latency": np.nan}, "latency of client 0 is nan: it must be finite and >= 0"),
        ({"available": np.zeros((3, 5), bool)}, "available: no client is available in any slot"),
        ({"available": np.arange(5)[None] > 0}, "client 0 is available in no slot"),
        ({"available": np.ones((3, 4), bool)}, r"available has shape \(3, 4\)"),
        ({"slot": 0.0}, "slot = 0.0 must be finite and > 0"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(given, message):
    with pytest.raises(fs.InvalidInput, match=message):
        Fleet(**(EVERYBODY | given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quorum": 2}, "quorum = 2 needs simulated time"),
        ({"deadline": 2.0}, "deadline = 2.0 needs simulated time"),
        ({"systems": "phones"}, "systems = 'phones' must be 'even' or"),
        ({"systems": 3}, "systems = 3 must be a fs.systems.Fleet"),
        ({"systems": Fleet(clients=4, step_seconds=1, download=1, upload=1)}, "systems has 4 clients"),
        ({"systems": FLEET, "quorum": 4}, "quorum = 4 but a round asks 3 clients"),
        ({"systems": FLEET, "deadline": -1}, "deadline = -1 must be finite and > 0"),
        ({"systems": replace(FLEET, available=np.ones((1, 5), bool))}, "in place of sampling = Listed"),
        (
            {"systems": FLEET, "deadline": 1e-9},
            "deadline = 1e-09: no client takes part .* quickest task takes 1.16 s",
        ),
        (
            {"systems": replace(FLEET, dropout=np.full(5, 0.999999))},
            "no client takes part in any of the 4 rounds",
        ),
    ],
)
def test_a_clock_that_does_not_fit_the_run_is_refused(given, message):
    with pytest.raises(fs.InvalidInput, match=message):
        run(**given)


@pytest.mark.full
def test_a_run_says_what_its_fleet_is_of():
    notes = run(rounds=1, systems="even").history.notes
    assert any(
        "the fleet even (synthetic: numbers of no measurement; all clients alike)" in note for note in notes
    )


@pytest.mark.full
def test_a_sweep_on_a_clock_has_its_time_and_one_seed():
    task = make_task(make_clients())
    given = {"rounds": 2, "clients_per_round": 3, "systems": FLEET, "dtype": "float64"}
    sweep = fs.sweep("FedAvg", task, {"client_lr": [0.1, 0.3]}, **given)
    alone = fs.run(fs.FedAvg(0.3), task, **given)
    np.testing.assert_array_equal(sweep.metrics["time"][1, 0], alone.metrics["time"])
    with pytest.raises(fs.InvalidInput, match="systems and 2 seeds"):
        fs.sweep("FedAvg", task, {"client_lr": [0.1]}, seeds=2, **given)
    with pytest.raises(
        fs.InvalidInput, match="settings of a sweep with simulated time may differ in numbers only"
    ):
        fs.sweep("FedAvg", task, {"weighting": ["uniform", "examples"]}, **given)
