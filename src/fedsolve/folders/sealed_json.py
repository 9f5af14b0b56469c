"""A checksum in a JSON file's first line, of the file and of files beside it: no byte of them changes unseen.

The file is JSON as before, with two entries more: `checksum`, the CRC-32 of the whole text with eight zeros in its own
place, and `files`, those of the files beside it by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.sealed_arrays import checksum
from fedsolve.folders.untrusted import loads, read_bytes

LARGEST = 2**30
"""Bytes that a record has at most."""
_NONE = "0" * 8
_HEAD = re.compile(rb'\{"checksum": "([0-9a-f]{8})", "files": (\{[^{}]*\}),')


def sealed(text: str, files: Mapping[str, bytes] | None = None) -> str:
    """JSON text of a table with its checksum, and those of files beside it.

    >>> sealed('{"a": 1}')
    '{"checksum": "ea6c4a35", "files": {},"a": 1}'
    """
    others = {name: checksum(content) for name, content in (files or {}).items()}
    head = f'{{"checksum": "{_NONE}", "files": {json.dumps(others)},'
    open_ = head + text.removeprefix("{")
    return open_.replace(_NONE, checksum(open_.encode()), 1)


def unsealed(where: object, content: bytes) -> tuple[str, dict[str, str] | None]:
    """The text that `sealed` was given, and the checksums of the files beside it; None for a text without a checksum.

    Raises:
        InvalidInput: a byte is not what was written, or it is no text; `where` it stands is named.
    """
    head = _HEAD.match(content)
    try:
        if head is None:
            return content.decode(), None
        unsealed_bytes = content[: head.start(1)] + _NONE.encode() + content[head.end(1) :]
        if checksum(unsealed_bytes) != head[1].decode():
            raise damaged(
                where, "it is not what was written; if you have changed it, remove its checksum and files"
            )
        return "{" + content[head.end() :].decode(), json.loads(head[2])
    except UnicodeDecodeError as error:
        raise damaged(where, str(error)) from None


def unsealed_values(where: object, content: bytes) -> tuple[Any, dict[str, str] | None]:
    """The values of the text that `sealed` was given, and what `unsealed` says of the files beside it.

    Raises:
        InvalidInput: a byte is not what was written, or it is no text; `where` it stands is named.
        ValueError: it is no JSON.
    """
    text, files = unsealed(where, content)
    data = loads(text)
    if isinstance(data, dict) and not {"checksum", "files"}.isdisjoint(data):  # read as if without a checksum
        raise damaged(where, "its checksum is not what was written")
    return data, files


def check_file(path: Path, files: Mapping[str, str] | None) -> bytes:
    """The content of a file beside a sealed one, compared with the checksum that is given there, if one is.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not what was written.
    """
    content = read_bytes(path, LARGEST, follow=False)
    if files is not None and path.name in files and checksum(content) != files[path.name]:
        raise ValueError("it is not what was written")
    return content


def damaged(where: object, what: str) -> InvalidInput:
    """An error for a file of a result."""
    return InvalidInput(f"{where} is damaged ({what}): restore a copy")


def without_checksum(names: list[str]) -> str:
    """What is noted of files that were written before there were checksums; "" for none."""
    if not names:
        return ""
    have = "have no checksum" if len(names) > 1 else "has no checksum"
    return (
        f"{' and '.join(names)} {have}, as fedsolve wrote them before it had these: damage would not be seen"
    )
