"""A model card in Markdown with the YAML front matter of Hugging Face: how a model was trained, its metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedsolve.cli.export.weight_files import Exported
from fedsolve.core import __version__
from fedsolve.results.history import History
from fedsolve.results.metrics import describe
from fedsolve.results.record_files import FEDERATION

_DATA = {
    "clients": "Clients",
    "population": "Clients",
    "examples": "Training examples of all clients",
    "test_examples": "Held-out examples",
}
_HIDDEN = (
    "task",
    "sites",
    "experiment",
    "model",
    "label",
)  # known already, or of the clients and this run alone
_NO_METRICS = ("round", "seconds", "time")
_LONGEST = 400  # characters of a setting, such as a method with its options


def card_text(history: History, exported: Exported, file: str) -> str:
    """The card of a model.

    Args:
        history: the record of the run.
        exported: the model's file.
        file: its name, without a folder.

    Returns:
        Markdown that says nothing of the data but counts, without settings that may name a path.
    """
    label, task = _words(history.label), _words(history.task)
    last = {name: column[-1] for name, column in history.evaluations.items()}
    metrics = {name: value for name, value in last.items() if name not in _NO_METRICS}
    # noise follows from the seed
    hidden = (*_HIDDEN, *_DATA) if _epsilon(history) is None else (*_HIDDEN, "seed", *_DATA)
    given = {k: v for k, v in history.settings.items() if k not in hidden and v is not None}
    settings = {k: v for k, v in given.items() if not _may_be_path(v)}
    size = {"File": f"`{file}`", "Format": exported.kind, "Parameters": f"{exported.parameters:,}"}
    size |= {"Buffers": f"{exported.buffers:,}"} if exported.buffers else {}
    size |= {_title(name): value for name, value in exported.check.items()}
    data = {_DATA[k]: f"{v:,}" for k, v in history.settings.items() if k in _DATA and isinstance(v, int)}
    shown = {describe(name).label: value * describe(name).scale for name, value in metrics.items()}
    return "\n".join(
        [
            *_front_matter(label, exported, metrics),
            f"# {label} on {task}",
            f"\nTrained by federated learning: {last['round']:,} rounds of {label}.",
            f"Exported by [fedsolve](https://github.com/fedsolve/fedsolve) {__version__}.",
            "\n## Model\n",
            *_table(("", ""), size),
            f"\n```python\n{exported.use.format(file=file)}\n```",
            "\n## Method and settings\n",
            *_table(("setting", "value"), {"method": label, "rounds": last["round"], **settings}),
            "\n## Data\n",
            *_table(("", "number"), data),
            f"\n## Metrics after round {last['round']:,}\n",
            *_table(("metric", "value"), shown),
            "\n## Privacy\n",
            _privacy(history),
            "\n## Licence\n",
            "To be chosen by the owner of the model, here and as `license` in the first lines.\n",
        ]
    )


def _front_matter(label: str, exported: Exported, metrics: Iterable[str]) -> list[str]:
    """YAML between two lines of ---; texts are quoted as in JSON, which YAML reads."""
    tags = ["federated-learning", re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")]
    kinds = dict.fromkeys(name.rpartition("_")[2] for name in metrics if name.startswith(("test_", "train_")))
    return [
        "---",
        "license:  # to be chosen by the owner of the model",
        f"library_name: {json.dumps(exported.library)}",
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in tags if tag),
        "metrics:",
        *(f"- {json.dumps(kind)}" for kind in kinds if kind in ("accuracy", "loss")),
        "---\n",
    ]


def _epsilon(history: History) -> float | None:
    """The privacy spent in all rounds, None if there is no account of it."""
    spent = np.asarray(history.rounds.get("epsilon", ()), float)
    return None if not len(spent) or np.isnan(spent).all() else float(np.nanmax(spent))


def _privacy(history: History) -> str:
    spent = _epsilon(history)
    if spent is None:
        return "No epsilon was recorded: the training promised no differential privacy."
    text = (
        f"epsilon = {spent:.4g} after all rounds, at the method's delta. It does not cover the metrics above."
    )
    if history.task == FEDERATION:
        return text
    return f"{text} In a simulation the noise follows from the seed: epsilon is that of the same run on a federation."


def _table(head: tuple[str, str], rows: Mapping[str, Any]) -> list[str]:
    if not rows:
        return ["Not recorded."]
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return [f"| {head[0]} | {head[1]} |", "|---|---|", *lines]


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return _words(str(value)).replace("|", "\\|")


def _words(text: str) -> str:
    """A text on one line, cut where it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _may_be_path(value: Any) -> bool:
    return isinstance(value, str) and ("/" in value or "\\" in value)


def _title(name: str) -> str:
    return name[0].upper() + name[1:].replace("_", " ")
