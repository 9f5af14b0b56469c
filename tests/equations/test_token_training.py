"""How language models are trained: schedules over rounds, clipping, decay masks, products and leaves of 16 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedsolve as fs

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2))
START = {"weight": RNG.normal(size=(3, 2)), "bias": np.zeros(2)}
MASK = {"weight": True, "bias": False}
ROUNDS, STEPS = 3, 2


def squared(model, batch):
    return jnp.sum((batch[0] @ model["weight"] + model["bias"] - batch[1]) ** 2) / len(batch[0])


def warm_up():
    return optax.warmup_cosine_decay_schedule(0.0, 0.1, warmup_steps=2, decay_steps=ROUNDS * STEPS)


def clipped(learning_rate, weight_decay):
    """Clipping by the global norm, AdamW without decay of biases."""
    return optax.chain(
        optax.clip_by_global_norm(0.5), optax.adamw(learning_rate, weight_decay=weight_decay, mask=MASK)
    )


def test_a_kept_optimiser_goes_on_over_rounds():
    """Warm-up and cosine by local steps, clipping and a decay mask: one client is one loop of optax."""
    task = fs.Task.from_arrays(squared, START, [(X, Y)], batch_size=None, local_steps=STEPS)
    local = fs.client.Optax(clipped, keep=True, learning_rate=warm_up(), weight_decay=0.3)
    method = fs.FedOpt(local, fs.server.ServerSGD())
    found = fs.run(method, task, rounds=ROUNDS, dtype="float64").params
    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, START)
        optimizer = clipped(warm_up(), 0.3)
        state = optimizer.init(params)
        for _ in range(ROUNDS * STEPS):
            gradient = jax.grad(squared)(params, (jnp.asarray(X), jnp.asarray(Y)))
            update, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, update)
    for name in START:
        np.testing.assert_allclose(found[name], params[name], rtol=1e-6)


# A decoder of two layers with low-rank adapters of frozen weights, on sequences in which each token tells the next.

WORDS, WIDTH, LENGTH = 12, 16, 8
TOKENS = (RNG.integers(0, WORDS, (8, 1)) + 5 * np.arange(LENGTH + 1)) % WORDS


def matrix(*shape):
    return np.asarray(RNG.normal(size=shape) / shape[-1] ** 0.5, np.float32)


DECODER = {
    "embedding": matrix(WORDS, WIDTH) * 4,
    "base": [{name: matrix(WIDTH, WIDTH) for name in ("q", "k", "v", "up", "down")} for _ in range(2)],
    "low": [{name: matrix(WIDTH, 2) for name in ("v", "up", "down")} for _ in range(2)],
    "high": [{name: np.zeros((2, WIDTH), np.float32) for name in ("v", "up", "down")} for _ in range(2)],
    "head": matrix(WIDTH, WORDS) * 0.1,
}


def logits(model, tokens):
    hidden = model["embedding"][tokens]
    for base, low, high in zip(model["base"], model["low"], model["high"], strict=True):
        own = {name: w + low[name] @ high[name] if name in low else w for name, w in base.items()}
        y = hidden / jnp.sqrt(jnp.mean(hidden**2, axis=-1, keepdims=True))
        scores = (y @ own["q"]) @ jnp.swapaxes(y @ own["k"], -1, -2) / WIDTH**0.5
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        hidden = hidden + jax.nn.softmax(jnp.where(seen, scores, -1e9)) @ (y @ own["v"])
        hidden = hidden + jnp.tanh(hidden @ own["up"]) @ own["down"]
    return hidden @ model["head"]


def by_token(model, tokens):
    outputs = jax.nn.log_softmax(logits(model, tokens[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(outputs, tokens[:, 1:, None], axis=-1))


@pytest.mark.parametrize(("stored", "product"), [("bfloat16", "bfloat16"), ("int8", None)])
def test_mixed_precision_learns_as_float32_does(stored, product):
    """Of 50 steps the loss is within 1 %."""
    losses = []
    for frozen_dtype, matmul_dtype in ((None, None), (stored, product)):
        task = fs.Task.from_arrays(
            by_token,
            DECODER,
            [TOKENS],
            freeze=("embedding", "base.*"),
            frozen_dtype=frozen_dtype,
            batch_size=None,
            local_steps=10,
        )
        run = fs.run(fs.FedAvg(0.05), task, rounds=5, eval_every=5, matmul_dtype=matmul_dtype)
        losses.append(run.metrics["train_loss"])
    (before, wide), (_, mixed) = losses
    assert wide < 0.8 * before
    assert mixed != wide
    assert mixed == pytest.approx(wide, rel=0.01)
