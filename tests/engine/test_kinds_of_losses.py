"""What a loss may be: one that looks up by labels, one of sums over examples, one that draws."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.engine.checks.gathers import check_gathers
from fedsolve.engine.checks.preflight import check_metrics
from fedsolve.engine.compute.clients import client_oracle
from fedsolve.engine.options import RunOptions
from fedsolve.engine.prepare import prepare as engine_prepare
from fedsolve.tasks import CausalTransformer, NextToken
from harness import Listed, crossed, engine

# Losses that look entries up by labels: one that is not there is told, unless the loss leaves it out on purpose.

RNG = np.random.default_rng(0)
CLASSES = 5
START = {"w": np.zeros((3, CLASSES), np.float32)}


def examples(low, high, rows=12):
    y = low + np.arange(rows) % (high - low + 1)
    return fs.Examples(RNG.normal(size=(rows, 3)).astype(np.float32), y)


def logs(w, batch):
    return jax.nn.log_softmax(batch.x @ w["w"])


def own(w, batch, y=None):
    y = batch.y if y is None else y
    return -logs(w, batch)[jnp.arange(len(y)), y]


def there(batch):
    return (batch.y >= 0) & (batch.y < CLASSES)


def scanned(w, batch):
    def step(carry, row):
        return carry - jax.nn.log_softmax(row[0] @ w["w"])[row[1]], None

    return jax.lax.scan(step, jnp.zeros(()), (batch.x, batch.y))[0] / len(batch.y)


BLIND = {
    "indices": own,
    "take_along_axis": lambda w, b: -jnp.take_along_axis(logs(w, b), b.y[:, None], 1).mean(),
    "take": lambda w, b: jnp.take(w["w"].sum(0), b.y),
    "one of each row": lambda w, b: -jax.vmap(lambda row, y: row[y])(logs(w, b), b.y).mean(),
    "optax": lambda w, b: optax.softmax_cross_entropy_with_integer_labels(b.x @ w["w"], b.y),
    "a table": lambda w, b: jnp.mean((w["w"].T[b.y] - b.x) ** 2),
    "a checkpoint": lambda w, b: jax.checkpoint(lambda w: own(w, b))(w),
    "a checkpoint in a branch": lambda w, b: jax.lax.cond(
        b.x[0, 0] > -99, jax.checkpoint(lambda w: own(w, b)), lambda w: b.x[:, 0], w
    ),
    "a bounded loss": lambda w, b: jnp.clip(own(w, b), 0, 20),
    "a loop": lambda w, b: -jax.lax.map(lambda row: row[0][row[1]], (logs(w, b), b.y)),
    "a scan": scanned,
    "a branch": lambda w, b: jax.lax.cond(b.x[0, 0] > -99, lambda: own(w, b), lambda: b.x[:, 0]),
    "whole arrays": lambda w, b: own({"w": jnp.zeros_like(w["w"]).at[:].set(w["w"])}, b).at[()].get(),
    "a number of its own": lambda w, b: own(w, b).mean().at[()].add(0.0),
    "small integers": lambda w, b: own(w, b, b.y.astype(jnp.int8)),
}
MASKED = {
    "clipped indices": lambda w, b: own(w, b, jnp.clip(b.y, 0, CLASSES - 1)),
    "a clipped gather": lambda w, b: -logs(w, b).at[jnp.arange(len(b.y)), b.y].get(mode="clip"),
    "a filled gather": lambda w, b: logs(w, b).at[jnp.arange(len(b.y)), b.y].get(mode="fill", fill_value=0),
    "another index": lambda w, b: own(w, b, jnp.where(there(b), b.y, 0)) * there(b),
    "where": lambda w, b: jnp.where(there(b), own(w, b), 0),
    "where in a loop": lambda w, b: jax.lax.map(
        lambda row: jnp.where(there(fs.Examples(*row)), row[0][row[1]], 0), (logs(w, b), b.y)
    ),
    "times 0": lambda w, b: jnp.mean(own(w, b) * there(b)),
    "the last, counted from the end": lambda w, b: -logs(w, b)[:, -1] * b.y,
    "no look-up": lambda w, b: jnp.mean((b.x @ w["w"]).sum(1) - b.y) ** 2,
}

NOTED = {
    "a clipped gather",
    "a filled gather",
    "where",
    "where in a loop",
    "times 0",
}  # what nobody asks for is read


@pytest.mark.parametrize("case", BLIND)
def test_entries_that_are_not_there(case):
    """Labels 1 to 5 of five classes, and 0 to 4 less 1: JAX counts -1 from the end, without a word."""
    assert not check_gathers("the loss", BLIND[case], START, {"the examples": examples(0, CLASSES - 1)})
    for low, high in ((1, CLASSES), (-1, CLASSES - 2)):
        words = f"entries {low} to {high} of an axis of {CLASSES} by integers of the examples: "
        with pytest.raises(fs.InvalidInput, match=words) as error:
            check_gathers("the loss", BLIND[case], START, {"the examples": examples(low, high)})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", MASKED)
def test_entries_that_are_left_out(case):
    """They are refused nowhere, and a note says what is looked up."""
    assert not check_gathers("the loss", MASKED[case], START, {"the examples": examples(0, CLASSES - 1)})
    for low, high in ((1, CLASSES), (-1, CLASSES - 2)):
        notes = check_gathers("the loss", MASKED[case], START, {"the examples": examples(low, high)})
        assert len(notes) == (case in NOTED)
        assert all(f"entries {low} to {high} of an axis of {CLASSES} by integers of" in n for n in notes)


def test_padded_tokens_are_noted_in_the_result():
    """Some positions of each row are masked: the others have a gradient."""

    def padded(w, batch):
        y, x = batch.y, jnp.broadcast_to(batch.x[:, None], (*batch.y.shape, 3))
        own = jnp.take_along_axis(jax.nn.log_softmax(x @ w["w"]), y[..., None], -1)[..., 0]
        return -jnp.sum(jnp.where(y >= 0, own, 0), -1)

    y = np.arange(24).reshape(12, 2) % CLASSES
    y[::3, 1] = -100
    data = fs.Examples(examples(0, 1).x, y)
    task = fs.Task.from_arrays(padded, START, [data], name="mine")
    notes = fs.run(fs.FedAvg(0.1), task, rounds=1).history.notes
    words = "the loss of task mine looks up entries -100 to 4 of an axis of 5 by integers of the training examples"
    assert [words in note for note in notes].count(True) == 1


def test_a_mask_of_padding_excuses_no_other_label():
    """-100 counts for nothing, and a label beyond the classes is read as another one."""

    def padded(w, batch):
        return jnp.where(batch.y == -100, 0, own(w, batch))

    y = np.arange(12) % CLASSES
    y[3], y[7] = -100, CLASSES
    with pytest.raises(fs.InvalidInput, match=f"-100 to {CLASSES} of an axis of {CLASSES}"):
        check_gathers("the loss", padded, START, {"the examples": fs.Examples(examples(0, 1).x, y)})


def test_rare_labels_are_looked_at():
    """One of 5,000 is no class; others beyond the end are told by another field to count for nothing."""
    y = np.arange(5000) % CLASSES
    y[3210] = CLASSES
    x = np.ones((5000, 3), np.float32)
    with pytest.raises(fs.InvalidInput, match=f"0 to {CLASSES} of an axis of {CLASSES}"):
        check_gathers("the loss", own, START, {"the examples": fs.Examples(x, y)})

    def weighted(w, batch):
        rest, counts = batch
        return own(w, rest) * counts

    counts = np.ones(5000, np.float32)
    counts[3210] = 0
    assert check_gathers("the loss", weighted, START, {"the examples": (fs.Examples(x, y), counts)})
    y[4321] = CLASSES
    with pytest.raises(fs.InvalidInput, match=f"0 to {CLASSES} of an axis of {CLASSES}"):
        check_gathers("the loss", weighted, START, {"the examples": (fs.Examples(x, y), counts)})


@pytest.mark.full
def test_tokens_of_a_model_of_the_package():
    """A table of tokens is looked up by inputs."""
    model = CausalTransformer(7, width=4, heads=1, layers=1)
    loss, params = NextToken(model), model.init(jax.random.key(0))
    y = 1 + np.arange(24).reshape(4, 6) % 6
    check_gathers("the loss", loss, params, {"the examples": fs.Examples(y, y)})
    with pytest.raises(fs.InvalidInput, match="2 to 7 of an axis of 7"):
        check_gathers("the loss", loss, params, {"the examples": fs.Examples(y + 1, y)})


@pytest.mark.parametrize("where", ["training", "test", "validation", "unseen"])
def test_a_run_looks_at_all_sets(where):
    good, bad = examples(0, CLASSES - 1), examples(1, CLASSES)
    sets = {"unseen": [good], "test": good, "validation": good} | {where: [bad] if where == "unseen" else bad}
    clients = [good, sets.pop("training", good)]
    task = fs.Task.from_arrays(own, START, clients, name="mine", **sets)
    with pytest.raises(fs.InvalidInput, match=f"loss of task mine looks up .* by integers of the {where}"):
        fs.run(fs.FedAvg(0.1), task, rounds=1)


def test_metrics_look_up_too():
    """The loss compares labels, so that only the metric reads what is not there."""

    def compared(w, batch):
        return -(jax.nn.one_hot(batch.y, CLASSES) * logs(w, batch)).sum(1)

    good, bad = examples(0, CLASSES - 1), examples(1, CLASSES)
    given = {"metrics": {"own": own}, "name": "mine", "test": bad}
    task = fs.Task.from_arrays(compared, START, [good], **given)
    with pytest.raises(
        fs.InvalidInput, match=r"metric own of task mine looks up entries 1 to 5 .* of the test set"
    ):
        fs.run(fs.FedAvg(0.1), task, rounds=1)
    with pytest.raises(fs.InvalidInput, match="metric own looks up entries 1 to 5 of an axis of 5"):
        check_metrics({"own": own}, START, bad)


def test_a_client_of_a_deployment():
    from fedsolve.deploy.oracles.jax import JaxOracle

    with pytest.raises(fs.InvalidInput, match="the loss looks up entries 1 to 5 of an axis of 5"):
        JaxOracle(own, START, examples(1, CLASSES), batch_size=None, epochs=1)


# A loss that follows from sums over examples: its value, gradient, evaluation and diagnostics against NumPy.

COUNTS, RATE = (5, 3, 4), 0.2


def examples_sums():
    """x, y and the weight of each example; all of client 2's are 0."""
    draw = np.random.default_rng(0)
    found = [(draw.normal(size=(n, 2)), draw.normal(size=n), draw.uniform(0.1, 9, n)) for n in COUNTS]
    found[2][2][:] = 0
    return found


