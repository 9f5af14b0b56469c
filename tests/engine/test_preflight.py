"""What is found of a loss and of metrics before a run: whether they are means over examples, whether they draw."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.xla import compiler
from fedsolve.engine.checks.losses import few_rows, not_means
from fedsolve.engine.checks.preflight import check_loss

RNG, CHANCE = np.random.default_rng(0), np.random.default_rng()
LABELS = fs.Examples(RNG.normal(size=(300, 5)), (RNG.random(300) < 0.03).astype(np.int64))
TARGETS = fs.Examples(RNG.normal(size=(300, 5)), 1000 + RNG.random(300))
START = {"w": np.zeros(5, np.float32), "b": np.zeros((), np.float32)}


def margin(w, batch):
    return batch.x @ w["w"] + w["b"]


def square(w, batch):
    return jnp.mean((margin(w, batch) - batch.y) ** 2)


def half_precision(w, batch):
    return jnp.mean((batch.x.astype(jnp.bfloat16) @ w["w"].astype(jnp.bfloat16) - batch.y) ** 2)


def float32_inside(w, batch):
    def add(carry, row):
        return carry + jnp.sum(row * w["w"]).astype(jnp.float32), None

    return jax.lax.scan(add, jnp.float32(0), batch.x)[0] / len(batch.x)


def accuracy(w, batch):
    return jnp.mean(((margin(w, batch) > 0) == (batch.y > 0)).astype(jnp.float32))


def f1(w, batch):
    found, true = margin(w, batch) > 0, batch.y > 0
    return 2 * jnp.sum(found & true) / jnp.maximum(jnp.sum(found) + jnp.sum(true), 1)


def auc(w, batch):
    s, y = margin(w, batch), batch.y > 0
    return jnp.sum((s[:, None] > s) & y[:, None] & ~y) / (jnp.sum(y) * jnp.sum(~y))


def batch_norm(w, batch):
    x = (batch.x - jnp.mean(batch.x, 0)) / jnp.sqrt(jnp.var(batch.x, 0) + 1e-5)
    return jnp.mean((x @ w["w"] - batch.y) ** 2)


def contrast(w, batch):
    z = batch.x * w["w"]
    return jnp.mean(jax.nn.logsumexp(z @ z.T, axis=1) - jnp.sum(z * z, axis=1))


MEANS = {
    "square": square,
    "with a penalty": lambda w, batch: square(w, batch) + 0.1 * jnp.sum(w["w"] ** 2),
    "half precision": half_precision,
    "float32 inside": float32_inside,
    "never finite": lambda w, batch: jnp.mean(jnp.log(-1 - jnp.abs(margin(w, batch)))),
    "finite on one side": lambda w, batch: jnp.mean(jnp.log(w["b"] - 1e-9 + 0 * batch.y)),
}
MIXING = {
    "root of the mean square": (
        lambda w, batch: jnp.sqrt(square(w, batch)),
        "as the mean of their own values",
    ),
    "sum": (lambda w, batch: jnp.sum((margin(w, batch) - batch.y) ** 2), "is the sum of their own values"),
    "weighted": (lambda w, batch: jnp.sum(batch.y * margin(w, batch)) / jnp.sum(batch.y), "as the mean"),
    "batch norm": (batch_norm, "as the mean of their own values"),
    "contrast": (contrast, "as the mean of their own values"),
    "pairs": (
        lambda w, batch: jnp.mean(margin(w, batch).reshape(-1, 2)[:, 0]),
        "on one example alone it fails",
    ),
}


def test_losses_that_are_means_and_that_mix():
    """Targets of 1000.0 to 1001.0: root and mean differ in the tenth digit, and that is enough."""
    functions = MEANS | {name: f for name, (f, _) in MIXING.items()}
    seen = not_means(functions, START, few_rows(TARGETS, START))
    assert set(seen) == set(MIXING)
    for name, (_, words) in MIXING.items():
        assert words in seen[name], name


def test_metrics_of_rare_labels():
    """3 % positives: rows are chosen so that both labels are among them."""
    functions = {"accuracy": accuracy, "f1": f1, "auc": auc, "count": lambda w, b: jnp.sum(b.y * 1.0)}
    rows = few_rows(LABELS, START)
    assert len(rows.y) == 16
    assert set(rows.y) == {0, 1}
    assert set(not_means(functions, START, rows)) == {"f1", "auc", "count"}


def test_a_single_example_says_nothing():
    one = jax.tree.map(lambda a: a[:1], TARGETS)
    assert not_means({"sum": MIXING["sum"][0]}, START, few_rows(one, START)) == {}


def drop(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)


KEY = jax.random.key(0)
FROZEN = {
    "numpy": (lambda w, b: square(w, b) * CHANCE.random(), "np.random"),
    "numpy mask": (lambda w, b: jnp.mean((b.x * CHANCE.random(5)) @ w["w"]), "np.random"),
    "a key of its own": (
        lambda w, b: jnp.mean(drop(b.x, jax.random.key(0)) @ w["w"]),
        "one draw would serve",
    ),
    "an old key": (lambda w, b: jnp.mean(drop(b.x, jax.random.PRNGKey(0)) @ w["w"]), "one draw would serve"),
    "a key from outside": (lambda w, b: jnp.mean(drop(b.x, KEY) @ w["w"]), "one draw would serve"),
    "in a loop": (
        lambda w, b: jax.lax.fori_loop(
            0, 3, lambda i, c: c + jnp.mean(drop(b.x, jax.random.fold_in(KEY, i)) @ w["w"]), 0.0
        ),
        "one draw would serve",
    ),
    "in a branch": (
        lambda w, b: jax.lax.cond(w["b"] > 0, lambda: jnp.mean(drop(b.x, KEY) @ w["w"]), lambda: 0.0),
        "one draw would serve",
    ),
}


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_randomness_is_refused(name):
    loss, words = FROZEN[name]
    with pytest.raises(fs.InvalidInput, match=words) as raised:
        check_loss("the loss", loss, START, TARGETS)
    assert "deterministic=True" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_key_in_the_batch_and_a_draw_outside_are_taken():
    """What follows from the example, and what is fixed for good, may stay."""
    fixed = np.random.default_rng(0).normal(size=5)

    def noise(row):
        return jax.random.normal(jax.random.key(row.astype(jnp.uint32)), (5,))

    check_loss("the loss", lambda w, b: jnp.mean((b.x + jax.vmap(noise)(b.y)) @ w["w"]), START, TARGETS)
    check_loss("the loss", lambda w, b: jnp.mean((b.x * fixed) @ w["w"]), START, TARGETS)


def dropout(deterministic):
    nn = pytest.importorskip("flax.linen")
    model = nn.Sequential([nn.Dense(4), nn.Dropout(0.5, deterministic=deterministic), nn.Dense(1)])
    start = model.init({"params": KEY, "dropout": KEY}, TARGETS.x[:1])
    return lambda w, b: jnp.mean((model.apply(w, b.x, rngs={"dropout": KEY})[:, 0] - b.y) ** 2), start


@pytest.mark.full
def test_dropout_of_flax():
    loss, start = dropout(False)
    with pytest.raises(fs.InvalidInput, match="deterministic=True"):
        fs.run(fs.FedAvg(0.1), fs.Task.from_arrays(loss, start, [TARGETS]), rounds=1)
    check_loss("the loss", *dropout(True), TARGETS)


def statistics_linen():
    nn = pytest.importorskip("flax.linen")
    return nn.BatchNorm(use_running_average=False).init(KEY, TARGETS.x), "use_running_average=True"


def statistics_nnx():
    nnx = pytest.importorskip("flax.nnx")
    return nnx.BatchNorm(5, rngs=nnx.Rngs(0)), "nnx.split"


def statistics_equinox():
    eqx = pytest.importorskip("equinox")
    return eqx.nn.make_with_state(eqx.nn.BatchNorm)(5, axis_name="batch", mode="batch"), "without its State"


@pytest.mark.parametrize("make", [statistics_linen, statistics_nnx, statistics_equinox])
def test_running_statistics_are_not_trained(make):
    params, words = make()
    with pytest.raises(fs.InvalidInput, match=words) as raised:
        fs.Task.from_arrays(square, params, [TARGETS])
    assert "LayerNorm" in str(raised.value)
    data = fs.FederatedData.from_clients([TARGETS])
    arrays = jax.tree.map(lambda a: a, params)
    if isinstance(params, dict):  # a task of its own init is looked at when a run is made ready
        with pytest.raises(fs.InvalidInput, match=words):
            fs.run(fs.FedAvg(0.1), fs.Task("own", lambda key: arrays, square, data), rounds=1)


@pytest.mark.parametrize("use", ["run", "sweep", "baseline", "node"])
def test_a_loss_that_mixes_is_refused_everywhere(use):
    """Even where clients are alike and all minibatches full: what is reported would be wrong too."""
    from fedsolve.deploy.flower import JaxOracle

    clients = [jax.tree.map(lambda a, i=i: a[i : i + 8], TARGETS) for i in (0, 8)]
    task = fs.Task.from_arrays(batch_norm, START, clients, batch_size=8)
    do = {
        "run": lambda: fs.run(fs.FedAvg(0.1), task, rounds=1),
        "sweep": lambda: fs.sweep("FedAvg", task, {"client_lr": [0.1]}, rounds=1),
        "baseline": lambda: fs.baselines.fista(task),
        "node": lambda: JaxOracle(batch_norm, START, clients[0], batch_size=8, epochs=1),
    }[use]
    with pytest.raises(fs.InvalidInput, match=r"not a mean over examples: .* LayerNorm or GroupNorm"):
        do()


def test_numpy_inside_a_metric():
    score = {"score": lambda w, b: np.mean(np.asarray(margin(w, b)) > 0)}
    task = fs.Task.from_arrays(square, START, [TARGETS], metrics=score)
    with pytest.raises(fs.InvalidInput, match=r"score of a training batch .* fs.tasks.Whole"):
        fs.run(fs.FedAvg(0.1), task, rounds=1)


def own_squares(w, batch):
    return (margin(w, batch) - batch.y) ** 2


def weighted(w, batch, weights=None):
    weights = jnp.ones(len(batch.y)) if weights is None else weights
    return jnp.sum(weights * own_squares(w, batch)) / jnp.maximum(jnp.sum(weights), 1)


def centred(w, batch):
    """Each example's own value, less their mean, of half of them: their mean over a batch tells little."""
    return own_squares(w, batch) + batch.y - jnp.mean(batch.y)


