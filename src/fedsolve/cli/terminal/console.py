"""What is printed: results to standard output, everything else to standard error, each in one place."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import unicodedata
from typing import Any

_WIDE = 200  # columns where no terminal sets a limit


def visible(text: str) -> str:
    r"""Text as it is shown: of what files of others say, nothing moves the cursor, hides words or turns them round.

    >>> print(visible("FedAvg\x1b[8m on digits"))
    FedAvg\x1b[8m on digits
    """
    return "".join(c if c in "\n\t" or not _is_control(c) else ascii(c)[1:-1] for c in text)


def _is_control(character: str) -> bool:
    """Whether a character is none that one sees: Unicode's controls, formats, halves and separators of lines."""
    kind = unicodedata.category(character)
    return kind.startswith("C") or kind in ("Zl", "Zp")


def emit(text: str) -> None:
    """Print a result. A reader that has gone away (as `| head`) is no error."""
    _write(visible(text))


def _write(text: str) -> None:
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit_json(document: dict[str, Any] | list[Any]) -> None:
    """Print a JSON document as the result; non-finite numbers are strings."""
    from fedsolve.results.columns import dumps

    emit(dumps(document, indent=2))


def emit_rich(renderable: Any) -> None:
    """Print a rich table as the result: in colour on a terminal, else plain and not cut."""
    from rich.console import Console
    from rich.segment import Segment, Segments

    terminal = sys.stdout.isatty()
    buffer = io.StringIO()
    width = os.get_terminal_size(sys.stdout.fileno()).columns if terminal else _WIDE
    console = Console(file=buffer, force_terminal=terminal, width=width or None, highlight=False)
    seen = [Segment(visible(text), style) for text, style, _ in console.render(renderable)]
    console.print(Segments(seen), end="")
    lines = buffer.getvalue().splitlines()
    _write("\n".join(lines if terminal else [line.rstrip() for line in lines]))


def say(text: str) -> None:
    """A remark, on standard error."""
    with contextlib.suppress(OSError, ValueError):
        print(visible(text), file=sys.stderr, flush=True)
