"""What streaming costs: rounds with clients on the device and streamed, and copies from ordinary and pinned memory."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np

import fedsolve as fs
from fedsolve.tasks import CrossEntropy
from measure import seconds
from streams import MODEL, many


def rounds(clients: int, cohort: int, count: int) -> dict[str, str]:
    """Milliseconds a round of FedAvg, by the time between its evaluations, one each `count` rounds."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        fs.data.write(many(clients), f"{folder}/data")
        data = fs.data.open(f"{folder}/data")
        work = fs.Task("streams", MODEL.init, CrossEntropy(MODEL), data, eval_examples=100)
        for residency in ("device", "stream"):
            options: dict[str, Any] = {"clients_per_round": cohort, "batch_size": 10, "local_steps": 1}
            options |= {"rounds": 8 * count, "eval_every": count, "residency": residency}
            clocks: list[float] = []
            fs.run(
                fs.FedAvg(0.1), work, callbacks=[lambda _, c=clocks: c.append(time.perf_counter())], **options
            )
            spent = 1e3 * statistics.median(np.diff(clocks[1:])) / count
            rows[f"{residency}, {cohort:,} of {clients:,} clients"] = f"{spent:.3f} ms a round"
    return rows


def copies(size: int) -> dict[str, str]:
    """GB/s of a copy to the device of a NumPy array, of one in pinned memory, and of making the latter."""
    device, rows = jax.devices()[0], {}
    array = np.ones(size // 4, np.float32)
    ordinary = jax.sharding.SingleDeviceSharding(device)

    def rate(call: Any) -> str:
        jax.block_until_ready(call())
        return (
            f"{size / min(seconds(lambda: jax.block_until_ready(call())) for _ in range(5)) / 1e9:.2f} GB/s"
        )

    rows["NumPy to the device"] = rate(lambda: jax.device_put(array, ordinary, may_alias=False))
    try:
        pinned = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
        rows["NumPy to pinned memory"] = rate(lambda: jax.device_put(array, pinned, may_alias=False))
        held = jax.device_put(array, pinned)
        rows["pinned memory to the device"] = rate(lambda: jax.device_put(held, ordinary, may_alias=False))
    except Exception as error:
        rows["pinned memory"] = f"failed: {str(error).splitlines()[0][:120]}"
    return rows


def main(tiny: bool) -> None:
    rows = copies(2**20 if tiny else 2**28)
    print(json.dumps({"rows": rows}), flush=True)
    rows |= rounds(*((50, 10, 2) if tiny else (5_000, 1_000, 100)))
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main("--tiny" in sys.argv)
