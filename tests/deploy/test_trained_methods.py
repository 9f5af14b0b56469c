"""Every method with clients that have a loop of their own: what it sends is what local SGD sends, or it is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.cli.listing import KINDS
from fedsolve.config.build import build, example_of
from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS
from fedsolve.core import introspect
from fedsolve.core.algorithm import name_of
from fedsolve.core.oracle import NeedsMore, Oracle, Outcome, TrainedRound
from fedsolve.methods.trained import support, with_loop

LR, LOSS = 0.1, 0.7
MODEL = {"weight": jnp.linspace(0.1, 1.2, 12).reshape(3, 4), "bias": jnp.linspace(0.1, 0.4, 4)}
END = jax.tree.map(lambda w: w + 0.01 * jnp.cos(jnp.arange(w.size)).reshape(w.shape), MODEL)
MORE = {"DP+FedAdam": {"cohort": 4, "population": 4, "sampling": "none"}}
SMALL = (
    "SCALLION",
    "SCAFCOM",
    "FedComLoc",
    "SparseLoCo",
    "EF21Muon",
    "Compressed+FedAdam",
)  # compress what is no smaller than so many numbers
MORE |= {name: {"smallest": 4} for name in SMALL}
ROWS = [*ALGORITHMS, *(f"{name}+FedAdam" for name in WRAPPERS if name not in ALGORITHMS)]
WORK = {
    "FedAvg", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi", "FedExP", "FedExPM", "FedDuAdagrad", "FedDuAdam",
    "FedDuA", "FedNova", "FedDoG", "FedProdigy", "FedDAdaptation", "FedBuff", "FedAsync", "QFedAvg", "TERM", "AFL",
    "DiLoCo", "SparseLoCo", "FedPer", "FedBN",
    "Robust+FedAdam", "Personal+FedAdam", "Compressed+FedAdam", "Secure+FedAdam",
    "DP+FedAdam", "LocalDP+FedAdam",
}  # fmt: skip
NEEDS = {"FedNova": ("steps",), "QFedAvg": ("loss",), "TERM": ("loss",), "AFL": ("loss",)}


def method(name):
    return build(name, example_of(name) | MORE.get(name, {}))


class OneStep(Oracle):
    """A client whose one step of SGD from the model ends where the loop ends."""

    steps = bound = 1
    num_examples, batch_size, client = 3, 3, 1
    key = jax.random.key(5)

    def __call__(self, params, step):
        return jnp.float32(LOSS), jax.tree.map(lambda w, end: (w - end) / LR, params, END)

    def loss(self, params, step):
        return jnp.float32(LOSS)

    def full(self, params):
        return self(params, 0)


def test_the_rows_are_those_of_the_catalogue():
    assert set(ROWS) > WORK
    assert len(ROWS) == len(set(ALGORITHMS) | set(WRAPPERS))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_works_or_is_refused(name):
    """Whoever works sends, of one step of SGD, exactly what it sends with the oracle of that step."""
    if name.startswith("DP"):
        pytest.importorskip("dp_accounting")
    algorithm = method(name)
    found = support(algorithm, MODEL)
    if name not in WORK:
        assert found.refused.startswith(f"{name_of(algorithm)} needs ")
        assert ": take " in found.refused
        assert "\n" not in found.refused
        return
    assert found == ("", NEEDS.get(name, ()))
    own = with_loop(algorithm, found.needs)
    if name.endswith("LoCo"):  # whose clients' optimiser is then the loop's
        inner = getattr(algorithm, "inner", algorithm)
        alone = replace(inner, local=fs.client.SGD(LR))
        algorithm = alone if inner is algorithm else replace(algorithm, inner=alone)
    broadcast = algorithm.broadcast(algorithm.init(MODEL), introspect.first_cohort(4))
    state = algorithm.enrol(broadcast, MODEL)
    told = {x: y for x, y in {"steps": 1, "loss": LOSS}.items() if x == "loss" or x in found.needs}
    outcome = Outcome(END, jnp.int32(3), **{x: jnp.asarray(y) for x, y in told.items()})
    after = TrainedRound(outcome, OneStep.client, OneStep.key)
    wanted, got = (jax.jit(a.train)(broadcast, state, o) for a, o in ((algorithm, closed()), (own, after)))
    assert jax.tree.structure(wanted) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(a.dtype, jnp.floating):
            np.testing.assert_allclose(b, a, rtol=3e-5, atol=1e-7)
        elif a.dtype == jnp.uint32:  # whole numbers of rounded ones
            near = (np.asarray(a) - np.asarray(b)).astype(np.int32)
            assert np.median(np.abs(near)) <= 2**8


def closed():
    """The oracle as a pytree without leaves."""
    return OneStep()


jax.tree_util.register_pytree_node(OneStep, lambda o: ((), None), lambda _, __: OneStep())


@pytest.mark.parametrize("name", NEEDS)
def test_what_the_loop_must_tell_is_asked_for(name):
    algorithm = with_loop(method(name))
    broadcast = algorithm.broadcast(algorithm.init(MODEL), introspect.first_cohort(4))
    silent = TrainedRound(Outcome(END, jnp.int32(3)), jnp.int32(1), jax.random.key(0))
    with pytest.raises(NeedsMore, match=f"as '{NEEDS[name][0]}'"):
        algorithm.train(broadcast, algorithm.enrol(broadcast, MODEL), silent)


@pytest.mark.parametrize("option", [{"client_momentum": 0.9}, {"weight_decay": 0.01}, {"clip_norm": 1.0}])
def test_options_of_local_sgd_are_not_left_out_silently(option):
    with pytest.raises(fs.InvalidInput, match="SGD with momentum, weight decay or clipping"):
        with_loop(fs.FedAdam(client_lr=LR, **option))


def test_what_is_named_instead_works():
    """MuLoCo's server step, around the steps of a loop."""
    refused = support(fs.MuLoCo(), MODEL).refused
    assert refused.endswith(
        "take FedOpt with its server optimiser, server.ServerSGD, and such steps in the loop"
    )
    instead = fs.FedOpt(fs.client.SGD(0.1), fs.MuLoCo().server_optimizer)
    assert support(instead, MODEL).refused == ""
    assert support(fs.SCAFFOLD(client_lr=LR), MODEL).refused.endswith("take FedAvg")
    assert support(build("FedProx+FedAdam", {"client_lr": LR}), MODEL).refused.endswith("take FedAdam")


