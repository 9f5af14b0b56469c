"""How many clients to train side by side on this device, and the forms of convolutions and recurrences under vmap.

Rounds of networks and of softmax regression are timed at every number of clients side by side. The layout model
(`fedsolve/engine/compute/layout.py`) has two limits: bytes of a client's model and step beyond which it has the device
for itself, and bytes of all side by side. Those whose choices lose least are the measured ones; `make generate` writes
them to `engine/compute/accelerators.json`, from which the model reads them.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import fedsolve as fs
from fedsolve.core import trees
from fedsolve.core.xla.direct import by_patches
from fedsolve.core.xla.recurrence import LSTM_CELL, recur
from fedsolve.engine.compute.clients import on_device
from fedsolve.engine.compute.layout import step_bytes
from fedsolve.tasks import Softmax
from measure import library, seconds, task
from networks import n1_task, n2_task, n3_task

COPIES = 4  # as in the layout model: model, gradient, client update, message
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200)


class Point(NamedTuple):
    """Rounds of one work.

    Attributes:
        model: bytes of the model.
        step: bytes that a client's local step writes.
        times: milliseconds of a round by clients side by side.
    """

    model: int
    step: int
    times: Mapping[int, float]

    def chosen(self, most_step: float, room: float) -> float:
        """The time at what the layout model chooses with such limits, of those measured the largest below."""
        chunk = 1 if self.model + self.step > most_step else room // (COPIES * self.model + self.step)
        return self.times[max((n for n in self.times if n <= chunk), default=min(self.times))]


def fitted(points: Sequence[Point]) -> dict[str, float | None]:
    """The limits that lose least: the sum of the logarithms of time / least time; of equals the smallest room."""

    def loss(limits: tuple[float, float]) -> float:
        return sum(math.log(p.chosen(*limits) / min(p.times.values())) for p in points)

    steps = [math.inf, *sorted({p.model + p.step - 1 for p in points}, reverse=True)]
    rooms = [2.0**k for k in range(20, 37)]
    step, room = min(product(steps, rooms), key=lambda limits: (round(loss(limits), 3), limits[1]))
    return {"step_bytes": None if step == math.inf else step, "bytes": int(room)}


def measured(work: fs.Task, cohort: int, batch: int, rounds: int = 1) -> Point:
    """A work at every number of clients side by side."""
    params = jax.eval_shape(work.init, jax.random.key(0))
    examples = jax.eval_shape(partial(on_device, dtype=jnp.dtype("float32")), work.data.examples)
    counts = [n for n in COUNTS if n <= cohort]

    def compiled(count: int) -> Callable[[], None]:
        return library(fs.FedAvg(0.01), work, cohort, rounds, chunk=count, batch_size=batch, local_steps=2)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        runs = dict(zip(counts, threads.map(compiled, counts), strict=True))
    times = {n: 1e3 * min(seconds(run) for _ in range(3)) / rounds for n, run in runs.items()}
    return Point(trees.nbytes(params), step_bytes(work.loss, params, examples, batch), times)


def gradients(form: Callable[..., Any], *shapes: tuple[int, ...], clients: int) -> float:
    """Milliseconds a client of the gradients of a form's sum of squares, all clients in one vmap, ten in a loop."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    arguments = [jax.random.normal(k, (clients, *s)) / 10 for k, s in zip(keys, shapes, strict=True)]
    gradient = jax.grad(lambda *a: jnp.sum(form(*a) ** 2), argnums=tuple(range(len(shapes))))

    @jax.jit
    def run(arguments: list[Any]) -> Any:
        def step(a: list[Any], _: Any) -> tuple[list[Any], None]:
            return [x - 1e-6 * g for x, g in zip(a, jax.vmap(gradient)(*a), strict=True)], None

        return lax.scan(step, arguments, length=10)[0]

    jax.block_until_ready(run(arguments))
    return 1e3 * min(seconds(lambda: jax.block_until_ready(run(arguments))) for _ in range(3)) / 10 / clients


def plain_convolution(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def patches(x: Any, kernel: Any) -> Any:
    return by_patches(x, kernel, strides=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1))


def plain_recurrence(weight: Any, inputs: Any) -> Any:
    """An LSTM layer as a scan that JAX differentiates."""
    zero = jnp.zeros((inputs.shape[1], weight.shape[1]))

    def step(state: Any, own: Any) -> Any:
        state, _ = LSTM_CELL.forward(state, own, state[0] @ weight.T)
        return state, state[0]

    return lax.scan(step, (zero, zero), inputs)[1]


def own_recurrence(weight: Any, inputs: Any) -> Any:
    """The same as fedsolve's models have it: one product for the gradient of the weights."""
    zero = jnp.zeros((inputs.shape[1], weight.shape[1]))
    outputs, _ = recur(LSTM_CELL, weight, None, inputs, (zero, zero))
    return outputs


def forms(tiny: bool) -> dict[str, str]:
    """Milliseconds a client of each form, for one and for ten clients side by side."""
    n, side, hidden, time = (2, 8, 8, 4) if tiny else (20, 26, 256, 80)
    image, kernel = (n, side, side, 32), (3, 3, 32, 64)
    cases = {
        "3 x 3 convolution 32 -> 64": (
            {"XLA's": plain_convolution, "patches": patches},
            (image, kernel),
        ),
        f"LSTM layer of {hidden}": (
            {"scan": plain_recurrence, "one product": own_recurrence},
            ((4 * hidden, hidden), (time, n, 4 * hidden)),
        ),
    }
    rows = {}
    for name, (choices, shapes) in cases.items():
        for clients in (1, 2) if tiny else (1, 10):
            found = {
                form: f"{gradients(function, *shapes, clients=clients):.3f}"
                for form, function in choices.items()
            }
            rows[f"{name}, {clients} side by side, ms a client"] = ", ".join(
                f"{form} {text}" for form, text in found.items()
            )
    return rows


def main(tiny: bool) -> None:
    works: dict[str, Callable[[], Point]] = {
        "softmax regression": lambda: measured(
            task("softmax", Softmax(60, 10), 200, 20, (60,), 10), 200, 10, 20
        ),
        "CNN of 1.2 M parameters": lambda: measured(n1_task([40] * 50), 50, 20),
        "LSTM 2 x 256, sequences of 80": lambda: measured(n2_task(20, clients=50), 50, 10),
        "ResNet-18, width 16": lambda: measured(n3_task(40, clients=20), 20, 20),
        "ResNet-18, width 64": lambda: measured(n3_task(40, 64), 10, 20),
    }
    if tiny:
        works = {"softmax regression": lambda: measured(task("s", Softmax(60, 10), 5, 20, (60,), 10), 5, 10)}
    rows: dict[str, str] = {}
    points: dict[str, Point] = {}
    failed = False
    for name, make in works.items():
        try:
            point = points[name] = make()
            rows[f"{name}, ms a round by clients side by side"] = ", ".join(
                f"{count}: {ms:.2f}" for count, ms in point.times.items()
            )
        except Exception as error:
            failed, rows[name] = True, f"failed: {str(error).splitlines()[0][:160]}"
        _print(rows, points)
    rows |= forms(tiny)
    _print(rows, points)
    if failed:
        sys.exit("some works failed")


def _print(rows: Mapping[str, str], points: Mapping[str, Point]) -> None:
    limits = fitted([*points.values()]) if points else None
    found = {name: point._asdict() for name, point in points.items()}
    words = {"limits of the layout model": json.dumps(limits)} if limits else {}
    print(json.dumps({"rows": {**rows, **words}, "points": found, "limits": limits}), flush=True)


if __name__ == "__main__":
    main("--tiny" in sys.argv)
