"""`fedsolve list`: what there is, with one line on each and its paper."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedsolve.cli.console import emit_json, emit_rich
from fedsolve.cli.papers import short, title
from fedsolve.errors import unknown

KINDS = ("algorithms", "tasks", "partitions")


def list_command(kind: str, as_json: bool) -> None:
    """Print the catalogue of algorithms, tasks or partitions.

    Raises:
        InvalidInput: an unknown kind.
    """
    if kind not in KINDS:
        raise unknown("list", kind, KINDS)
    rows = {"algorithms": _algorithms, "tasks": _tasks, "partitions": _partitions}[kind]()
    if as_json:
        emit_json([row | {"paper": short(row["citation"]), "title": title(row["citation"])} for row in rows])
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("Name", "What it is", "Paper"):
        table.add_column(head, no_wrap=head == "Name")
    for row in rows:
        table.add_row(row["name"], row["summary"], short(row["citation"]))
    emit_rich(table)


def _algorithms() -> list[dict[str, Any]]:
    from fedsolve.algorithms.catalogue import ALGORITHMS, WRAPPERS
    from fedsolve.cli.values import resolve_settings

    rows = [
        {
            "name": name,
            "summary": entry.summary,
            "citation": entry.citation,
            "settings": resolve_settings(name, {}),
        }
        for name, entry in ALGORITHMS.items()
    ]
    for name, (_, own) in WRAPPERS.items():
        summary = f"{name} around any other method X, as {name}+FedAdam"
        rows.append(
            {
                "name": f"{name}+X",
                "summary": summary,
                "citation": ALGORITHMS[name].citation,
                "settings": own,
            }
        )
    return rows


def _tasks() -> list[dict[str, Any]]:
    from fedsolve.cli.prepare import task_defaults
    from fedsolve.tasks.catalogue import TASKS

    return [
        {
            "name": name,
            "summary": entry.summary,
            "citation": entry.citation,
            "options": task_defaults(name),
        }
        for name, entry in TASKS.items()
    ]


def _partitions() -> list[dict[str, Any]]:
    from fedsolve.data.partitions import PARTITIONS

    return [
        {
            "name": name,
            "summary": cls.summary,
            "citation": cls.citation,
            "parameters": [f.name for f in dataclasses.fields(cls)],  # type: ignore[arg-type]
        }
        for name, cls in PARTITIONS.items()
    ]
