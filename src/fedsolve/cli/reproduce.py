"""`fedsolve reproduce` and `fedsolve study`: run an experiment or your own study, and print the outcome."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsolve.cli.configuration.command_options import FOLDER, AsJson, DataDir, Executor, Out, Trust
from fedsolve.cli.console import complete_experiment, emit_json, emit_rich, say
from fedsolve.core.errors import Interrupted, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsolve.studies.experiment import Claim, Experiment


Quick = Annotated[
    bool, typer.Option("--quick", help="Run only a few rounds as a check; the numbers are meaningless.")
]
Full = Annotated[
    bool, typer.Option("--full", help="Run at the paper's size; the default size is reduced for two cores.")
]


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Experiment (`fedsolve list experiments`).",
            autocompletion=complete_experiment,
        ),
    ],
    out: Out = None,
    data_dir: DataDir = None,
    quick: Quick = False,
    full: Full = False,
    executor: Executor = None,
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiment; write results, plots and a page that compares them with the paper's claims."""
    from fedsolve.studies.experiment import command

    if command(name) != f"fedsolve reproduce {name}":
        raise InvalidInput(f"{name} is a study of your own: run it with {command(name)}")
    _run(name, out, data_dir, quick, full, as_json, executor=executor)


def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="TOML file, Python file with STUDY, or a function that returns a study, as module:function.",
        ),
    ],
    out: Out = None,
    data_dir: DataDir = None,
    quick: Quick = False,
    full: Full = False,
    executor: Executor = None,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Run your own study: tuned methods, a table, curves, heat maps of grids, and claims with verdicts.

    An interrupted study continues where it stopped. `fedsolve verdict STUDY` evaluates its claims again.
    """
    from fedsolve.studies.experiment import command

    if command(name) != f"fedsolve study {name}":
        raise InvalidInput(
            f"{name} must be a TOML file, a Python file or module:function; run an experiment with {command(name)}"
        )
    _run(name, out, data_dir, quick, full, as_json, trust, executor)


def verdict(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Experiment (`fedsolve list experiments`), or your own study: a TOML file or module:function. "
            "Default: every stored experiment, one line for each.",
            autocompletion=complete_experiment,
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", **FOLDER, help="Folder of the finished run (default: runs/NAME).")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Evaluate the full-size run.")] = False,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Re-evaluate the claims of a finished experiment or study from its stored data; nothing is run."""
    from fedsolve.studies.pages import claim_facts, is_without_paper
    from fedsolve.studies.reproduce import evaluate_claims

    if not name:
        if out or full or trust:
            raise InvalidInput("--out, --full and --trust are of one study: give its NAME")
        _verdicts_of_all(as_json)
        return
    folder, experiment = out or _folder(name, full), _find(name, run=False, trust=trust)
    claims = evaluate_claims(name, folder, full=full, experiment=experiment)
    if as_json:
        facts = claim_facts(claims, is_without_paper(name, experiment))
        emit_json({"status": "ok", "folder": str(folder), "claims": facts})
    else:
        _print(claims, quick=False)


def _verdicts_of_all(as_json: bool) -> None:
    from collections import Counter

    from rich.table import Table

    from fedsolve.studies.experiment import has_parts
    from fedsolve.studies.pages import claim_facts
    from fedsolve.studies.reproduce import evaluate_claims, program_folders

    folders = {name: folder for name, folder in program_folders().items() if has_parts(folder)}
    if not folders:
        raise InvalidInput(
            "no stored studies here: run this in a clone of fedsolve's repository, or give a NAME"
        )
    claims = {name: evaluate_claims(name, folder) for name, folder in folders.items()}
    if as_json:
        emit_json({"status": "ok", "claims": {name: claim_facts(of, False) for name, of in claims.items()}})
        return
    table = Table("experiment", "verdicts", "provisional")
    for name, of in [*claims.items(), ("all", [one for found in claims.values() for one in found])]:
        verdicts = Counter(one.shown_verdict.removesuffix(", provisional") for one in of)
        words = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        table.add_row(name, words, str(sum(bool(one.provisional) for one in of) or ""))
    emit_rich(table)


def _run(
    name: str,
    out: Path | None,
    data_dir: Path | None,
    quick: bool,
    full: bool,
    as_json: bool,
    trust: Sequence[str] | None = None,
    executor: str | None = None,
) -> None:
    from fedsolve.cli.progress import PartsProgress
    from fedsolve.studies.experiment import command
    from fedsolve.studies.pages import QUICK, claim_facts, is_without_paper
    from fedsolve.studies.reproduce import reproduce

    experiment = _find(name, data_dir, trust=trust)
    folder = out or _folder(name, full)
    takes = "a quick look" if quick else experiment.cost if full else time_of(experiment)
    progress = PartsProgress(folder, experiment.title, takes)
    try:
        with progress:
            made = reproduce(
                name, folder, data_dir=data_dir, quick=quick, full=full, experiment=experiment, say=progress,
                executor=executor,
            )  # fmt: skip
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(
            f"interrupted; finished parts are saved: continue with the same command, {command(name)}"
            + (" --quick" if quick else "")
            + (" --full" if full else "")
            + (f" --data-dir {shlex.quote(str(data_dir))}" if data_dir else "")
            + (f" --out {shlex.quote(str(out))}" if out else "")
            + "".join(f" --trust {module}" for module in trust or ())
        ) from None
    if as_json:
        document = {"status": "ok", "quick": quick, "page": str(made.page), "seconds": round(made.seconds, 1)}
        emit_json(document | {"claims": claim_facts(made.outcome.claims, is_without_paper(name, experiment))})
        return
    if made.outcome.claims:
        _print(made.outcome.claims, quick)
    if quick:
        say(f"{QUICK}; no claim has a verdict")
    say(f"page: {made.page}")


def _find(
    name: str, data_dir: Path | None = None, *, run: bool = True, trust: Sequence[str] | None = None
) -> Experiment:
    from fedsolve.studies.reproduce import find

    if not name.endswith(".toml"):
        return find(name)
    from fedsolve.cli.configuration.study import study_in
    from fedsolve.studies.runner import experiment

    return experiment(study_in(Path(name), trust, check=run, data_dir=data_dir))


def _folder(name: str, full: bool) -> Path:
    path = Path(name)
    if path.name == "study.py":  # each study of the papers has a folder of its own
        name = path.absolute().parent.name
    elif path.suffix in (".toml", ".py"):
        name = path.stem
    return Path("runs") / (name.replace(":", "-") + ("-full" if full else ""))


def _print(claims: Sequence[Claim], quick: bool) -> None:
    from rich.table import Table

    papers = any(not claim.own for claim in claims)
    heads = ["claim", "theirs", "ours"] if papers else ["claim", "result"]
    table = Table(*heads, *([] if quick else ["verdict"]), show_lines=True)
    for claim in claims:
        numbers = [claim.theirs, claim.ours] if papers else [claim.ours]
        table.add_row(claim.claim, *numbers, *([] if quick else [claim.shown_verdict]))
    emit_rich(table)


def time_of(experiment: Experiment) -> str:
    from fedsolve.results.metrics import duration

    if experiment.minutes is None:
        return ""
    return f"about {duration(60 * experiment.minutes)} on 2 cores"
