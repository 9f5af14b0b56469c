"""Memory of a federation of clients with training loops of their own, whose model is large.

    python benchmarks/large_loops.py [megabytes of the model] [clients]

A SuperLink, persistent nodes and a server on this machine: two rounds of FedAvg on a dictionary of float32 arrays,
whose loop adds to them in place. Printed is the most memory that each process had at any time (VmHWM of Linux).
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

from fedsolve.cli.federation.local import LocalFederation, workers_in
from fedsolve.cli.federation.new import write_app
from fedsolve.deploy.processes import descendants
from fedsolve.deploy.run_log import FAILED

PROBLEM = """
import numpy as np

import fedsolve as fs

CLIENTS = {clients}


def initial():
    return {{f"w{{i}}": np.zeros({megabytes} * 2**14, np.float32) for i in range(16)}}, {{}}


def train(model, round):
    for array in model.values():
        array += 1
    return 1


def oracle(node):
    return fs.flower.TrainedClient(initial()[0], train)


evaluate = None
"""


def watch(federation: LocalFederation, found: dict[int, tuple[str, float]], over: threading.Event) -> None:
    """Until it is over: the name and the most memory in MB of each process of a federation, by its number."""
    while not over.wait(0.2):
        roots = [process.pid for process in [federation.superlink, *federation.nodes.values()] if process]
        roots += workers_in(federation.folder / "states")
        for pid in {pid for root in roots for pid in [root, *descendants(root)]}:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                peak = Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]
            except (OSError, IndexError):  # it has ended
                continue
            name = next((Path(word).name for word in words[1:] if word[:1] != "-"), words[0])
            found[pid] = name, int(peak) / 1024


def main(megabytes: int, clients: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_app(folder / "app", "digits", "torch", clients)
        (problem,) = (folder / "app").rglob("problem.py")
        problem.write_text(PROBLEM.format(clients=clients, megabytes=megabytes))
        out = folder / "run"
        with LocalFederation(folder / "flower", clients, environment={"JAX_PLATFORMS": "cpu"}) as federation:
            found, over = dict[int, tuple[str, float]](), threading.Event()
            watching = threading.Thread(target=watch, args=(federation, found, over))
            watching.start()
            federation.submit(folder / "app", {"method": "FedAvg", "rounds": 2, "out": str(out)})
            while not any((out / name).exists() for name in ("history.json", FAILED)):
                time.sleep(0.5)
            over.set()
            watching.join()
        print(f"a model of {megabytes} MB, {clients} clients; MB at most:")
        for name, peak in sorted(found.values(), key=lambda pair: -pair[1]):
            if peak > 150:  # others hold no model
                print(f"    {peak:8,.0f}  {name}")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*given, *(512, 6)[len(given) :])
