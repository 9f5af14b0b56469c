"""What a command prints with `--json`, checked against its published schema."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))


@functools.cache
def schemas() -> dict[str, Any]:
    """Of every command, as `make generate` writes them."""
    import json_documents

    return json_documents.schemas()


@functools.cache
def _validator(command: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schemas()["commands"][command] | {"$defs": schemas()["$defs"]})


def document(arguments: Sequence[object], text: str) -> Any:
    """The one document that a command printed; `jsonschema.ValidationError` unless it fits the command's schema."""
    found = json.loads(text)
    _validator(" ".join(map(str, arguments[: 2 if arguments[0] == "federate" else 1]))).validate(found)
    return found
