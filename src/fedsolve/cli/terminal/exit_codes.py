"""How the command line says that it failed: one line on standard error, and a document where one was asked for."""

from __future__ import annotations

from typing import Any

from fedsolve.cli.terminal.console import emit_json, say

_LONGEST = 2000  # characters of an error
_RENAMED = {"--lanes": "--parallel-trials"}


def out_of_memory(error: Exception) -> str:
    """What did not fit, and what takes less."""
    what = str(error).partition("RESOURCE_EXHAUSTED:")[2] or str(error)
    remedy = "take a smaller --chunk, --parallel-trials, --batch-size or task"
    return f"not enough memory: {what.strip().rstrip('.')}: {remedy}"


def usage(error: Any) -> str:
    """What click says of wrong arguments, on one line."""
    context = getattr(error, "ctx", None)
    text, *hints = error.format_message().split(" Did you mean", 1)
    text += "".join(f" Did you mean{hint.split('?')[0]}?" for hint in hints)
    former = next((old for old in _RENAMED if f"option: {old}" in text), None)
    if former is not None:
        text = f"{former} is called {_RENAMED[former]} now"
    command = context.command_path if context is not None else "fedsolve"
    return f"{text.rstrip('.')} (see `{command} --help`)"


def fail(message: str, code: int, as_json: bool) -> int:
    """Say one line on standard error, and the same as a document where one was asked for."""
    line = " ".join(message.split())
    if len(line) > _LONGEST:  # a value of thousands of characters
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    say(f"error: {line}")
    if as_json:
        status = {3: "diverged", 130: "interrupted"}.get(code, "error")
        emit_json({"status": status, "exit_code": code, "error": line})
    return code
