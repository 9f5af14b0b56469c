"""FEMNIST's writers in three parts, and what a model is worth to a writer after a few steps on some of the images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from fedsolve.studies.public import module, static

UNSEEN, VALIDATING = 60, 20
"""Writers of whom no image is trained on: those that are measured, and those that settings are chosen by."""
SHOWN, MOST = 30, 70
"""Images of such a writer that steps are taken on; at most so many others are predicted."""
STEPS, RATES = 5, (0.1, 0.3)
"""Steps on all shown images at once; their rate is the better one for the writers that settings are chosen by."""
CLASSES, HIDDEN = 62, 64


class Layer(NamedTuple):
    """Weight (in, out) and bias (out,); of a normalisation (width,) both."""

    weight: Any
    bias: Any


class Network(NamedTuple):
    """A perceptron of one hidden layer with layer normalisation."""

    hidden: Layer
    norm: Layer
    output: Layer


@dataclass(frozen=True)
class NormalizedPerceptron:
    """784 inputs, a hidden layer with layer normalisation and ReLU, 62 logits."""

    def init(self, key: Any) -> Network:
        """He's initial weights."""

        def he(key: Any, width: int, out: int) -> Layer:
            return Layer(np.sqrt(2 / width) * jax.random.normal(key, (width, out)), jnp.zeros(out))

        one, two = jax.random.split(key)
        norm = Layer(jnp.ones(HIDDEN), jnp.zeros(HIDDEN))
        return Network(he(one, 784, HIDDEN), norm, he(two, HIDDEN, CLASSES))

    def apply(self, params: Network, x: Any) -> Any:
        """Logits of images, bytes taken as x / 255; of several networks in one tree those of the first."""
        if params.norm.bias.ndim > 1:
            params = jax.tree.map(lambda leaf: leaf[0], params)
        if x.dtype == jnp.uint8:
            x = x.astype(params.hidden.weight.dtype) / 255
        h = x.reshape(len(x), -1) @ params.hidden.weight + params.hidden.bias
        h = h - jnp.mean(h, axis=1, keepdims=True)
        h = h / jnp.sqrt(jnp.mean(h**2, axis=1, keepdims=True) + 1e-5)
        h = jax.nn.relu(h * params.norm.weight + params.norm.bias)
        return h @ params.output.weight + params.output.bias

    __call__ = apply


@module
class Writers:
    """Images of writers, leaves of shape (writers, images, ...); `counted` says which of those to predict there are."""

    x: Any
    y: Any
    to_predict: Any
    labels: Any
    counted: Any


@module
class AfterSteps(fs.diagnostics.Diagnostic):
    """Accuracy of a model on writers that it has not seen, after a few steps on some of each writer's images.

    Of several networks, each writer begins with the one that has the least loss on the shown images.
    """

    unseen: Writers
    validating: Writers
    model: Any = static(default=NormalizedPerceptron())

    def __call__(self, point: Any) -> dict[str, Any]:
        """The means over writers, and the mean over the worst tenth of them."""
        tried = [self._accuracies(point.params, rate) for rate in RATES]
        chosen = [jnp.mean(validating) for _, validating in tried]
        best = jnp.argmax(jnp.stack(chosen))
        after = jnp.stack([unseen for unseen, _ in tried])[best]
        before, _ = self._accuracies(point.params, 0.0)
        tenth = jnp.sort(after)[: len(after) // 10]
        return {
            "adapted_accuracy": jnp.mean(after),
            "adapted_accuracy_worst_tenth": jnp.mean(tenth),
            "unadapted_accuracy": jnp.mean(before),
            "chosen_by_accuracy": jnp.max(jnp.stack(chosen)),
        }

    def _accuracies(self, params: Any, rate: float) -> tuple[Any, Any]:
        one = jax.vmap(lambda writer: self._accuracy(params, writer, rate))
        return one(self.unseen), one(self.validating)

    def _accuracy(self, params: Any, writer: Writers, rate: float) -> Any:
        def loss(w: Any) -> Any:
            logits = self.model.apply(w, writer.x)
            own = jnp.take_along_axis(logits, writer.y[:, None], axis=1)[:, 0]
            return jnp.mean(jax.nn.logsumexp(logits, axis=1) - own)

        if params.norm.bias.ndim > 1:
            best = jnp.argmin(jax.vmap(loss)(params))
            params = jax.tree.map(lambda leaf: leaf[best], params)

        def step(_: int, params: Any) -> Any:
            return jax.tree.map(lambda w, g: w - rate * g, params, jax.grad(loss)(params))

        params = jax.lax.fori_loop(0, STEPS if rate else 0, step, params)
        right = jnp.argmax(self.model.apply(params, writer.to_predict), axis=1) == writer.labels
        return jnp.sum(right * writer.counted) / jnp.sum(writer.counted)


def femnist(data_dir: Path | None = None) -> fs.Task:
    """The sample's 300 writers: those that train, with a fifth of their images held out, and those that do not."""
    whole = fs.tasks.femnist(data_dir, "softmax", flip=False)
    return parted(whole.data, UNSEEN, VALIDATING, "femnist-writers")


def random_images(data_dir: Path | None = None) -> fs.Task:
    """Images and three labels drawn at random, for the quick form."""
    rng = np.random.default_rng(0)
    clients = [
        fs.Examples(rng.integers(0, 255, (40, 28, 28, 1)).astype(np.uint8), rng.integers(0, 3, 40))
        for _ in range(12)
    ]
    return parted(fs.FederatedData.from_clients(clients), 3, 2, "random-images")


def parted(data: fs.FederatedData, unseen: int, validating: int, name: str) -> fs.Task:
    """A task of the writers that train; the others, drawn at random of those with enough images, are measured."""
    enough = np.flatnonzero(data.counts >= SHOWN + 10)
    drawn = np.random.default_rng(0).permutation(enough)[: unseen + validating]
    training = np.setdiff1d(np.arange(data.num_clients), drawn)
    clients = [fs.Examples(*data.client(int(i))) for i in training]
    out = [data.client(int(i)) for i in drawn]
    model = NormalizedPerceptron()
    made = fs.Task(
        name,
        model.init,
        fs.tasks.CrossEntropy(model),
        fs.FederatedData.from_clients(clients),
        test=_joined(out),
        metrics={"accuracy": fs.tasks.Accuracy(model)},
        citation="caldas2018leaf",
    )
    measured = AfterSteps(_writers(out[:unseen]), _writers(out[unseen:]))
    return replace(made.hold_out(0.2), diagnostics=(measured,))


def _joined(clients: list[Any]) -> fs.Examples:
    return fs.Examples(*(np.concatenate(part) for part in zip(*clients, strict=True)))


def _writers(clients: list[Any]) -> Writers:
    """Arrays of all writers, shuffled within each; those with fewer images to predict have others that do not count."""
    rng, rows = np.random.default_rng(1), []
    for x, y in clients:
        order = rng.permutation(len(y))
        shown, rest = order[:SHOWN], order[SHOWN : SHOWN + MOST]
        counted = np.arange(MOST) < len(rest)
        rest = np.resize(rest, MOST)
        image = np.asarray(x, np.float32) / 255
        rows.append(
            (image[shown], y[shown].astype(np.int32), image[rest], y[rest].astype(np.int32), counted * 1.0)
        )
    return Writers(*(np.stack(part) for part in zip(*rows, strict=True)))
