"""A sweep in the terminal: its progress, and what is printed of it, finished or not."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedsolve.cli.configuration.config import Config
from fedsolve.cli.configuration.prepare import command_as_written, prepare_sweep
from fedsolve.cli.configuration.trust import imports_document, imports_lines, would_import
from fedsolve.cli.console import emit, emit_json, emit_rich, say, visible
from fedsolve.cli.folders import TRIAL_FOLDERS, can_draw, how_to_resume
from fedsolve.cli.progress import SECONDS_BETWEEN_LINES, Lines, has_bars, rich_progress
from fedsolve.core.errors import Diverged
from fedsolve.engine.progress import SECONDS_OF_ESTIMATE
from fedsolve.engine.sweep_rounds import results_so_far
from fedsolve.folders.files import held
from fedsolve.folders.run_folder import SWEEP
from fedsolve.report.page import SoFar, written_meanwhile
from fedsolve.report.sweep_page import PAGE, write_page, write_sweep_page
from fedsolve.report.sweep_plots import outcome_lines, rule_text, setting_rows, setting_table
from fedsolve.results.metrics import duration
from fedsolve.results.sweep import CURVES, SUMMARY, TRIALS, Selection, SweepRecord, load, summary

if TYPE_CHECKING:
    from fedsolve.engine.progress import SweepProgress


def print_sweep(
    folder: Path, found: SweepRecord, command: str, as_json: bool, more: Mapping[str, Any] | None = None
) -> None:
    """The ten best settings, what came out, where the files are, and how to run the best again; or a document."""
    if as_json:
        emit_json(_document(folder, found, command) | dict(more or {}))
        return
    title = f"{found.label} on {found.task}, {found.rounds[-1]} rounds: {rule_text(found)}"
    emit(title)
    emit_rich(setting_table(found).rich())
    lines = [*outcome_lines(found), *(f"note: {note}" for note in found.notes)]
    lines += [
        f"{'picture' if path.endswith('.png') else kind:8} {path}" for kind, path in _files(folder).items()
    ]
    emit("\n".join(lines + ([f"run it   {command}"] if command else [])))


def save_page(folder: Path, found: SweepRecord, title: str, command: str) -> None:
    """Write the page and the plots of a sweep."""
    write_sweep_page(folder, found, title=title, command=command, draw=can_draw())


def sweep_so_far(config: Config, folder: Path) -> SweepRecord | None:
    """A sweep under way up to the last evaluation of all of its trials; None before they all have begun.

    Raises:
        InvalidInput: its checkpoint is damaged.
    """
    assert config.sweep is not None
    if not (folder / TRIAL_FOLDERS / SWEEP.file).exists():
        return None
    run, section = config.run, config.sweep
    seeds = section.seeds if isinstance(section.seeds, list) else []
    grid = {axis: tuple(None if v == "none" else v for v in values) for axis, values in section.grid.items()}
    rounds = np.unique([*range(0, run.rounds, run.eval_every or run.rounds), run.rounds])
    shape = (math.prod(map(len, grid.values())), len(seeds), len(rounds))
    metrics, diverged, seconds = results_so_far(folder / TRIAL_FOLDERS, shape)
    seen = ~np.isnan(metrics["train_loss"]) | (diverged >= 0)[..., None]
    count = int(np.cumprod(seen.all((0, 1))).sum())
    if not count:
        return None
    return SweepRecord(
        label=config.method[0].shown,
        task=config.task,
        grid=grid,
        seeds=tuple(seeds),
        rounds=rounds[:count],
        metrics={name: values[..., :count] for name, values in metrics.items()},
        diverged=diverged,
        selection=Selection.parse(section.select or ""),
        seconds=seconds,
    )


def sweep_page_meanwhile(config: Config, folder: Path) -> AbstractContextManager[None]:
    """Keep the page of a sweep up to date while it runs."""
    last: list[object] = []

    def write(goes_on: bool) -> bool:
        found = sweep_so_far(config, folder) if held(folder / TRIAL_FOLDERS) or not goes_on else None
        if found is None or last == (now := [goes_on, len(found.rounds)]):
            return False
        so_far = SoFar(f"all runs after round {found.rounds[-1]:,} of {config.run.rounds:,}", goes_on)
        write_page(folder / PAGE, found, {}, title=config.title, so_far=so_far)
        last[:] = now
        return True

    return written_meanwhile(write)


def show_sweep(config: Config, folder: Path, as_json: bool) -> None:
    """What `fedsolve show` prints of a sweep, finished or not."""
    assert config.sweep is not None
    if (folder / SUMMARY).exists():
        found = load(folder)
        imports = would_import(config)  # which showing it does not do
        command = ""
        if not all_diverged(found):
            best = found.best_settings
            command = command_as_written(config, best) if imports else prepare_sweep(config).command(best)
        print_sweep(folder, found, command, as_json, imports_document(config))
        if imports and not as_json:
            emit("\n".join(imports_lines(config)))
        return
    standing = "running" if held(folder / TRIAL_FOLDERS) else "unfinished"
    if as_json:
        facts: dict[str, Any] = {"status": standing, "folder": str(folder), "task": config.task}
        facts |= {"label": config.method[0].shown, "rounds": config.run.rounds, "files": {}}
        emit_json(facts | imports_document(config))
        return
    lines = [f"{config.method[0].shown}: {standing} sweep"]
    lines += [how_to_resume("sweep", folder)] if standing == "unfinished" else []
    if (so_far := sweep_so_far(config, folder)) is not None:
        emit_rich(setting_table(so_far).rich())
        lines[0] += f", all runs after round {so_far.rounds[-1]:,} of {config.run.rounds:,}"
    emit("\n".join(lines + imports_lines(config)))


def _document(folder: Path, found: SweepRecord, command: str) -> dict[str, Any]:
    """A finished sweep as plain data."""
    facts = summary(found)
    best = facts.pop("best")
    failure = all_diverged(found)
    return {
        "status": "diverged" if failure else "finished",
        "folder": str(folder),
        **{name: facts[name] for name in ("task", "label", "grid", "seeds", "selection")},
        "rounds": int(found.rounds[-1]),
        "best": None if best is None else best | {"command": command},
        "share_within_5_percent": facts["share_within_5_percent"],
        "ranking": setting_rows(found),
        "trials": facts["lanes"],
        "trials_diverged": facts["lanes_diverged"],
        "seconds": facts["seconds"],
        "notes": facts["notes"],
        "error": failure,
        "files": _files(folder),
    }


def all_diverged(found: SweepRecord) -> str | None:
    """What to say if all settings diverged; None if not."""
    try:
        found.best  # noqa: B018
    except Diverged as error:
        return str(error)
    return None


def _files(folder: Path) -> dict[str, str]:
    """The page, tables and plots that a folder has, by what they are."""
    names = {"page": PAGE, "trials": TRIALS, "curves": CURVES, "summary": SUMMARY}
    found = {kind: folder / name for kind, name in names.items()}
    found |= {path.stem: path for path in sorted(folder.glob("*.png"))}
    return {kind: str(path) for kind, path in found.items() if path.exists()}


# Progress of a sweep, on standard error: a bar on a terminal, short plain lines elsewhere.


class SweepLines(Lines):
    """Progress of a sweep as plain lines."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._start: tuple[float, int] | None = None
        self._estimated = False
        self._noted: set[str] = set()

    def __enter__(self) -> Self:
        self.begin(self.label)
        return self

    def __call__(self, progress: SweepProgress) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The sweep has come further."""
        if self.last is None:
            self.counted(progress)
        moved = self.last is not None and progress.done > self.last.done
        self.last = progress
        for note in progress.notes:
            if note not in self._noted:
                self._noted.add(note)
                self.remark(f"note: {note}")
        if moved:
            if self._start is None:  # what went before held compilation
                self._start = time.monotonic(), progress.done
            self.advance(progress)

    def where(self) -> str:
        """Rounds of trials done of all, in words."""
        if self.last is None:
            return "no round"
        return f"{self.last.done:,} of {self.last.total:,} rounds of all trials"

    def counted(self, progress: SweepProgress) -> None:
        """It is known how much there is to do: the rounds are compiled."""
        self.compiling(self.label)

    def remark(self, text: str) -> None:
        """Something to be known of the sweep."""
        say(text)

    def advance(self, progress: SweepProgress) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Show how far it is; as soon as it is known, how long it takes."""
        left = self._left(progress)
        first = bool(left) and not self._estimated
        if first or time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed, self._estimated = time.monotonic(), bool(left)
            self.note(self.label, f"{self.where()}, {self.standing(progress)}")

    def standing(self, progress: SweepProgress) -> str:
        """Trials that diverged, and the time left."""
        return ", ".join(filter(None, (f"{progress.diverged} diverged", self._left(progress))))

    def _left(self, progress: SweepProgress) -> str:
        begun, before = self._start or (0.0, progress.done)
        spent = time.monotonic() - begun
        if progress.done <= before or spent < SECONDS_OF_ESTIMATE:
            return ""
        rate = (progress.done - before) / spent
        return f"about {duration((progress.total - progress.done) / rate)} left"


class SweepBar(SweepLines):
    """One bar."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        from rich.progress import TextColumn

        count = TextColumn("{task.completed:,.0f}/{task.total:,.0f} rounds of all trials", markup=False)
        self._bars = rich_progress(30, count)
        self._bar = self._bars.add_task(visible(label), total=1, note="")

    def __enter__(self) -> Self:
        self._bars.start()
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()

    def counted(self, progress: SweepProgress) -> None:
        """See `SweepLines`."""
        super().counted(progress)
        self._bars.update(self._bar, completed=progress.done, total=progress.total)

    def remark(self, text: str) -> None:
        """See `SweepLines`."""
        self._bars.console.print(visible(text), markup=False, highlight=False)

    def note(self, label: str, text: str) -> None:
        """See `Lines`."""
        self._bars.update(self._bar, note=visible(text))

    def advance(self, progress: SweepProgress) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See `SweepLines`."""
        self.note(self.label, self.standing(progress))
        self._bars.update(self._bar, completed=progress.done, total=progress.total)


def open_sweep_display(label: str) -> SweepLines:
    """What shows the progress of a sweep."""
    return SweepBar(label) if has_bars() else SweepLines(label)
