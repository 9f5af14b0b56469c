"""The sub-commands of `fedsolve federate` and their options; each imports what it needs, Flower's version first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsolve.cli.configuration import command_options as arg
from fedsolve.cli.console import App, emit
from fedsolve.cli.federation.new import new
from fedsolve.core.errors import InvalidInput

federate = App(
    no_args_is_help=True,
    help="Real federations on Flower: write an app, start its nodes, monitor its clients, evaluate models.",
)
federate.command(short_help="Write a small Flower app.")(new)


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


# What all connected clients are asked: a model's metrics, statistics of columns, models and curves over their rows.


_NEEDED = inspect.Parameter.empty


def _parameter(name: str, default: Any, hint: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _option(
    name: str, default: Any, text: str, metavar: str | None = None, kind: Any = None, flag: str = ""
) -> Any:
    kind = kind or (type(default) if isinstance(default, str | int) else str | None)
    flag = flag or f"--{name.replace('_', '-')}"
    option = typer.Option(flag, help=text, metavar=metavar, show_default="(default" not in text)
    return _parameter(name, default, Annotated[kind, option])


def _argument(name: str, metavar: str, text: str, kind: Any = str, default: Any = _NEEDED) -> Any:
    argument = typer.Argument(metavar=metavar, help=text, show_default=False)
    return _parameter(name, default, Annotated[kind, argument])


_APP = [
    _option("app", Path(), "Folder of the app (default: this folder).", kind=Path),
    _option("superlink", "", "SuperLink's name in Flower's config.toml (default: Flower's default).", "NAME"),
]
_RUN = [
    _option("run_config", "", "Extra run configuration, as for `flwr run` (default: none)."),
    _parameter("out", None, arg.Out),
    _parameter("as_json", False, arg.AsJson),
]
_RULES = [
    _option("min_clients", 3, "Minimum number of clients that take part (default: 3)."),
    _option("min_rows", 10, "Minimum number of rows of a category or bin, beside the owners' (default: 10)."),
    _option("secure", False, "Use secure sums, of which the server sees no client's part (default: off)."),
]
_TIME = _option("time", _NEEDED, "Column of the times, from 0.", "COLUMN")
_EVENT = _option("event", _NEEDED, "Column that is 1 for an event, 0 for a censored row.", "COLUMN")
_WEIGHTS = _option("weights", None, "Column of weights (default: none).", "COLUMN")
_BINS = "Width of bins to whose end times are moved (default: exact times, which take sites with min_rows=1)."
_INTERVAL = _option("interval", None, _BINS, kind=float | None)
_RATIOS = _option("ratios", False, "Print exp(coefficient): odds, rate or hazard ratios (default: off).")


def _command(
    name: str,
    ask: Callable[..., None],
    own: list[Any],
    short_help: str,
    text: str,
    shared: list[Any] = _RULES,
) -> None:
    """Add a command with options of its own, of what is asked of whom, and of every run."""

    def call(app: Path, superlink: str, run_config: str, out: Path | None, **typed: Any) -> None:
        from fedsolve.cli.federation.jobs import Submitted

        ask(Submitted(app, superlink, run_config, out), **typed)

    call.__doc__ = f"{text}\n\nRun this command on the machine of the SuperLink."
    options = inspect.Signature([*own, *_APP, *shared, *_RUN])
    call.__signature__ = options  # pyright: ignore[reportFunctionMemberAccess]
    federate.command(name, short_help=short_help)(call)


def _evaluate(submitted: Any, model: Path, metrics: str | None, as_json: bool) -> None:
    from fedsolve.cli.federation.jobs import evaluate_command

    evaluate_command(submitted, model, metrics, as_json)


def _statistics(submitted: Any, columns: list[str] | None, **typed: Any) -> None:
    from fedsolve.cli.federation.jobs import questions_command

    questions_command(submitted, {"columns": ", ".join(columns or [])}, **typed)


def _analysis(kind: str) -> Callable[..., None]:
    def ask(submitted: Any, **typed: Any) -> None:
        from fedsolve.cli.federation.jobs import questions_command
        from fedsolve.stats.questions import Request

        shared = ("min_clients", "min_rows", "secure", "as_json", "ratios")
        words = {name: word for name, word in typed.items() if name not in shared}
        if words.get("strata") == "none":
            words["strata"] = None
        # without apostrophes, between which Flower is given it
        asked = {"analysis": Request.KINDS[kind](**words).to_json().replace("'", "\\u0027")}
        questions_command(submitted, asked, **{name: typed[name] for name in typed.keys() - words.keys()})

    return ask


_command(
    "evaluate",
    _evaluate,
    [
        _argument("model", "FOLDER|MODEL", "Folder of a run, or a .safetensors file of a model.", Path),
        _option(
            "metrics", None, "Metrics of the clients, such as loss,accuracy (default: the app's).", "A,B"
        ),
    ],
    "Evaluate a saved model on the clients.",
    "Evaluate a saved model on the examples of all connected clients; nothing is trained. --run-config passes "
    "settings of the run, such as the method.",
    [],
)
_COLUMNS = (
    "Columns: NAME, NAME=LOW:HIGH or NAME=LOW:HIGH:BINS for quartiles from a histogram of this range (100 bins), which "
    "--secure needs, or NAME=categories (default: all)."
)
_command(
    "statistics",
    _statistics,
    [_argument("columns", "[COLUMN...]", _COLUMNS, list[str] | None, None)],
    "Compute statistics of the clients' columns.",
    "Compute means, standard deviations, quartiles and categories of columns, from sums of all connected clients. The "
    "output folder has the columns' constants as schema.toml.",
)
_command(
    "glm",
    _analysis("GlmRequest"),
    [
        _argument("outcome", "FORMULA", 'Outcome and terms, such as "ill ~ age + smoker + age:smoker".'),
        _option("family", "gaussian", "gaussian, binomial, poisson, gamma or negative-binomial."),
        _option("link", None, "Link, such as probit (default: the family's)."),
        _WEIGHTS,
        _option("offset", None, 'Column of the offset, or "log(COLUMN)" (default: none).', "COLUMN"),
        _option("errors", "model", "Standard errors: model, robust, or sites (clustered by site)."),
        _RATIOS,
    ],
    "Fit a generalised linear model to the clients' rows.",
    "Fit a generalised linear model; estimates and errors are those of all rows in one table. Owners of clients allow "
    'it by client_app(analyses=("glm",)).',
)
_command(
    "cox",
    _analysis("CoxRequest"),
    [
        _argument("terms", "TERMS", 'Terms, such as "age + smoker".'),
        _TIME,
        _EVENT,
        _option("ties", "efron", "Rule for tied times: efron or breslow."),
        _option(
            "strata", "site", "site: a baseline hazard for each, and no times leave it; none: one for all."
        ),
        _INTERVAL,
        _WEIGHTS,
        _RATIOS,
    ],
    "Fit Cox's proportional hazards model to the clients' rows.",
    "Fit Cox's proportional hazards model; estimates and errors are those of all rows in one table. Owners of clients "
    'allow it by client_app(analyses=("cox",)).',
)
_command(
    "km",
    _analysis("SurvivalRequest"),
    [
        _TIME,
        _EVENT,
        _option("groups", None, "Column of groups to compare (default: none).", "COLUMN", flag="--by"),
        _option("strata", "none", "Of the log-rank test: none, or site: groups are compared within sites."),
        _INTERVAL,
    ],
    "Estimate Kaplan-Meier curves of the clients' rows.",
    "Estimate survival by Kaplan and Meier, with the log-rank test between groups. Owners allow it by "
    'client_app(analyses=("kaplan_meier",)).',
)
