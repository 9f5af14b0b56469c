"""Compiled programs in the user's cache folder: what one process compiled, the next one loads."""

from __future__ import annotations

import functools
import os
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import jax

CACHE_VARIABLE = "FEDSOLVE_CACHE"
"""`off` keeps no compiled programs; a folder keeps them there."""
_FOLDER_OF_JAX = "JAX_COMPILATION_CACHE_DIR"
_SECONDS_OF_JAX = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
_MOST_BYTES = 2**30
_SHORTEST = 0.0  # seconds: a start has dozens of single operations, each loaded faster than it is compiled
_CHECKED = ".checked"  # its time: entries that are not newer have been read
_ZLIB = b"\x78"


@functools.cache
def use_compile_cache() -> Path | None:
    """Let JAX keep the programs that it compiles from here on; once a process.

    The folder is `~/.cache/fedsolve/jax`, or what `FEDSOLVE_CACHE` names. JAX's own settings stand: a folder that it
    has been given already, or `jax_enable_compilation_cache`.

    Returns:
        The folder that JAX uses, None where nothing is kept.
    """
    if not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    if given := jax.config.jax_compilation_cache_dir:  # pyright: ignore[reportAttributeAccessIssue]
        return Path(given)
    folder = None if os.environ.get(CACHE_VARIABLE, "").lower() == "off" else _writable_folder()
    if folder is None:
        return None
    tidy(folder)
    # an entry that another process is writing is compiled here too
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if _SECONDS_OF_JAX not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST)
    return folder


def tidy(folder: Path, most_bytes: int = _MOST_BYTES) -> None:
    """Remove entries that are damaged, and those not used for longest once all have more than `most_bytes`.

    Only entries that are newer than the last call are read. A process that was killed leaves a damaged entry, which JAX
    would neither load nor replace. Other processes may use the folder meanwhile: they compile what is gone.

    Args:
        folder: of JAX's entries.
        most_bytes: of all entries; the most recently used ones that have three quarters of it stay.
    """
    stamp, now = folder / _CHECKED, time.time()
    since = stamp.stat().st_mtime if stamp.exists() else 0.0
    entries = []
    for path, facts in _entries(folder):
        if facts.st_mtime >= since and not _is_whole(path):
            path.unlink(missing_ok=True)
        else:
            entries.append((max(facts.st_atime, facts.st_mtime), facts.st_size, path))
    stamp.touch()
    os.utime(stamp, (now, now))
    left = sum(size for _, size, _ in entries)
    if left <= most_bytes:
        return
    for _, size, path in sorted(entries):
        if left <= 0.75 * most_bytes:
            return
        path.unlink(missing_ok=True)
        left -= size


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Files of compiled programs; those that another process removes meanwhile are left out."""
    for path in folder.glob("*-cache"):
        try:
            yield path, path.stat()
        except OSError:
            continue


def _is_whole(path: Path) -> bool:
    """Whether an entry can be decompressed; one that JAX did not compress by zlib is taken as it is."""
    try:
        data = path.read_bytes()
        if data[:1] in (b"", _ZLIB):
            zlib.decompress(data)
    except (OSError, zlib.error):
        return False
    return True


def _writable_folder() -> Path | None:
    """The folder for compiled programs, the user's alone; None where it cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        given = os.environ.get(CACHE_VARIABLE)
        folder = (
            Path(given) if given else (Path(base) if base else Path.home() / ".cache") / "fedsolve" / "jax"
        )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None
