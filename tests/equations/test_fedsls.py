"""FedSLS and its relatives, and SCAFFOLD with line search, against the rules of the public code; float64."""

from __future__ import annotations

import numpy as np
import pytest

import fedsolve as fs
from equations.cases import CLOSE, EVERY, SOME, displacement_error, federation, flat
from equations.server_rules import Average, FedOptRule
from equations.tuning_transcript import ArmijoSGD, displaced, mean, rounds, searching, with_search_log
from harness import make_clients, make_task
from verbs_harness import play

REGULAR = {"clip_norm": 0.7, "weight_decay": 0.05}
SEARCH = ArmijoSGD(8.0, reset="code", decay=0.05, clip=0.7)


class Lengthened:
    """w += M u: u of another rule, M = max(1, (1/2) sum p |D_i|^2 / (|D|^2 + m eps_t)), eps decayed before its use."""

    def __init__(self, rule, most=np.inf, eps=1e-3, decay=0.998**2):
        self.rule, self.most, self.eps, self.decay = rule, most, eps, decay

    def __call__(self, w, works, p, t):
        D = mean(p, [work.y - w for work in works])
        spread = mean(p, [(work.y - w) @ (work.y - w) for work in works])
        factor = max(1.0, spread / 2 / (D @ D + len(works) * self.eps * self.decay ** (t + 1)))
        factor = min(factor, self.most)
        to, _ = self.rule(w, D, spread, len(works), t)
        return w + factor * (to - w), factor


def logged(rule, name):
    def step(w, works, p, t):
        new, factor = rule(w, works, p, t)
        return new, {"server_lr": factor} if name == "server_lr" else {name: factor, "server_lr": np.nan}

    return step


def adam(eta):
    return FedOptRule("adam", eta, 0.01, 0.9, 0.99, 0.0, False)


METHODS = {
    "FedSLS": (
        lambda: fs.FedSLS(eta_max=8.0),
        ArmijoSGD(8.0, reset="code"),
        lambda: displaced(Average(1.0)),
    ),
    "FedSLS, regularized": (
        lambda: fs.FedSLS(eta_max=8.0, **REGULAR),
        SEARCH,
        lambda: displaced(Average(1.0)),
    ),
    "FedExpSLS": (
        lambda: fs.FedExpSLS(eta_max=8.0),
        ArmijoSGD(8.0, reset="code"),
        lambda: logged(Lengthened(Average(1.0)), "server_lr"),
    ),
    "FedAdamSLS": (
        lambda: fs.FedAdamSLS(eta_max=8.0, **REGULAR),
        SEARCH,
        lambda: displaced(adam(0.1)),
    ),
    "FedAdamExpSLS": (
        lambda: fs.FedAdamExpSLS(eta_max=8.0, server_lr=0.1),
        ArmijoSGD(8.0, reset="code"),
        lambda: logged(Lengthened(adam(0.1)), "extrapolation"),
    ),
    "FedAdamExpSLS, capped": (
        lambda: fs.FedAdamExpSLS(eta_max=8.0, most=1.2, eps_g=1e-6, **REGULAR),
        SEARCH,
        lambda: logged(Lengthened(adam(1.0), most=1.2, eps=1e-6), "extrapolation"),
    ),
}


@EVERY
@pytest.mark.parametrize("name", METHODS)
def test_methods(name, sampling):
    """Iterates, factors and the log of searches; weights by examples in both sums, |S| eps, eps decayed at once."""
    method, search, rule = METHODS[name]
    algorithm, step = method(), with_search_log(rule())
    clients = make_clients()
    run = play(algorithm, make_task(clients), sampling, 10)
    fed = federation(run, clients)
    iterates, log = rounds(run.cohorts, run.iterates[0], searching(fed, search), step, fed.size)
    error = displacement_error(run.iterates[1:], iterates[1:], iterates[0])
    assert error < CLOSE
    for column, values in log.items():
        if not np.isnan(values).all():
            np.testing.assert_allclose(run.logs[column], values, rtol=CLOSE, err_msg=column)
    if "Exp" in name:
        factors = log.get("extrapolation", log["server_lr"])
        assert factors.max() > 1, "nothing was lengthened"
        assert (factors.max() == 1.2) == ("capped" in name)


RULES = {
    "armijo": {},
    "original": {},
    "grad_control": {},
    "no_control_reward": {},
    "drift_slack": {"slack": 0.3},
    "quadratic_drift_slack": {"slack": 0.3},
}


