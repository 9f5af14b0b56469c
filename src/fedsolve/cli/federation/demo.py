"""`fedsolve federate demo`: a real federation on this machine, from start to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedsolve.cli.configuration.config import CONFIG, Config, MethodSection, RunSection, to_toml
from fedsolve.cli.console import emit_json, say
from fedsolve.cli.federation.local import FlowerCommands, LocalFederation, last_line
from fedsolve.cli.federation.new import CLIENTS, write_app
from fedsolve.cli.folders import FLOWER, new_folder, page_meanwhile, print_result, report_files, write_report
from fedsolve.cli.progress import Lines, open_display
from fedsolve.core.errors import Interrupted, InvalidInput, Unavailable, require
from fedsolve.deploy.flower import check_flower
from fedsolve.deploy.run_log import FAILED, ROUNDS, read_reason
from fedsolve.engine.identity import provenance
from fedsolve.engine.progress import Progress
from fedsolve.folders.files import STOP, Interruptible, write_atomically
from fedsolve.report.style import human_time
from fedsolve.report.table import result_rows
from fedsolve.results.history import History
from fedsolve.results.record_files import method_folders, read_history
from fedsolve.tasks.catalogue import build

# A run of an app on a SuperLink, followed by the files of its folder until it ends.


_POLL_SECONDS = 0.3
_STATUS_SECONDS = 45.0
"""Between two questions to Flower where a run stands: each takes a second of the machine."""

T = TypeVar("T")


def follow(
    commands: FlowerCommands,
    run: int,
    folder: Path,
    look: Callable[[], T | None],
    interrupt: Interruptible,
    what: str,
    interrupted: str,
) -> T:
    """Look until a run has left what is waited for: `look` gives it, None while it is not there."""
    asked = time.monotonic()
    while True:
        if (found := look()) is not None:
            return found
        if interrupt.stop_requested or (folder / STOP).exists():
            commands.stop_run(run)
            raise Interrupted(interrupted)
        if (folder / FAILED).exists():
            raise Unavailable(f"{what}: {read_reason(folder)}")
        if time.monotonic() - asked > _STATUS_SECONDS:
            asked = time.monotonic()
            status = commands.status(run)
            if status.startswith("finished") and (found := look()) is not None:
                return found
            if status in ("finished:failed", "finished:stopped"):
                raise Unavailable(f"{what} failed: {last_line(commands.log(run))}")
            if status == "finished:completed":
                raise Unavailable(
                    f"{what} has finished, and {folder} is not on this machine: start the command on the machine of "
                    "the SuperLink"
                )
        time.sleep(_POLL_SECONDS)


METHODS = {"FedDuAdam": 0.1, "SCAFFOLD": 0.1}
"""What is shown, with its client rate."""


def demo_command(rounds: int, out: Path | None, port: int | None, as_json: bool) -> None:
    """Train the digits task with PyTorch clients on a real federation of three nodes; write its folder."""
    check_flower()
    for package, name, extra in (("torch", "PyTorch", "torch"), ("sklearn", "scikit-learn", "digits")):
        require(package, "the demo's clients need", extra, name)
    config = Config(
        task="digits",
        title="FedDuAdam and SCAFFOLD on a real federation: Flower, three nodes, PyTorch clients",
        how_tuned="Untuned: both have client learning rate 0.1. The demo does not rank the methods.",
        task_options={"num_clients": CLIENTS},
        run=RunSection(rounds=rounds, batch_size=10, epochs=1, eval_every=1),
        method=[MethodSection(name=name, settings={"client_lr": lr}) for name, lr in METHODS.items()],
    )
    if out is not None and (out / CONFIG).exists():
        raise InvalidInput(f"{out} holds a run already: choose another folder (a demo is not resumed)")
    folder = new_folder(out, "digits-federation", "federate demo")
    comment = f"{provenance()}; the same methods in simulation: fedsolve compare --config {CONFIG}"
    write_atomically(folder / CONFIG, to_toml(config, comment))
    write_app(folder / "app", "digits", "torch", CLIENTS)
    say(f"starting a SuperLink and {CLIENTS} SuperNodes on this machine; everything is in {folder}")
    with Interruptible() as interrupt, page_meanwhile(folder, config):
        histories = _run_all(config, folder, port, interrupt)
    write_report(folder, config, build("digits", num_clients=CLIENTS), histories)
    if as_json:
        rows = result_rows(histories)
        emit_json(
            {"status": "finished", "folder": str(folder), "results": rows, "files": report_files(folder)}
        )
        return
    print_result(histories, [f"note: {h.label}: {note}" for h in histories for note in h.notes], folder)


def _run_all(config: Config, folder: Path, port: int | None, interrupt: Any) -> list[History]:
    place = "JAX_COMPILATION_CACHE_DIR"
    cache = {
        place: os.environ.get(place, str(folder.absolute() / "cache")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    federation = LocalFederation(folder / FLOWER, CLIENTS, port, cache)
    folders = method_folders(folder, [m.shown for m in config.method])
    with open_display([m.shown for m in config.method], config.run.rounds) as display, federation:
        return [
            _run_one(config, method, run_folder, federation, display, interrupt)
            for method, run_folder in zip(config.method, folders, strict=True)
        ]


def _run_one(
    config: Config,
    method: MethodSection,
    folder: Path,
    federation: LocalFederation,
    display: Lines,
    interrupt: Any,
) -> History:
    # Submit one method, show its rounds as they end, and read its record.
    display.begin(method.shown, "connecting")
    settings = {"method": method.name, "client-lr": method.settings["client_lr"]}
    run = federation.submit(
        federation.folder.parent / "app",
        {**settings, "rounds": config.run.rounds, "out": str(folder.absolute())},
    )
    lines = JsonLinesTail(folder / ROUNDS)

    def look() -> History | None:
        history = read_history(folder)  # once it is there, so are the lines of all rounds
        for entry in lines.new():
            display(Progress(method.shown, entry["round"], entry["rounds"], entry["metrics"], _remark(entry)))
        return history

    interrupted = (
        f"{method.shown} interrupted; its processes are stopping; finished rounds are in {folder}; "
        "a demo is not resumed: start another"
    )
    history = follow(federation, run, folder, look, interrupt, method.shown, interrupted)
    display.end(method.shown, "finished")
    return dataclasses.replace(history, task=config.task)


def _remark(entry: dict[str, Any]) -> str:
    megabytes = (entry["bytes_up"] + entry["bytes_down"]) / 1e6
    took = human_time(entry["seconds"])
    return f"{entry['replies']} replies, {entry['rejected']} rejected, {megabytes:.2f} MB, {took}"


class JsonLinesTail:
    """The lines that have been added to a file of JSON lines since it was last read."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def new(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._position)
            for line in file:
                if line.endswith(b"\n"):
                    self._position += len(line)
                    entries.append(json.loads(line))
        return entries
