"""`fedsolve reproduce`: run an experiment of a paper, with progress, and say what came out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedsolve.cli.console import emit_json, emit_rich, say
from fedsolve.cli.sweep_progress import duration
from fedsolve.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsolve.studies.experiment import Claim, Experiment


def reproduce_command(
    name: str, out: Path | None, data_dir: Path | None, quick: bool, full: bool, as_json: bool
) -> None:
    """Run one experiment and print its claims with verdicts; a quick run has none."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from fedsolve.experiments.catalogue import find, reproduce
    from fedsolve.studies.page import QUICK

    experiment = find(name)
    folder = out or _folder(name, full)
    takes = "a quick look" if quick else experiment.cost if full else time_of(experiment)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    from rich.console import Console

    bars = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
    rows: dict[str, object] = {}

    def show(part: str, done: int, total: int) -> None:
        if not rows:  # not before it is known that it can run
            say(f"{experiment.title}: {takes}, into {folder}")
            bars.start()
        if part not in rows:
            rows[part] = bars.add_task(part, total=total)
            if not bars.console.is_terminal:
                say(part)
        bars.update(rows[part], completed=done, total=total)  # type: ignore[arg-type]

    try:
        found = reproduce(name, folder, data_dir=data_dir, quick=quick, full=full, say=show)
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(
            f"interrupted; finished parts are kept: the same command goes on, fedsolve reproduce {name}"
            + (" --full" if full else "")
            + (f" --out {out}" if out else "")
        ) from None
    finally:
        if rows:
            bars.stop()
    if as_json:
        document = {
            "status": "ok",
            "quick": quick,
            "page": str(found.page),
            "seconds": round(found.seconds, 1),
        }
        emit_json(document | {"claims": [vars(c) for c in found.outcome.claims]})
        return
    if found.outcome.claims:
        _print(found.outcome.claims, quick)
    if quick:
        say(f"{QUICK}; no claim has a verdict")
    say(f"page: {found.page}")


def verdict_command(name: str, out: Path | None, full: bool, as_json: bool) -> None:
    """Judge again what an earlier run of an experiment kept, and print its claims."""
    from fedsolve.experiments.catalogue import judge

    folder = out or _folder(name, full)
    claims = judge(name, folder, full=full)
    if as_json:
        emit_json({"status": "ok", "folder": str(folder), "claims": [vars(claim) for claim in claims]})
    else:
        _print(claims, quick=False)


def _folder(name: str, full: bool) -> Path:
    return Path("runs") / (name.replace(":", "-") + ("-full" if full else ""))


def _print(claims: Sequence[Claim], quick: bool) -> None:
    from rich.table import Table

    table = Table("claim", "theirs", "ours", *([] if quick else ["verdict"]), show_lines=True)
    for claim in claims:
        table.add_row(claim.claim, claim.theirs, claim.ours, *([] if quick else [claim.judged]))
    emit_rich(table)


def time_of(experiment: Experiment) -> str:
    """How long an experiment takes, as its kept results tell."""
    if experiment.minutes is None:
        return "its time is not known"
    return f"about {duration(60 * experiment.minutes)} on 2 cores"
