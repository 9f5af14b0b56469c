"""How many clients train side by side follows from the work of a step, the cohort and nothing that is timed."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedsolve as fs
import fedsolve.engine.compute.round as rounds
from fedsolve.engine import placement
from fedsolve.engine.compute import layout
from fedsolve.engine.compute.layout import LocalStep, chunk_size, cohort_size, is_on_one_core, step_bytes
from fedsolve.engine.compute.round import compiled_advance
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare
from fedsolve.geometry import L1
from harness import crossed, make_clients, make_task

FLOAT = jnp.dtype("float32")


def images(w, batch):
    """Few parameters, many activations: 30 x 30 x 9 of them for each image."""
    x = lax.conv_general_dilated(
        batch[..., None], w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jnp.mean(jnp.maximum(x, 0) ** 2)  # fmt: skip


def linear(w, batch):
    return jnp.mean((batch @ w) ** 2)


def recurrent(w, batch):
    """A loop over the 900 features: one step's activations are what lies in the cache."""
    state = lax.fori_loop(0, batch.shape[1], lambda t, h: jnp.tanh(h + batch[:, t]), jnp.zeros(len(batch)))
    return jnp.mean(state) * jnp.sum(w)


def task(loss, params, shape, clients=60):
    data = [np.zeros((4, *shape), np.float32)] * clients
    return fs.Task.from_arrays(loss, params, data, batch_size=4)


def chosen(task, params, sampling, chunk=None, devices=1):
    step = LocalStep.of(task, params, FLOAT, {"batch_size": 4, "microbatches": 1})
    return chunk_size(chunk, step, sampling, task.data.num_clients, devices)


def test_what_a_step_writes_decides_and_not_the_model():
    """A small convolutional model trains one client after another, a linear one of more parameters side by side."""
    kernel, weight = jnp.zeros((3, 3, 1, 9)), jnp.zeros(900)
    assert kernel.size < weight.size
    assert chosen(task(images, kernel, (30, 30)), kernel, fs.sampling.Uniform(20)) == 1
    assert chosen(task(linear, weight, (900,)), weight, fs.sampling.Uniform(20)) == 20
    assert chosen(task(recurrent, weight, (900,)), weight, fs.sampling.Uniform(20)) == 20
    large = jnp.zeros((900, 900))
    assert chosen(task(linear, large, (900,)), large, fs.sampling.Uniform(20)) == 1


def test_bytes_are_those_of_every_operation(monkeypatch):
    """Product (4,), square (4,), sum and quotient: ten numbers. A loop's body counts once on a CPU, else each time."""
    assert step_bytes(linear, jnp.zeros(9), jax.ShapeDtypeStruct((60, 9), FLOAT), 4) == 4 * (4 + 4 + 1 + 1)

    def of_loop(passes):
        return step_bytes(recurrent, jnp.zeros(9), jax.ShapeDtypeStruct((60, passes), FLOAT), 4)

    once = of_loop(3)
    assert of_loop(900) == once
    monkeypatch.setattr(layout.jax, "default_backend", lambda: "gpu")
    a_pass = of_loop(4) - of_loop(3)
    assert 0 < a_pass < once
    assert of_loop(900) - of_loop(3) == 897 * a_pass


def test_chunks_of_a_cohort_are_alike():
    """Where twenty clients do not fit, and nineteen do, two chunks have ten each and no absent clients."""
    weight = jnp.zeros(900)
    work = task(linear, weight, (900,))
    client = 4 * 4 * 900 + step_bytes(work.loss, weight, work.data.examples, 4)
    most = 256 * 2**20 // client
    assert chosen(work, weight, fs.sampling.Uniform(most)) == most
    assert chosen(work, weight, fs.sampling.Uniform(most + 1)) == most // 2 + 1


@pytest.mark.parametrize(
    ("sampling", "size"),
    [
        (fs.sampling.Uniform(20), 20),
        (fs.sampling.Bernoulli(0.001), 186),
        (fs.sampling.Bernoulli(1.0), 160_000),
        (fs.sampling.Bernoulli(1e-9), 1),
    ],
)
def test_a_cohort_of_random_size_is_laid_out_for_its_usual_size(sampling, size):
    """160 clients expected of 160,000, 160 + 2 sqrt(160) side by side: not 160,000 of which 159,840 are absent."""
    assert cohort_size(sampling, 160_000) == size


def test_asked_for_and_split():
    """As asked, but never more than a device's share of the cohort."""
    weight = jnp.zeros(9)
    work = task(linear, weight, (9,))
    assert chosen(work, weight, fs.sampling.Uniform(20), chunk=7) == 7
    assert chosen(work, weight, fs.sampling.Uniform(20), chunk=70) == 20
    assert chosen(work, weight, fs.sampling.Uniform(21), devices=2) == 11
    with pytest.raises(fs.InvalidInput, match="chunk = 0"):
        chosen(work, weight, fs.sampling.Uniform(20), chunk=0)


@pytest.mark.parametrize(("free", "fits"), [(5 * 15 * 4, True), (5 * 15 * 4 - 1, False)])
def test_client_states_that_do_not_fit_are_refused(monkeypatch, free, fits):
    """SCAFFOLD keeps 15 numbers of 4 bytes of each of 5 clients; FedAvg keeps nothing, and fits anywhere."""
    monkeypatch.setattr(rounds, "free_bytes", lambda: free)
    work = make_task(make_clients())
    prepare(fs.FedAvg(0.1), work, RunOptions(rounds=1))
    if fits:
        prepare(fs.SCAFFOLD(0.1), work, RunOptions(rounds=1))
        return
    with pytest.raises(fs.InvalidInput, match=r"the states of 5 clients need 0.0 GB \(60 bytes each\)"):
        prepare(fs.SCAFFOLD(0.1), work, RunOptions(rounds=1))


