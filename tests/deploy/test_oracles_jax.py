"""A client with a JAX loss sees what the compiled engine would show it, to the last bit."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_small import far, key, local_work, same, train

import fedsolve as fs
from conformance.entries import METHODS
from conformance.properties import task as nested
from fedsolve.core.algorithm import Cohort
from fedsolve.core.errors import check_same
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.oracles.node_oracle import check_needs
from fedsolve.engine.compute.clients import client_oracle
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare as engine_prepare
from harness import Listed, crossed, prepare

FEW = ("FedAvg", "SCAFFOLD+FedLiLS", "FedDuAdam", "FedDR", "FedFW", "FedExProx")
"""Together: no state and one, a line search, |D|^2 sent, a solver that adds its rates, an atom, a prox."""
TASKS = {
    "uneven": nested(),
    "even": nested((8,) * 6),
    "one client fits": nested((8, 8, 2, 8, 3, 8)),
}


def cohort(t, drawn):
    """As the engine has it, in whose float64 runs a share |S|/N is float64."""
    return Cohort(jnp.int32(t), jnp.int64(drawn), 6)


CASES = [  # every kind of clients, of local work and type once
    pytest.param("uneven", {}, "float32", marks=pytest.mark.full),
    pytest.param("uneven", {"local_steps": 5}, "float64", marks=pytest.mark.full),
    pytest.param("even", {}, "float64", marks=pytest.mark.full),
    ("even", {"batch_size": 100, "epochs": 2}, "float32"),
    pytest.param("one client fits", {}, "float32", marks=pytest.mark.full),
]


@jax.jit
def everything(oracle, params):
    """Two steps' losses and gradients, and those of all examples."""
    steps = [(oracle(params, k), oracle.loss(params, k)) for k in map(jnp.int32, range(2))]
    return steps, oracle.full(params)


@pytest.mark.parametrize(("name", "local", "dtype"), CASES)
def test_a_client_of_a_task_is_the_engines(name, local, dtype):
    """Steps, shuffles, losses and gradients; only the client's own rows are there."""
    task = TASKS[name]
    with jax.enable_x64(dtype == "float64"):
        options = RunOptions(rounds=1, sampling=Listed.of([[0]]), dtype=dtype, chunk=1, **local)
        setup = engine_prepare(fs.FedAvg(0.1), task, options)
        params = jax.tree.map(lambda p: jnp.asarray(p, dtype), task.init(None))
        for i in (2, 4):
            ours = JaxOracle.of_task(task, i, **local).begin(key(), i, dtype)
            theirs = client_oracle(
                setup.program.work, setup.packed, key(), jnp.int32(i), setup.packed.steps[i]
            )
            assert len(jax.tree.leaves(ours.packed.examples)[0]) == task.data.counts[i]
            for what in ("steps", "bound", "num_examples", "batch_size", "client", "order"):
                assert same(getattr(ours, what), getattr(theirs, what)), what
            assert same(jax.random.key_data(ours.key), jax.random.key_data(theirs.key))
            assert same(everything(ours, params), everything(theirs, params))


@pytest.mark.gate("FedAvg-one client fits")
@pytest.mark.parametrize(
    ("name", "data"),
    crossed(
        [*((n, "uneven") for n in FEW), ("FedAvg", "even"), ("FedAvg", "one client fits")],
        [("SCAFFOLD+FedLiLS", "uneven"), ("FedAvg", "one client fits")],
    ),
)
def test_local_work_is_the_engines_to_the_last_bit(name, data, pytestconfig):
    """After a round of one client of the engine: the client's state, and the model that its message makes.

    Compiled as tests are, FedFW's two programs round a number differently; compiled as users' are, they do not.
    """
    bits = name != "FedFW" or pytestconfig.getoption("--production-compile")
    task, client = TASKS[data], 2
    with jax.enable_x64(True):
        setup = prepare(METHODS[name](0.3), task, Listed.of([[client]]), chunk=1)
        a, before = setup.algorithm, jax.device_get(setup.state)
        state = jax.device_get(setup.advance(setup.state, 1)[0])

        def own(x):
            return x[client]

        broadcast = jax.jit(a.broadcast)(before.server, cohort(0, 1))
        oracle = JaxOracle.of_task(task, client).begin(jax.random.fold_in(setup.key, 0), client, "float64")
        message, after = train(a, broadcast, jax.tree.map(own, before.clients), oracle)
        message, _ = a.receive(broadcast, message, jax.tree.map(own, before.clients))
        server = jax.jit(a.update)(before.server, message, cohort(0, 1))
        kept = jax.tree.map(own, state.clients)
        assert same(after, kept) if bits else far(after, kept) < 1e-15
        assert far(a.export(server), a.export(state.server)) < 1e-15


def loss(w, x):
    return jnp.mean((x @ w - 1) ** 2)


ROWS = np.random.default_rng(0).standard_normal((7, 2))


@pytest.mark.full
def test_own_examples():
    """Each step of one pass over 7 rows in threes is the plain mean over the rows that the order names."""
    with jax.enable_x64(True):
        problem = JaxOracle(loss, np.zeros(2), ROWS, batch_size=3, epochs=1)
        oracle, w = problem.begin(key(), 4, "float64"), jnp.array([0.3, -2.0])
        assert (problem.num_examples, int(oracle.steps), oracle.batch_size) == (7, 3, 3)
        order = np.asarray(oracle.order)[0, :7]
        assert sorted(order) == list(range(7))
        for k in range(3):
            rows = ROWS[order[3 * k : 3 * k + 3]]
            residual = rows @ np.asarray(w) - 1
            np.testing.assert_allclose(oracle.loss(w, k), np.mean(residual**2), rtol=1e-14)
            np.testing.assert_allclose(oracle(w, k)[1], 2 * rows.T @ residual / len(rows), rtol=1e-13)
        residual = ROWS @ np.asarray(w) - 1
        np.testing.assert_allclose(oracle.full(w)[1], 2 * ROWS.T @ residual / 7, rtol=1e-13)


