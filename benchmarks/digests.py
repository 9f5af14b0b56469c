"""Digests of every method's runs, sweeps and messages, of the command line's help and of all signatures.

    python benchmarks/digests.py > before    ...    python benchmarks/digests.py | diff before -
    python benchmarks/digests.py --only FedAdam,SCAFFOLD

Equal lines mean equal bits, on one machine and with one version of JAX: a change that should move code alone leaves
all of them. Programs are compiled with little optimisation, since two versions are compared with each other. What
depends on the clock is left out. All rows take about half an hour on 2 cores.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes"
)
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import jax
import numpy as np
import typer.main
from typer.testing import CliRunner

import fedsolve as fs
from conformance.entries import METHODS
from conformance.properties import START, model, task
from fedsolve import wire
from fedsolve.cli.main import app
from fedsolve.deploy.method_spec import to_spec
from fedsolve.deploy.server.server_method import ServerMethod
from measure import digest, digest_of_run

ROUNDS = 3


def short(data):
    return hashlib.sha256(data).hexdigest()[:16]


def of_message(method, dtype):
    """The bytes of a message with zeros for numbers: names, types and shapes."""
    with jax.enable_x64(dtype == "float64"):
        params = jax.tree.map(lambda x: np.asarray(x, dtype), model(START))
        return short(wire.encode(ServerMethod.prepare(method, params, 6)[0].zero_message))


def of_sweep(make, problem):
    swept = fs.sweep(
        lambda rate: make(rate), problem, grid={"rate": [0.1, 0.3]}, seeds=2, rounds=ROUNDS, eval_every=2
    )
    return digest((), dict(swept.metrics.items()))


def of_method(make, problem):
    """What a method is, sends and does: pairs of what is digested and a function that does it."""
    yield "order", lambda: short(json.dumps(to_spec(make(0.3))).encode())
    for dtype in ("float32", "float64"):
        yield f"message {dtype}", lambda dtype=dtype: of_message(make(0.3), dtype)
        for devices in (1, 2):
            given = {"rounds": ROUNDS, "eval_every": 2, "seed": 3, "dtype": dtype, "devices": devices}
            yield (
                f"run {dtype} {devices}",
                lambda given=given: digest_of_run(fs.run(make(0.3), problem, **given)),
            )
    yield "sweep", lambda: of_sweep(make, problem)


def of_help():
    """The help of every command, as a terminal of 100 columns shows it."""
    commands, runner = [[]], CliRunner(env={"COLUMNS": "100", "TERM": "dumb"})
    for command in commands:
        text = runner.invoke(app, [*command, "--help"]).output
        found = typer.main.get_command(app)
        for name in command:
            found = found.commands[name]
        commands += [[*command, name] for name in getattr(found, "commands", ())]
        yield " ".join(["fedsolve", *command, "--help"]), short(text.encode())


def of_signatures():
    """The signatures of all public functions and classes of `fs` and its namespaces."""
    for space in (fs, *(getattr(fs, name) for name in fs.__all__)):
        for name in getattr(space, "__all__", ()) if inspect.ismodule(space) else ():
            if callable(value := getattr(space, name)):
                with suppress(ValueError):  # of classes of C
                    text = re.sub(" at 0x[0-9a-f]+", "", str(inspect.signature(value)))
                    yield f"{space.__name__}.{name}", short(text.encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="methods, with commas; else all, the help and the signatures"
    )
    only = [name for name in parser.parse_args().only.split(",") if name]
    if not only:
        for what, found in (*of_help(), *of_signatures()):
            print(f"{what:60s} {found}", flush=True)
    problem = task()
    for name in only or METHODS:
        for what, call in of_method(METHODS[name], problem):
            try:
                found = call()
            except fs.InvalidInput as error:
                found = f"refused: {short(str(error).encode())}"
            print(f"{name + ', ' + what:60s} {found}", flush=True)
        jax.clear_caches()  # a process holds so many programs only


if __name__ == "__main__":
    main()
