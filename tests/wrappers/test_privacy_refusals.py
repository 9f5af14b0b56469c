"""What cannot be made private is refused with the reason, before anything runs."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.geometry import L1, L2Ball
from harness import crossed, engine, make_clients, make_task, prepare
from verbs_harness import play

SETTING = {"cohort": 3, "population": 5, "delta": 1e-2}
FEDAVG = fs.FedAvg(0.3, weighting="uniform")
TASK = make_task(make_clients())


def central(inner=FEDAVG, **more):
    return fs.privacy.DifferentialPrivacy(inner, 1.0, 0.5, **(SETTING | more))


def local(inner=FEDAVG, **more):
    return fs.privacy.LocalDifferentialPrivacy(inner, 0.5, 1.0, delta=1e-2, **more)


WRAPPERS = pytest.mark.parametrize("wrap", [central, local])


@WRAPPERS
@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (lambda: fs.FedAvg(0.3), "weighting='uniform'"),
        (lambda: fs.robust.Robust(FEDAVG, fs.robust.Median()), "not for another reduction"),
        (lambda: central(), "private already"),
        (lambda: local(), "private already"),
    ],
)
def test_methods_refused_at_construction(wrap, inner, said):
    with pytest.raises(InvalidInput, match=said):
        wrap(inner())


@WRAPPERS
@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (lambda: fs.SCAFFOLD(0.3, weighting="uniform"), "SCAFFOLD keeps a state on each client"),
        (lambda: fs.FedDR(L1(0.1), 0.3), "keeps a state on each client"),
        (lambda: fs.FedFW(L2Ball(5.0)), "keeps a state on each client"),
        (lambda: fs.FedDyn(0.3), "FedDyn keeps a state on each client"),
        (lambda: fs.FedNova(0.3, weighting="uniform"), r"scalars=\{'measured.rate_sum': 10.0\}"),
        (lambda: fs.FedLiLU(0.3, server_lr=1.0), r"scalars=\{'measured.f': 10.0\}"),
        (lambda: fs.FedLiLS(eta_max=1.0), "search.step"),
        (lambda: fs.FedMiD(L1(0.1), 0.3), "rate_sum"),
        (lambda: fs.FedDualAvg(L1(0.1), 0.3), "rate_sum"),
        (lambda: fs.FedOpt(fs.client.SGD(0.3), fs.server.Polyak(), weighting="uniform"), "measured.loss"),
    ],
)
def test_messages_refused_before_anything_runs(wrap, inner, said):
    with pytest.raises(InvalidInput, match=said):
        engine(wrap(inner()), TASK, fs.sampling.Uniform(3), 1)


BOUNDED = {
    "FedLiLU": (fs.FedLiLU(0.3, server_lr=1.0), {"measured.f": 5.0}),
    "FedMiD": (fs.FedMiD(L1(0.1), 0.3), {"rate_sum": 3.0}),
    "FedLiLS": (fs.FedLiLS(eta_max=1.0), {"search.step": 0, "search.evaluations": 0}),
}


@pytest.mark.full_rows("local-FedMiD")
@pytest.mark.parametrize(
    ("wrap", "name"),
    crossed(product((central, local), BOUNDED), [(central, "FedLiLS"), (local, "FedMiD")]),
)
def test_bounds_make_a_refused_method_private(wrap, name):
    """0 leaves out what is only logged."""
    inner, scalars = BOUNDED[name]
    assert play(wrap(inner, scalars=scalars), TASK, fs.sampling.Uniform(3), 1).logs["epsilon"][0] > 0


@WRAPPERS
def test_scalars(wrap):
    """A maximum has no other way; a scalar's former name, which a configuration may hold, is refused with the
    name of now.
    """
    for inner, scalars, said in (
        (
            fs.FedLiLS(eta_max=1.0),
            {"search.step": 1.0, "search.evaluations": 9.0},
            "whose maximum the server uses",
        ),
        (FEDAVG, {"measured.f": 1.0}, "sends no measured.f; it sends loss"),
        (fs.FedMiD(L1(0.1), 0.3), {"elapsed": 3.0}, "elapsed is now rate_sum"),
        (FEDAVG, {"elapsed": 3.0}, "sends no elapsed; it sends loss"),
    ):
        with pytest.raises(InvalidInput, match=said):
            engine(wrap(inner, scalars=scalars), TASK, fs.sampling.Uniform(3), 1)
    for bad in ({"loss": -1.0}, {"loss": "5"}, {"loss": float("inf")}, 3.0):
        with pytest.raises(InvalidInput, match="scalars"):
            wrap(scalars=bad)


@WRAPPERS
def test_paths_of_vectors(wrap):
    """FedDualAvg's averaged output sends every iterate."""
    inner = fs.FedDualAvg(L1(0.1), 0.3, averaged=True)
    with pytest.raises(InvalidInput, match="only scalars can be protected"):
        engine(
            wrap(inner, scalars={"rate_sum": 3.0}),
            make_task(make_clients(), local_steps=2),
            fs.sampling.Uniform(3),
            1,
        )