def test_values_of_examples_and_means_with_weights():
    functions = {
        "own": own_squares,
        "weighted": weighted,
        "centred": centred,
        "divided by all": lambda w, b, weights=None: (
            weighted(w, b, weights) * (1.0 if weights is None else jnp.mean(weights))
        ),
        "ignored": lambda w, b, weights=None: weighted(w, b),
        "both": lambda w, b, weights=None: own_squares(w, b),
    }
    seen = not_means(functions, START, few_rows(TARGETS, START))
    assert set(seen) == {"centred", "divided by all", "ignored"}
    assert "example 0 of 16 has" in seen["centred"]
    assert "with weights 1 for 8 of 16 examples" in seen["ignored"]


def fails_without(w, batch, key):
    return own_squares(w, batch) * jax.random.bernoulli(key, 0.5, batch.y.shape)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (fails_without, "fails with key=None, as evaluation calls it.*draw nothing where key is None"),
        (lambda w, b: b.x * w["w"], r"is of shape \(2, 5\) .* or one for each of its 2 examples"),
        (lambda w, b, kye: 0.0, "unknown argument of the loss 'kye': did you mean 'key'"),
        (lambda w, b, key=None: square(w, b) * jax.random.uniform(KEY), "one draw would serve"),
    ],
)
def test_what_a_loss_may_not_do(loss, words):
    with pytest.raises(fs.InvalidInput, match=words) as raised:
        check_loss("the loss", loss, START, TARGETS)
    assert "\n" not in str(raised.value)


