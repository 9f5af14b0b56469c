"""Whether the same seed gives the same bits: twice in a process, and in another process.

Where it does not, once more with XLA's deterministic operations in every program, not the engine's alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

FLAGS = "--xla_gpu_deterministic_ops=true"


def once(tiny: bool) -> dict[str, list[list[str]]]:
    """The digests of two runs of every case, of the model and of all."""
    import fedsolve as fs
    from fedsolve.tasks import Softmax
    from measure import digest, digest_of_run, task
    from networks import n1_task, n2_task, n3_task

    options = {"rounds": 3, "clients_per_round": 10, "seed": 3}
    softmax = task("softmax", Softmax(60, 10), 50, 20, (60,), 10)
    works: dict[str, tuple[Any, fs.Algorithm]] = {
        "softmax regression, SCAFFOLD": (softmax, fs.SCAFFOLD(0.1)),
        "softmax regression, FedDuAdam": (softmax, fs.FedDuAdam(0.1)),
    }
    if not tiny:
        works |= {
            "CNN with dropout, uneven clients, FedAvg": (
                n1_task([37, 5, 29, 13, 28, 36, 14, 7, 2, 19]),
                fs.FedAvg(0.1),
            ),
            "LSTM, FedAvg": (n2_task(10, 64, 40), fs.FedAvg(0.1)),
            "ResNet-18 with group norm, FedAvg": (n3_task(20, 16), fs.FedAvg(0.1)),
        }

    def run(method: fs.Algorithm, work: Any) -> list[str]:
        found = fs.run(method, work, batch_size=10, epochs=1, **options)
        return [digest(found.params, {}), digest_of_run(found)]

    return {name: [run(method, work) for _ in range(2)] for name, (work, method) in works.items()}


def in_processes(tiny: bool, flags: str = "") -> dict[str, str]:
    """Of every case, whether two runs in each of two processes have the same bits."""
    asked = [sys.executable, __file__, "--once", *(["--tiny"] if tiny else [])]
    variables = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
    found = []
    for _ in range(2):
        ran = subprocess.run(asked, env=variables, capture_output=True, text=True)
        if ran.returncode:
            sys.exit(ran.stderr)
        found.append(json.loads(ran.stdout.splitlines()[-1]))
    words = {}
    for name, (first, again) in found[0].items():
        others = [again, *found[1][name]]
        if all(other == first for other in others):
            words[name] = "the same bits"
            continue
        where = "the same process" if first != again else "another process"
        what = "of evaluations" if all(other[0] == first[0] for other in others) else "of the model"
        words[name] = f"other bits {what} in {where}"
    return words


def main(tiny: bool) -> None:
    rows = in_processes(tiny)
    print(json.dumps({"rows": rows}), flush=True)
    if {*rows.values()} != {"the same bits"}:
        with_flags = in_processes(tiny, FLAGS)
        rows |= {f"{name}, deterministic everywhere": word for name, word in with_flags.items()}
        print(json.dumps({"rows": rows}))
        sys.exit("the same seed gave other bits")


if __name__ == "__main__":
    if "--once" in sys.argv:
        print(json.dumps(once("--tiny" in sys.argv)))
    else:
        main("--tiny" in sys.argv)
