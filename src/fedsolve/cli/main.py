"""The command `fedsolve`: its sub-commands, and what ends with which exit code.

Nothing here imports JAX, so that help and wrong options are fast; each command imports what it needs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedsolve.cli.commands.training import compare, run, sweep
from fedsolve.cli.configuration import arguments as arg
from fedsolve.cli.federation.commands import federate
from fedsolve.cli.processes.distributed_init import left
from fedsolve.cli.terminal.console import emit
from fedsolve.cli.terminal.exit_codes import fail, out_of_memory, usage
from fedsolve.cli.terminal.help import App, complete_dataset, complete_experiment, complete_kind
from fedsolve.core.errors import FedsolveError, InvalidInput

app = App(pretty_exceptions_enable=False)
Quick = Annotated[
    bool, typer.Option("--quick", help="A few rounds, to see that it works; its numbers mean nothing.")
]
Full = Annotated[
    bool,
    typer.Option("--full", help="The paper's size, where the usual one is cut to what two cores finish."),
]


def _print_version(asked: bool) -> None:
    if asked:
        import fedsolve

        emit(f"fedsolve {fedsolve.__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Solvers for federated optimisation: run, compare and cite them."""


app.command(short_help="Run one method on one task.")(run)
app.command(short_help="Run several methods on one task.")(compare)
app.command(short_help="Run one method at every setting of a grid.")(sweep)


@app.command(short_help="Run a paper's experiment again.")
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="`fedsolve list experiments` has the names.",
            autocompletion=complete_experiment,
        ),
    ],
    out: arg.Out = None,
    data_dir: arg.DataDir = None,
    quick: Quick = False,
    full: Full = False,
    watch: arg.Watch = False,
    as_json: arg.AsJson = False,
) -> None:
    """Run a paper's experiment: results, plots, and a page of claim, theirs, ours and deviations."""
    from fedsolve.cli.commands.reproduce import reproduce_command
    from fedsolve.studies.experiment import command

    if command(name) != f"fedsolve reproduce {name}":
        raise InvalidInput(f"{name} is a study of your own: run it with {command(name)}")
    reproduce_command(name, out, data_dir, quick, full, as_json, watch)


@app.command(short_help="Run a study of your own.")
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A TOML file, a Python file with STUDY, or a function that gives a study as module:function.",
        ),
    ],
    out: arg.Out = None,
    data_dir: arg.DataDir = None,
    quick: Quick = False,
    full: Full = False,
    trust: arg.Trust = None,
    watch: arg.Watch = False,
    as_json: arg.AsJson = False,
) -> None:
    """Run a study of your own: tuned methods, a table, curves, maps of grids, and claims with verdicts.

    What is kept goes on where it was interrupted, and `fedsolve verdict STUDY` evaluates its claims again.
    """
    from fedsolve.cli.commands.reproduce import reproduce_command
    from fedsolve.studies.experiment import command

    if command(name) != f"fedsolve study {name}":
        raise InvalidInput(
            f"{name} must be a TOML file, a Python file or module:function; run an experiment with {command(name)}"
        )
    reproduce_command(name, out, data_dir, quick, full, as_json, watch, trust)


@app.command(short_help="Re-evaluate the claims of a finished experiment or study.")
def verdict(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="One of `fedsolve list experiments`, or a study of your own: a TOML file or module:function.",
            autocompletion=complete_experiment,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", **arg.FOLDER, help="Folder of the earlier run; default runs/NAME.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="That run was of the paper's size.")] = False,
    trust: arg.Trust = None,
    as_json: arg.AsJson = False,
) -> None:
    """Compute the verdicts of an experiment or a study from the data that an earlier run kept; nothing is run."""
    from fedsolve.cli.commands.reproduce import verdict_command

    verdict_command(name, out, full, as_json, trust)


@app.command(short_help="Where public data sets come from; fetch and convert them.")
def data(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A data set; all are listed without.", autocompletion=complete_dataset
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", **arg.FOLDER, help="Data folder: fetch what is missing and convert into it."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", **arg.FOLDER, help="Folder with the original files: convert, fetch nothing."),
    ] = None,
    as_json: arg.AsJson = False,
) -> None:
    """Say where a public data set comes from; with --to fetch and convert it into the form that tasks read."""
    from fedsolve.cli.commands.datasets import data_command

    data_command(name, source, to, as_json)


_KINDS = "algorithms, tasks, partitions, geometries, schedules, experiments, communication"


@app.command(
    "list",
    short_help="List algorithms, tasks, partitions, geometries, schedules, experiments or communication.",
)
def list_(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help=f"One of {_KINDS}.", autocompletion=complete_kind),
    ],
    as_json: arg.AsJson = False,
) -> None:
    """List algorithms, tasks, partitions, penalties and sets, or experiments, with one line on each."""
    from fedsolve.cli.commands.listing import list_command

    list_command(kind, as_json)


@app.command(short_help="Show a run, a comparison or a sweep, finished or not.")
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, a comparison or a sweep.")],
    as_json: arg.AsJson = False,
) -> None:
    """Show the table of a run, a comparison or a sweep, finished or not, and where its plots and page are."""
    from fedsolve.cli.commands.show import show_command

    show_command(folder, as_json)


@app.command(short_help="Serve a page that follows runs while they go on.")
def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a run, or of many, such as runs/.")
    ] = Path("runs"),
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="On this machine; a free one by default.", show_default=False),
    ] = 0,
) -> None:
    """Serve a page on this machine that follows the runs of a folder: curves, a table, time left, a button to stop.

    Only who has the address, which is printed, can read it.
    """
    from fedsolve.cli.watch.commands import watch_command

    watch_command(folder, port)


@app.command(short_help="Print the BibTeX of what a run uses.")
def cite(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file, or the folder of a run.")],
) -> None:
    """Print the BibTeX of what a run uses: methods, task, partition and JAX."""
    from fedsolve.cli.commands.papers import bibtex, keys_of
    from fedsolve.cli.configuration.config import load

    emit(bibtex(keys_of(load(config))))


@app.command(short_help="Say what is installed, on which devices, with which data.")
def doctor(data_dir: arg.DataDir = None, as_json: arg.AsJson = False) -> None:
    """Say what is installed, which extras are missing, which devices there are and which data: a line each."""
    from fedsolve.cli.commands.doctor import doctor_command
    from fedsolve.cli.processes.devices import start_jax

    start_jax()
    doctor_command(data_dir, as_json)


app.add_typer(federate, name="federate", short_help="Real federations on Flower.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; anything but known errors is a bug and raises."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    return left(partial(_main, arguments))


def _main(arguments: list[str]) -> int:
    as_json = "--json" in arguments
    try:
        code = app(arguments, prog_name="fedsolve", standalone_mode=False, obj=tuple(arguments))
    except FedsolveError as error:
        return fail(str(error), error.exit_code, as_json)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        return fail(f"{error.strerror or error}{where}", InvalidInput.exit_code, as_json)
    except (KeyboardInterrupt, typer.Abort):
        return fail("interrupted", 130, as_json)
    except Exception as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):  # numpy's, XLA's
            return fail(out_of_memory(error), InvalidInput.exit_code, as_json)
        if "null byte" in str(error):  # of any path
            return fail("a path with a null byte cannot be: give another", InvalidInput.exit_code, as_json)
        if not hasattr(error, "format_message"):  # not click's: a bug
            raise
        return fail(usage(error), InvalidInput.exit_code, as_json)
    if code == 130:  # typer's answer to Ctrl-C outside of a run
        return fail("interrupted before the run began", code, as_json)
    return code if isinstance(code, int) else 0
