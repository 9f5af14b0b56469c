"""Rates that react to a run's evaluations: against NumPy, resumed, by seed and trial, and what is refused."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import fedsolve as fs
from equations.transcript import Federation, LocalSGD, shares
from fedsolve.core.fleets import Fleet
from fedsolve.core.schedules import Reacting, ReduceOnPlateau
from fedsolve.core.types import Scalar, module, replace
from fedsolve.engine import prepare as engine_prepare
from fedsolve.engine.feedback_schedules import rate_changes
from fedsolve.engine.loop import CallLength
from fedsolve.engine.options import RunOptions
from harness import (
    BATCH,
    EPOCHS,
    Listed,
    compiled_rounds,
    default_start,
    draws,
    make_clients,
    make_task,
    relative,
)
from verbs_harness import vector as flat

CLIENTS = make_clients()
TASK = make_task(CLIENTS)
COHORTS = [[0, 1], [3], [0, 2, 4], [1, 2, 3, 4], [0, 1, 2, 3, 4], [4, 1], [], [0, 3], [1], [2, 4]]
EVERY = 2
OPTIONS = {"rounds": 20, "eval_every": EVERY, "dtype": "float64"}
PARTIAL = OPTIONS | {"sampling": Listed.of(COHORTS)}
FLEET = Fleet(clients=5, step_seconds=[0.11, 0.53, 0.23, 1.07, 0.31], download=1e4, upload=3e3, latency=0.05)
METHOD = fs.FedAvg(ReduceOnPlateau(2.0, "train_loss", patience=2, factor=0.5), server_lr=0.9)


@module
class Stepping(Reacting):
    """A rate that is another one after each evaluation."""

    rate: Scalar
    factor: Scalar

    def __call__(self, round):
        return self.rate

    def after(self, evaluations):
        return replace(self, rate=self.rate * self.factor ** len(evaluations["round"]))


def lowered(losses, rate, patience, factor):
    """The rate after these evaluations, one after another, as the loop of PyTorch's scheduler counts them."""
    best, waited = losses[0], 0
    for loss in losses[1:]:
        best, waited = (loss, 0) if loss < best else (best, waited + 1)
        if waited == patience:
            rate, waited = rate * factor, 0
    return rate


