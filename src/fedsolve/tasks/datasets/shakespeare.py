"""Shakespeare's plays by role from the JSON files that LEAF's own script makes: lines from their windows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.datasets.originals import refuse, unzipped, write_noted
from fedsolve.tasks.text.shakespeare import LEAF

_MOST = 1 << 31
_WINDOW = 80


def convert(folder: Path, to: Path) -> list[Path]:
    """`all_data/*.json` of LEAF, each with users and their x (80 characters) and y (the next one), as a line a role.

    LEAF has a sample for each character of a line, behind 80 blanks: the ys between two such windows are a line.
    """
    paths = sorted((folder / "all_data").glob("*.json"))
    if not paths:
        raise InvalidInput(
            f"{folder} lacks all_data/*.json: give the folder data/shakespeare/data of LEAF, after its preprocess.sh"
        )
    roles = sorted(role for path in paths for role in _roles(path))
    lines = [json.dumps({"play": "LEAF", "role": name, "speeches": said}) for name, said in roles]
    return [write_noted(to / LEAF, gzip.compress("\n".join(lines).encode(), mtime=0), "")]


def _roles(path: Path) -> list[tuple[str, list[str]]]:
    """Name and lines of each user of a file."""
    try:
        table = json.loads(unzipped(path, _MOST))
        users = [(str(name), list(d["x"]), list(d["y"])) for name, d in table["user_data"].items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"{path} is not LEAF's JSON ({type(error).__name__}): make it again") from None
    roles = []
    for name, x, y in users:
        at = f"its user {name}"
        refuse(len(x) != len(y) or not x, path, f"{at} has {len(x)} windows and {len(y)} next characters")
        strings = all(isinstance(a, str) and isinstance(b, str) for a, b in zip(x, y, strict=True))
        whole = strings and all(len(a) == _WINDOW and len(b) == 1 for a, b in zip(x, y, strict=True))
        refuse(not whole, path, f"{at} has samples that are not {_WINDOW} characters and one")
        lines: list[str] = []
        for i, (window, character) in enumerate(zip(x, y, strict=True)):
            if not i or window != x[i - 1][1:] + y[i - 1]:
                refuse(bool(window.strip(" ")), path, f"{at} has windows that do not follow one another")
                lines.append("")
            lines[-1] += character
        roles.append((name, [line.rstrip("\n") for line in lines if line.strip()]))
    return roles
