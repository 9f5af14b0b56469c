"""No byte of a checkpoint changes unseen: flipped, cut off or added, it is refused in one line that names the file."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.folders.run_folder import load_tree, read_manifest, save_tree

TREE = {
    "weights": jnp.arange(300, dtype=jnp.float32).reshape(30, 10),
    "half": jnp.ones((7, 3), jnp.bfloat16),
    "counts": np.arange(20, dtype=np.int64),
    "flags": np.array([True, False]),
    "round": jnp.asarray(3, jnp.int32),
    "empty": np.zeros((0, 4), np.float32),
}
MANIFEST = {"identity": {"task": 'a "seal":"00000000" é'}, "round": 3, "record": [0.1, float("nan"), None]}


@pytest.fixture
def path(tmp_path):
    save_tree(tmp_path / "kept.safetensors", TREE, MANIFEST)
    return tmp_path / "kept.safetensors"


def read(path):
    return load_tree(path, TREE), read_manifest(path)


def refused(path, content, read=read):
    path.write_bytes(content)
    with pytest.raises(fs.InvalidInput, match="corrupt") as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "restore a copy, or start a new run" in str(caught.value)


def test_what_is_written_is_read(path):
    tree, manifest = read(path)
    for name, x in TREE.items():
        assert tree[name].dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(tree[name]), np.asarray(x))
    assert manifest["identity"] == MANIFEST["identity"]
    assert np.isnan(manifest["record"][1])


def test_every_flipped_bit_is_found(path):
    """One bit at 200 places, in turn the first to the eighth: all of the length, then header, seal and tensors."""
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    assert len(content) - header == 1200 + 42 + 160 + 2 + 4
    assert header > 500
    for i in [*range(8), *range(8, len(content), 11)]:
        damaged = bytearray(content)
        damaged[i] ^= 1 << (i % 8)
        refused(path, bytes(damaged))


def test_cut_and_lengthened(path):
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for size in (0, 1, 7, 8, 60, header - 1, header, header + 1, len(content) - 1):
        refused(path, content[:size], read_manifest)
    for more in (b"\0", content):
        refused(path, content + more, read_manifest)


def test_parts_that_change_places(path):
    """Another checkpoint's tensors under this one's header, and the reverse."""
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    other = path.with_name("other.safetensors")
    save_tree(other, TREE | {"weights": TREE["weights"] + 1}, MANIFEST)
    assert len(other.read_bytes()) == len(content)
    refused(path, content[:header] + other.read_bytes()[header:])


def test_a_file_of_another_program(path):
    """A whole safetensors file without seal or manifest."""
    from safetensors.numpy import save

    refused(path, save({"x": np.zeros(3)}))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"more": np.zeros(2)}, r"has no \['more'\]: it belongs to another method or model"),
        ({"weights": jnp.zeros(3)}, r"\['weights'\] has shape \(30, 10\) float32 in the checkpoint"),
        ({"round": jnp.float32(0)}, r"\['round'\] has shape \(\) int32 in the checkpoint"),
    ],
)
def test_another_tree(path, other, words):
    """The first leaf that differs, with both shapes."""
    with pytest.raises(fs.InvalidInput, match=words):
        load_tree(path, TREE | other)