def test_shuffles_follow_from_key_and_client():
    problem = JaxOracle(loss, np.zeros(2), ROWS, batch_size=2, epochs=2)

    def order(seed, client):
        return np.asarray(problem.begin(key(seed), client, "float32").order)[:, :7]

    assert (order(1, 3) == order(1, 3)).all()
    assert (order(1, 3) != order(2, 3)).any()
    assert (order(1, 3) != order(1, 4)).any()
    assert (order(1, 3)[0] != order(1, 3)[1]).any()


@pytest.mark.full
def test_an_oracle_made_inside_the_program_is_the_same():
    problem = JaxOracle(loss, np.zeros(2), ROWS, batch_size=3, epochs=2)
    outside = local_work(fs.FedAvg(0.1), problem, problem.params)[0]
    inside = jax.jit(
        lambda w, key: jax.tree.map(jnp.asarray, problem.begin(key, 5, jnp.float32)(w, jnp.int32(1)))
    )(jnp.ones(2), key())
    fresh = JaxOracle(loss, np.zeros(2), ROWS, batch_size=3, epochs=2)  # nothing of the trace above stays
    assert same(inside[0], fresh.begin(key(), 5, jnp.float32).loss(jnp.ones(2), jnp.int32(1)))
    assert same(outside, local_work(fs.FedAvg(0.1), problem, problem.params)[0])


def test_noise_has_a_key_of_its_own_where_one_is_given():
    problem = JaxOracle(loss, np.zeros(2), ROWS, batch_size=3, epochs=2)
    ours, given = (problem.begin(key(), 5, "float32", noise) for noise in (None, key(9)))
    assert same(jax.random.key_data(given.key), jax.random.key_data(key(9)))
    assert not same(jax.random.key_data(ours.key), jax.random.key_data(given.key))
    assert same(ours.order, given.order)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: JaxOracle(loss, np.zeros(2), ROWS[:0], batch_size=1, epochs=1), "has no examples"),
        (lambda: JaxOracle(loss, np.zeros(2), (ROWS, ROWS[:3]), batch_size=1, epochs=1), "different lengths"),
        (lambda: JaxOracle(loss, np.zeros(2), ROWS * np.nan, batch_size=1, epochs=1), "this client .*row 0"),
        (lambda: JaxOracle(loss, np.zeros(2), ROWS, batch_size=1), "exactly one"),
        (lambda: JaxOracle(loss, np.zeros(2), ROWS, batch_size=0, epochs=1), "batch_size = 0"),
        (lambda: JaxOracle.of_task(nested(), 6), "client = 6 must be in 0 .. 5"),
        (lambda: check_same("parameter", {"b": (1,)}, {"a": (1,)}), "parameter 'a' is missing"),
        (lambda: check_same("parameter", {"a": (1,), "b": ()}, {"a": (1,)}), "parameter 'b' .* has none"),
        (lambda: JaxOracle.of_task(nested(), 0).load_buffers({"mean": np.zeros(1)}), "buffer 'mean'"),
    ],
)
def test_bad_input(make, says):
    with pytest.raises(fs.InvalidInput, match=says):
        make()


def test_a_line_search_needs_exact_losses():
    problem = JaxOracle(loss, np.zeros(2), ROWS, batch_size=1, epochs=1)
    search = fs.ControlVariates(fs.FedLiLS(eta_max=1.0), option="I")
    check_needs(search, problem)
    problem.exact_loss = False
    check_needs(fs.FedAvg(0.1), problem)
    with pytest.raises(fs.InvalidInput, match=r"FedLiLS searches along a line and needs exact losses"):
        check_needs(search, problem)


@pytest.mark.full
def test_no_other_framework_is_imported():
    text = "import fedsolve.deploy.oracles.jax, sys; print({'torch', 'sklearn', 'flwr'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def loss_of(w, x):
    return jnp.mean((x - w) ** 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"validation": np.ones((2, 3))},
            r"the validation examples have fields \(\(3,\), 'f'\), the training",
        ),
        ({"validation": np.array([[np.nan, 1.0]])}, "holds a non-finite number"),
        ({"metrics": {"loss": loss_of}}, "a metric is named 'loss', which is already a column of every run"),
        ({"metrics": {"half": 0.5}}, "metric half = 0.5 must be a function"),
    ],
)
def test_what_a_client_cannot_measure_is_refused(given, words):
    with pytest.raises(fs.InvalidInput, match=words):
        JaxOracle(loss_of, np.zeros(2), np.ones((4, 2)), batch_size=2, epochs=1, **given)


def test_a_metric_that_is_no_mean_is_of_all_of_a_clients_examples():
    """It is no mean over anything: values of several clients are not put together."""
    metrics = {"largest": lambda w, x: jnp.max(x @ w), "size": lambda w, x: jnp.mean(x @ w)}
    x = np.random.default_rng(0).standard_normal((6, 2))
    problem = JaxOracle(loss_of, np.ones(2), x, batch_size=2, epochs=1, metrics=metrics)
    assert problem.measure(np.ones(2, np.float32), ("size",))["train"].means["size"] == pytest.approx(
        x.sum(1).mean(), rel=1e-5
    )
    found = problem.measure(np.ones(2), ("largest", "size"))["train"]
    assert found.means["largest"] == pytest.approx(x.sum(1).max(), rel=1e-5)
    assert np.isnan(found.counts["largest"])
    assert found.counts["size"] == 6
