"""Bytes that the engine counts = bytes of the messages that the verbs make; failures of integer messages."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsolve as fs
from conformance.properties import COHORTS, START, model, task
from fedsolve import wire
from fedsolve.core.errors import InvalidInput
from fedsolve.core.introspect import ShapeOracle
from fedsolve.core.types import module
from fedsolve.core.wire import Index, OneOf, decode, encode, size, variants
from fedsolve.geometry import L1, L1Ball, L2Ball
from fedsolve.geometry.balls import Box, LInfBall
from fedsolve.report.table import result_rows
from fedsolve.results.history import History
from harness import Listed, Softmax, crossed, make_clients, make_task, prepare

BALL = L1Ball(40.0)
REST = L1Ball(20.0).on("b") + L1Ball(3.0).on("scale") + L1Ball(3.0).on("shift.*")
SPLIT = fs.frank_wolfe.SplitSets((L2Ball(12.0), L1Ball(40.0), L2Ball(9.0).on("w") + REST), (0, 1, 2, 1, 1, 0))

# the model has 17 numbers in leaves of 12, 3, 1 and 1; a vertex of the l1 ball is one of 34: a byte
METHODS = {
    "FedAvg": (fs.FedAvg(0.1), {i: 4 * 17 + 4 for i in range(6)}),
    "FedDualAvg": (fs.FedDualAvg(L1(0.02), 0.1), {i: 4 * 17 + 4 for i in range(6)}),
    "LowRank": (fs.LowRank(fs.FedAvg(0.1), 1), {i: 4 * (7 + 5) + 4 for i in range(6)}),
    "LowRank, A": (fs.LowRank(fs.FedAvg(0.1), 1, "A"), {i: 4 * (3 + 5) + 4 for i in range(6)}),
    "LowRank, exact": (fs.LowRank(fs.FedAvg(0.1), 1, "exact"), {i: 4 * (7 + 5) + 4 for i in range(6)}),
    "LowRank, stack": (fs.LowRank(fs.FedAvg(0.1), 1, "stack"), {i: 4 * (7 + 5) + 4 for i in range(6)}),
    "FedDR": (fs.FedDR(L1(0.02), 0.1), {i: 4 * 17 for i in range(6)}),
    "FedFW, l1": (fs.FedFW(BALL), {i: 1 for i in range(6)}),
    "FedFW, an l1 ball each": (fs.FedFW(BALL.each()), {i: 4 for i in range(6)}),
    "FedFWSto, l2": (fs.FedFWSto(L2Ball(12.0)), {i: 4 * 17 for i in range(6)}),
    "FedFW, l-infinity": (fs.FedFW(LInfBall(4.0)), {i: 2 + 1 + 1 + 1 for i in range(6)}),
    "FedFW, box": (fs.FedFW(Box(-4.0, 5.0)), {i: 2 + 1 + 1 + 1 for i in range(6)}),
}


def sent_by_hand(algorithm, clients: Iterable[int] = range(5)):
    """Each client's message as bytes, and those of the broadcast; the verbs alone, float32, whatever the gradient."""
    down = _broadcast(algorithm, jax.tree.map(np.float32, model(START)))
    return {i: wire.encode(_message(algorithm, down, np.int32(i))) for i in clients}, wire.encode(down)


@jax.jit
def _broadcast(algorithm, start):
    return algorithm.broadcast(algorithm.init(start), fs.Cohort(jnp.int32(0), jnp.int32(6), 6))


@jax.jit
def _message(algorithm, down, client):
    oracle = ShapeOracle()
    oracle.client = client
    return algorithm.train(down, algorithm.init_client(down), oracle)[0]


GATE = ("FedAvg", "FedDualAvg", "FedFW, l1", "FedFWSto, l2", "FedFW, l-infinity")


@pytest.mark.gate("FedFWSto, l2")
@pytest.mark.parametrize(
    "name", [n if n in GATE else pytest.param(n, marks=pytest.mark.full) for n in METHODS]
)
def test_bytes_of_a_method(name):
    """len(encode(message)) of two clients, and their length worked out by hand: what a run will count.

    A length does not depend on the round or on what is sent.
    """
    algorithm, lengths = METHODS[name]
    found, down = sent_by_hand(algorithm, (0, 1))
    assert {i: len(data) for i, data in found.items()} == {i: lengths[i] for i in (0, 1)}
    counted = prepare(algorithm, task(), Listed.of(COHORTS), dtype="float32").traffic
    assert (counted.up, counted.down) == ((lengths[0],), len(down))


