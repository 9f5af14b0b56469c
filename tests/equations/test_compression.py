"""Compressed client updates: memories against a transcript, compressors against NumPy with the same random numbers."""

from __future__ import annotations

import math
from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from equations.cases import ROUNDS, SOME, federation
from equations.transcript import LocalSGD, shares
from fedsolve import Compressed
from fedsolve.methods.compression import EDEN, QSGD, Cast, Chain, PowerSGD, RandomK, Sign, TopK
from fedsolve.methods.compression.compressors import Encoded, adds_codes, levels_of_normal, round_key
from harness import CLASSES, FEATURES, crossed, make_clients, make_task, prepare
from verbs_harness import play

RATE, SHARE = 0.3, 0.4
LEAVES = np.split(np.arange((FEATURES + 1) * CLASSES), [FEATURES * CLASSES])


def traffic(method):
    """Bytes of one client in a round of the engine; no method here has messages of several kinds."""
    return prepare(method, make_task(make_clients()), SOME, dtype="float32").traffic


def top(update):
    """Of each leaf the largest entries: 40 % of them."""
    sent = np.zeros_like(update)
    for leaf in LEAVES:
        largest = leaf[np.argsort(-np.abs(update[leaf]), kind="stable")[: round(SHARE * len(leaf))]]
        sent[largest] = update[largest]
    return sent


def transcript(fed, w, memory, weighting, down=lambda w: w, momentum=1.0, decay=1.0):
    """FedAvg whose client updates are compressed: what is lost is sent later, or what has changed is sent."""
    local, kept, g = LocalSGD(RATE), np.zeros((len(fed.clients), len(w))), np.zeros_like(w)
    v = np.zeros_like(kept)
    iterates = [w]
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            sent = []
            for i in cohort:
                start = down(w)
                update = v[i] = (1 - momentum) * v[i] + momentum * (local(fed, t, i, start) - start)
                if memory == "feedback":
                    sent.append(top(update + decay * kept[i]))
                    kept[i] = update + decay * kept[i] - sent[-1]
                elif memory == "ef21":
                    sent.append(top(update - kept[i]))
                    kept[i] += sent[-1]
                else:
                    sent.append(top(update))
            mean = shares(fed, cohort, weighting) @ np.array(sent)
            g += len(cohort) / len(fed.clients) * mean
            w = w + (g if memory == "ef21" else mean)
        iterates.append(w)
    return np.stack(iterates), kept, g


@pytest.mark.parametrize(
    ("memory", "weighting", "more"),
    [
        (None, "examples", {}),
        ("feedback", "examples", {}),
        ("feedback", "examples", {"decay": 0.6}),
        ("ef21", "uniform", {}),
        ("ef21", "uniform", {"momentum": 0.3}),
    ],
    ids=["none", "feedback", "feedback that forgets", "EF21", "EF21-SGDM"],
)
def test_memories(memory, weighting, more):
    """Iterates, every client's memory and g, with a cohort that varies and is empty once."""
    clients = make_clients()
    inner = fs.FedAvg(RATE, weighting=weighting)
    method = Compressed(inner, TopK(SHARE), memory=memory, smallest=1, **more)
    run = play(method, make_task(clients), SOME, ROUNDS)
    start = run.iterates[0]
    iterates, kept, g = transcript(federation(run, clients), start, memory, weighting, **more)
    np.testing.assert_allclose(run.iterates, iterates, rtol=0, atol=1e-10)
    if memory:
        flat = [x.reshape(len(clients), -1) for x in jax.tree.leaves(run.state.clients.memory)]
        np.testing.assert_allclose(np.concatenate(flat, axis=1), kept, rtol=0, atol=1e-10)
    if memory == "ef21":
        flat = [np.ravel(x) for x in jax.tree.leaves(run.state.server.memory)]
        np.testing.assert_allclose(np.concatenate(flat), g, rtol=0, atol=1e-10)


