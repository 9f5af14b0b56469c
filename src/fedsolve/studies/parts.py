"""The parts of an experiment: sweeps as arrays, a file each while it runs, one archive in a folder that is kept."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.folders.files import write_atomically
from fedsolve.folders.sealed import LARGEST
from fedsolve.folders.untrusted import MALFORMED, npz_arrays, open_regular, read_bytes
from fedsolve.results.sweep import SENT, Selection, SweepRecord

PARTS, ARCHIVE = "parts", "parts.zip"
_ALIKE = (1980, 1, 1, 0, 0, 0)  # equal parts make equal archives


def has_parts(folder: Path) -> bool:
    """Whether a folder has parts."""
    return (folder / PARTS).is_dir() or (folder / ARCHIVE).exists()


def read_part(folder: Path, name: str) -> dict[str, np.ndarray] | None:
    """The arrays of a part by the name of its file, None where there is none.

    Raises:
        InvalidInput: its file, or the archive, is damaged.
    """
    path = folder / PARTS / name
    source = path if path.exists() else folder / ARCHIVE
    try:
        if source == path:
            return npz_arrays(io.BytesIO(read_bytes(path, LARGEST, follow=False)))
        data = _archive(source, source.stat().st_mtime_ns).get(name) if source.exists() else None
        return None if data is None else npz_arrays(io.BytesIO(data))
    except (OSError, EOFError, zipfile.BadZipFile, *MALFORMED) as error:
        raise InvalidInput(f"{source} is damaged: remove it to compute it again ({error})") from None


def write_part(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> None:
    """Keep a part."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(folder / PARTS / name, buffer.getvalue())


def pack(folder: Path) -> Path:
    """Put all parts of a folder into its archive; their files go.

    Raises:
        InvalidInput: there are none, or the folder cannot be written.
    """
    files = sorted((folder / PARTS).glob("*.npz"))
    if not files:
        raise InvalidInput(f"{folder / PARTS} holds no parts: run the experiment into {folder} first")
    archive = folder / ARCHIVE
    parts = dict(_archive(archive, archive.stat().st_mtime_ns)) if archive.exists() else {}
    parts |= {file.name: read_bytes(file, LARGEST, follow=False) for file in files}
    buffer = io.BytesIO()
    # parts are archives themselves: stored as they are, the last of them would be found in an archive cut short
    with zipfile.ZipFile(buffer, "w") as new:
        for name, data in sorted(parts.items()):
            new.writestr(zipfile.ZipInfo(name, _ALIKE), data, zipfile.ZIP_DEFLATED)
    write_atomically(archive, buffer.getvalue())
    for file in files:
        file.unlink()
    (folder / PARTS).rmdir()
    return archive


@lru_cache(maxsize=2)
def _archive(path: Path, changed: int) -> dict[str, bytes]:
    with open_regular(path, follow=False) as opened, zipfile.ZipFile(opened) as file:
        return {name: file.read(name) for name in file.namelist()}


def packed(sweep: SweepRecord) -> dict[str, np.ndarray]:
    """What is kept of a sweep, as arrays by name."""
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
    """The record of what `packed` kept."""
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
    return replace(
        sweep,
        grid={axis: values for axis, values in sweep.grid.items() if axis not in at},
        metrics={k: v[chosen] for k, v in sweep.metrics.items()},
        diverged=sweep.diverged[chosen],
    )


def within(sweep: SweepRecord, grid: Mapping[str, tuple[Any, ...]]) -> SweepRecord:
    """The sweep as if it had run the settings of a smaller grid alone.

    Raises:
        InvalidInput: it has not run them all.
    """
    if missing := [axis for axis, values in grid.items() if not set(values) <= set(sweep.grid.get(axis, ()))]:
        raise InvalidInput(
            f"the grid of {sweep.label} that ran lacks values of {shown(missing)}: run its own"
        )
    smaller = replace(sweep, grid=dict(grid))
    chosen = [sweep.points.index(point) for point in smaller.points]
    return replace(
        smaller, metrics={k: v[chosen] for k, v in sweep.metrics.items()}, diverged=sweep.diverged[chosen]
    )
