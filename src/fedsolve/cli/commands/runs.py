"""`fedsolve run`: one method on one task, into a folder that can be resumed and run again."""

from __future__ import annotations

from fedsolve.cli.commands.method import check_trackers, finish_method, follow, runs_of
from fedsolve.cli.configuration.config import Config
from fedsolve.cli.configuration.prepare import check_shown, prepare
from fedsolve.cli.configuration.requests import RunRequest, names_of
from fedsolve.cli.terminal.console import emit_json
from fedsolve.cli.terminal.folders import begun, how_to_resume
from fedsolve.cli.terminal.outputs import document, page_meanwhile, print_result, write_report
from fedsolve.cli.terminal.progress import open_display
from fedsolve.core.errors import Diverged, Interrupted
from fedsolve.engine.compute.sharding import is_first
from fedsolve.engine.scheduler import running
from fedsolve.report.plots import load_meanwhile
from fedsolve.report.table import result_rows


def run_command(config: Config, request: RunRequest) -> int:
    """Run or continue a configuration of one method; write its folder and print its result.

    Returns:
        The exit code: 3 if a seed diverged; where all did, `Diverged` is raised.
    """
    track = request.track or ()
    check_trackers(track)
    prepared = prepare(config)
    config = prepared.config
    method, metrics = config.method[0], names_of(request.metrics)
    check_shown(metrics, prepared.task, prepared.algorithms[0])
    if not is_first():
        return follow(prepared, request.resume)
    what = f"{method.shown} on {config.task}"
    load_meanwhile()
    with (
        begun(request, config, f"{config.task}-{method.shown}", what) as folder,
        page_meanwhile(folder, config),
        open_display([method.shown], prepared.rounds) as display,
    ):
        try:
            with running([runs_of(prepared, 0, folder, track)], prepared.task, prepared.options) as finish:
                results = finish_method(finish, prepared, 0, folder, display)
            results.check_alive()
        except (Interrupted, KeyboardInterrupt):
            how = how_to_resume("run", folder, config)
            raise Interrupted(f"interrupted {display.where()}; {how}") from None
    histories, failures = results.histories, list(results.failures)
    write_report(folder, config, prepared.task, histories, failures, results.runs[0].timeline)
    notes = [*failures, *dict.fromkeys(note for h in histories for note in h.notes)]
    if request.as_json:
        status, row = (
            "diverged" if failures else "finished",
            result_rows(histories, request.target, metrics)[0],
        )
        emit_json(document(status, folder, config.task, config.run.rounds, result=row, notes=notes))
    else:
        print_result(histories, [f"note: {note}" for note in notes], folder, "", metrics, request.target)
    return Diverged.exit_code if failures else 0