def test_a_compressed_broadcast():
    """Clients train from the model as they decode it; the server's own is not rounded. It is half as long."""
    clients = make_clients()
    method = Compressed(fs.FedAvg(RATE), TopK(SHARE), memory="feedback", smallest=1, down=Cast("float16"))
    run = play(method, make_task(clients), SOME, ROUNDS)
    fed, halved = federation(run, clients), lambda w: w.astype(np.float16).astype(float)
    iterates, _, _ = transcript(fed, run.iterates[0], "feedback", "examples", halved)
    np.testing.assert_allclose(run.iterates, iterates, rtol=0, atol=1e-10)
    numbers = (FEATURES + 1) * CLASSES
    assert traffic(method).down == 2 * numbers + 4  # and the number of the round


def test_small_leaves_and_scalars_are_sent_as_they_are():
    """Of the digits' model of 64 x 64 and 64 x 10 numbers, both matrices alone; the loss that is logged is the same."""
    clients = make_clients()
    plain = play(fs.FedExP(RATE), make_task(clients), SOME, ROUNDS)
    method = Compressed(fs.FedExP(RATE), TopK(1.0), smallest=CLASSES + 1)
    run = play(method, make_task(clients), SOME, ROUNDS)
    np.testing.assert_allclose(run.iterates, plain.iterates, rtol=0, atol=1e-12)
    size = FEATURES * CLASSES
    places = math.ceil(size * (size - 1).bit_length() / 8)
    assert sum(traffic(method).up) - sum(traffic(fs.FedExP(RATE)).up) == places


def test_norms_of_what_is_decoded():
    """FedExP's step from |Q(D_i)|^2 / (1 + omega), leaf by leaf; clients do not send the norm."""
    clients, code = make_clients(), RandomK(SHARE)
    method = Compressed(fs.FedExP(RATE), code, norms="decoded", smallest=1)
    run = play(method, make_task(clients), SOME, ROUNDS)
    w, fed, local = run.iterates[0], federation(run, clients), LocalSGD(RATE)
    for t, cohort in enumerate(fed.cohorts):
        if cohort:
            sent, spread = [], []
            for i in cohort:
                update, parts = local(fed, t, i, w) - w, []
                for j, leaf in enumerate(LEAVES):
                    of_leaf = jax.random.fold_in(round_key(t), j)
                    parts.append(random_k(update[leaf], SHARE, of_leaf))
                sent.append(np.concatenate(parts))
                spread.append(sum(p @ p * round(SHARE * len(p)) / len(p) for p in parts))
            mean = np.mean(sent, axis=0)
            w = w + np.mean(spread) / (2 * mean @ mean) * mean
        np.testing.assert_allclose(run.iterates[t + 1], w, rtol=0, atol=1e-10)
    exact = Compressed(fs.FedExP(RATE), code, norms="exact", smallest=1)
    assert sum(traffic(exact).up) - sum(traffic(method).up) == 4


KEY = jax.random.key(3)
WORDS = np.asarray(jax.random.key_data(KEY))
X = np.random.default_rng(0).standard_normal((30, 50)) * np.linspace(0.1, 2, 50)


def qsgd(x, bits):
    """Blocks of 512, one uniform number an entry."""
    s, flat = 2 ** (bits - 1) - 1, x.ravel()
    rows = np.pad(flat, (0, -flat.size % 512)).reshape(-1, 512)
    u = np.asarray(jax.random.uniform(KEY, rows.shape, rows.dtype))
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return (norms * np.sign(rows) * np.floor(s * np.abs(rows) / norms + u) / s).ravel()[: flat.size]


def eden(x, bits, key=KEY):
    """The rotation is three times a Hadamard matrix, made by its definition, after random signs."""
    flat = x.ravel()
    rows = np.pad(flat, (0, -flat.size % 1024)).reshape(-1, 1024)
    i = np.arange(1024)
    ones = np.bitwise_count(i[:, None] & i)
    signs = np.where(np.asarray(jax.random.bits(key, (3, 1024), jnp.uint32)) < 2**31, 1, -1)
    first, second, third = ((-1.0) ** ones / 32 * s for s in signs)
    rotation = third @ second @ first
    levels, result = levels_of_normal(bits), []
    for row in rows:
        z = rotation @ row
        q = levels[np.argmin(np.abs(32 * z[:, None] / np.linalg.norm(row) - levels), axis=1)]
        result.append(row @ row / (z @ q) * (rotation.T @ q))
    return np.concatenate(result)[: flat.size]