def adds(w, batch):
    x, y, weight = batch
    return jnp.stack([weight * (x @ w - y) ** 2, weight], axis=1)


def ratio(sums):
    return sums[0] / sums[1]


LOSS = fs.tasks.OfSums(adds, ratio)


def loss_and_gradient(w, client):
    x, y, weight = client
    apart = x @ w - y
    return weight @ apart**2 / weight.sum(), 2 * x.T @ (weight * apart) / weight.sum()


def task(**options):
    return fs.Task.from_arrays(
        LOSS,
        jnp.zeros(2),
        examples_sums(),
        batch_size=None,
        local_steps=2,
        metrics={"again": LOSS},
        **options,
    )


def by_hand():
    """One round of FedAvg, each client by its number of examples; the last one stays where it is."""
    models = []
    for client in examples_sums():
        w = np.zeros(2)
        for _ in range(2 if client[2].any() else 0):
            w = w - RATE * loss_and_gradient(w, client)[1]
        models.append(w)
    return np.average(models, axis=0, weights=COUNTS)


def everything():
    return tuple(np.concatenate(part) for part in zip(*examples_sums(), strict=True))


@pytest.mark.parametrize("options", [{}, {"residency": "stream"}], ids=str)
def test_a_run_and_its_metrics(options):
    """The step is of each client's weighted mean; the metrics are of all examples, and of clients with any weight."""
    clients = task(test=examples_sums()[0])
    found = fs.run(fs.FedAvg(RATE), clients, rounds=1, clients_per_round=3, dtype="float64", **options)
    wanted = by_hand()
    np.testing.assert_allclose(found.params, wanted, rtol=1e-12)
    for name, part in (("train", everything()), ("test", examples_sums()[0])):
        assert found.metrics[f"{name}_loss"][-1] == pytest.approx(
            loss_and_gradient(wanted, part)[0], rel=1e-12
        )
    own = [loss_and_gradient(wanted, c)[0] for c in examples_sums()[:2]]
    assert found.metrics["client_loss_mean"][-1] == pytest.approx(np.mean(own), rel=1e-12)
    assert found.metrics["client_again_worst"][-1] == pytest.approx(np.max(own), rel=1e-12)


