"""Memory of 10, 100 and 1,000 clients side by side, of a CNN and of an LSTM.

On a GPU the most that JAX has allocated, on a CPU the most that the process has had.
"""

from __future__ import annotations

import json
import resource
import sys

import jax

import fedsolve as fs
from measure import library
from networks import n1_task, n2_task


def peak() -> float:
    """Bytes."""
    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] if stats else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(tiny: bool) -> None:
    counts, n = ((2, 4), 2) if tiny else ((10, 100, 1000), 20)
    rows: dict[str, str] = {}
    for count in counts:  # ascending: a peak is of all that was before
        works = {
            "CNN of 1.2 M parameters": lambda count=count: n1_task([n] * count),
            "LSTM 2 x 256, sequences of 80": lambda count=count: n2_task(
                n, *((8, 4) if tiny else (256, 80)), clients=count
            ),
        }
        for name, make in works.items():
            try:
                run = library(fs.FedAvg(0.1), make(), None, 1, chunk=count, batch_size=n, epochs=1)
                run()
                found = f"at most {peak() / 1e9:.2f} GB"
            except Exception as error:
                found = f"failed: {str(error).splitlines()[0][:120]}"
            rows[f"{count} x {name}"] = found
            print(json.dumps({"rows": rows}), flush=True)


if __name__ == "__main__":
    main("--tiny" in sys.argv)
