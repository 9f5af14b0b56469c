"""Checkpoints: a pytree and a small manifest in one safetensors file, replaced atomically.

The old file stays until the new one is on the disk, so a run killed at any moment leaves a whole checkpoint.
Every tensor has a checksum in the header and the header has a seal of its own, so that no byte of the file can
change unseen: CRC-32, which finds every single flipped bit and every burst of up to 32.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.errors import InvalidInput
from fedsolve.files import replace_atomically

_MANIFEST, _CHECKSUMS, _SEAL = "fedsolve", "checksums", "seal"
_UNSEALED = b'"seal":"00000000"'
# quotes inside the manifest are escaped, so that only the header's own entry looks like this
_SEALED = re.compile(rb'"seal":"([0-9a-f]{8})"')
_TYPES = {"bool": "BOOL", "bfloat16": "BF16", "complex64": "C64"} | {
    f"{kind}{bits}": f"{kind[0].upper()}{bits}"
    for kind in ("float", "int", "uint")
    for bits in (8, 16, 32, 64)
}


def save_tree(path: Path, tree: Any, manifest: dict[str, Any], *, private: bool = False) -> None:
    """Write a pytree of arrays and a JSON manifest as one file, `private` for its owner's eyes alone.

    Raises:
        InvalidInput: the disk is full, or the folder cannot be written; what was saved before is intact.
    """
    # arrays of NumPy stay what they are: JAX would cut 64-bit types where it has them switched off
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    arrays = {
        _name(p): np.asarray(x if isinstance(x, np.ndarray | np.generic) else jnp.asarray(x), order="C")
        for p, x in leaves
    }
    checksums = {name: _checksum(_bytes(x)) for name, x in arrays.items()}
    metadata = {_MANIFEST: json.dumps(manifest), _CHECKSUMS: json.dumps(checksums), _SEAL: "0" * 8}
    header = _header(arrays, metadata)

    # written here and not by safetensors, which renames a file of its own that a kill leaves behind
    def write(new: Path) -> None:
        with open(new, "wb") as file:
            file.write(header)
            for x in arrays.values():
                file.write(_bytes(x))

    replace_atomically(path, write, private=private)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        InvalidInput: the file is missing, cut short, too long, damaged in its header or not a checkpoint of fedsolve.
    """
    return json.loads(_header_of(path)[0][_MANIFEST])


def load_tree(path: Path, like: Any) -> Any:
    """The pytree in a checkpoint, with the structure, shapes and types of `like`, arrays or shapes of such.

    The file is mapped, not read: each array is in memory once.

    Raises:
        InvalidInput: the file is corrupt, or holds other parameters than `like` (the first is named).
    """
    metadata, entries, start = _header_of(path)
    checksums = json.loads(metadata[_CHECKSUMS])
    try:
        content = np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise _corrupt(path, str(error)) from None
    arrays = {name: _mapped(content[start:], entry) for name, entry in entries.items()}
    for name, x in arrays.items():
        if _checksum(_bytes(x)) != checksums[name]:
            raise _corrupt(path, f"{name} is not what was written")
    wanted = {_name(p): x for p, x in jax.tree_util.tree_leaves_with_path(like)}
    for name in sorted(set(wanted) ^ set(arrays)):
        holder = "has no" if name in wanted else "has an unknown"
        raise InvalidInput(f"the checkpoint {path} {holder} {name}: it belongs to another method or model")
    for name, x in wanted.items():
        if arrays[name].shape != x.shape or arrays[name].dtype != np.dtype(x.dtype):
            raise InvalidInput(
                f"{name} has shape {arrays[name].shape} {arrays[name].dtype} in the checkpoint {path}, "
                f"here {x.shape} {x.dtype}: the model has changed"
            )
    leaves = [
        np.array(arrays[n]) if isinstance(x, np.ndarray | np.generic) else _on_device(arrays[n])
        for n, x in wanted.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _header_of(path: Path) -> tuple[dict[str, str], dict[str, Any], int]:
    """The metadata of a header whose seal is right, in a file of the right length; its tensors; its own length."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            length = file.read(8)
            header = length + file.read(min(int.from_bytes(length, "little"), size))
    except FileNotFoundError:
        raise InvalidInput(f"no checkpoint at {path}: start the run without resuming") from None
    except OSError as error:
        raise InvalidInput(f"cannot read the checkpoint {path}: {error.strerror}") from None
    seal = _SEALED.search(header)
    if seal is None:
        raise _corrupt(path, "it is cut short, or no checkpoint of this version of fedsolve")
    if seal[1].decode() != _checksum(header.replace(seal[0], _UNSEALED)):
        raise _corrupt(path, "its header is not what was written")
    entries = json.loads(header[8:])
    metadata = entries.pop("__metadata__")
    right = len(header) + max((x["data_offsets"][1] for x in entries.values()), default=0)
    if size != right:
        raise _corrupt(path, f"it has {size} bytes, not {right}")
    return metadata, entries, len(header)


def _mapped(content: np.ndarray, entry: dict[str, Any]) -> np.ndarray:
    """A tensor as it lies in a file's bytes behind the header."""
    kind = next(name for name, code in _TYPES.items() if code == entry["dtype"])
    begin, end = entry["data_offsets"]
    return content[begin:end].view(jnp.dtype(kind)).reshape(entry["shape"])


def _on_device(array: np.ndarray) -> jax.Array:
    """A copy by JAX alone, which would cut types of 64 bits where it has them switched off."""
    return jax.device_put(array, may_alias=False)


def _header(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """The sealed header of a safetensors file, behind the 8 bytes of its length."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, x in arrays.items():
        begin, end = end, end + x.nbytes
        entries[name] = {"dtype": _TYPES[x.dtype.name], "shape": x.shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header.replace(_UNSEALED, b'"seal":"%s"' % _checksum(header).encode())


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _checksum(data: bytes | memoryview) -> str:
    return f"{zlib.crc32(data):08x}"


def _corrupt(path: Path, what: str) -> InvalidInput:
    return InvalidInput(f"the checkpoint {path} is corrupt ({what}): bring back a copy, or start a new run")


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path) or "value"