def random_k(x, share, common=KEY):
    """The round's entries are those of the largest random numbers."""
    draws = np.asarray(jax.random.uniform(jax.random.fold_in(common, 0), (x.size,), jnp.float32))
    sent, k = np.zeros(x.size), round(share * x.size)
    chosen = np.argsort(-draws)[:k]
    sent[chosen] = x.ravel()[chosen] * x.size / k
    return sent


def top_of_blocks(x, share, block, of_values=lambda values: values):
    """The largest entries of each block, by size; the last block is filled up with zeros."""
    flat = x.ravel()
    rows = np.pad(flat, (0, -flat.size % block)).reshape(-1, block)
    places = np.argsort(-np.abs(rows), axis=1, kind="stable")[:, : round(share * block)]
    values = of_values(np.take_along_axis(rows, places, 1).ravel())
    sent = np.zeros_like(rows)
    np.put_along_axis(sent, places, values.reshape(places.shape), 1)
    return sent.ravel()[: flat.size]


def power(x, rank):
    start = np.asarray(jax.random.normal(KEY, (x.shape[1], rank), x.dtype))
    p, _ = np.linalg.qr(x @ start)
    return p @ (p.T @ x)


BY_HAND = {
    QSGD(4): lambda x: qsgd(x, 4),
    EDEN(1): lambda x: eden(x, 1),
    EDEN(np.int64(3)): lambda x: eden(x, 3),
    RandomK(np.float32(0.1)): lambda x: random_k(x, 0.1),
    PowerSGD(3): lambda x: power(x, 3),
    Sign(): lambda x: np.sign(x) * np.mean(np.abs(x)),
    Cast("float16"): lambda x: x.astype(np.float16).astype(float),
    TopK(0.1, 64): lambda x: top_of_blocks(x, 0.1, 64),
    Chain(TopK(0.5, 1000), EDEN(2)): lambda x: top_of_blocks(
        x, 0.5, 1000, lambda values: eden(values, 2, jax.random.fold_in(KEY, 0))
    ),
}


@cache
def encoder(code, factor):
    return jax.jit(lambda x, key: Encoded.of(code, x, key, key, factor))


decoded = jax.jit(lambda encoded, key: encoded.decode(key))


def sent_for(code, x, key=KEY, factor=1.0):
    """What arrives for an array: encoded, as bytes, decoded from them, and decoded."""
    with jax.enable_x64(True):
        encoded = encoder(code, factor)(x, key)
        arrived = fs.wire.decode(fs.wire.encode(encoded), jax.eval_shape(lambda: encoded))
        return np.asarray(decoded(arrived, key))


@pytest.mark.parametrize("code", BY_HAND, ids=repr)
def test_compressors(code):
    """By hand, through the wire: to 1e-12 of the array's norm."""
    with jax.enable_x64(True):
        expected = BY_HAND[code](X).reshape(X.shape)
    np.testing.assert_allclose(sent_for(code, X), expected, rtol=0, atol=1e-12 * np.linalg.norm(X))


def test_rotations_are_the_same_in_both_types():
    """Where a rotation had other signs in float64, so would all codes."""
    codes = {}
    for dtype in (jnp.float32, jnp.float64):
        with jax.enable_x64(dtype == jnp.float64):
            codes[dtype] = np.asarray(jax.jit(EDEN(4).encode)(X.astype(dtype), KEY, KEY)[0].value)
    assert np.mean(codes[jnp.float32] != codes[jnp.float64]) < 1e-3


def draws(code, count=300):
    """An array as it arrives, with as many keys."""
    x = jnp.asarray(X)
    many = jax.jit(jax.vmap(lambda key: Encoded.of(code, x, key, key, 1.0).decode(key)))
    return np.asarray(many(jax.random.split(KEY, count)))


