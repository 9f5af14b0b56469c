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

# Options as data: those of several commands are written once.


_NEEDED = inspect.Parameter.empty


def _parameter(name: str, default: Any, hint: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _option(name: str, default: Any, text: str, metavar: str | None = None, **more: Any) -> inspect.Parameter:
    kind = more.pop("kind", type(default) if isinstance(default, str | int) else str | None)
    flag = more.pop("flag", f"--{name.replace('_', '-')}")
    more |= {"help": text, "metavar": metavar, "show_default": "(default" not in text}
    return _parameter(name, default, Annotated[kind, typer.Option(flag, **more)])


def _argument(name: str, metavar: str, text: str | None, kind: Any = str, default: Any = _NEEDED) -> Any:
    argument = typer.Argument(metavar=metavar, help=text, show_default=False)
    return _parameter(name, default, Annotated[kind, argument])


def _takes(
    short_help: str, *options: inspect.Parameter, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function that takes these options."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        vars(run)["__signature__"] = inspect.Signature(list(options))
        return federate.command(short_help=short_help, **settings)(run)

    return decorate


_OUT, _AS_JSON = _parameter("out", None, arg.Out), _parameter("as_json", False, arg.AsJson)
_WHERE = (
    _option("app", Path(), "Folder of the app (default: this folder).", kind=Path),
    _option("superlink", "", "SuperLink's name in Flower's config.toml (default: Flower's default).", "NAME"),
    _option("run_config", "", "Extra run configuration, as for `flwr run` (default: none)."),
    _OUT,
    _AS_JSON,
)
_RULES = (
    _option("min_clients", 3, "Minimum number of clients that take part (default: 3)."),
    _option("min_rows", 10, "Minimum number of rows of a category or bin, beside the owners' (default: 10)."),
    _option("secure", False, "Use secure sums, of which the server sees no client's part (default: off)."),
    *_WHERE,
)

# Commands.


@_takes(
    "Train on a real federation on this machine.",
    _option("rounds", 4, "Number of rounds of each method (default: 4)."),
    _OUT,
    _option("port", None, "Port of the SuperLink (default: a free one).", kind=int | None, min=1, max=65535),
    _AS_JSON,
)
def demo(rounds: int, out: Path | None, port: int | None, as_json: bool) -> None:
    """Train two methods on a SuperLink and three SuperNodes with PyTorch clients, all on this machine."""
    from fedsolve.deploy.flower import check_flower

    if rounds < 1:
        raise InvalidInput(f"--rounds {rounds} must be at least 1")
    check_flower()
    from fedsolve.cli.federation.demo import demo_command

    demo_command(rounds, out, port, as_json)


@_takes(
    "Show the clients of a federation.",
    _argument("folder", "FOLDER", "Folder of a run, or of `fedsolve federate demo`.", Path),
    _AS_JSON,
)
def status(folder: Path, as_json: bool) -> None:
    """Show when each client was last heard, how often it failed and why, and its versions, during a run or after it."""
    from fedsolve.cli.federation.jobs import status_command

    status_command(folder, as_json)


@_takes(
    "Check certificates and keys.",
    _option("ca", _NEEDED, "Certificate of the certificate authority.", kind=Path),
    _option("certificate", None, "The server's certificate.", kind=Path | None),
    _option("key", None, "The server's private key.", kind=Path | None),
    _option("node_key", None, "Private key of a node. Repeatable.", kind=list[Path] | None),
    _option("address", None, "Server address for nodes, such as fl.example.org:8000."),
)
def check(
    ca: Path, certificate: Path | None, key: Path | None, node_key: list[Path] | None, address: str | None
) -> None:
    """Check that only you can read the keys of a federation, and that nodes accept its certificate."""
    from fedsolve.cli.federation.credentials import check_credentials
    from fedsolve.deploy.flower import check_flower

    check_flower()
    check_credentials(ca, certificate, key, node_key or [], address)
    emit("certificates and keys are valid")


@_takes(
    "Start a node whose client app stays loaded between messages.",
    _argument("arguments", "[OPTIONS OF flower-supernode]", None, list[str] | None, None),
    _option("fresh", False, "Run each message in a new process, as Flower does."),
    _option(
        "worker_messages", 0, "Replace the worker after this number of messages (default: never).", min=0
    ),
    _option("worker_megabytes", 0, "Replace the worker above this memory use (default: never).", min=0),
    context_settings={"ignore_unknown_options": True},
)
def node(arguments: list[str] | None, fresh: bool, worker_messages: int, worker_megabytes: int) -> None:
    """Start flower-supernode with a persistent worker for its messages; other options go to flower-supernode.

    The worker imports the client app once and runs one message after another. This works for every Flower client app.
    """
    from fedsolve.cli.federation.node import node_command
    from fedsolve.deploy.persistent.node_folder import WorkerLimits

    node_command(arguments or [], WorkerLimits(worker_messages, worker_megabytes), fresh)


@_takes(
    "Evaluate a saved model on the clients.",
    _argument("model", "FOLDER|MODEL", "Folder of a run, or a .safetensors file of a model.", Path),
    _option("metrics", None, "Metrics of the clients, such as loss,accuracy (default: the app's).", "A,B"),
    *_WHERE,
)
def evaluate(model: Path, metrics: str | None, as_json: bool, **where: Any) -> None:
    """Evaluate a saved model on the examples of all connected clients; nothing is trained.

    Run this command on the machine of the SuperLink. --run-config passes settings of the run, such as the method.
    """
    from fedsolve.cli.federation.jobs import Submitted, evaluate_command

    evaluate_command(Submitted(**where), model, metrics, as_json)


_COLUMNS = (
    "Columns: NAME, NAME=LOW:HIGH or NAME=LOW:HIGH:BINS for quartiles from a histogram of this range (100 bins), which "
    "--secure needs, or NAME=categories (default: all)."
)


@_takes(
    "Compute statistics of the clients' columns.",
    _argument("columns", "[COLUMN...]", _COLUMNS, list[str] | None, None),
    *_RULES,
)
def statistics(columns: list[str] | None, **typed: Any) -> None:
    """Compute means, standard deviations, quartiles and categories of columns, from sums of all connected clients.

    Run this command on the machine of the SuperLink. The output folder has the columns' constants as schema.toml.
    """
    from fedsolve.cli.federation.jobs import questions_command

    questions_command({"columns": ", ".join(columns or [])}, **typed)


def _analyse(kind: str, typed: dict[str, Any]) -> None:
    from fedsolve.cli.federation.jobs import questions_command
    from fedsolve.stats.questions import Request

    shared = {"ratios", *(option.name for option in _RULES)} & typed.keys()
    words = {name: word for name, word in typed.items() if name not in shared}
    if words.get("strata") == "none":
        words["strata"] = None
    # without apostrophes, between which Flower is given it
    asked = {"analysis": Request.KINDS[kind](**words).to_json().replace("'", "\\u0027")}
    questions_command(asked, **{name: typed[name] for name in shared})


_TIMES = (
    _option("time", _NEEDED, "Column of the times, from 0.", "COLUMN"),
    _option("event", _NEEDED, "Column that is 1 for an event, 0 for a censored row.", "COLUMN"),
)
_BINS = "Width of bins to whose end times are moved (default: exact times, which take sites with min_rows=1)."
_INTERVAL = _option("interval", None, _BINS, kind=float | None)
_WEIGHTS = _option("weights", None, "Column of weights (default: none).", "COLUMN")
_RATIOS = _option("ratios", False, "Print exp(coefficient): odds, rate or hazard ratios (default: off).")


@_takes(
    "Fit a generalised linear model to the clients' rows.",
    _argument("outcome", "FORMULA", 'Outcome and terms, such as "ill ~ age + smoker + age:smoker".'),
    _option("family", "gaussian", "gaussian, binomial, poisson, gamma or negative-binomial."),
    _option("link", None, "Link, such as probit (default: the family's)."),
    _WEIGHTS,
    _option("offset", None, 'Column of the offset, or "log(COLUMN)" (default: none).', "COLUMN"),
    _option("errors", "model", "Standard errors: model, robust, or sites (clustered by site)."),
    _RATIOS,
    *_RULES,
)
def glm(**typed: Any) -> None:
    """Fit a generalised linear model; estimates and errors are those of all rows in one table.

    Run this command on the machine of the SuperLink. Owners of clients allow it by client_app(analyses=("glm",)).
    """
    _analyse("GlmRequest", typed)


@_takes(
    "Fit Cox's proportional hazards model to the clients' rows.",
    _argument("terms", "TERMS", 'Terms, such as "age + smoker".'),
    *_TIMES,
    _option("ties", "efron", "Rule for tied times: efron or breslow."),
    _option("strata", "site", "site: a baseline hazard for each, and no times leave it; none: one for all."),
    _INTERVAL,
    _WEIGHTS,
    _RATIOS,
    *_RULES,
)
def cox(**typed: Any) -> None:
    """Fit Cox's proportional hazards model; estimates and errors are those of all rows in one table.

    Run this command on the machine of the SuperLink. Owners of clients allow it by client_app(analyses=("cox",)).
    """
    _analyse("CoxRequest", typed)


@_takes(
    "Estimate Kaplan-Meier curves of the clients' rows.",
    *_TIMES,
    _option("groups", None, "Column of groups to compare (default: none).", "COLUMN", flag="--by"),
    _option("strata", "none", "Of the log-rank test: none, or site: groups are compared within sites."),
    _INTERVAL,
    *_RULES,
)
def km(**typed: Any) -> None:
    """Estimate survival by Kaplan and Meier, with the log-rank test between groups.

    Run this command on the machine of the SuperLink. Owners allow it by client_app(analyses=("kaplan_meier",)).
    """
    _analyse("SurvivalRequest", typed)
