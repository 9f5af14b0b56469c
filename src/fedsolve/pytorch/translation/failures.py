"""What is wrong with a user's module, in one line: which line of its code, and what to write instead."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import NamedTuple

import torch

from fedsolve.core.loss_checks import first_line

_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)\n\s+(?P<code>.+)')
_NOT_THEIRS = "<", str(Path(torch.__file__).parent), str(Path(__file__).parents[2])


class _Place(NamedTuple):
    file: str
    line: str
    code: str


def where(stack: str | None) -> str:
    """` at file:line, code` of the innermost frame of a printed stack that is the user's, or nothing."""
    frames = list(_LINE.finditer(stack or ""))
    start = next((i for i, m in enumerate(frames) if m["name"] == "forward"), 0)  # before it: who calls us
    return _last([_Place(m["file"], m["line"], m["code"]) for m in frames[start:]])


def where_raised(error: BaseException) -> str:
    """The same of an exception: of the stack that it quotes, else of its own."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    return where(str(error)) or _last([_Place(f.filename, str(f.lineno), f.line or "") for f in frames])


def why_not_exported(error: Exception) -> str:
    """What `torch.export` says of a module, or what the module itself raises."""
    text, at = str(error), where_raised(error)
    if type(error).__name__ == "DynamicOutputShapeException":
        return f"the size of what {text} gives depends on the values of tensors{at}: use torch.where"
    if "data-dependent" in text:
        return f"what it does depends on the values of tensors{at}: use torch.where"
    if "specialized it to be a constant" in text:
        return f"it works for batches of one size alone{where(text)}: take sizes from x.shape[0] (not len(x)), or -1"
    return f"{first_line(error)}{at}"


def _last(places: list[_Place]) -> str:
    theirs = [p for p in places if not p.file.startswith(_NOT_THEIRS)]
    return f" at {theirs[-1].file}:{theirs[-1].line}, `{theirs[-1].code.strip()}`" if theirs else ""