@pytest.mark.parametrize(
    "code",
    crossed(
        [QSGD(3), QSGD(8), EDEN(1), EDEN(4), RandomK(0.2), Chain(RandomK(0.2), QSGD(8))],
        [QSGD(3), RandomK(0.2), Chain(RandomK(0.2), QSGD(8))],
    ),
    ids=repr,
)
def test_the_mean_and_the_error_of_unbiased_ones(code):
    """E Q(x) = x within five standard errors along ten directions, and E |Q(x) - x|^2 <= omega |x|^2."""
    assert code.is_unbiased
    several = draws(code)
    directions = np.random.default_rng(1).standard_normal((10, X.size))
    along = (several - X).reshape(len(several), -1) @ directions.T
    assert (np.abs(along.mean(0)) <= 5 * along.std(0, ddof=1) / np.sqrt(len(several))).all()
    error = np.mean(np.sum((several - X) ** 2, axis=(1, 2))) / np.sum(X**2)
    assert error <= 1.05 * code.error(X.size)
    if isinstance(code, EDEN | RandomK):  # for these the bound is the value, of EDEN's blocks that are full
        assert error >= 0.75 * code.error(X.size)


HARD = {  # of d entries
    "one large": lambda d: np.r_[100.0, np.full(d - 1, 0.1)],
    "two alike": lambda d: np.r_[1.0, 1.0, np.zeros(d - 2)],
    "all alike": np.ones,
    "halves": lambda d: 0.5 ** np.arange(d),
    "tiny": lambda d: 1e-30 * X.ravel()[:d],
    "huge": lambda d: 1e30 * X.ravel()[:d],
}

UNBIASED = [QSGD(2), QSGD(8), EDEN(1), EDEN(2), EDEN(4), RandomK(0.2)]


@pytest.mark.parametrize(
    ("code", "size"),
    crossed(product(UNBIASED, (6, 300)), [(EDEN(1), 6), (EDEN(1), 300), (QSGD(2), 300)]),
    ids=repr,
)
def test_the_mean_and_the_error_where_entries_are_very_different(code, size):
    """In float32, of sizes that are no power of two: within four standard errors, and omega, as everywhere."""
    inputs = np.stack([make(size) for make in HARD.values()]).astype(np.float32)
    one = jax.vmap(lambda x, key: Encoded.of(code, x, key, key, 1.0).decode(key), (0, None))
    several = np.asarray(jax.jit(jax.vmap(one, (None, 0)))(inputs, jax.random.split(KEY, 1000)))
    lengths = np.linalg.norm(inputs.astype(float), axis=1)
    apart = (several - inputs.astype(float)) / lengths[:, None]  # (keys, inputs, entries)
    bias, spread = np.linalg.norm(apart.mean(0), axis=1), np.sqrt(apart.var(0).sum(1) / len(apart))
    assert (bias <= 4 * spread + 1e-6).all(), dict(zip(HARD, bias, strict=True))
    assert ((apart**2).sum(2).mean(0) <= 1.05 * code.error(size) + 1e-6).all()


@pytest.mark.parametrize(
    "code",
    [Cast(), Cast("float16"), Sign(), TopK(0.05), PowerSGD(2), Chain(TopK(0.05, 40), Cast())],
    ids=repr,
)
def test_the_error_of_contractions(code):
    """|Q(x) - x|^2 <= (1 - delta) |x|^2, wherever the type holds the numbers; TopK is the best choice of k entries."""
    inputs = {"normal": X} | {name: make(X.size).reshape(X.shape) for name, make in HARD.items()}
    if code == Cast("float16"):
        del inputs["tiny"], inputs["huge"]
        inputs["halves"] = inputs["halves"][:1, :10]
    for name, x in inputs.items():
        given = x.astype(np.float32)
        error = np.sum((sent_for(code, given) - given.astype(float)) ** 2) / np.sum(given.astype(float) ** 2)
        assert error <= code.error(x.size) + 1e-6, name
    if isinstance(code, TopK):
        squares = np.sort((X**2).ravel())
        error = np.sum((sent_for(code, X) - X) ** 2) / np.sum(X**2)
        assert error == pytest.approx(squares[:-75].sum() / squares.sum(), abs=1e-12)


