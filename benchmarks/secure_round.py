"""Seconds of a real round with and without secure sums: one more trip to the committee, and masks.

    python benchmarks/secure_round.py [rounds]

Both are FedAvg on the demo's problem: three PyTorch clients behind persistent workers on this machine, one federation
after the other. The first rounds of each, which compile, are left out.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from fedsolve.cli.federation.local import LocalFederation
from fedsolve.cli.federation.new import write_app
from fedsolve.deploy.run_log import ROUNDS
from real_round import wait

CLIENTS = 3
WARM_UP = 2
GIVEN = '{"client_lr": config["client-lr"]}'
SECURE = '{"client_lr": config["client-lr"], "bound": 4.0, "max_clients": 3, "max_examples": 2000}'


def app(folder: Path, settings: str) -> Path:
    """An app whose method is built with these settings."""
    write_app(folder, "digits", "torch", CLIENTS)
    (server,) = folder.rglob("server_app.py")
    text = server.read_text()
    assert GIVEN in text
    server.write_text(text.replace(GIVEN, settings))
    return folder


def measured(folder: Path, settings: str, method: str, rounds: int) -> list[dict[str, Any]]:
    """What the log says of the rounds of one federation, without the first ones."""
    out, environment = folder / "out", {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    program = app(folder / "app", settings)
    with LocalFederation(folder / "flower", CLIENTS, environment=environment) as federation:
        config = {"method": method, "client-lr": 0.1, "rounds": rounds + WARM_UP, "out": str(out)}
        federation.submit(program, config)
        wait(out / ROUNDS, rounds + WARM_UP)
    return [json.loads(line) for line in (out / ROUNDS).read_text().splitlines()][WARM_UP:]


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        print(f"seconds of a real round, three PyTorch clients, {rounds} rounds each:")
        for method, settings in (("FedAvg", GIVEN), ("Secure+FedAvg", SECURE)):
            rows = measured(Path(name) / method, settings, method, rounds)
            seconds = [row["seconds"] for row in rows]
            sent = statistics.median(row["bytes_up"] for row in rows) / CLIENTS
            spread = f"from {min(seconds):.1f} to {max(seconds):.1f}; {sent:,.0f} bytes up of a client"
            print(f"    {method:15} median {statistics.median(seconds):5.1f}  {spread}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