def test_a_measured_kind_of_accelerator_has_its_own_limits(tmp_path, monkeypatch):
    """`make gpu` measures them; any other has a fourth of its memory for the clients that train side by side."""
    import json
    from types import SimpleNamespace

    weight, cohort = jnp.zeros(900), fs.sampling.Uniform(20)
    work = task(linear, weight, (900,))
    client = 4 * 4 * 900 + step_bytes(work.loss, weight, work.data.examples, 4)
    limits = {
        "small": {"step_bytes": None, "bytes": 3 * client},
        "one by one": {"step_bytes": 9, "bytes": 2**40},
    }
    (tmp_path / "accelerators.json").write_text(json.dumps(limits))
    assert chosen(work, weight, cohort) == 20
    monkeypatch.setattr(layout.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(layout, "files", lambda package: tmp_path)
    memory = {"bytes_limit": 4 * 7 * client}
    for kind, chunk in (("small", 3), ("one by one", 1), ("never measured", 7)):
        device = SimpleNamespace(device_kind=kind, platform="gpu", memory_stats=lambda: memory)
        monkeypatch.setattr(layout.jax, "devices", lambda device=device: [device])
        assert chosen(work, weight, cohort) == chunk


def test_loops_stay_on_one_core_where_clients_are_small_or_each_core_is_a_device(monkeypatch):
    weight = jnp.zeros(900)
    work = task(linear, weight, (900,))

    def on_one_core(chunk, devices=1, state=0):
        return is_on_one_core(
            chunk,
            devices,
            LocalStep.of(work, weight, FLOAT, {"batch_size": 4, "microbatches": 1}),
            state_bytes=state,
        )

    monkeypatch.setattr(layout, "cores", lambda: 4)
    most = 6 * 2**20 // (4 * 4 * 900 + step_bytes(work.loss, weight, work.data.examples, 4))
    assert [on_one_core(chunk) for chunk in (1, 2, most, most + 1)] == [False, True, True, False]
    assert [on_one_core(most + 1, devices) for devices in (2, 4, 8)] == [False, True, True]
    assert [on_one_core(1, devices) for devices in (2, 4)] == [False, True]
    assert [on_one_core(2, devices, 8) for devices in (1, 4)] == [False, True]
    monkeypatch.setattr(layout.jax, "default_backend", lambda: "gpu")
    assert not on_one_core(2)


@pytest.mark.parametrize(
    "method", crossed([fs.FedAvg(0.1), fs.SCAFFOLD(0.1), fs.FedDualAvg(L1(0.1), 0.1)], [fs.FedAvg(0.1)])
)
def test_bits_do_not_depend_on_how_many_cores_share_a_loop(method, monkeypatch):
    draw = np.random.default_rng(0)
    clients = [fs.Examples(draw.normal(size=(n, 300)), draw.normal(size=n)) for n in (40, 7, 60, 23, 31)]
    work = fs.Task.from_arrays(
        lambda w, b: jnp.mean((jnp.tanh(b.x @ w["w"]).sum(-1) - b.y) ** 2),
        {"w": np.zeros((300, 50))},
        clients,
        batch_size=20,
    )
    options = RunOptions(rounds=3, eval_every=1, chunk=5, devices=1)
    found = []
    for on_one_core in (True, False):
        monkeypatch.setattr(placement, "is_on_one_core", lambda *_, answer=on_one_core, **options: answer)
        setup = prepare(method, work, options)
        given = (setup.program, setup.algorithm, setup.sampling, setup.shared, setup.key, setup.state)
        rounds = compiled_advance(setup.program.on_one_core).lower(*given, 1)
        divided = re.search(r'"outer_dimension_partitions":\["\d', rounds.compile().as_text())
        assert bool(divided) == (not on_one_core)
        found.append(setup.advance(setup.state, 3))
    (state, logs), (other, other_logs) = found
    for a, b in zip(jax.tree.leaves((state, logs)), jax.tree.leaves((other, other_logs)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="how XLA fuses on a CPU")
def test_a_large_message_is_computed_where_it_is_read():
    """No difference as large as the model is written beside the sums of the cohort."""
    clients = [np.ones((4, 64), np.float32)] * 2
    start = np.zeros((64, 32, 9, 9), np.float32)
    work = fs.Task.from_arrays(
        lambda w, b: jnp.mean((b @ w.reshape(64, -1)) ** 2), start, clients, batch_size=2
    )
    setup = prepare(fs.FedAvg(0.1), work, RunOptions(rounds=1, chunk=1, devices=1))
    given = (setup.program, setup.algorithm, setup.sampling, setup.shared, setup.key, setup.state)
    text = compiled_advance(setup.program.on_one_core).lower(*given, 1).compile().as_text()
    readers = [line for line in text.splitlines() if re.search(r"= f32\[64,32,9,9\]\S* fusion\(", line)]
    assert readers
    assert not re.search(r"%(wrapped_)?sub", "".join(line.split("kind=")[0] for line in readers))
