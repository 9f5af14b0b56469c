"""`fedsolve export`: the weights of a finished run in a file of another program, with a model card beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsolve.cli.configuration.command_options import AsJson, Trust
from fedsolve.cli.console import emit, emit_json
from fedsolve.cli.predict import one_run
from fedsolve.cli.processes import start_jax
from fedsolve.core.errors import InvalidInput

if TYPE_CHECKING:
    from fedsolve.cli.weight_files import Exported
    from fedsolve.engine.results import Result
    from fedsolve.tasks.task import Task


SUFFIXES = {"safetensors": (".safetensors",), "torch": (".pt", ".pth"), "onnx": (".onnx",)}
"""How the file of each format may end."""


def export(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a finished run, or of a saved result.")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="safetensors: any model; torch: a state_dict; onnx: a graph. The last two need a PyTorch module.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE",
            help="File to write: .safetensors, .pt or .onnx; the model card is written to FILE.md.",
        ),
    ],
    module: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="PyTorch module with the same layers, its class, or a function that returns it: nets:Net.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Rows to check the onnx file, as in predict (default: held-out rows of your own task).",
        ),
    ] = None,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Write the weights of a finished run for another program, and a model card: method, settings, metrics, privacy.

    For example: fedsolve export runs/digits-FedAvg-1 --to safetensors --out digits.safetensors
    """
    card = _check(to, out, module, source)
    start_jax()
    from fedsolve.cli.configuration.trust import own_task
    from fedsolve.cli.weight_files import as_safetensors, as_state_dict, card_text, named_module
    from fedsolve.folders.files import write_atomically

    task = own_task(folder, trust) if to != "safetensors" and module is None else None
    result = one_run(folder, task, None if module is None else named_module(module))
    _check_model(result)
    if to == "safetensors":
        exported = as_safetensors(result)
    elif to == "torch":
        exported = as_state_dict(result, folder)
    else:
        exported = _as_onnx(result, folder, task, source)
    text = card_text(result.history, exported, out.name)
    write_atomically(out, exported.content)
    try:
        write_atomically(card, text)
    except BaseException:
        out.unlink(missing_ok=True)  # weights are never without their card
        raise
    if as_json:
        files = {"file": str(out), "card": str(card)}
        emit_json({"status": "finished", **files, "parameters": exported.parameters, **exported.check})
    else:
        emit(f"{exported.parameters:,} parameters into {out}, model card {card}")


def _check(to: str, out: Path, module: str | None, source: Path | None) -> Path:
    if to not in SUFFIXES:
        raise InvalidInput(f"--to {to} is not supported: give safetensors, torch or onnx")
    if out.suffix.lower() not in SUFFIXES[to]:
        raise InvalidInput(f"--out {out} must end in {' or '.join(SUFFIXES[to])} for --to {to}")
    if module is not None and to == "safetensors":
        raise InvalidInput("--module is for --to torch and onnx: safetensors need no module, leave it out")
    if source is not None and to != "onnx":
        raise InvalidInput("--input has rows for the check of --to onnx: leave it out")
    card = out.with_name(f"{out.name}.md")
    for option, path in (("--out", out), ("the model card", card)):
        if path.exists():
            raise InvalidInput(f"{option} {path} exists already: give another file, or remove it")
    return card


def _check_model(result: Result) -> None:
    if result.failure:
        raise InvalidInput(f"{result.label} diverged and has no model: {result.failure}")
    if result.client_models is not None:
        raise InvalidInput(
            f"{result.label} has a model for each client, which are not stored: export supports methods with one "
            "model for all clients"
        )


def _as_onnx(result: Result, folder: Path, task: Task | None, source: Path | None) -> Exported:
    from fedsolve.cli.prediction_files import read_inputs
    from fedsolve.cli.weight_files import as_onnx

    if source is not None:
        return as_onnx(result, folder, read_inputs(source, None))
    rows = getattr(task.test if task is not None else None, "x", None)
    if rows is None:
        raise InvalidInput(
            "--to onnx is checked on rows of inputs: give --input FILE, such as rows.npz or rows.csv"
        )
    return as_onnx(result, folder, rows)
