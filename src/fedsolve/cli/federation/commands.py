"""The sub-commands of `fedsolve federate` and their options; each imports what it needs, Flower's version first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsolve.cli.configuration import command_options as arg
from fedsolve.cli.console import App, emit
from fedsolve.cli.federation.new import new
from fedsolve.core.errors import InvalidInput

# The options of `fedsolve federate evaluate` and `statistics`; what they do is imported when they run.


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
    typer.Option(help="Extra run configuration, as for `flwr run` (default: none).", show_default=False),
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

    Run this command on the machine of the SuperLink. --run-config passes settings of the run, such as the method.
    """
    from fedsolve.cli.federation.jobs import Submitted, evaluate_command

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
            help="Use secure sums; columns need a range. The server sees only sums (default: off).",
        ),
    ] = False,
    run_config: RunConfig = "",
    out: arg.Out = None,
    as_json: arg.AsJson = False,
) -> None:
    """Compute means, standard deviations, quartiles and categories of columns, from sums of all connected clients.

    Run this command on the machine of the SuperLink. The output folder has the columns' constants as schema.toml.
    """
    from fedsolve.cli.federation.jobs import Submitted, statistics_command

    asked = ", ".join(columns or [])
    submitted = Submitted(app, superlink, run_config, out)
    statistics_command(submitted, asked, min_clients, min_rows, secure, as_json)


federate = App(
    no_args_is_help=True,
    help="Real federations on Flower: write an app, start its nodes, monitor its clients, evaluate models.",
)
federate.command(short_help="Write a small Flower app.")(new)
federate.command(short_help="Evaluate a saved model on the clients.")(evaluate)
federate.command(short_help="Compute statistics of the clients' columns.")(statistics)


@federate.command(short_help="Train on a real federation on this machine.")
def demo(
    rounds: Annotated[
        int, typer.Option(help="Number of rounds of each method (default: 4).", show_default=False)
    ] = 4,
    out: arg.Out = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the SuperLink (default: a free one).")
    ] = None,
    as_json: arg.AsJson = False,
) -> None:
    """Train two methods on a SuperLink and three SuperNodes with PyTorch clients, all on this machine."""
    from fedsolve.deploy.flower import check_flower

    if rounds < 1:
        raise InvalidInput(f"--rounds {rounds} must be at least 1")
    check_flower()
    from fedsolve.cli.federation.demo import demo_command

    demo_command(rounds, out, port, as_json)


@federate.command(short_help="Show the clients of a federation.")
def status(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a run, or of `fedsolve federate demo`.")
    ],
    as_json: arg.AsJson = False,
) -> None:
    """Show when each client was last heard, how often it failed and why, and its versions, during a run or after it."""
    from fedsolve.cli.federation.jobs import status_command

    status_command(folder, as_json)


@federate.command(short_help="Check certificates and keys.")
def check(
    ca: Annotated[Path, typer.Option(help="Certificate of the certificate authority.")],
    certificate: Annotated[Path | None, typer.Option(help="The server's certificate.")] = None,
    key: Annotated[Path | None, typer.Option(help="The server's private key.")] = None,
    node_key: Annotated[list[Path] | None, typer.Option(help="Private key of a node. Repeatable.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Server address for nodes, such as fl.example.org:8000.")
    ] = None,
) -> None:
    """Check that only you can read the keys of a federation, and that nodes accept its certificate."""
    from fedsolve.cli.federation.credentials import check_credentials
    from fedsolve.deploy.flower import check_flower

    check_flower()
    check_credentials(ca, certificate, key, node_key or [], address)
    emit("certificates and keys are valid")


@federate.command(
    short_help="Start a node whose client app stays loaded between messages.",
    context_settings={"ignore_unknown_options": True},
)
def node(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[OPTIONS OF flower-supernode]", show_default=False)
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run each message in a new process, as Flower does.")
    ] = False,
    worker_messages: Annotated[
        int,
        typer.Option(
            min=0,
            help="Replace the worker after this number of messages (default: never).",
            show_default=False,
        ),
    ] = 0,
    worker_megabytes: Annotated[
        int,
        typer.Option(
            min=0, help="Replace the worker above this memory use (default: never).", show_default=False
        ),
    ] = 0,
) -> None:
    """Start flower-supernode with a persistent worker for its messages; other options go to flower-supernode.

    The worker imports the client app once and runs one message after another. This works for every Flower client app.
    """
    from fedsolve.cli.federation.node import node_command
    from fedsolve.deploy.persistent.node_folder import WorkerLimits

    node_command(arguments or [], WorkerLimits(worker_messages, worker_megabytes), fresh)