def test_wrappers_around_private_methods():
    """Control variates would go up beside the noise; another reduction than the mean is not what it was made for."""
    for wrap in (central, local):
        with pytest.raises(InvalidInput, match="control variates unprotected"):
            fs.ControlVariates(wrap())
        with pytest.raises(InvalidInput, match="control variates unprotected"):
            fs.ControlVariates(fs.Proximal(wrap(), 0.1))
    with pytest.raises(InvalidInput, match="noise is made for the mean"):
        fs.robust.Robust(central(), fs.robust.Median())
    assert (
        fs.robust.Robust(local(), fs.robust.Median()).privacy == "local"
    )  # what is done with private messages is free


@pytest.mark.full_rows(
    "more2-sampling2-sampling = 'fixed'",
    "more6-sampling6-population = 6 but the run has 5",
    "more3-sampling3-draws 2.5",
)
@pytest.mark.parametrize(
    ("more", "sampling", "said"),
    [
        ({}, fs.sampling.Uniform(4), "cohort = 3 but the run draws 4"),
        ({}, fs.sampling.Bernoulli(0.6), "sampling = 'poisson'"),
        ({"sampling": "poisson"}, fs.sampling.Uniform(3), "sampling = 'fixed'"),
        ({"sampling": "poisson"}, fs.sampling.Bernoulli(0.5), "draws 2.5"),
        ({}, fs.sampling.Weighted(np.ones(5), 3), "sampling = 'none'"),
        ({}, fs.sampling.Trace(np.ones((1, 5), bool), 3), "sampling = 'none'"),
        ({"population": 6}, fs.sampling.Uniform(3), "population = 6 but the run has 5"),
    ],
)
def test_runs_that_are_not_the_accounted_ones(more, sampling, said):
    with pytest.raises(InvalidInput, match=said):
        fs.run(central(**more), TASK, rounds=1, sampling=sampling)
    with pytest.raises(InvalidInput, match=said):
        fs.sweep(
            lambda z: central(fs.Proximal(FEDAVG, z), **more), TASK, {"z": [1.0]}, rounds=1, sampling=sampling
        )


def test_runs_without_amplification_may_be_drawn_by_any_rule():
    for sampling in (
        fs.sampling.Uniform(3),
        fs.sampling.Weighted(np.ones(5), 3),
        fs.sampling.Trace(np.ones((1, 5), bool), 3),
    ):
        prepare(central(sampling="none"), TASK, sampling, dtype="float32")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clipping": "adaptiv"}, "clipping"),
        ({"at": "proxy"}, "at"),
        ({"share": 1.0}, "share"),
        ({"quantile": 1.5}, "quantile"),
        ({"quantile_lr": 0.0}, "quantile_lr"),
        ({"delta": 2.0}, "delta"),
        ({"cohort": 6}, "cohort"),
    ],
)
def test_numbers_out_of_range(change, said):
    with pytest.raises(InvalidInput, match=said):
        central(**change)


def test_local_needs_one_of_two():
    with pytest.raises(InvalidInput, match="epsilon of one message, or noise_multiplier"):
        fs.privacy.LocalDifferentialPrivacy(FEDAVG, 0.5, delta=1e-2)
    with pytest.raises(InvalidInput, match="not both"):
        fs.privacy.LocalDifferentialPrivacy(FEDAVG, 0.5, 1.0, delta=1e-2, noise_multiplier=1.0)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    from fedsolve.methods.privacy import accounting as renyi

    renyi._renyi.cache_clear()
    with pytest.raises(InvalidInput, match=r"fedsolve\[privacy\]"):
        central()
    fs.privacy.LocalDifferentialPrivacy(FEDAVG, 0.5, 1.0, delta=1e-2)  # needs none


def test_updates_without_randomness():
    method = central()
    server = method.init({"w": 0.0 * TASK.init(None).weight})
    with pytest.raises(InvalidInput, match="give Cohort a key"):
        method.update(server, None, fs.Cohort(0, 3, 5))
    with pytest.raises(InvalidInput, match="population = 5 but the run has 7"):
        method.broadcast(server, fs.Cohort(0, 3, 7))


@pytest.mark.full
def test_on_the_command_line(tmp_path, monkeypatch):
    """`DP+FedLiLS` with a table of bounds: a run whose record has epsilon and C of every round."""
    from fedsolve.cli.main import app

    monkeypatch.chdir(tmp_path)
    settings = [
        "weighting=uniform", "noise_multiplier=1.0", "clip_norm=0.5", "cohort=2", "population=4", "delta=0.01",
        "clipping=adaptive", "eta_max=0.1", 'scalars={"search.step"=0, "search.evaluations"=0}',
    ]  # fmt: skip
    command = ["run", "digits", "DP+FedLiLS", *(a for s in settings for a in ("--set", s))]
    small = [
        "--task-set",
        "num_clients=4",
        "--task-set",
        "model=softmax",
        "--clients-per-round=2",
        "--rounds=3",
    ]
    ended = CliRunner().invoke(app, [*command, *small, "--out", "r"])
    assert ended.exit_code == 0, ended.output
    rounds = json.loads(Path("r/history.json").read_text())["rounds"]
    assert rounds["epsilon"] == sorted(rounds["epsilon"])
    assert len(rounds["clip_norm"]) == 3
    assert Path("r/page.html").exists()