def test_linear_codes_are_added_up_and_others_are_not():
    """The code of a mean is the mean of the codes, and the server then decodes once."""
    other, halves = X[::-1], 0.5
    mean = sent_for(RandomK(0.1), halves * (X + other))
    np.testing.assert_allclose(
        halves * (sent_for(RandomK(0.1), X) + sent_for(RandomK(0.1), other)), mean, atol=1e-12
    )
    clients = make_clients()
    inners, codes = (fs.FedAvg(RATE), fs.FedProx(RATE)), (RandomK(0.5), Cast("float16"))
    assert all(adds_codes(code, inner) == code.is_linear for inner, code in product(inners, codes))
    for inner, code in zip(inners, codes, strict=True):
        method = Compressed(inner, code, smallest=1)
        assert np.isfinite(play(method, make_task(clients), SOME, 3).iterates).all()


def test_a_memory_makes_unbiased_codes_contractions():
    """Divided by 1 + omega: RandomK then sends entries as they are."""
    shrunk = sent_for(RandomK(0.1), X, factor=1 / (1 + RandomK(0.1).error(X.size)))
    kept = shrunk != 0
    assert kept.sum() == round(0.1 * X.size)
    np.testing.assert_allclose(shrunk[kept], X[kept], rtol=1e-12)


def test_what_is_not_finite_shows_in_every_code():
    """Also where the entry itself is not sent: the engine then leaves the client out."""
    x = X.copy()
    x[0, 0] = np.nan
    for code in (*BY_HAND, TopK(0.01)):
        assert not np.isfinite(sent_for(code, x)).all(), code


REFUSED = {
    "needs memory='ef21'": lambda: Compressed(fs.FedAvg(0.1), Sign(), memory="feedback", momentum=0.1),
    "must be 'exact' or 'decoded'": lambda: Compressed(fs.FedExP(0.1), EDEN(1), norms="sent"),
    "needs an unbiased compressor and": lambda: Compressed(fs.FedExP(0.1), Sign(), norms="decoded"),
    "whose server steps by": lambda: fs.run(
        Compressed(fs.FedAvg(0.1), EDEN(1), norms="decoded", smallest=1), make_task(make_clients()), rounds=1
    ),
    "a compressor such as": lambda: Compressed(fs.FedAvg(0.1), 0.1),
    "must be None, 'feedback' or 'ef21'": lambda: Compressed(fs.FedAvg(0.1), Sign(), memory="error"),
    "mean of all clients' c_i": lambda: Compressed(fs.SCAFFOLD(0.1), Sign()),
    "which Compressed does not send": lambda: fs.ControlVariates(Compressed(fs.FedAvg(0.1), Sign())),
    "compress once": lambda: Compressed(Compressed(fs.FedAvg(0.1), Sign()), Sign()),
    "has weighting='examples'": lambda: Compressed(fs.FedAvg(0.1), Sign(), memory="ef21"),
    "has another reduction": lambda: Compressed(
        fs.build("Robust+FedAvg", {"reduction": "median"}), Sign(), memory="ef21"
    ),
    "must keep every entry": lambda: Compressed(fs.FedAvg(0.1), Sign(), down=TopK(0.1)),
    r"in \(0, 1\]": lambda: TopK(True),
    r"share=0.0\): the share": lambda: TopK(0.0),
    "from 2 to 16": lambda: QSGD(1),
    "from 1 to 8": lambda: EDEN(True),
    "'bfloat16' or 'float16'": lambda: Cast("float8"),
    "rank of PowerSGD": lambda: PowerSGD(0),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(words):
    with pytest.raises(fs.InvalidInput, match=words):
        REFUSED[words]()


def test_a_model_without_a_large_leaf_is_refused():
    task = make_task(make_clients())
    with pytest.raises(fs.InvalidInput, match="no leaf of the model has 256 entries"):
        fs.run(Compressed(fs.FedAvg(0.1), Sign()), task, rounds=1)