def transcript(method, options, taking_part, rate_after, rule):
    """Models and training losses where round t has clients `taking_part[t]`, each with the round that it began in.

    Args:
        rate_after: losses of all evaluations so far -> the clients' rate from there on.
        rule: (federation, model, [(client, rounds late, displacement)]) -> the next model.
    """
    with jax.enable_x64(True):
        setup = engine_prepare.prepare(method, TASK, RunOptions(**options))
        drawn = draws(setup.program.work, len(taking_part), setup.sampling, setup.packed, setup.key)
    fed = Federation(CLIENTS, [], jax.device_get(drawn[2]), BATCH, epochs=EPOCHS)
    path, losses, rates = [default_start()], [], []
    n = np.array([fed.size(i) for i in range(5)])
    for t, clients in enumerate([*taking_part, None]):
        if t % EVERY == 0:
            losses.append(float(n @ [fed.loss(i, path[t]) for i in range(5)] / n.sum()))
            rates.append(rate_after(losses))
        if clients is None:
            return path[-1], np.array(losses), rates
        ends = [(i, t - s, LocalSGD(rates[s // EVERY])(fed, t, i, path[s]) - path[s]) for i, s in clients]
        path.append(rule(fed, path[t], ends) if ends else path[t])


def averaged(fed, w, ends):
    p = shares(fed, [i for i, _, _ in ends], "examples")
    return w + 0.9 * sum(q * delta for q, (_, _, delta) in zip(p, ends, strict=True))


def test_fedavg_with_a_rate_lowered_on_plateaus_is_its_transcript():
    """Clients take part now and then; the rate is lowered twice and more, and one program does all rounds."""
    programs = compiled_rounds()
    found = fs.run(METHOD, TASK, **PARTIAL)
    assert compiled_rounds() <= programs + 1
    cohorts = [[(i, t) for i in COHORTS[t % 10]] for t in range(20)]
    model, losses, rates = transcript(
        METHOD, PARTIAL, cohorts, lambda seen: lowered(seen, 2.0, 2, 0.5), averaged
    )
    changed = [k for k in range(1, 10) if rates[k] != rates[k - 1]]
    assert len(changed) >= 2
    np.testing.assert_allclose(found.metrics["train_loss"], losses, rtol=1e-12)
    assert relative(flat(found.params), model) < 1e-12
    told = ", ".join(f"{rates[k]:g} after round {EVERY * k}" for k in changed)
    assert found.history.notes == (f"client_lr 2 became {told}",)


def test_clients_on_their_way_keep_the_rate_that_they_began_with():
    """FedBuff on a clock: a rate that changes at every evaluation, and messages that are later than that."""
    method = fs.FedBuff(Stepping(0.9, 0.8), buffer=2, server_lr=0.7)
    options = OPTIONS | {"systems": FLEET, "clients_per_round": 5}
    found = fs.run(method, TASK, **options)
    line = found.timeline
    late = np.arange(20)[:, None] - line.versions
    assert late.max() > EVERY
    taking_part = [list(zip(*pair, strict=True)) for pair in zip(line.ids, line.versions, strict=True)]

    def buffered(fed, w, ends):
        return w + 0.7 * sum((1 + late) ** -0.5 * delta for _, late, delta in ends) / len(ends)

    model, losses, _ = transcript(method, options, taking_part, lambda seen: 0.9 * 0.8 ** len(seen), buffered)
    np.testing.assert_allclose(found.metrics["train_loss"], losses, rtol=1e-12)
    assert relative(flat(found.params), model) < 1e-12


def assert_same(one, other):
    np.testing.assert_array_equal(flat(one.params), flat(other.params))
    np.testing.assert_array_equal(one.metrics["train_loss"], other.metrics["train_loss"])
    assert one.history.notes[-1] == other.history.notes[-1]


def test_a_run_interrupted_between_evaluations_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    """Stopped one round after an evaluation that lowered the rate."""
    whole = fs.run(METHOD, TASK, **PARTIAL)
    at = int(whole.history.notes[0].partition("after round ")[2].partition(",")[0]) + 1
    monkeypatch.setattr(CallLength, "rounds", lambda self, most: 1)

    def stop(progress):
        if progress.round == at - 1:  # the next round ends before it is seen
            (tmp_path / "stop").touch()

    with pytest.raises(fs.Interrupted, match=f"stopped after round {at} of 20"):
        fs.run(METHOD, TASK, out=tmp_path, progress=stop, **PARTIAL)
    assert_same(fs.run(METHOD, TASK, out=tmp_path, resume=True, **PARTIAL), whole)


@pytest.mark.full
def test_clients_that_are_streamed_have_the_same_bits():
    found = [fs.run(METHOD, TASK, residency=kind, **PARTIAL) for kind in ("device", "stream")]
    for name in found[0].metrics.keys() - {"seconds"}:
        np.testing.assert_array_equal(*[run.metrics[name] for run in found])
    assert all("client_lr 2 became 1 after" in run.history.notes[-1] for run in found)


def make(client_lr, patience):
    return fs.FedAvg(ReduceOnPlateau(client_lr, "train_loss", patience, factor=0.5))


def test_each_seed_and_each_trial_reacts_to_evaluations_of_its_own(tmp_path):
    """A seed has the bits of its run alone; trials of a sweep, interrupted on its way, have the numbers of theirs."""
    options = OPTIONS | {"clients_per_round": 2}
    runs = [fs.run(make(rate, 1), TASK, seeds=2, **options).runs for rate in (4.0, 1.0)]
    assert_same(runs[0][1], fs.run(make(4.0, 1), TASK, seed=1, **options))
    assert len({run.history.notes for run in (*runs[0], *runs[1])}) == 4

    def stop(progress):
        if progress.done > 4 * 11:
            (tmp_path / "stop").touch()

    grid, keep = {"client_lr": [4.0, 1.0], "patience": [1]}, {"seeds": 2, "out": tmp_path}
    with pytest.raises(fs.Interrupted, match="stopped after"):
        fs.sweep(make, TASK, grid, progress=stop, **keep, **options)
    sweep = fs.sweep(make, TASK, grid, resume=True, **keep, **options)
    wanted = [[run.metrics["train_loss"] for run in seeds] for seeds in runs]
    np.testing.assert_allclose(sweep.metrics["train_loss"], wanted, rtol=1e-12)


def test_accuracies_count_upwards_and_the_rate_falls_no_further_than_its_least():
    rate = ReduceOnPlateau(0.8, "test_accuracy", patience=1, factor=0.5, min_delta=0.1, min_lr=0.15)
    seen = np.array(
        [np.nan, np.nan, 0.2, 0.4, 0.45, 0.6, np.nan, 0.6]
    )  # what is not known yet lowers nothing
    found = [rate.after({"test_accuracy": seen[: k + 1]}).initial for k in range(len(seen))]
    assert found == [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.15]


def test_many_changes_are_told_in_short():
    (note,) = rate_changes(fs.SCAFFOLD(0.5, server_lr=Stepping(0.5, 0.9)), {"round": np.arange(0, 32, 2)})
    assert note.startswith("server_lr 0.5 became 0.45 after round 0, 0.405 after round 2, ")
    assert note.endswith("0.19371 after round 16, ..., 0.102946 after round 28 (15 changes)")


@pytest.mark.full
def test_a_diverged_run_tells_the_rate_of_the_moment():
    method = fs.FedAvg(Stepping(0.1, 1e200))
    with pytest.raises(fs.Diverged, match=r"^round \d: .* \(client_lr inf, server_lr 1\): lower the rates"):
        fs.run(method, TASK, **PARTIAL)


@module
class Other(Stepping):
    """One that makes another kind of schedule of itself."""

    def after(self, evaluations):
        return fs.schedules.Exponential(0.1, 0.9)


@module
class Wider(Stepping):
    """One whose rate becomes two."""

    def after(self, evaluations):
        return replace(self, rate=np.ones(2))


class Plain(Reacting):
    """One that is no module."""

    def __call__(self, round):
        return 0.1

    def after(self, evaluations):
        return self


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (lambda: ReduceOnPlateau(0.1, "train_los", 2), "unknown metric of ReduceOnPlateau 'train_los': did you mean"),
        (lambda: Other(0.1, 1.0), r"Other.after returns Exponential\(.*: it must return another Other"),
        (lambda: Wider(0.1, 1.0), r"Wider.after changes .rate from shape \(\) to \(2,\): shapes must stay"),
        (Plain, "client_lr: the class Plain is not a module: put @module"),
        (lambda: ReduceOnPlateau(0.0, "train_loss", 2), "initial = 0.0 must be finite and > 0"),
        (lambda: ReduceOnPlateau(0.1, 3, 2), "metric = 3 must be a metric's name"),
        (lambda: ReduceOnPlateau(0.1, "train_loss", 0), "patience = 0 must be finite and >= 1"),
        (lambda: ReduceOnPlateau(0.1, "train_loss", 1.5), "patience = 1.5 must be an integer"),
        (lambda: ReduceOnPlateau(0.1, "train_loss", 2, factor=1.0), "factor = 1.0 must be finite and > 0 and < 1"),
        (lambda: ReduceOnPlateau(0.1, "train_loss", 2, min_delta=-1.0), "min_delta = -1.0 must be finite and >= 0"),
        (lambda: ReduceOnPlateau(0.1, "train_loss", 2, min_lr=0.2), "min_lr = 0.2 must be finite and > 0 and <= 0.1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(rate, words):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.run(fs.FedAvg(rate()), TASK, **PARTIAL)


def test_a_metric_of_a_sweep_that_is_not_there_is_refused():
    with pytest.raises(fs.InvalidInput, match="unknown metric of ReduceOnPlateau 'test_accuracy'"):
        fs.sweep(lambda x: fs.FedAvg(ReduceOnPlateau(x, "test_accuracy", 2)), TASK, {"x": [1.0]}, **OPTIONS)
