"""What grouping the rows of a Parquet file by client costs, as the file grows; its clients in no order.

    python benchmarks/tables.py

Rows of 59 floats and a label, 20 a client, drawn one after another from all clients; each reading in its own process,
into a folder. Files lie in a temporary folder.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fedsolve as fs

CLIENTS = (10**4, 10**5)
ROWS = 20


def main() -> None:
    """Seconds and memory of ever more clients."""
    for clients in CLIENTS:
        with tempfile.TemporaryDirectory() as folder:
            make(f"{folder}/rows.parquet", clients)
            found = subprocess.check_output([sys.executable, __file__, "one", folder])
            wall, processor, before, peak = json.loads(found.splitlines()[-1])
            print(
                f"{clients:,} clients, {clients * ROWS:,} rows: {wall:.1f} s, {processor:.1f} of processor time, "
                f"{1e6 * processor / clients / ROWS:.1f} us a row, peak {peak:.0f} MB ({before:.0f} before)",
                flush=True,
            )


def make(path: str, clients: int) -> None:
    """The file, a row group at a time."""
    rng = np.random.default_rng(0)
    left = rng.permutation(np.repeat(np.arange(clients), ROWS))
    schema = pa.schema({"user": pa.string(), "x": pa.list_(pa.float32(), 59), "y": pa.int32()})
    with pq.ParquetWriter(path, schema) as out:
        for users in np.array_split(left, len(left) // 50_000):
            x = pa.FixedSizeListArray.from_arrays(rng.random(59 * len(users), np.float32), 59)
            labels = pa.array(rng.integers(0, 10, len(users), np.int32))
            out.write_table(pa.table([pa.array([f"user {u}" for u in users]), x, labels], schema=schema))


def one(folder: str) -> None:
    """Seconds by both clocks, and the process's peak before and after in MB, as JSON."""

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    before, wall, processor = peak(), time.perf_counter(), time.process_time()
    fs.data.from_table(f"{folder}/rows.parquet", client="user", x="x", y="y", folder=f"{folder}/data")
    print(json.dumps([time.perf_counter() - wall, time.process_time() - processor, before, peak()]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    else:
        main()
