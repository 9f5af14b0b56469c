"""What an experiment is and what it finds: claims with verdicts, tables, pictures, deviations."""

from __future__ import annotations

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedsolve.config.references import is_reference
from fedsolve.core.errors import InvalidInput, shown
from fedsolve.folders.files import write_atomically
from fedsolve.folders.sealed import LARGEST
from fedsolve.folders.untrusted import MALFORMED, npz_arrays, open_regular, read_bytes
from fedsolve.report.table import ResultTable
from fedsolve.results.columns import plain
from fedsolve.results.sweep import SENT, Selection, SweepRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedsolve.engine.compute.workers import Units

# The parts of an experiment: sweeps as arrays, a file each while it runs, one archive in a folder that is kept.

PARTS, ARCHIVE = "parts", "parts.zip"


def has_parts(folder: Path) -> bool:
    return (folder / PARTS).is_dir() or (folder / ARCHIVE).exists()


def read_part(folder: Path, name: str) -> dict[str, np.ndarray] | None:
    """The arrays of a part by the name of its file, None where there is none."""
    path = folder / PARTS / name
    source = path if path.exists() else folder / ARCHIVE
    try:
        if source == path:
            return npz_arrays(io.BytesIO(read_bytes(path, LARGEST, follow=False)))
        data = read_archive(source, source.stat().st_mtime_ns).get(name) if source.exists() else None
        return None if data is None else npz_arrays(io.BytesIO(data))
    except (OSError, EOFError, zipfile.BadZipFile, *MALFORMED) as error:
        raise InvalidInput(f"{source} is damaged: remove it to compute it again ({error})") from None


