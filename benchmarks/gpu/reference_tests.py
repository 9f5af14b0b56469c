"""Tests on the GPU: of methods against NumPy transcripts in float64, or of the engine for a method of each kind.

    python benchmarks/gpu/reference_tests.py equations|conformance [--tiny]

What a time limit cuts off is counted up to there. All that pytest says is in runs/gpu-NAME.log.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from threading import Timer

CHOSEN = {
    "equations": (["tests/equations"], ["tests/equations/test_rates.py"]),
    "conformance": (
        ["tests/conformance/test_engine.py", "-k", "order_within or both_types or sweep_padding"],
        ["tests/conformance/test_engine.py", "-k", "test_every_pair"],
    ),
}
WORKERS = max(2, ((os.cpu_count() or 6) - 2) // 2)  # of each of two suites; they share the GPU, each compiles
_REPORT = 20  # seconds before the limit at which pytest is told to end and to say what failed


def main(name: str, tiny: bool) -> int:
    usual, few = CHOSEN[name]
    asked = [sys.executable, "-m", "pytest", "-vv", "--tb=short", "-p", "no:cacheprovider"]
    asked += ["-m", "not full and not alone", *(few if tiny else usual)]
    asked += ["-n", "0"] if tiny else ["-n", str(WORKERS)]
    counts, failed = {"PASSED": 0, "FAILED": 0, "ERROR": 0, "SKIPPED": 0}, []
    # products of float32 numbers have 10 bits by default
    exact = os.environ | {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=exact)
    assert process.stdout is not None
    seconds = float(os.environ.get("FEDSOLVE_SECONDS", "300"))
    limit = Timer(seconds - _REPORT, process.send_signal, [signal.SIGINT])
    limit.daemon = True
    limit.start()
    last: deque[str] = deque(maxlen=20)
    log = Path("runs") / f"gpu-{name}.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("")
    for text in process.stdout:
        last.append(text)
        with log.open("a") as file:
            file.write(text)
        found = re.search(r"\b(PASSED|FAILED|ERROR|SKIPPED)\b", text)
        test = re.search(r"tests/\S+::\S+", text)
        if not found or not test or text.startswith(("FAILED ", "ERROR ")):
            continue
        counts[found[1]] += 1
        if found[1] in ("FAILED", "ERROR"):
            failed.append(test[0])
        said = ", ".join(f"{n} {word.lower()}" for word, n in counts.items() if n)
        rows = {name: said} | ({"not passed": ", ".join(failed[:20])} if failed else {})
        print(json.dumps({"rows": rows, "failed": failed}), flush=True)
    status = process.wait()
    limit.cancel()
    if status or not sum(counts.values()):
        print("".join(last))
    return status or not sum(counts.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--tiny" in sys.argv))