def test_it_is_listed():
    """`fedsolve list algorithms --json` says so of each method, and of each wrapper around FedAvg."""
    listed = {row["name"]: row for row in KINDS["algorithms"]()}
    assert len(listed) == len(ALGORITHMS) + len(WRAPPERS)
    for name, row in listed.items():
        assert row["trained_client"] is True or ": take " in row["trained_client"], name
    assert {name for name in ALGORITHMS if listed[name]["trained_client"] is True} == WORK & set(ALGORITHMS)
    alone = {name.removesuffix("+FedAdam") for name in WORK if "+" in name}
    around = {name for name in WRAPPERS if listed[f"{name}+X"]["trained_client"] is True}
    assert around - {"FedBuff", "FedAsync", "FedBN"} == alone
    assert {
        name: row["trained_client_needs"] for name, row in listed.items() if row["trained_client_needs"]
    } == {name: list(needs) for name, needs in NEEDS.items()}


def test_the_page_of_methods_marks_what_works():
    page = (Path(__file__).parents[2] / "docs/methods.md").read_text()
    lines = dict(re.findall(r"^\* `([^`]+)`(.*)$", page, re.M))
    marked = {name for name, line in lines.items() if "; own loops" in line}
    listed = {row["name"]: row["trained_client"] for row in KINDS["algorithms"]()}
    assert marked == {name for name in lines if listed[name] is True}
    assert "own loops that return `steps`" in lines["FedNova"]
