"""How far the largest honest update of a round is beyond the usual norm, by which deployments leave updates out.

    python benchmarks/update_norms.py

A line for each method, problem and cohort: the largest ratio of a client's norm to `usual_norm`, over all rounds and
fields, and where it was; the rule leaves out what is beyond FACTOR (`fedsolve.methods.robust.reductions`). Nobody
attacks.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.types import module
from fedsolve.methods.robust.reductions import FACTOR, Mean, parts_of, usual_norm
from fedsolve.methods.robust.vectors import Reduction
from fedsolve.methods.wrappers.wrapper import Wrapper
from fedsolve.tasks import CrossEntropy, Softmax

SEEN: list[dict[str, np.ndarray]] = []


def note(parts: dict[str, Any]) -> None:
    """Keep the norms of a cohort's messages."""
    SEEN.append({name: np.asarray(x) for name, x in parts.items()})


@module
class NotedMean(Reduction):
    """The plain means, once the norms are noted down."""

    uses_weights: ClassVar[bool] = True

    def reduce(self, messages: Any, weight: Any, used: Any) -> Any:
        """The plain means."""
        parts = {name: sum(_squares(x) for x in leaves) for name, leaves in parts_of(messages).items()}
        jax.debug.callback(note, parts | {"message": sum(parts.values())}, ordered=True)
        return Mean()(messages, weight, used)


def _squares(x: Any) -> Any:
    return jnp.sum(jnp.square(x.astype(jnp.float32)).reshape(len(x), -1), axis=1)


@module
class Watched(Wrapper):
    """The method `inner`; the norms of every cohort's messages are kept, by field."""

    title: ClassVar[str] = "Watched"
    around_all: ClassVar[bool] = True
    inner: Algorithm

    @property
    def reduction(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The plain means, once the norms are noted down."""
        return NotedMean()


def largest_ratio() -> tuple[float, str]:
    """The largest ratio of a norm to the usual one in what was seen, and its field and round."""
    usual: dict[str, float] = {}
    found = (0.0, "")
    for number, parts in enumerate(SEEN, 1):
        for name, squares in parts.items():
            norms = np.sqrt(squares.astype(np.float64))
            usual[name] = float(usual_norm(norms, usual.get(name, 0.0), np))
            if usual[name] > 0:
                found = max(found, (float(norms.max() / usual[name]), f"{name}, round {number}"))
    return found


def sized(counts: list[int], differ: float, seed: int = 0) -> fs.Task:
    """Softmax regression of clients with so many examples, whose inputs lie about centres of their own."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((20, 10))
    x, y = [], []
    for n in counts:
        own = shared + differ * rng.standard_normal((20, 10))
        inputs = rng.standard_normal((n, 20)) + differ * rng.standard_normal(20)
        x.append(inputs.astype(np.float32))
        y.append(np.argmax(inputs @ own, axis=1).astype(np.int32))
    data = fs.FederatedData(fs.Examples(np.concatenate(x), np.concatenate(y)), np.array(counts))
    model = Softmax(20, 10)
    return fs.Task("sized", model.init, CrossEntropy(model), data)


def problems() -> dict[str, fs.Task]:
    """Problems with honest heavy tails."""
    uneven = [int(n) for n in np.geomspace(1, 10_000, 24).round()]
    return {
        "23 clients of 1 example, one of 10^4": sized([1] * 23 + [10_000], 0.1),
        "1 to 10^4 examples, evenly on a log scale": sized(uneven, 1.0),
        "synthetic(1, 1), 50 to 10^4 examples": fs.tasks.synthetic(seed=0),
        "digits, Dirichlet(0.05), MLP": fs.tasks.digits(50, fs.data.Dirichlet(0.05)),
    }


def methods() -> dict[str, Algorithm]:
    """Methods and rates whose norms differ much between clients or rounds."""
    return {
        "FedAvg(0.1)": fs.FedAvg(0.1),
        "FedAvg(1e-3)": fs.FedAvg(1e-3),
        "FedAvg(10)": fs.FedAvg(10.0),
        "SCAFFOLD(0.1)": fs.SCAFFOLD(0.1),
        "FedAdam(0.1, 1)": fs.FedAdam(0.1, server_lr=1.0),
        "FedYogi(0.1, 1)": fs.FedYogi(0.1, server_lr=1.0),
        "SCAFFOLD of FedDuAdam": fs.ControlVariates(fs.FedDuAdam(0.1)),
        "FedNova(0.1)": fs.FedNova(0.1),
        "FedDyn(0.1)": fs.FedDyn(0.1),
        "FedLiLS": fs.FedLiLS(),
        "Ditto(0.1)": fs.Ditto(fs.FedAvg(0.1)),
        "warm-up and a restart": fs.FedAvg(lambda t: 1e-4 * 10.0 ** (t % 6 / 2)),
    }


def main() -> None:
    """All methods on all problems; cohorts of all clients and of three."""
    worst = (0.0, "")
    for problem, task in problems().items():
        for name, method in methods().items():
            for size in (task.data.num_clients, 3):
                SEEN.clear()
                sampling = fs.sampling.Uniform(size)
                try:
                    fs.run(
                        Watched(method),
                        task,
                        rounds=8,
                        eval_every=8,
                        epochs=5,
                        batch_size=10,
                        sampling=sampling,
                    )
                    ended = ""
                except fs.Diverged:
                    ended = ", diverged"
                jax.effects_barrier()
                ratio, where = largest_ratio()
                worst = max(worst, (ratio, f"{name} on {problem}, cohorts of {size}"))
                print(
                    f"{ratio:10.1f}  {problem:44} {name:24} cohorts of {size:2}: {where}{ended}", flush=True
                )
    print(f"largest: {worst[0]:.1f}, {worst[1]}; the rule's factor: {FACTOR:g}")


if __name__ == "__main__":
    sys.exit(main())