def searched_scaffold(fed, w, search):
    """SCAFFOLD with line search: c_i <- c_i - c - D_i / (sum of the steps), weights alike; c and all c_i too."""
    c, ci = np.zeros_like(w), np.zeros((len(fed.clients), len(w)))
    iterates, evaluations = [w], []
    for t, cohort in enumerate(fed.cohorts):
        works, changes = [], []
        for i in cohort:
            work = search(
                lambda y, rows, i=i: fed.loss(i, y, rows),
                lambda y, rows, i=i: fed.gradient(i, y, rows),
                w,
                fed.minibatches(t, i),
                0,
                1,
                c - ci[i],
            )
            new = ci[i] - c - (work.y - w) / max(work.rate_sum, 1e-12)
            changes.append(new - ci[i])
            works.append(work)
            ci[i] = new
        if cohort:
            w = w + np.mean([work.y - w for work in works], axis=0)
            c = c + np.sum(changes, axis=0) / len(fed.clients)
        iterates.append(w)
        evaluations += [work.evaluations for work in works]
    return np.stack(iterates), c, ci, sum(evaluations)


@EVERY
@pytest.mark.parametrize("accept", RULES)
def test_scaffold_with_line_search(accept, sampling):
    """Each rule, with the steps' sum in option II; the number of trials says that the rules differ."""
    settings = {"eta_max": 8.0, "c": 0.3, "accept": accept, **RULES[accept]}
    algorithm = fs.ControlVariates(fs.FedSLS(**settings, weighting="uniform"))
    clients = make_clients()
    run = play(algorithm, make_task(clients), sampling, 10)
    fed = federation(run, clients)
    name = "surrogate_armijo" if accept == "armijo" else accept
    search = ArmijoSGD(8.0, c=0.3, reset="code", accept=name, slack=settings.get("slack", 0.0))
    iterates, c, ci, evaluations = searched_scaffold(fed, run.iterates[0], search)
    assert displacement_error(run.iterates[1:], iterates[1:], iterates[0]) < CLOSE
    np.testing.assert_allclose(flat(run.state.server.control), c, atol=CLOSE * np.abs(c).max())
    got = np.concatenate([np.reshape(x, (5, -1)) for x in run.state.clients.control], axis=1)
    assert np.abs(got - ci).max() < CLOSE * np.abs(ci).max()
    np.testing.assert_allclose(got.mean(axis=0), c, atol=CLOSE)
    logged = run.logs["loss_evaluations"] * [len(cohort) for cohort in run.cohorts]
    np.testing.assert_allclose(logged.sum(), evaluations)


def test_without_control_variates_the_rules_are_armijos():
    """h = 0: original and no_control_reward ask for (1 + c)/2, grad_control for (1 - c)/2, the slack rules for c."""
    task, share = make_task(make_clients()), {"original": 0.6, "no_control_reward": 0.6, "grad_control": 0.4}
    for accept, more in RULES.items():
        c = share.get(accept, 0.2)
        one = play(fs.FedSLS(eta_max=8.0, c=0.2, accept=accept, **more), task, SOME, 3)
        other = play(fs.FedSLS(eta_max=8.0, c=c), task, SOME, 3)
        np.testing.assert_allclose(one.iterates, other.iterates, rtol=1e-12, err_msg=accept)


def test_steps_that_all_pass_are_scaffold():
    """A short largest step passes at once: SCAFFOLD (option II) at that rate."""
    task = make_task(make_clients())
    search = fs.FedSLS(eta_max=0.01, reset=1, weighting="uniform")
    ours, theirs = (play(method, task, SOME, 5) for method in (fs.ControlVariates(search), fs.SCAFFOLD(0.01)))
    np.testing.assert_allclose(ours.iterates, theirs.iterates, rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"accept": "drift_slack"}, "accept = 'drift_slack' needs slack"),
        ({"slack": 1.0}, "slack = 1.0 is of the rules drift_slack and quadratic_drift_slack alone"),
        ({"accept": "original", "c": 0.5}, "c = 0.5 must be finite and > 0 and < 0.5"),
        ({"accept": "originl"}, "did you mean 'original'"),
        ({"reset": "keep"}, "reset = 'keep' must be 0 (keep), 1 (back to eta_max), 2 (grow) or 'code'"),
    ],
)
def test_settings_refused(settings, said):
    with pytest.raises(fs.InvalidInput) as error:
        fs.FedSLS(**settings)
    assert said in str(error.value)


def test_extrapolated_needs_client_updates_alone():
    for optimizer in (fs.server.DoublyAdaptive(), fs.server.LargestStep(), 0.1):
        with pytest.raises(fs.InvalidInput, match="client updates alone"):
            fs.server.Extrapolated(optimizer)