@pytest.mark.full
@pytest.mark.parametrize("name", ["FedFW, l1"])
def test_bytes_of_a_run(name):
    """Summed len(encode(message)) of every cohort."""
    check(*METHODS[name])


def check(algorithm, lengths):
    found, down = sent_by_hand(algorithm)
    assert {i: len(data) for i, data in found.items()} == {i: lengths[i] for i in range(5)}
    run = fs.run(algorithm, task(), rounds=3, sampling=Listed.of(COHORTS), eval_every=3)
    want = [sum(len(found[i]) for i in cohort) for cohort in COHORTS]
    np.testing.assert_array_equal(run.rounds["bytes_up"], want)
    np.testing.assert_array_equal(run.rounds["bytes_down"], [len(down) * len(c) for c in COHORTS])
    assert run.history.total("bytes_up") == sum(want)
    assert run.history.total("bytes_down") == len(down) * sum(len(c) for c in COHORTS)


def test_totals_of_a_resumed_run_and_of_seeds(tmp_path):
    """Summed len(encode(message)) of all rounds, also where a log has a row for every second round alone."""
    algorithm = METHODS["FedAvg"][0]
    up, down = (len(x) for x in (sent_by_hand(algorithm, (0,))[0][0], sent_by_hand(algorithm, ())[1]))
    sizes = np.array([len(c) for c in COHORTS])
    options = {"sampling": Listed.of(COHORTS), "eval_every": 2}
    fs.run(algorithm, task(), rounds=2, out=tmp_path, **options)
    runs = [fs.run(algorithm, task(), rounds=3, out=tmp_path, resume=True, **options)]
    runs += fs.run(algorithm, task(), rounds=3, seeds=2, **options).runs
    for history in (run.history for run in runs):
        rare = dataclasses.replace(history, rounds={n: x[1::2] for n, x in history.rounds.items()})
        for found in (history, rare, History.from_json(rare.to_json())):
            assert found.total("bytes_up") == up * sizes.sum()
            assert found.total("bytes_down") == down * sizes.sum()
            assert found.total("participants") == sizes.sum()
            assert found.totals["round"].tolist() == [2, 3]
            sent = (up + down) * np.array([0, sizes[:2].sum(), sizes.sum()]) / 1e6
            np.testing.assert_allclose(found.megabytes(), sent, rtol=1e-12)
            (row,) = result_rows([found])
            assert (row["bytes_up"], row["bytes_down"]) == (up * sizes.sum(), down * sizes.sum())


@pytest.mark.parametrize("method", crossed([fs.FedFW, fs.FedFWSto], [fs.FedFWSto]))
@pytest.mark.full
def test_clients_of_split_sets_send_what_their_own_set_needs(method):
    """A byte for which set, then 17 floats in the l2 ball, a byte in the l1 ball, or 12 floats and three bytes.

    Client 0 has the first, 1, 3 and 4 the second, 2 the third: an l2 ball for `w` and an l1 ball for each other leaf.
    """
    lengths = {0: 1 + 68, 1: 1 + 1, 2: 1 + 48 + 3, 3: 1 + 1, 4: 1 + 1, 5: 1 + 68}
    check(method(L2Ball(12.0), split=SPLIT), lengths)


@pytest.mark.full
def test_bytes_of_a_float64_run_are_twice_as_many():
    """Floats are sent in the run's type, indices as before."""
    options = {"rounds": 3, "sampling": Listed.of(COHORTS), "eval_every": 3, "dtype": "float64"}
    dense = fs.run(fs.FedAvg(0.1), task(), **options)
    np.testing.assert_array_equal(dense.rounds["bytes_up"], [144 * len(c) for c in COHORTS])
    vertex = fs.run(fs.FedFW(BALL), task(), **options)
    np.testing.assert_array_equal(vertex.rounds["bytes_up"], [len(c) for c in COHORTS])


@pytest.mark.full
def test_many_clients_of_several_lengths_in_chunks():
    """The same count with two clients at a time: absent places of a chunk send nothing."""
    algorithm = fs.FedFW(L2Ball(12.0), split=SPLIT)
    options = {"rounds": 3, "sampling": Listed.of(COHORTS), "eval_every": 3}
    whole, chunked = (fs.run(algorithm, task(), chunk=c, **options) for c in (None, 2))
    np.testing.assert_array_equal(chunked.rounds["bytes_up"], whole.rounds["bytes_up"])
    np.testing.assert_array_equal(whole.rounds["bytes_up"], [69 + 52, 2 + 2 + 2, 2 + 69 + 2 + 52])