@pytest.mark.full
def test_a_sweep_measures_the_same():
    clients = task(test=examples_sums()[0])
    alone = fs.run(fs.FedAvg(RATE), clients, rounds=1, clients_per_round=3, dtype="float64")
    grid = {"client_lr": [RATE, 0.1]}
    swept = fs.sweep("FedAvg", clients, grid=grid, rounds=1, clients_per_round=3, dtype="float64")
    for name in ("train_loss", "test_loss", "test_again"):
        assert swept.metrics[name][0, 0, -1] == pytest.approx(alone.metrics[name][-1], rel=1e-12)


@pytest.mark.full_rows("True")
@pytest.mark.parametrize("uniform", [False, True])
def test_the_objective_weighs_the_clients_own_losses(uniform):
    """F = sum_i p_i f_i with each client's weighted mean f_i, 0 where nothing counts; and its gradient."""
    from fedsolve.engine.compute.clients import pack
    from fedsolve.engine.evaluation.averaged_iterates import objective

    made = task()
    with jax.enable_x64(True):
        packed = pack(made.data, LOSS, jnp.float64, batch_size=None, epochs=1, local_steps=None)[0]
        w = np.array([0.3, -0.7])
        value, gradient = objective(LOSS, uniform, packed, jnp.asarray(w), True)
        shares = np.full(3, 1 / 3) if uniform else np.array(COUNTS) / sum(COUNTS)
        parts = [loss_and_gradient(w, c) for c in examples_sums()[:2]]
        assert float(value) == pytest.approx(sum(s * f for s, (f, _) in zip(shares, parts, strict=False)))
        np.testing.assert_allclose(
            gradient, sum(s * g for s, (_, g) in zip(shares, parts, strict=False)), rtol=1e-12
        )


