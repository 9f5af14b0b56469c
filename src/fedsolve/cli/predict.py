"""`fedsolve predict`: predictions of a stored model for the inputs in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedsolve.cli.configuration.command_options import AsJson, Trust
from fedsolve.cli.console import emit, emit_json
from fedsolve.cli.processes import start_jax
from fedsolve.core.errors import InvalidInput

if TYPE_CHECKING:
    from fedsolve.engine.results import Result
    from fedsolve.tasks.task import Task


def predict(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a finished run, or of a saved result.")
    ],
    source: Annotated[
        Path,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Inputs: .csv with a header or .parquet, one column per feature; .npz with an array x.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File to write: .csv, .parquet or .npz.")
    ],
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Input columns in the order of training (default: by the names that the model has stored, "
            "else all columns in the order of the file).",
        ),
    ] = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Write the model's outputs instead of labels.")
    ] = False,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Predict with the model of a finished run: labels of a classification task, outputs of any other.

    For example: fedsolve predict runs/digits-FedAvg-1 --input new.csv --out labels.csv
    """
    from fedsolve.cli.prediction_files import check_suffix, read_inputs, write_predictions

    check_suffix("--input", source)
    check_suffix("--out", out)
    if out.exists():
        raise InvalidInput(f"--out {out} exists already: give another file, or remove it")
    chosen = None if columns is None else [name.strip() for name in columns.split(",")]
    start_jax()
    from fedsolve.cli.configuration.trust import own_task
    from fedsolve.engine.stored_task import StoredTask

    result = one_run(folder, own_task(folder, trust))
    if isinstance(result.inference, StoredTask) and not result.inference.is_ready:
        raise InvalidInput(
            f"{folder} names no task that a command can build: predict in Python with fs.load('{folder}', task), "
            "the task that was trained; of a federation's run with `fitted` of the app's problem.py"
        )
    inputs = read_inputs(source, chosen, getattr(result.inference, "columns", ()))
    try:
        found = result.predict(inputs, scores=scores)
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}") from None
    write_predictions(out, found)
    if as_json:
        emit_json({"status": "finished", "file": str(out), "predictions": len(inputs)})
    else:
        emit(f"{len(inputs):,} predictions into {out}")


def one_run(folder: Path, task: Task | None, module: Any = None) -> Result:
    from fedsolve.engine.load import load
    from fedsolve.engine.results import Result
    from fedsolve.engine.sweep_result import Sweep

    result = load(folder, task, module=module)
    if isinstance(result, Sweep):
        raise InvalidInput(
            f"{folder} holds a sweep, which stores no models: run its best setting with fedsolve run"
        )
    if not isinstance(result, Result):
        inside = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir())[:3])
        raise InvalidInput(f"{folder} holds several runs: give the folder of one of them, such as {inside}")
    return result