# -- clients that fail ------------------------------------------------------------------------------------


def root(w, batch):
    """(w_0 sqrt(x) - y)^2 + |w|^2: NaN, with its gradient, where x < 0."""
    return jnp.mean((w[0] * jnp.sqrt(batch.x) - batch.y) ** 2) + jnp.sum(w**2)


def rooted(bad):
    """Four clients of three examples; the bad ones' x are negative."""
    rng = np.random.default_rng(0)
    clients = [
        fs.Examples((-1.0) ** (i in bad) * rng.uniform(1, 2, 3), rng.standard_normal(3)) for i in range(4)
    ]
    return fs.Task.from_arrays(root, np.array([0.2, -0.1, 0.1]), clients, batch_size=None)


METHODS_ON_A_BALL = {"FedFW": fs.FedFW, "FedFWPlus": fs.FedFWPlus, "FedFWSto": fs.FedFWSto}
BITS = {"l1": L1Ball(1.0), "l2": L2Ball(1.0), "l-infinity": LInfBall(1.0), "box": Box(-1.0, 1.0)}
BITS["split"] = fs.frank_wolfe.SplitSets((L1Ball(1.0), L1Ball(1.5)), (0, 1, 0, 1))


@pytest.mark.full_rows("FedFW-split")
@pytest.mark.parametrize(
    ("name", "ball"),
    crossed(
        [*(("FedFW", ball) for ball in BITS), ("FedFWPlus", "l1"), ("FedFWSto", "l1")],
        [("FedFW", "l1"), ("FedFW", "split"), ("FedFWSto", "l1")],
    ),
)
def test_a_client_whose_gradient_is_not_finite_is_dropped(name, ball):
    """No integer or bit can say NaN: its state does. It is counted, and is as one that never took part.

    Client 2 keeps x_2 = x^0, so xbar stays the mean of all x_i; the other clients go on.
    """
    split = BITS[ball] if ball == "split" else None
    algorithm = METHODS_ON_A_BALL[name](L1Ball(1.0) if split else BITS[ball], split=split)
    with jax.enable_x64(True):
        ids, others = jnp.array([[0, 1, 3, 2]]), [True, True, True]
        setup = prepare(algorithm, rooted({2}), Listed(ids, jnp.array([[*others, True]])), capacity=6)
        state, logs = setup.advance(setup.state, 6)
        absent = prepare(algorithm, rooted({2}), Listed(ids, jnp.array([[*others, False]])), capacity=6)
        other, _ = absent.advance(absent.state, 6)
        x, mean = np.asarray(state.clients.params), np.asarray(state.server.params)
    np.testing.assert_array_equal(logs["dropped"], [1] * 6)
    np.testing.assert_array_equal(logs["participants"], [4] * 6)
    np.testing.assert_array_equal(x[2], [0.2, -0.1, 0.1])
    np.testing.assert_allclose(mean, x.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(mean, other.server.params, rtol=1e-12)


@pytest.mark.full
def test_the_run_says_so():
    """Six rounds, one client: the record's notes count six updates; the model is finite."""
    run = fs.run(fs.FedFW(L1Ball(1.0)), rooted({2}), rounds=6, eval_every=6)
    assert any("6 updates were not finite" in note for note in run.history.notes)
    assert np.isfinite(np.asarray(run.params)).all()


@pytest.mark.full
def test_all_clients_failing_ends_the_run():
    with pytest.raises(fs.Diverged):
        fs.run(fs.FedFW(L1Ball(1.0)), rooted({0, 1, 2, 3}), rounds=3)


@dataclass(frozen=True)
class KinkedBias:
    """Squares, plus sqrt(b^2): its derivative at b = 0 is 0/0, that of the weight is finite."""

    def __call__(self, params: Any, batch: Any) -> Any:
        fit = jnp.mean((batch.x @ params.weight[:, 0] - batch.y) ** 2)
        return fit + jnp.mean(jnp.where(batch.y > 9, 1.0, 0.0)) * jnp.sum(jnp.sqrt(params.bias**2))


MIXED = {
    "vertex": L2Ball(9.0).on("weight") + L1Ball(9.0).on("bias"),
    "bits": L2Ball(9.0).on("weight") + LInfBall(9.0).on("bias"),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", crossed(MIXED, ["vertex"]))
def test_a_message_of_numbers_and_codes_can_fail_in_its_codes(kind):
    """Only the bias has a NaN gradient: the weight's l2 vertex is finite, the bias's code says nothing.

    No client's x_i and no xbar may become NaN: where the gradient is NaN the client is dropped.
    """
    clients = make_clients()
    start = np.concatenate([np.full(12, 0.1), np.zeros(3)])
    broken = make_task(clients, start)
    object.__setattr__(broken, "loss", KinkedBias())
    with jax.enable_x64(True):
        setup = prepare(
            fs.FedFW(MIXED[kind], steps=fs.frank_wolfe.Convex(1.0)), broken, Listed.of([[0, 1]]), capacity=2
        )
        g = jax.grad(KinkedBias())(Softmax.of(start), clients[0])
        assert np.isfinite(g.weight).all()
        assert np.isnan(g.bias).all()
        state, logs = setup.advance(setup.state, 2)
    assert int(logs["dropped"][0]) == 2
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves((state.server, state.clients)))


# Messages as bytes: floats to the last bit, truths in bits, indices in as few bytes as their range needs.


@module
class Message:
    """A message of everything."""

    delta: Any
    code: Any


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_array_equal(x, y)


def there_and_back(message):
    data = encode(message)
    assert len(data) == size(message)
    same(decode(data, message), message)
    return data


# one byte counts 0 to 255, two to 65,535, three to 16,777,215, four beyond; `below` itself must fit
WIDTHS = {1: 1, 2: 1, 255: 1, 256: 2, 257: 2, 65535: 2, 65536: 3, 2**24 - 1: 3, 2**24: 4, 2**31 - 1: 4}


@pytest.mark.parametrize("below", WIDTHS)
def test_width_of_an_index(below):
    """ceil(log2(below + 1) / 8) bytes; 0, the largest valid one and `below`, which means none, come back."""
    for value in (0, below - 1, below):
        data = there_and_back(Index(np.int32(value), below))
        assert len(data) == WIDTHS[below]
        assert int.from_bytes(data, "little") == value


def test_indices_of_any_shape():
    """Six indices below 1000 in a 2 x 3 array: 12 bytes, little-endian, row by row."""
    values = np.array([[1, 2, 3], [999, 1000, 256]], np.int32)
    data = there_and_back(Index(values, 1000))
    assert data == b"".join(int(v).to_bytes(2, "little") for v in values.ravel())


def test_no_indices():
    assert there_and_back(Index(np.zeros((0,), np.int32), 5)) == b""


@pytest.mark.parametrize("value", [-1, 11, 2**31 - 1, [0, 3, 11], [0, -2, 3]])
def test_an_index_out_of_range(value):
    """Valid ones are 0 to 9, and 10 for none: the error names the range and what was given."""
    with pytest.raises(InvalidInput, match=r"must lie in 0 to 10"):
        encode(Index(np.asarray(value, np.int64), 10))


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 16, 17])
def test_truths_are_bits(count):
    """ceil(count / 8) bytes, the first truth in the highest bit."""
    bits = np.random.default_rng(count).random(count) < 0.5
    data = there_and_back(bits)
    assert len(data) == -(-count // 8)
    if count:
        assert data[0] == sum(int(b) << (7 - j) for j, b in enumerate(bits[:8]))


def test_truths_of_any_shape():
    """A 3 x 5 array is 15 bits, 2 bytes; a single truth is a byte."""
    assert len(there_and_back(np.eye(3, 5, dtype=bool))) == 2
    assert len(there_and_back(np.asarray(True))) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
def test_numbers_keep_every_bit(dtype):
    """Also -0.0, infinities, NaN and the smallest numbers of floats."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3.14159] if dtype != "int32" else [0, -5, 2**31 - 1]
    values = np.asarray(special, jnp.dtype(dtype))
    data = encode(values)
    assert data == values.tobytes()
    assert len(data) == size(values) == len(special) * jnp.dtype(dtype).itemsize
    assert np.asarray(decode(data, values)).tobytes() == values.tobytes()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_nested_messages(data):
    """Any nesting of modules, tuples and dicts: the length is known without encoding, and all comes back."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))

    def part(kind):
        shape = tuple(rng.integers(kind == "index", 4, rng.integers(0, 3)))
        if kind == "index":
            below = int(rng.integers(1, 10**6))
            return Index(rng.integers(0, below + 1, shape).astype(np.int32), below)
        if kind == "bool":
            return rng.random(shape) < 0.5
        if kind == "choice":
            options = (
                rng.standard_normal(3).astype(np.float32),
                Index(np.int32(7), 300),
                (np.ones(2, bool),),
            )
            return OneOf(np.int32(rng.integers(3)), options)
        return rng.standard_normal(shape).astype(kind)

    kinds = data.draw(
        st.lists(st.sampled_from(["index", "bool", "choice", "float32", "float64"]), min_size=1, max_size=5)
    )
    parts = [part(kind) for kind in kinds]
    there_and_back(Message({"b": parts[1:], "a": parts[0]}, tuple(parts)))


def choice(which):
    """A vertex code of two bytes, four numbers, or nine bits."""
    options = (Index(np.int32(123), 1000), np.arange(4, dtype=np.float32), np.arange(9) % 2 == 0)
    return OneOf(np.int32(which), options)


@pytest.mark.parametrize(("which", "length"), [(0, 1 + 2), (1, 1 + 16), (2, 1 + 2)])
def test_only_the_chosen_one_travels(which, length):
    """A byte that says which, then that option alone; the receiver's `like` may have chosen another."""
    data = encode(choice(which))
    assert len(data) == size(choice(which)) == length
    assert data[0] == which
    found = decode(data, choice((which + 1) % 3))
    assert int(found.which) == which
    same(found.options[which], choice(which).options[which])


def test_a_choice_within_a_message():
    """What comes after a choice begins where it ends, whatever its length."""
    for which, length in enumerate((3, 17, 3)):
        message = Message(choice(which), np.array([1.5, -2.0]))
        data = encode(message)
        assert len(data) == length + 16
        found = decode(data, Message(choice(1), np.zeros(2)))
        np.testing.assert_array_equal(found.code, [1.5, -2.0])
        assert int(found.delta.which) == which


def test_lengths_a_message_may_have():
    """One without a choice; one for each option with one, and which it is, also of shapes alone."""
    plain = variants(Message(np.zeros(3), Index(np.int32(0), 9)))
    assert plain.sizes == (25,)
    np.testing.assert_array_equal(plain.which, [True])
    many = variants(Message(np.zeros(3), OneOf(jnp.int32(2), choice(0).options)))
    assert many.sizes == (24 + 3, 24 + 17, 24 + 3)
    np.testing.assert_array_equal(many.which, [False, False, True])
    shapes = jax.eval_shape(lambda m: m, Message(jnp.zeros(3, jnp.float32), choice(0)))
    assert variants(shapes).sizes == (12 + 3, 12 + 17, 12 + 3)


def test_two_choices_in_a_message_are_refused():
    with pytest.raises(NotImplementedError, match="OneOf"):
        variants(Message(choice(0), choice(1)))


def test_a_choice_is_chosen_within_a_program():
    """`variants` of a traced choice is its one-hot number, so that the engine can count."""
    found = jax.jit(lambda which: variants(OneOf(which, choice(0).options)).which)(jnp.int32(1))
    np.testing.assert_array_equal(found, [False, True, False])


LIKE = Message(np.zeros((2, 3), np.float32), Index(np.int32(0), 1000))


@pytest.mark.parametrize("cut", [0, 1, 12, 24, 25])
def test_a_message_that_ends_early(cut):
    """26 bytes are expected; any prefix is refused, with its length."""
    with pytest.raises(InvalidInput, match=rf"{cut} bytes.*another model"):
        decode(encode(LIKE)[:cut], LIKE)


def test_a_message_that_is_too_long():
    with pytest.raises(InvalidInput, match=r"27 bytes where 26.*another model"):
        decode(encode(LIKE) + b"\0", LIKE)


def test_an_empty_choice_and_one_that_does_not_exist():
    with pytest.raises(InvalidInput, match=r"choice 3 where there are 3"):
        decode(b"\3" + encode(choice(0))[1:], choice(0))
    with pytest.raises(InvalidInput, match="another model"):
        decode(b"", choice(0))


def test_jax_arrays_and_plain_numbers():
    """The length is that of the type: a Python float is float64 here, whatever JAX's default."""
    assert len(there_and_back(jnp.arange(3, dtype=jnp.float32))) == 12
    assert size(jax.ShapeDtypeStruct((5, 2), jnp.float32)) == 40
    assert len(encode(1.5)) == size(1.5) == 8
    assert len(encode(True)) == size(True) == 1
