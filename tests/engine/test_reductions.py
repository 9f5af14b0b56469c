"""Reducing a cohort: means by weights, plain averages, maxima, and updates that are not finite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core import trees
from fedsolve.core.types import module, reduced
from fedsolve.engine.compute.train import empty_totals, merge, sum_messages
from fedsolve.folders import run_folder
from harness import Listed, Softmax, cross_entropy, engine, make_clients, make_task


@module
class Up:
    delta: Any
    inner: Any = reduced("average")
    step: Any = reduced("max")


X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, -6.0], [7.0, 8.0]], np.float32)
MESSAGE = Up(jnp.asarray(X), {"a": jnp.asarray(X[:, 0])}, jnp.asarray(-X[:, 1]))


def totals(rows, message=MESSAGE, weights=(1, 2, 3, 4)):
    take = jnp.asarray(rows)
    used = jnp.ones(len(rows), bool)
    message = jax.tree.map(lambda x: x[take], message)
    return sum_messages(message, jnp.asarray(weights, jnp.float32)[take], used, used[:, None], used)


def check(found):
    """Weights 1:2:3:4 give means (50, 24)/10, the plain average of column 0 is 16/4, the maximum of -y is
    6.
    """
    reduced = found.reduce()
    np.testing.assert_allclose(reduced.delta, [5.0, 2.4], rtol=1e-6)
    np.testing.assert_allclose(reduced.inner["a"], 4.0, rtol=1e-6)
    np.testing.assert_allclose(reduced.step, 6.0)
    assert int(found.size) == 4


def test_each_field_as_it_says():
    check(totals([0, 1, 2, 3]))


def test_groups_merge():
    """Disjoint groups, in any order and with an empty one, give what all together give."""
    empty = empty_totals(jax.eval_shape(lambda: totals([0])))
    check(merge(merge(empty, totals([3, 1])), merge(totals([0]), totals([2]))))


@pytest.mark.full
def test_a_maximum_of_negative_numbers():
    """max over -1, -2 is -1, not the 0 of padding; an empty group does not count."""
    message = Up(jnp.zeros((2, 1)), jnp.zeros(2), jnp.asarray([-1.0, -2.0]))
    empty = empty_totals(jax.eval_shape(lambda: totals([0, 1], message)))
    assert float(merge(empty, totals([0, 1], message)).reduce().step) == -1.0


def test_nobody():
    """An empty cohort reduces to zeros, not to NaN or -inf."""
    found = empty_totals(jax.eval_shape(lambda: totals([0]))).reduce()
    assert all((np.asarray(x) == 0).all() for x in jax.tree.leaves(found))


def test_an_unused_message_counts_for_nothing():
    """NaN and inf in a message that is not used do not spread."""
    bad = jax.tree.map(lambda x: x.at[1].set(jnp.nan).at[2].set(jnp.inf), MESSAGE)
    weights = jnp.array([1.0, 0.0, 0.0, 4.0])
    used, present = jnp.array([True, False, False, True]), jnp.array([True, True, False, True])
    found = sum_messages(bad, weights, used, jnp.ones((4, 1), bool), present)
    assert found.sent.tolist() == [3]  # a message that is not used was sent all the same
    np.testing.assert_allclose(found.reduce().delta, (X[0] + 4 * X[3]) / 5, rtol=1e-6)
    np.testing.assert_allclose(found.reduce().inner["a"], 4.0)
    assert float(found.reduce().step) == -2.0
    assert int(found.size) == 2


def broken_task():
    """Client 2 has inputs of 1e200, whose fourth power overflows float64."""
    clients = make_clients()
    clients[2] = clients[2]._replace(x=1e200 * clients[2].x)
    return make_task(clients, np.linspace(-1, 1.5, 15))


def overflowing(params: Softmax, batch: Any) -> Any:
    """Cross-entropy plus the mean of |x|^4, which overflows for inputs of 1e200; its gradient does, too."""
    return cross_entropy(params, batch) + jnp.sum(params.weight) * jnp.mean(batch.x**4) * 1e-30


@pytest.mark.parametrize(
    "name", ["SCAFFOLD", *(pytest.param(n, marks=pytest.mark.full) for n in ("FedAvg", "FedDuAdam"))]
)
def test_a_client_that_is_not_finite_is_left_out(name):
    """Client 2 is counted in `dropped` and changes nothing: as if the cohort had been {0, 1} instead of {0,
    1, 2}.
    """
    task = replace(broken_task(), loss=overflowing)
    algorithm = fs.build(name, {"client_lr": 0.3})
    whole = engine(algorithm, task, Listed.of([[0, 1, 2], [3, 2, 4], [1, 0]]), 3)
    without = engine(algorithm, task, Listed.of([[0, 1], [3, 4], [1, 0]]), 3)
    np.testing.assert_array_equal(whole.logs["dropped"], [1, 1, 0])
    np.testing.assert_array_equal(whole.logs["participants"], [3, 3, 2])
    assert np.isfinite(whole.iterates).all()
    np.testing.assert_allclose(whole.iterates, without.iterates, rtol=1e-13)
    if name == "SCAFFOLD":
        assert all((x[2] == 0).all() for x in jax.tree.leaves(whole.state.clients))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("lanes", [1, 17])
def test_what_is_not_finite_is_seen_in_batches(lanes, bad):
    """Of 60 clients in some lanes, client 3 holds nothing else and client 5 one such number in the last lane."""
    x = np.ones((60, lanes, 650), np.float32)
    x[3], x[5, -1, 7] = bad, bad
    expected = np.ones((60, lanes), bool)
    expected[3], expected[5, -1] = False, False
    message = {"delta": jnp.asarray(x), "loss": jnp.zeros((60, lanes))}
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.vmap(trees.all_finite)))(message), expected)


@pytest.mark.parametrize("leaf", range(6))
def test_what_is_not_finite_is_seen_in_leaves_of_every_size(leaf):
    """Small leaves are joined, large ones are not; the bad number is the last of its leaf."""
    leaves = [np.ones(n, np.float32) for n in (1, 7, 2**14 - 1, 2**14, 2**15, 2**15 + 1)]
    assert jax.jit(trees.all_finite)(leaves)
    leaves[leaf][-1] = np.nan
    assert not jax.jit(trees.all_finite)(leaves)


def jump(round):
    """Finite, as a rate must be; a model that it moved is not."""
    return jnp.where(round < 4, 0.1, 3e38)


@pytest.mark.filterwarnings("ignore:overflow")
def test_all_clients_fail():
    """No client is finite after a jump of the rate: Diverged names round, method and rates; exit code 3."""
    with pytest.raises(fs.Diverged) as error:
        fs.run(
            fs.FedAvg(jump, server_lr=0.5), make_task(make_clients()), rounds=8, eval_every=8, label="FedAvg"
        )
    text = str(error.value)
    assert "round 6" in text
    assert "FedAvg" in text
    assert "client_lr 3e+38" in text
    assert "server_lr 0.5" in text
    assert error.value.exit_code == 3


@pytest.mark.filterwarnings("ignore:overflow")
def test_the_last_good_checkpoint_is_kept(tmp_path, monkeypatch):
    """Saved after round 3, and not again however slow the machine; the run to 8 diverges, names that one."""
    monkeypatch.setattr(run_folder, "_SECONDS_BETWEEN", 1e9)
    task, options = make_task(make_clients()), {"eval_every": 8, "out": tmp_path / "run"}
    good = fs.run(fs.FedAvg(jump), task, rounds=3, **options)
    with pytest.raises(fs.Diverged, match="round 3 is kept in"):
        fs.run(fs.FedAvg(jump), task, rounds=8, resume=True, **options)
    again = fs.run(fs.FedAvg(jump), task, rounds=3, resume=True, **options)
    for a, b in zip(jax.tree.leaves(good.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_failing_client_alone_is_a_failed_round():
    """A cohort of one that is not finite: nobody is left, Diverged; a round without anybody is not."""
    task = replace(broken_task(), loss=overflowing)
    with pytest.raises(fs.Diverged, match="round 3"):
        fs.run(fs.FedAvg(0.3), task, rounds=3, sampling=Listed.of([[0], [], [2]]), dtype="float64")


def test_a_model_that_overflows_in_the_last_round():
    """D is finite but 1e38 D is not: nobody trains from that model, so the end of the run has to notice."""
    task = make_task(make_clients())
    with pytest.raises(fs.Diverged, match=r"round 1: the model of FedAvg is not finite"):
        fs.run(fs.FedAvg(1e3, server_lr=3e38), task, rounds=1)
