"""Losses that look entries up by labels: one that is not there is told, unless the loss leaves it out on purpose."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs
from fedsolve.engine.checks.gathers import check_gathers
from fedsolve.engine.checks.preflight import check_metrics
from fedsolve.tasks import CausalTransformer, NextToken

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
    "a bounded loss": lambda w, b: jnp.clip(own(w, b), 0, 20),
    "a loop": lambda w, b: -jax.lax.map(lambda row: row[0][row[1]], (logs(w, b), b.y)),
    "a scan": scanned,
    "a branch": lambda w, b: jax.lax.cond(b.x[0, 0] > -99, lambda: own(w, b), lambda: b.x[:, 0]),
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
