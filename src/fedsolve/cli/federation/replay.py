"""`fedsolve federate replay`: the arrivals of an asynchronous run, repeated in the engine."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsolve.cli.configuration import requests as arg
from fedsolve.core.errors import InvalidInput
from fedsolve.folders.user_text import read_user_toml

_LARGEST = 2**20  # bytes of an app's pyproject.toml


def replay(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the run.")],
    app: Annotated[
        Path, typer.Option("--app", help="Folder of the app (default: this folder).", show_default=False)
    ] = Path(),
    as_json: arg.AsJson = False,
) -> None:
    """Repeat the arrivals of a FedBuff or FedAsync run in simulation, and compare model and record bit by bit.

    This machine needs the data of all clients, which must be JAX clients. The app's code is run.
    """
    from fedsolve.deploy.flower import check_flower

    check_flower()
    raise typer.Exit(replay_command(folder, app, as_json))


def replay_command(folder: Path, app: Path, as_json: bool) -> int:
    """Print what differs; 1 if anything does, 0 if all is equal.

    Raises:
        InvalidInput: no such run or app, or clients that the engine cannot repeat.
    """
    from fedsolve.cli.terminal.console import emit, emit_json
    from fedsolve.deploy.buffered.arrival_log import read_arrivals
    from fedsolve.deploy.buffered.replay import replay as repeat

    population = read_arrivals(folder).arrivals.population  # before any code of the app is run
    problem, config = _problem(app)
    found = repeat(
        folder,
        _task(problem, config, population),
        problem.initial()[0],
        getattr(problem, "evaluate", None),
    )
    if as_json:
        emit_json(
            {
                "status": "different" if found.differences else "equal",
                "method": found.label,
                "updates": found.updates,
                "compared": list(found.compared),
                "differences": list(found.differences),
            }
        )
    else:
        emit(f"{found.label}: {found.updates} updates repeated; compared {', '.join(found.compared)}")
        emit("\n".join(found.differences) or "all are equal to the bit")
    return 1 if found.differences else 0


def _problem(app: Path) -> tuple[Any, dict[str, Any]]:
    """The module `problem` of an app, and the app's configuration."""
    try:
        flower = read_user_toml(app / "pyproject.toml", _LARGEST)["tool"]["flwr"]["app"]
        package = str(flower["components"]["serverapp"]).partition(".")[0]
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            f"{app} is no app of `fedsolve federate new`: give its folder with --app"
        ) from None
    sys.path.insert(0, str(app.absolute()))
    try:
        return importlib.import_module(f"{package}.problem"), dict(flower.get("config", {}))
    except ImportError as error:
        raise InvalidInput(f"{app} has no {package}/problem.py that can be imported ({error})") from None


def _task(problem: Any, config: dict[str, Any], population: int) -> Any:
    """The data of all clients as one task: the app's, or what its clients have."""
    from fedsolve.cli.terminal.console import say
    from fedsolve.deploy.flower import NodeContext
    from fedsolve.deploy.oracles.jax import task_of
    from fedsolve.tasks.task import Task

    if isinstance(getattr(problem, "TASK", None), Task):
        return problem.TASK
    say("the app has no TASK: last bits may differ if some clients have fewer examples than a minibatch")
    return task_of([problem.oracle(NodeContext(i, "", {"client-id": i}, config)) for i in range(population)])
