"""The command `fedsolve`: its sub-commands, and what ends with which exit code.

Nothing here imports JAX, so that help and wrong options are fast; each command imports what it needs.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from fedsolve.cli.console import App, emit, fail, out_of_memory, usage
from fedsolve.cli.datasets import data
from fedsolve.cli.export import export
from fedsolve.cli.federation.commands import federate
from fedsolve.cli.listing import cite, doctor, list_, settings
from fedsolve.cli.predict import predict
from fedsolve.cli.processes import exit_process
from fedsolve.cli.reproduce import reproduce, study, verdict
from fedsolve.cli.training import compare, run, show, stop, sweep
from fedsolve.core.errors import FedsolveError, InvalidInput

atexit.register(gc.freeze)  # else Python looks through all that JAX has made once more before it ends: 0.3 s
app = App(pretty_exceptions_enable=False)


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
    """Federated optimisation: run, compare, tune and deploy methods."""


app.command(short_help="Run one method on one task.")(run)
app.command(short_help="Run several methods on one task.")(compare)
app.command(short_help="Tune one method: run every setting of a grid.")(sweep)
app.command(short_help="Reproduce a paper's experiment.")(reproduce)
app.command(short_help="Run your own study.")(study)
app.command(short_help="Re-evaluate the claims of a finished experiment or study.")(verdict)
app.command(short_help="Download and convert public data sets.")(data)
app.command(
    "list",
    short_help="List algorithms, tasks, partitions, geometries, schedules, experiments or communication.",
)(list_)
app.command(short_help="Show the best settings of the stored studies.")(settings)
app.command(short_help="Show a run, a comparison or a sweep, finished or not.")(show)
app.command(short_help="Stop a run so that it can be resumed.")(stop)
app.command(short_help="Predict with the model of a finished run.")(predict)
app.command(short_help="Export a trained model, with a model card.")(export)
app.command(short_help="Print the BibTeX entries for a run.")(cite)
app.command(short_help="Check the installation, devices and data.")(doctor)
app.add_typer(federate, name="federate", short_help="Create and test real federations on Flower.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; anything but known errors is a bug and raises."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    return exit_process(partial(_main, arguments))


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
            return fail("a path contains a null byte: give another", InvalidInput.exit_code, as_json)
        if not hasattr(error, "format_message"):  # not click's: a bug
            raise
        return fail(usage(error), InvalidInput.exit_code, as_json)
    if code == 130:  # typer's answer to Ctrl-C outside of a run
        return fail("interrupted before the run began", code, as_json)
    return code if isinstance(code, int) else 0