def test_what_mixes_examples_is_refused():
    mixing = fs.tasks.OfSums(lambda w, b: adds(w, (b[0] - b[0].mean(0), *b[1:])), ratio)
    wrong = fs.Task.from_arrays(mixing, jnp.zeros(2), examples_sums())
    with pytest.raises(fs.InvalidInput, match=r"example \d+ of 12 has .* among the others and .* alone"):
        fs.run(fs.FedAvg(RATE), wrong, rounds=1, clients_per_round=3)


def test_a_sum_is_refused():
    wrong = fs.Task.from_arrays(fs.tasks.OfSums(adds, lambda sums: sums[0]), jnp.zeros(2), examples_sums())
    with pytest.raises(fs.InvalidInput, match="with each of them twice"):
        fs.run(fs.FedAvg(RATE), wrong, rounds=1, clients_per_round=3)


# What a loss draws: the key of a local step, against rounds in NumPy whose masks are drawn with explicit keys.
#
# The loss is a linear regression whose inputs are dropped with chance 1/2, so that a step on a minibatch is plain
# regression on inputs that are partly 0. With key None, in evaluation and on all examples, nothing is dropped.

FEATURES, BATCH, LR = 4, 4, 0.05
EVERYONE = Listed.of([[0, 1, 2, 3, 4], [2, 3, 4], [4, 0, 1]])
SIZES = {"uneven": (7, 3, 12, 5, 9), "even": (8,) * 5, "one batch": (4, 3, 4, 2, 4)}


def drop(x, key):
    return x if key is None else jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)


def squares(w, batch, key):
    return (drop(batch.x, key) @ w - batch.y) ** 2


def per_example(w, batch, key=None):
    return squares(w, batch, key)


def weighted(w, batch, key, weights=None):
    own = squares(w, batch, key)
    return jnp.mean(own) if weights is None else jnp.sum(weights * own) / jnp.maximum(jnp.sum(weights), 1)


def weighted_examples(w, batch, *, key, weights):
    """A loss that looks at which examples count, as batch normalisation does, and gives each example's own value."""
    return (
        squares(w, batch, key) if weights is None else jnp.where(weights > 0, squares(w, batch, key), jnp.nan)
    )


def plain(w, batch, key):
    return jnp.mean(squares(w, batch, key))


class Model:
    def __call__(self, params, x, key=None):
        return drop(x, key) @ params


LOSSES = {
    "per example": per_example,
    "weighted": weighted,
    "weighted examples": weighted_examples,
    "plain": plain,
    "built in": fs.tasks.SquaredError(Model()),
}


def make(loss, sizes):
    rng = np.random.default_rng(3)
    clients = [fs.Examples(rng.normal(size=(n, FEATURES)), rng.normal(size=n)) for n in sizes]
    start = rng.normal(size=FEATURES)
    return clients, fs.Task.from_arrays(loss, start, clients, batch_size=BATCH, epochs=2, name="dropped")


def step_key(t, client, step):
    key = jax.random.fold_in(jax.random.split(jax.random.key(0, impl="threefry2x32"))[1], t)
    own = jax.random.fold_in(jax.random.fold_in(key, 0xC11E0000), client)
    return jax.random.fold_in(jax.random.fold_in(own, 0x57E90000), step)


def inputs(x, key, alone):
    """Inputs with what is dropped; `alone`: each example by itself, with a key that follows from its row."""
    if not alone:
        return x * np.asarray(jax.random.bernoulli(key, 0.5, x.shape))
    rows = [jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, (1, FEATURES)) for i in range(len(x))]
    return x * np.concatenate([np.asarray(row) for row in rows])


