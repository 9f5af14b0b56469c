"""What the command line prints: results to standard output, remarks and errors to standard error; help, completion."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_WIDE = 200  # columns where no terminal sets a limit
_LONGEST_ERROR = 2000  # characters of an error
_RENAMED = {"--lanes": "--parallel-trials"}


def visible(text: str) -> str:
    r"""Text as it is shown: of what files of others say, nothing moves the cursor, hides words or turns them round.

    >>> print(visible("FedAvg\x1b[8m on digits"))
    FedAvg\x1b[8m on digits
    """
    return "".join(c if c in "\n\t" or not _is_control(c) else ascii(c)[1:-1] for c in text)


def _is_control(character: str) -> bool:
    # what one does not see: Unicode's controls, formats, halves of pairs and separators of lines
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
            # else Python complains once more when it flushes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit_json(document: dict[str, Any] | list[Any]) -> None:
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
    # rendered first, cleaned then: rich's own styles are no text of others
    seen = [Segment(visible(text), style) for text, style, _ in console.render(renderable)]
    console.print(Segments(seen), end="")
    lines = buffer.getvalue().splitlines()
    _write("\n".join(lines if terminal else [line.rstrip() for line in lines]))


def emit_table(heads: Sequence[str], rows: Iterable[Sequence[Any]], unbroken: int = 1) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(heads))
    for number, head in enumerate(heads):
        whole = number < unbroken
        table.add_column(head, no_wrap=whole, overflow="ellipsis" if whole else "fold")
    for row in rows:
        table.add_row(*row)
    emit_rich(table)


def say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(visible(text), file=sys.stderr, flush=True)


def out_of_memory(error: Exception) -> str:
    what = str(error).partition("RESOURCE_EXHAUSTED:")[2] or str(error)
    remedy = "take a smaller --chunk, --parallel-trials, --batch-size or task"
    return f"not enough memory: {what.strip().rstrip('.')}: {remedy}"


def usage(error: Any) -> str:
    # what click says of wrong arguments, on one line
    context, possible = getattr(error, "ctx", None), getattr(error, "possibilities", None)
    option = "" if possible is None else error.option_name  # one that is not known
    if possible:  # click's include `--out` for `--gpu`
        near = difflib.get_close_matches(option.lstrip("-"), [p.lstrip("-") for p in possible], cutoff=0.5)
        error.possibilities = [p for p in possible if p.lstrip("-") in near]
    text, *hints = error.format_message().split(" Did you mean", 1)
    text += "".join(f" Did you mean{hint.split('?')[0]}?" for hint in hints)
    former = next((old for old in _RENAMED if f"option: {old}" in text), None)
    if former is not None:
        text = f"{former} is called {_RENAMED[former]} now"
    command = context.command_path if context is not None else "fedsolve"
    if context is not None and context.info_name == "run" and "extra argument" in text:
        text += ": several methods are for `fedsolve compare`"
    takes_settings = context is not None and any("--set" in p.opts for p in context.command.params)
    if takes_settings and option and former is None:
        text = _as_setting(option) or text
    return f"{text.rstrip('.')} (see `{command} --help`)"


_WORDS_OF_SETTINGS = frozenset({
    "lr", "learning", "momentum", "decay", "clip", "weight", "beta", "beta1", "beta2", "eps", "tau", "mu", "alpha",
    "gamma", "rho", "radius", "compressor", "constraint", "psi", "mirror", "epsilon", "delta", "clients", "model",
    "partition",
})  # fmt: skip


def _as_setting(option: str) -> str:
    # what to write where an unknown option names a setting of some method, or an option of some task; JAX is imported
    # only for one that has a word of such names
    name = option.lstrip("-").replace("-", "_")
    if not _WORDS_OF_SETTINGS & set(name.split("_")):
        return ""
    from fedsolve.config.build import arguments, wrapper_arguments
    from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS
    from fedsolve.tasks.catalogue import TASKS

    name = "client_lr" if name in ("lr", "learning_rate") else name
    settings = [arguments(method) for method in ALGORITHMS] + [
        wrapper_arguments(w) for w in WRAPPERS.values()
    ]
    if any(name in known for known in settings):
        return f"{option} is a setting of the method: give --set {name}=VALUE"
    if any(name in inspect.signature(task.builder).parameters for task in TASKS.values()):
        return f"{option} is an option of the task: give --task-set {name}=VALUE"
    return ""


def fail(message: str, code: int, as_json: bool) -> int:
    line = " ".join(message.split())
    if len(line) > _LONGEST_ERROR:  # a value of thousands of characters
        line = f"{line[: _LONGEST_ERROR // 2]} ... {line[-_LONGEST_ERROR // 2 :]}"
    say(f"error: {line}")
    if as_json:
        status = {3: "diverged", 130: "interrupted"}.get(code, "error")
        emit_json({"status": status, "exit_code": code, "error": line})
    return code


# How help is written, and which names a shell completes.
#
# Names come from the catalogues themselves; those of methods and tasks wait for JAX, about a second, options do not.


EPILOG = (
    "Exit codes: 0 success; 1 internal error; 2 invalid input (nothing is lost); "
    "3 diverged; 4 the run of a federation failed; 130 interrupted (the last line has the resume command)."
)
"""What every command's help ends with."""
_HELP = {"help_option_names": ["-h", "--help"]}


class App(typer.Typer):
    """Commands whose help is plain text, ends with the exit codes, and is also asked for by `-h`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, context_settings=_HELP, rich_markup_mode=None, epilog=EPILOG, **options)

    def command(self, name: str | None = None, **options: Any) -> Any:
        # settings of its own: whoever parses a command alone has `-h` too
        settings = _HELP | options.pop("context_settings", {})
        return super().command(
            name, context_settings=settings, **{"cls": _Command, "epilog": EPILOG, **options}
        )


class _Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))


class _Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))


def _plain(text: str) -> str:
    # Typer escapes the brackets of `[required]` for rich wherever it is installed, also where it prints
    # plainly
    return text.replace("\\[", "[")


def complete_task(incomplete: str) -> list[str]:
    from fedsolve.tasks.catalogue import TASKS

    return _starting_with(incomplete, TASKS)


def complete_algorithm(incomplete: str) -> list[str]:
    # after `SCAFFOLD+` the methods that it can wrap
    from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS

    before, plus, last = incomplete.rpartition("+")
    names = [*ALGORITHMS, *(f"{name}+" for name in WRAPPERS)]
    if plus and before.split("+")[-1] in WRAPPERS:
        return [f"{before}+{name}" for name in _starting_with(last, names)]
    return _starting_with(incomplete, names)


def complete_experiment(incomplete: str) -> list[str]:
    from fedsolve.studies.reproduce import entries

    return _starting_with(incomplete, entries())


def complete_dataset(incomplete: str) -> list[str]:
    from fedsolve.tasks.datasets.download import DATASETS

    return _starting_with(incomplete, DATASETS)


def _starting_with(incomplete: str, names: Any) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
