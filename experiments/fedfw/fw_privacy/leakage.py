"""Deep leakage from gradients (Zhu, Liu and Han 2019): an image found again from what a client sends of it.

The attacker knows the model, gets a message m made of the gradient g* of one example, and looks for an image
and a soft label whose gradient g would send the same:

    message                             the attacker minimises
    gradient         g*                 |g - m|^2 / |m|^2
    l2               -r g* / |g*|       |g / |g| + m|^2 = 2 (1 - cos(g, g*))
    l1               -r sign(g*_j) e_j  |g / |g| + m|^2 = 2 (1 - sign(g*_j) g_j / |g|)
    l2 as gradient   -r g* / |g*|       |g + m|^2, the attack unchanged: blind to the lost length

The last three are vertices of an l2 and an l1 ball, which Frank-Wolfe clients send; their radius r is public
and common to all, hence 1 here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from fedsolve.geometry import L1Ball, L2Ball
from fedsolve.studies.public import Params

_TINY = 1e-30


@dataclass(frozen=True)
class SmoothNet:
    """Three 5x5 convolutions of `channels` filters, strides 2, 2 and 1, and a dense layer; sigmoids between.

    The LeNet of Zhu et al.'s public code at any size, with weights and biases uniform in [-1/2, 1/2].
    """

    shape: tuple[int, int, int]
    classes: int = 10
    channels: int = 12

    def init(self, key: Array) -> list[tuple[Array, Array]]:
        """Kernels (5, 5, in, out) and (in, out), each with its bias."""
        height, width, inputs = self.shape
        ends = self.channels * -(-height // 4) * -(-width // 4)
        shapes = [(5, 5, inputs, self.channels)] + 2 * [(5, 5, self.channels, self.channels)]
        draws = [*shapes, (ends, self.classes)]
        keys = jax.random.split(key, 2 * len(draws))
        return [
            (uniform(keys[2 * i], shape), uniform(keys[2 * i + 1], shape[-1:]))
            for i, shape in enumerate(draws)
        ]

    def __call__(self, params: list[tuple[Array, Array]], x: Array) -> Array:
        """Logits (classes,) of one image."""
        y = x[None]
        for (kernel, bias), stride in zip(params[:-1], (2, 2, 1), strict=True):
            y = jax.lax.conv_general_dilated(
                y, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            y = jax.nn.sigmoid(y + bias)
        weight, bias = params[-1]
        return y.ravel() @ weight + bias


def uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform in [-1/2, 1/2]."""
    return jax.random.uniform(key, shape, minval=-0.5, maxval=0.5)


class Guess(NamedTuple):
    """What the attacker varies: an image and the logits of a soft label."""

    image: Any
    label: Any


def gradient(model: SmoothNet, params: Params, image: Array, target: Array) -> Array:
    """The gradient of the cross-entropy of one example with a label distribution, as one vector."""

    def loss(params: Params) -> Array:
        return -jnp.sum(target * jax.nn.log_softmax(model(params, image)))

    return ravel_pytree(jax.grad(loss)(params))[0]


@dataclass(frozen=True)
class Signal:
    """A message, turned to point along the gradient, and whether the attacker compares directions alone."""

    of: Callable[[Array], Array]
    direction: bool


def _l2(g: Array) -> Array:
    return -L2Ball(1.0).lmo(g)


def _l1(g: Array) -> Array:
    return -L1Ball(1.0).lmo(g)


SIGNALS = {
    "gradient": Signal(lambda g: g, False),
    "l2": Signal(_l2, True),
    "l2 as gradient": Signal(_l2, False),
    "l1": Signal(_l1, True),
}
"""What is sent of a gradient, by name."""


def mismatch(model: SmoothNet, params: Params, sent: Array, direction: Any, guess: Guess) -> Array:
    """How badly a guess explains what was sent, 0 if perfectly."""
    g = gradient(model, params, guess.image, jax.nn.softmax(guess.label))
    g = g / jnp.where(direction, jnp.sqrt(jnp.sum(g**2) + _TINY), 1)
    return jnp.sum((g - sent) ** 2) / jnp.maximum(jnp.sum(sent**2), _TINY)


class Attack(NamedTuple):
    """What an attack found, by restart: images, labels, and curves of (restarts, looks)."""

    image: Array
    label: Array
    psnr: Array
    mismatch: Array


@partial(jax.jit, static_argnames=("model", "looks", "every"))
def attack(
    model: SmoothNet, params: Params, sent: Array, direction: Any, image: Array, keys: Array, *, looks: int,
    every: int,
) -> Attack:  # fmt: skip
    """L-BFGS from normal noise, one restart a key, `looks` times `every` iterations.

    `image` is the true one and only serves to measure the PSNR.
    """
    value = partial(mismatch, model, params, sent, direction)
    solver = optax.lbfgs(memory_size=20, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=15))
    both = optax.value_and_grad_from_state(value)

    def step(_: Any, carry: tuple[Guess, Any]) -> tuple[Guess, Any]:
        guess, state = carry
        loss, grad = both(guess, state=state)
        move, state = solver.update(grad, state, guess, value=loss, grad=grad, value_fn=value)
        new = optax.apply_updates(guess, move)
        return jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(a), a, b), new, guess), state

    def look(carry: tuple[Guess, Any], _: Any) -> tuple[tuple[Guess, Any], tuple[Array, Array]]:
        carry = jax.lax.fori_loop(0, every, step, carry)
        return carry, (psnr(carry[0].image, image), value(carry[0]))

    def one(key: Array) -> Attack:
        a, b = jax.random.split(key)
        start = Guess(jax.random.normal(a, image.shape), jax.random.normal(b, (model.classes,)))
        (end, _), (quality, misfit) = jax.lax.scan(look, (start, solver.init(start)), None, looks)
        first = psnr(start.image, image), value(start)
        return Attack(
            end.image,
            end.label,
            jnp.concatenate([first[0][None], quality]),
            jnp.concatenate([first[1][None], misfit]),
        )

    return jax.lax.map(one, keys)


def psnr(found: Array, image: Array) -> Array:
    """Peak signal-to-noise ratio in dB of an image clipped to [0, 1]; at most 100."""
    error = jnp.mean((jnp.clip(found, 0, 1) - image) ** 2)
    return -10 * jnp.log10(jnp.maximum(error, 1e-10))
