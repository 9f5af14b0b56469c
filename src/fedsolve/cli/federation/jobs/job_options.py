"""The options of `fedsolve federate evaluate` and `statistics`; what they do is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsolve.cli.configuration import requests as arg

AppFolder = Annotated[
    Path, typer.Option("--app", help="Folder of the app (default: this folder).", show_default=False)
]
SuperLink = Annotated[
    str,
    typer.Option(
        "--superlink",
        metavar="NAME",
        help="Connection to the SuperLink in Flower's config.toml (default: Flower's default).",
        show_default=False,
    ),
]
RunConfig = Annotated[
    str,
    typer.Option(help="Further configuration of the run, as `flwr run` takes it (none).", show_default=False),
]


def evaluate(
    model: Annotated[
        Path,
        typer.Argument(metavar="FOLDER|MODEL", help="Folder of a run, or a .safetensors file of a model."),
    ],
    app: AppFolder = Path(),
    superlink: SuperLink = "",
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Metrics of the clients, such as loss,accuracy (default: the app's)."
        ),
    ] = None,
    run_config: RunConfig = "",
    out: arg.Out = None,
    as_json: arg.AsJson = False,
) -> None:
    """Evaluate a saved model on the examples of all connected clients; nothing is trained.

    Start it on the machine of the SuperLink. Give the settings of the run, such as the method, by --run-config.
    """
    from fedsolve.cli.federation.jobs.job_commands import Submitted, evaluate_command

    evaluate_command(Submitted(app, superlink, run_config, out), model, metrics, as_json)


def statistics(
    columns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COLUMN...]",
            help="Columns: NAME, NAME=LOW:HIGH or NAME=LOW:HIGH:BINS for quartiles from a histogram of this range (100 "
            "bins), or NAME=categories (default: all).",
            show_default=False,
        ),
    ] = None,
    app: AppFolder = Path(),
    superlink: SuperLink = "",
    min_clients: Annotated[
        int, typer.Option(help="Minimum number of clients with a column (default: 3).", show_default=False)
    ] = 3,
    min_rows: Annotated[
        int,
        typer.Option(
            help="Minimum number of rows of a column, a category or a bin (default: 10).", show_default=False
        ),
    ] = 10,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Secure sums, of columns with a range: the server sees no client's part (default: off).",
        ),
    ] = False,
    run_config: RunConfig = "",
    out: arg.Out = None,
    as_json: arg.AsJson = False,
) -> None:
    """Ask all connected clients for sums and counts of their columns: means, deviations, quartiles, categories.

    Start it on the machine of the SuperLink. The output folder has the constants of the columns as schema.toml.
    """
    from fedsolve.cli.federation.jobs.job_commands import Submitted, statistics_command

    asked = ", ".join(columns or [])
    submitted = Submitted(app, superlink, run_config, out)
    statistics_command(submitted, asked, min_clients, min_rows, secure, as_json)
