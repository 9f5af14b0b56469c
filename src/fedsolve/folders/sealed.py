"""Arrays by name and a JSON manifest in one safetensors file, no byte of which can change unseen.

Every tensor has a checksum in the header and the header has a seal of its own: CRC-32, which finds every single flipped
bit and every burst of up to 32. Any other program reads the file as safetensors; the checksums are its metadata.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import deserialize

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import replace_atomically
from fedsolve.folders.logs import bytes_of
from fedsolve.folders.untrusted import MALFORMED, check_shape, loads, open_regular, read_bytes

MANIFEST = "fedsolve"
"""The entry of a file's metadata that has the manifest; a file without checksums has no other."""
_CHECKSUMS, _SEAL = "checksums", "seal"
_LONGEST = 10**8
"""Bytes of a header, as other readers of safetensors have it."""
_UNSEALED = b'"seal":"00000000"'
# quotes inside the manifest are escaped, so that only the header's own entry looks like this
_SEALED = re.compile(rb'"seal":"([0-9a-f]{8})"')
_TYPES = {"bool": "BOOL", "bfloat16": "BF16", "complex64": "C64"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind in ("float", "int", "uint")
    for bits in (8, 16, 32, 64)
}


@dataclass(frozen=True)
class Header:
    """The header of a file whose seal is right, in a file of the right length."""

    # The manifest was written beside the arrays, whose checksums and entries (dtype, shape and offsets of the bytes
    # behind the header) are by name; `length` is the header's, in bytes.

    manifest: dict[str, Any]
    checksums: dict[str, str]
    entries: dict[str, Any]
    length: int


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], manifest: Mapping[str, Any], *, private: bool = False
) -> None:
    checksums = {name: checksum(bytes_of(x)) for name, x in arrays.items()}
    metadata = {MANIFEST: json.dumps(manifest), _CHECKSUMS: json.dumps(checksums), _SEAL: "0" * 8}
    header = _header(arrays, metadata)

    # written here and not by safetensors, which renames a file of its own that a kill leaves behind
    def write(new: Path) -> None:
        with open(new, "wb") as file:
            file.write(header)
            for x in arrays.values():
                file.write(bytes_of(x))

    replace_atomically(path, write, private=private)


def read_header(path: Path, kind: str) -> Header:
    try:
        with open_regular(path, follow=False) as file:
            size = os.fstat(file.fileno()).st_size
            length = file.read(8)
            # no more than the file has, whatever it says: the length may be anything
            header = length + file.read(min(int.from_bytes(length, "little"), size, _LONGEST))
    except FileNotFoundError:
        raise InvalidInput(f"no {kind} at {path}: start the run without resuming") from None
    except OSError as error:
        raise InvalidInput(f"cannot read the {kind} {path}: {error.strerror}") from None
    seal = _SEALED.search(header)
    if seal is None:
        raise corrupt(path, kind, f"it is cut short, or no {kind} of this version of fedsolve")
    if seal[1].decode() != checksum(header.replace(seal[0], _UNSEALED)):
        raise corrupt(path, kind, "its header is not what was written")
    try:  # a seal is no signature: another program may have written it
        entries = loads(header[8:])
        metadata = entries.pop("__metadata__")
        parsed = Header(loads(metadata[MANIFEST]), loads(metadata[_CHECKSUMS]), entries, len(header))
        # one byte less or more, and the file is not what was written
        right = len(header) + max((x["data_offsets"][1] for x in entries.values()), default=0)
    except MALFORMED as error:
        raise corrupt(path, kind, f"its header is none of fedsolve's: {error}") from None
    if size != right:
        raise corrupt(path, kind, f"it has {size} bytes, not {right}")
    return parsed


def metadata_of(path: Path) -> dict[str, str]:
    """The texts in a header by name, none of which is checked; nothing where it has none."""
    with open_regular(path, follow=False) as file:
        length = int.from_bytes(file.read(8), "little")
        header = loads(file.read(min(length, _LONGEST)))
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def mapped_arrays(path: Path, kind: str) -> tuple[Header, dict[str, np.ndarray]]:
    """The header of a file, and its arrays as they lie in it: mapped, not read, each compared with its checksum."""
    header = read_header(path, kind)
    try:
        with open_regular(path, follow=False) as file:
            content = np.memmap(file, np.uint8, "r")
        arrays = {
            name: _map_tensor(content[header.length :], entry) for name, entry in header.entries.items()
        }
    except OSError as error:
        raise corrupt(path, kind, str(error)) from None
    except MALFORMED as error:
        raise corrupt(path, kind, f"its header is none of fedsolve's: {error}") from None
    for name, x in arrays.items():
        if checksum(bytes_of(x)) != header.checksums.get(name):
            raise corrupt(path, kind, f"{name} is not what was written")
    return header, arrays


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    """The arrays in another program's safetensors file, by name; `SafetensorError` where it is none."""
    arrays = {}
    for name, entry in deserialize(content):
        data = np.frombuffer(entry["data"], np.uint8)
        arrays[name] = _map_tensor(data, {**entry, "data_offsets": (0, len(data))})
    return arrays


def corrupt(path: Path, kind: str, what: str) -> InvalidInput:
    return InvalidInput(f"the {kind} {path} is corrupt ({what}): restore a copy, or start a new run")


def checksum(data: bytes | memoryview) -> str:
    return f"{zlib.crc32(data):08x}"


def _map_tensor(content: np.ndarray, entry: dict[str, Any]) -> np.ndarray:
    kind = next(name for name, code in _TYPES.items() if code == entry["dtype"])
    begin, end = entry["data_offsets"]
    check_shape(entry["shape"])
    return content[begin:end].view(jnp.dtype(kind)).reshape(entry["shape"])


def _header(arrays: Mapping[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, x in arrays.items():
        begin, end = end, end + x.nbytes
        entries[name] = {"dtype": _TYPES[x.dtype.name], "shape": x.shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header.replace(_UNSEALED, b'"seal":"%s"' % checksum(header).encode())


# A checksum in a JSON file's first line, of the file and of files beside it: no byte of them changes unseen.
#
# The file is JSON as before, with two entries more: `checksum`, the CRC-32 of the whole text with eight zeros in its
# own place, and `files`, those of the files beside it by name.

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
    """The text that `sealed` was given, and the checksums of the files beside it: None where it has none."""
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
    """The values of that text (`ValueError` if it is no JSON), and the same of the files beside it."""
    text, files = unsealed(where, content)
    data = loads(text)
    if isinstance(data, dict) and not {"checksum", "files"}.isdisjoint(data):  # read as if without a checksum
        raise damaged(where, "its checksum is not what was written")
    return data, files


def check_file(path: Path, files: Mapping[str, str] | None) -> bytes:
    """The content of a file beside a sealed one; `ValueError` where it is not what the checksum there says."""
    content = read_bytes(path, LARGEST, follow=False)
    if files is not None and path.name in files and checksum(content) != files[path.name]:
        raise ValueError("it is not what was written")
    return content


def damaged(where: object, what: str) -> InvalidInput:
    return InvalidInput(f"{where} is damaged ({what}): restore a copy")


def no_checksum_note(names: list[str]) -> str:
    # what is noted of files that were written before there were checksums
    if not names:
        return ""
    have = "have no checksum" if len(names) > 1 else "has no checksum"
    return (
        f"{' and '.join(names)} {have}, as fedsolve wrote them before it had these: damage would not be seen"
    )
