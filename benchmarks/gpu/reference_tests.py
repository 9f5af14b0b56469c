"""Tests on the GPU: of methods against NumPy transcripts in float64, or of the engine for a method of each kind.

    python benchmarks/gpu/reference_tests.py equations|conformance [--tiny]

What a time limit cuts off is counted up to there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import deque

CHOSEN = {
    "equations": (["tests/equations"], ["tests/equations/test_rates.py"]),
    "conformance": (
        ["tests/conformance/test_engine.py", "-k", "order_within or both_types or sweep_padding"],
        ["tests/conformance/test_engine.py", "-k", "test_every_pair"],
    ),
}
WORKERS = "4"  # share the GPU; each compiles


def main(name: str, tiny: bool) -> int:
    usual, few = CHOSEN[name]
    asked = [sys.executable, "-m", "pytest", "-vv", "-m", "not full and not alone", "-p", "no:cacheprovider"]
    asked += [*(few if tiny else usual), *(["-n", "0"] if tiny else ["-n", WORKERS, "--dist", "loadgroup"])]
    counts, failed = {"PASSED": 0, "FAILED": 0, "ERROR": 0, "SKIPPED": 0}, []
    process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=20)
    for text in process.stdout:
        last.append(text)
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
    if status or not sum(counts.values()):
        print("".join(last))
    return status or not sum(counts.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--tiny" in sys.argv))
