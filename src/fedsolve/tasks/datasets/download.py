"""Fetching one file: with a limit on its size, checked, resumed where it stopped, and never half under its name."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from fedsolve.core.errors import InvalidInput

_BLOCK = 1 << 20
SECONDS = 30.0
"""How long a server may be silent."""
Report = Callable[[int, int | None], None]
"""Told the bytes so far and in all (None if the server does not say)."""


def fetch(
    url: str, path: Path, most: int, sha256: str | None = None, report: Report = lambda done, total: None
) -> Path:
    """Fetch a file, unless it is there; what came before an interruption is kept beside it and continued.

    Args:
        url: http, https or file.
        path: where it goes.
        most: bytes it may have at most.
        sha256: its check sum; None if none is known.
        report: called as it comes.

    Raises:
        InvalidInput: it cannot be had, is larger than it may be, ends early or has another check sum.
    """
    if path.is_file():
        _check(path, url, sha256)
        return path
    part = path.with_name(f"{path.name}.part")
    try:
        total = _append(url, part, most, report)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # what is there is no beginning of the file
            part.unlink(missing_ok=True)
        raise _failed(url, part, f"the server says {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _failed(url, part, str(error.reason)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise _failed(url, part, getattr(error, "strerror", None) or str(error) or "no answer") from None
    size = part.stat().st_size
    if total is not None and size < total:
        raise _failed(url, part, f"it ended after {size} of {total} bytes")
    try:
        _check(part, url, sha256)
    except InvalidInput:
        part.unlink()
        raise
    os.replace(part, path)
    return path


def _append(url: str, part: Path, most: int, report: Report) -> int | None:
    """Fetch what is missing of a file; its whole size, if the server says."""
    have = part.stat().st_size if part.is_file() and url.startswith("http") else 0
    headers = {"User-Agent": "fedsolve"} | ({"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SECONDS) as answer:
        if have and answer.status != 206:  # a server that always sends the whole file
            have = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        part.parent.mkdir(parents=True, exist_ok=True)  # once there is something to put there
        with open(part, "ab" if have else "wb") as file:
            done = have
            while block := answer.read(_BLOCK):
                done += len(block)
                if done > most:
                    file.close()
                    part.unlink()
                    raise InvalidInput(
                        f"{url} is larger than the {most} bytes it may have: it is not the file"
                    )
                file.write(block)
                report(done, total)
            file.flush()
            os.fsync(file.fileno())
    return total


def _check(path: Path, url: str, sha256: str | None) -> None:
    if sha256 is None:
        return
    with open(path, "rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        raise InvalidInput(
            f"{path} from {url} has SHA-256 {actual[:12]}, expected {sha256[:12]}: another version or damaged; "
            "remove it and fetch it again, or give the original files with --from"
        )


def _failed(url: str, part: Path, reason: str) -> InvalidInput:
    size = part.stat().st_size if part.is_file() else 0
    again = f"the {size} bytes so far are kept, the same command goes on" if size else "try again"
    return InvalidInput(
        f"cannot fetch {url}: {reason}; {again}, or fetch it elsewhere and give its folder with --from"
    )