def test_a_given_key_is_no_frozen_draw():
    check_loss(
        "the loss",
        lambda w, b, key=None: jnp.mean((drop(b.x, key) if key is not None else b.x) @ w["w"]),
        START,
        TARGETS,
    )


@pytest.mark.parametrize(
    "types", [("float32", "float64"), pytest.param(("float64", "float32"), marks=pytest.mark.full)]
)
def test_a_numpy_array_in_a_loss_has_the_type_of_each_run(types):
    """JAX keeps one type for such an array: runs in two types, in one process, each have their own."""
    scale = np.linspace(1.0, 2.0, 5) / 3

    def loss(w, b):
        return jnp.mean((b.x @ (scale * w["w"]) - b.y) ** 2)

    w = np.zeros(5)
    for _ in range(2):
        w = w - 0.1 * 2 * scale * (TARGETS.x.T @ (TARGETS.x @ (scale * w) - TARGETS.y)) / len(TARGETS.y)
    for dtype in types:
        task = fs.Task.from_arrays(loss, {"w": np.zeros(5)}, [TARGETS], batch_size=len(TARGETS.y))
        found = fs.run(fs.FedAvg(0.1), task, rounds=2, dtype=dtype).params["w"]
        np.testing.assert_allclose(found, w, rtol=1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.gate("100")
@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="mappings are counted where Linux tells them"
)
@pytest.mark.parametrize("allowed", [100, 10**9])
def test_programs_go_before_the_process_has_too_many_mappings(allowed, tmp_path, monkeypatch):
    """The compiler would abort the process; the run itself is what it is."""
    told = tmp_path / "max_map_count"
    told.write_text(f"{allowed}\n")
    monkeypatch.setattr(compiler, "_ALLOWED", told)
    monkeypatch.setitem(compiler._AHEAD, "runs", 0)
    of_before = jax.jit(lambda x: x + 1)
    of_before(1.0)
    task = fs.Task.from_arrays(lambda w, b: jnp.mean((b - w) ** 2), np.zeros(()), [np.ones(2)], batch_size=2)
    np.testing.assert_allclose(fs.run(fs.FedAvg(0.25), task, rounds=1).params, 0.5)
    assert of_before._cache_size() == (0 if allowed == 100 else 1)
