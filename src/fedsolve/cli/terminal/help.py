"""How help is written, and which names a shell completes.

Names come from the catalogues themselves; those of methods and tasks wait for JAX, about a second, options do not.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

EPILOG = (
    "Exit codes: 0 success; 1 a bug in fedsolve; 2 bad input (one line says what; nothing is lost); "
    "3 diverged; 4 too few clients in a federation; 130 interrupted (the last line says how to resume)."
)
"""What every command's help ends with."""


class App(typer.Typer):
    """Commands whose help is plain text, ends with the exit codes, and is also asked for by `-h`."""

    def __init__(self, **options: Any) -> None:
        names = {"help_option_names": ["-h", "--help"]}
        super().__init__(cls=_Group, context_settings=names, rich_markup_mode=None, epilog=EPILOG, **options)

    def command(self, name: str | None = None, **options: Any) -> Any:
        """See `typer.Typer.command`."""
        return super().command(name, **{"cls": _Command, "epilog": EPILOG, **options})


class _Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))


class _Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))


def _plain(text: str) -> str:
    """Typer escapes the brackets of `[required]` for rich wherever rich is installed, also where it prints plainly."""
    return text.replace("\\[", "[")


def complete_task(incomplete: str) -> list[str]:
    """The tasks that begin so."""
    from fedsolve.tasks.catalogue import TASKS

    return _begin(incomplete, TASKS)


def complete_algorithm(incomplete: str) -> list[str]:
    """The methods that begin so; after `SCAFFOLD+` those that it can wrap."""
    from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS

    before, plus, last = incomplete.rpartition("+")
    names = [*ALGORITHMS, *(f"{name}+" for name in WRAPPERS)]
    if plus and before.split("+")[-1] in WRAPPERS:
        return [f"{before}+{name}" for name in _begin(last, names)]
    return _begin(incomplete, names)


def complete_experiment(incomplete: str) -> list[str]:
    """The experiments that begin so."""
    from fedsolve.studies.reproduce import entries

    return _begin(incomplete, entries())


def complete_dataset(incomplete: str) -> list[str]:
    """The data sets that begin so."""
    from fedsolve.tasks.datasets.download import DATASETS

    return _begin(incomplete, DATASETS)


def _begin(incomplete: str, names: Any) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