def write_part(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(folder / PARTS / name, buffer.getvalue())


@lru_cache(maxsize=2)
def read_archive(path: Path, changed: int) -> dict[str, bytes]:
    with open_regular(path, follow=False) as opened, zipfile.ZipFile(opened) as file:
        return {name: file.read(name) for name in file.namelist()}


def packed(sweep: SweepRecord) -> dict[str, np.ndarray]:
    metrics = {f"metric {name}": values for name, values in sweep.metrics.items()}
    sent = sweep.settings[SENT]
    bytes_sent = {} if sent is None else {SENT: np.asarray(sent)}
    return {"rounds": sweep.rounds, "diverged": sweep.diverged, **bytes_sent, **metrics}


def unpacked(
    part: Mapping[str, np.ndarray],
    label: str,
    axes: Mapping[str, tuple[Any, ...]],
    seeds: tuple[int, ...],
    select: Selection,
    task: str = "regression",
) -> SweepRecord:
    metrics = {k.removeprefix("metric "): v for k, v in part.items() if k.startswith("metric ")}
    bytes_sent = {SENT: int(part[SENT])} if SENT in part else {}
    return SweepRecord(
        label, task, axes, seeds, part["rounds"], metrics, part["diverged"], select, bytes_sent
    )


def joined(sweeps: Sequence[SweepRecord]) -> SweepRecord:
    """Sweeps of one grid with different seeds, as one."""
    first = sweeps[0]
    return replace(
        first,
        seeds=tuple(seed for s in sweeps for seed in s.seeds),
        metrics={k: np.concatenate([s.metrics[k] for s in sweeps], axis=1) for k in first.metrics},
        diverged=np.concatenate([s.diverged for s in sweeps], axis=1),
    )


def until(sweep: SweepRecord, rounds: int, select: Selection) -> SweepRecord:
    """The sweep as if it had ended after so many rounds."""
    count = int(np.searchsorted(sweep.rounds, rounds, side="right"))
    return replace(
        sweep,
        rounds=sweep.rounds[:count],
        metrics={k: v[..., :count] for k, v in sweep.metrics.items()},
        diverged=np.where(sweep.diverged <= rounds, sweep.diverged, -1),
        selection=select,
    )


def fixed(sweep: SweepRecord, **at: Any) -> SweepRecord:
    """The part of a sweep with these values of axes; an axis that it lacks changes nothing."""
    at = {axis: value for axis, value in at.items() if axis in sweep.grid}
    chosen = [i for i, point in enumerate(sweep.points) if all(point[a] == v for a, v in at.items())]
    return sweep.at_settings(chosen, {axis: values for axis, values in sweep.grid.items() if axis not in at})


def within(sweep: SweepRecord, grid: Mapping[str, tuple[Any, ...]]) -> SweepRecord:
    """The sweep as if it had run the settings of a smaller grid alone."""
    if missing := [axis for axis, values in grid.items() if not set(values) <= set(sweep.grid.get(axis, ()))]:
        raise InvalidInput(
            f"the grid of {sweep.label} that ran lacks values of {shown(missing)}: run its own"
        )
    smaller = replace(sweep, grid=dict(grid))
    return sweep.at_settings([sweep.points.index(point) for point in smaller.points], grid)


_SECONDS, _VERSION = "processor_seconds_that_it_took", "version_that_made_it"
_MADE_WITH = "made_with"
_HOLDS = "what_it_holds"  # the part's settings as JSON: axes with their values, seeds, options
_UNKNOWN = "an earlier commit, which was not kept"
_WALL_SECONDS = "seconds_that_it_took"  # of parts that were kept before processor time was: not comparable

Verdict = Literal[
    "reproduced", "consistent", "partly", "not reproduced", "refuted", "underpowered", "not learnt",
    "not the paper's problem",
]  # fmt: skip
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""In the order of tables. Consistent: a bound holds. Refuted: a claim on all cases has a counter-example inside its
assumptions. Underpowered: the effect lies below the noise. Not learnt: methods that
ended no better than they began were to be compared. Not the paper's problem: shown, no claim of the paper."""
OURS = "not in the paper: ours"
"""Of a statement that no paper makes: nothing is reproduced there, but confirmed or contradicted."""
_OF_OURS = {"reproduced": "confirmed", "not reproduced": "contradicted"}


@dataclass(frozen=True)
class Claim:
    """A claim, a paper's or one's own, beside what was measured."""

    claim: str  # what the paper says, in short
    # theirs, ours: numbers or facts, with units; theirs is `OURS` where no paper says it
    theirs: str
    ours: str
    # follows from `ours` by a rule in the experiment's code, never by hand; None in a quick run, whose numbers mean
    # nothing
    verdict: Verdict | None
    reason: str = ""  # why, where the verdict needs one
    # what may change the verdict, such as a winner at the edge of its grid; "" if nothing is known
    provisional: str = ""

    @property
    def own(self) -> bool:
        """Whether no paper says it."""
        return self.theirs == OURS

    @property
    def shown_verdict(self) -> str:
        """The verdict as it is shown: in a word of ours for ours, with whether it is provisional."""
        word = _OF_OURS.get(self.verdict or "", self.verdict or "") if self.own else self.verdict or ""
        return f"{word}{', provisional' if self.provisional else ''}"


@dataclass(frozen=True)
class Outcome:
    """What an experiment found.

    Attributes:
        claims: with verdicts.
        pictures: what draws each, by file name without ending: its caption and the figure. A verdict draws none.
        tables: tables by file name without ending (also written as CSV).
        deviations: where it departs from the paper, one sentence each.
        settings: what was run, as plain data.
    """

    claims: Sequence[Claim]
    pictures: Mapping[str, Callable[[], tuple[str, Figure]]]
    tables: Mapping[str, ResultTable]
    deviations: Sequence[str]
    settings: Mapping[str, Any]


def command(name: str) -> str:
    """The command that runs an experiment of the catalogue, or a study of one's own: `module:function` or a file.

    >>> command("lasso-1"), command("mine.toml")
    ('fedsolve reproduce lasso-1', 'fedsolve study mine.toml')
    """
    return f"fedsolve {'study' if is_users(name) else 'reproduce'} {name}"


def is_users(name: str) -> bool:
    """Whether a name is that of a user's own study: `module:function` or a file."""
    return is_reference(name) or name.endswith((".toml", ".py"))


@dataclass(frozen=True)
class Experiment:
    """One figure or table of a paper."""

    title: str  # the heading of its page
    citation: str  # key of the paper
    summary: str  # one line for `fedsolve list experiments`
    run: Callable[[Context], Outcome]  # does it
    minutes: float | None = None  # what the kept results took on 2 cores, None where that is not known
    needs_data: bool = False  # whether it reads the data folder
    cost: str = ""  # what the paper's size would take, where it has that too
    full: bool = False  # whether it has the paper's size beside one that two cores finish
    theory: str = ""  # as on its page, paragraphs with a blank line between them; "" for none


@dataclass(frozen=True)
class Context:
    """What an experiment is run with."""

    folder: Path  # where its results and finished parts go
    data_dir: Path | None = None  # the data folder, None for FEDSOLVE_DATA
    quick: bool = False  # a few rounds and settings, to see that it works; its numbers mean nothing
    full: bool = False  # the paper's size, of an experiment that has two
    stored_only: bool = False  # read what is kept and compute nothing, to evaluate its claims again
    # shows where it stands: (part, done, total)
    say: Callable[[str, int, int], None] = field(default=lambda part, done, total: None)
    units: Units | None = None  # what hands parts to workers, None to run them here
    # processor seconds that the parts which were kept had taken, NaN where that is not known
    earlier: list[float] = field(default_factory=list)
    # versions, commit and machine of each part that was read, as `records.identity` says them
    made_with: set[str] = field(default_factory=set)

    def part(
        self,
        name: str,
        settings: Mapping[str, Any],
        compute: Callable[[], Mapping[str, np.ndarray]],
        version: str = "",
    ) -> dict[str, np.ndarray]:
        """Arrays by name: of a part that was finished earlier with the same settings, or computed and kept."""
        # So an interrupted experiment goes on where it was, and a change of its settings starts anew. One that
        # another `version` made is computed anew, and still read for verdicts.
        text = json.dumps(plain({"part": name, "quick": self.quick, **settings}), sort_keys=True, default=str)
        file = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.npz"
        stored = read_part(self.folder, file)
        if stored is not None and (str(stored.pop(_VERSION, "")) == version or self.stored_only):
            self.say(f"{name} (kept)", 1, 1)
            for note in (_WALL_SECONDS, _HOLDS):
                stored.pop(note, None)
            self.earlier.append(float(stored.pop(_SECONDS, np.nan)))
            self.made_with.add(str(stored.pop(_MADE_WITH, _UNKNOWN)))
            return stored
        if self.stored_only:
            raise InvalidInput(f"{self.folder} keeps no part {name!r}: run the experiment into it first")
        arrays = {key: np.asarray(value) for key, value in noted(compute).items()}
        self.made_with.add(str(arrays[_MADE_WITH]))
        if self.units is not None:  # this process did not take them
            self.earlier.append(float(arrays[_SECONDS]))
        write_part(self.folder, file, arrays | {_VERSION: np.array(version), _HOLDS: np.array(text)})
        return arrays

    def progress(self, part: str) -> Callable[[int, int], None]:
        """`say` of one part."""
        return lambda done, total: self.say(part, done, total)


def noted(compute: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What a function computes, with the processor seconds that it took and what it was made with; it may have both."""
    from fedsolve.engine.identity import provenance

    begun, arrays = time.process_time(), compute()
    took, made = np.asarray(time.process_time() - begun), np.array(provenance())
    return {_SECONDS: took, _MADE_WITH: made, **arrays}
