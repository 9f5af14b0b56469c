"""Seconds of a real round with Flower as it is, and with a SuperNode that asks again after 0.1 s in place of 3 s.

    python benchmarks/node_pause.py [rounds]

Both are the demo's FedDuAdam: three PyTorch clients behind persistent workers on this machine. The second federation
runs a patched copy of one of Flower's files, in a temporary folder, for this measurement alone. The first rounds of
each, which compile, are left out.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedsolve.cli.federation.local import LocalFederation
from fedsolve.cli.federation.new import write_app
from fedsolve.deploy.run_log import ROUNDS
from fedsolve.deploy.status import PHASES
from real_round import wait

CLIENTS = 3
WARM_UP = 2
MODULE, PAUSE, SHORT_PAUSE = "flwr.supernode.start_client_internal", "time.sleep(3)\n", "time.sleep(0.1)\n"
FINDER = """
import importlib.util
import sys


class Patched:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, {copy!r}) if name == {module!r} else None


sys.meta_path.insert(0, Patched)
"""


def patched(folder: Path) -> dict[str, str]:
    """The environment of processes for which the SuperNode's pause is short, with their files in a folder."""
    folder.mkdir()
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    assert source.count(PAUSE) == 1, f"{spec.origin} is not the file that was measured"
    copy = folder / "patched.py"
    copy.write_text(source.replace(PAUSE, SHORT_PAUSE))
    (folder / "sitecustomize.py").write_text(FINDER.format(copy=str(copy), module=MODULE))
    return {"PYTHONPATH": str(folder)}


def measured(folder: Path, app: Path, environment: dict[str, str], rounds: int) -> list[dict[str, Any]]:
    """What the log says of the rounds of one federation, without the first ones."""
    out = folder / "out"
    with LocalFederation(folder / "flower", CLIENTS, environment=environment) as federation:
        config = {"method": "FedDuAdam", "client-lr": 0.1, "rounds": rounds + WARM_UP, "out": str(out)}
        federation.submit(app, config)
        wait(out / ROUNDS, rounds + WARM_UP)
    return [json.loads(line) for line in (out / ROUNDS).read_text().splitlines()][WARM_UP:]


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = folder / "app"
        write_app(app, "digits", "torch", CLIENTS)
        cache = {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        short = patched(folder / "patched")
        print(f"seconds of a real round, three PyTorch clients, {rounds} rounds each, the SuperNode's pause:")
        for title, environment in (("3 s, as it is", cache), ("0.1 s, patched", cache | short)):
            place = folder / title.partition(" ")[0]
            rows = measured(place, app, environment, rounds)
            seconds = [row["seconds"] for row in rows]
            spread = f"from {min(seconds):.1f} to {max(seconds):.1f}"
            print(f"    {title:15} median {statistics.median(seconds):5.1f}  {spread}", flush=True)
            phases = {phase: statistics.median(row["phases"][phase] for row in rows) for phase in PHASES}
            print(f"        {', '.join(f'{phase} {x:.2f}' for phase, x in phases.items())}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