def minibatches(run, clients, t, i, alone):
    """The examples of client i's local steps in round t, dropped."""
    n = len(clients[i].y)
    per_epoch = -(-n // BATCH)
    for k in range(2 * per_epoch):
        rows = np.arange(n)
        if run.orders[t] is not None:
            rows = run.orders[t][i][k // per_epoch][:n][k % per_epoch * BATCH :][:BATCH]
        yield inputs(clients[i].x[rows], step_key(t, i, k), alone), clients[i].y[rows]


def sgd(w, batches):
    for x, y in batches:
        w = w - LR * 2 * x.T @ (x @ w - y) / len(y)
    return w


def armijo(w, batches):
    """Steps 1, 0.9, 0.81, ... until the loss falls by a tenth of the linear decrease, all on one draw."""
    for x, y in batches:
        g, eta = 2 * x.T @ (x @ w - y) / len(y), 1.0
        while np.mean((x @ (w - eta * g) - y) ** 2) > np.mean((x @ w - y) ** 2) - 0.1 * eta * g @ g:
            eta *= 0.9
        w = w - eta * g
    return w


def check(loss, sizes, algorithm, local, alone=False, **options):
    """Three rounds: the engine's models, and those of local work in NumPy from the model before."""
    clients, task = make(LOSSES[loss], SIZES[sizes])
    run = engine(algorithm, task, EVERYONE, rounds=3, **options)
    with jax.enable_x64(True):
        for t, cohort in enumerate(run.cohorts):
            w = run.iterates[t]
            ends = [local(w, minibatches(run, clients, t, i, alone)) for i in cohort]
            np.testing.assert_allclose(run.iterates[t + 1], np.mean(ends, axis=0), rtol=1e-9)


FEDAVG = fs.FedAvg(LR, weighting="uniform")


@pytest.mark.full_rows("plain")
@pytest.mark.parametrize("loss", crossed(LOSSES, ["weighted", "plain"]))
def test_uneven_clients(loss):
    check(loss, "uneven", FEDAVG, sgd, alone=loss == "plain", chunk=1)


PADDED = [("per example", "uneven", 3), ("plain", "even", 1), ("weighted", "one batch", 1)]


@pytest.mark.parametrize(("loss", "sizes", "chunk"), crossed(PADDED, PADDED[:1]))
def test_padding_and_chunks(loss, sizes, chunk):
    """Clients side by side; without any padding, where a plain mean sees its batch at once; one batch a client."""
    check(loss, sizes, FEDAVG, sgd, chunk=chunk)


@pytest.mark.full
def test_all_trials_of_a_line_search_see_one_draw():
    check("per example", "uneven", fs.FedLiLS(), armijo, chunk=1)


@pytest.mark.full
def test_evaluation_and_all_examples_draw_nothing():
    clients, task = make(per_example, SIZES["uneven"])
    result = fs.run(FEDAVG, task, rounds=1, dtype="float64")
    whole = [np.mean((c.x @ np.asarray(result.params) - c.y) ** 2) for c in clients]
    assert result.metrics["train_loss"][-1] == pytest.approx(
        np.average(whole, weights=SIZES["uneven"]), rel=1e-12
    )
    assert result.metrics["client_loss_worst"][-1] == pytest.approx(max(whole), rel=1e-12)
    oracle = JaxOracle(plain, np.zeros(FEATURES), clients[2], batch_size=4, epochs=1)
    with jax.enable_x64(True):
        full = oracle.begin(jax.random.key(1), 0, jnp.float64).full(result.params)[0]
    assert float(full) == pytest.approx(whole[2], rel=1e-12)


def test_a_deployed_client_draws_the_same():
    """Also where its own noise has a secret key: dropout is no secret."""
    _, task = make(per_example, SIZES["uneven"])
    options = RunOptions(rounds=1, sampling=EVERYONE, chunk=1)
    setup, key, w = engine_prepare(FEDAVG, task, options), jax.random.key(9), jnp.ones(FEATURES)
    theirs = client_oracle(setup.program.work, setup.packed, key, jnp.int32(3), setup.packed.steps[3])
    ours = JaxOracle.of_task(task, 3).begin(key, 3, jnp.float32, noise=jax.random.key(77))
    look = jax.jit(lambda oracle: [(oracle(w, k), oracle.loss(w, k)) for k in (0, 1, 2)])
    for a, b in zip(jax.tree.leaves(look(ours)), jax.tree.leaves(look(theirs)), strict=True):
        assert a.tobytes() == b.tobytes()
    ((first, _), again), ((second, _), _), _ = look(theirs)
    assert first == again != second
