"""Data files: every way an idx or npz file can be broken ends in one line that names the file."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.data import checksum, data_dir, read_idx, read_npz

IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
HEADER = bytes([0, 0, 8, 3]) + struct.pack(">III", 2, 3, 4)


def write(folder, content, name="file.idx"):
    path = folder / name
    path.write_bytes(content)
    return path


GZIPPED = gzip.compress(
    HEADER + IMAGES.tobytes(), mtime=0
)  # without a time stamp, so that test names are stable


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_reads_plain_and_gzipped_files_by_content_not_by_name(tmp_path, pack):
    found = read_idx(write(tmp_path, pack(HEADER + IMAGES.tobytes())))
    assert found.dtype == np.uint8
    assert np.array_equal(found, IMAGES)


@pytest.mark.parametrize(("code", "dtype"), [(9, "i1"), (11, "i2"), (12, "i4"), (13, "f4"), (14, "f8")])
def test_reads_every_type_in_big_endian(tmp_path, code, dtype):
    values = np.array([-3, 100], dtype=">" + dtype)
    found = read_idx(write(tmp_path, bytes([0, 0, code, 1]) + struct.pack(">I", 2) + values.tobytes()))
    assert found.dtype == np.dtype(dtype)
    assert found.dtype.isnative
    assert found.tolist() == [-3, 100]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file .*missing"),
        (b"\0\0\x08", "not an idx file"),
        (b"\0\x01\x08\x03" + HEADER[4:] + IMAGES.tobytes(), "not an idx file .*00010803"),
        (b"\0\0\x07\x03" + HEADER[4:] + IMAGES.tobytes(), "not an idx file .*00000703"),
        (b"\0\0\x08\0", "not an idx file"),
        (HEADER[:9], "ends inside its header of 3 dimensions"),
        (HEADER + IMAGES.tobytes()[:-1], r"holds 23 bytes of data, its shape \(2, 3, 4\) calls for 24"),
        (HEADER + IMAGES.tobytes() + b"\0", "holds 25 bytes"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "calls for"),
        (GZIPPED[:-9], "damaged gzip"),
        (GZIPPED[:12], "damaged gzip"),
        (GZIPPED[:-8] + b"\1\2\3\4\5\6\7\x08", "damaged gzip"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 40, "damaged gzip"),
        (gzip.compress(HEADER + IMAGES.tobytes()[:-4], mtime=0), "holds 20 bytes"),
    ],
)
def test_a_broken_idx_file_is_one_line_with_its_name(tmp_path, content, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        read_idx(write(tmp_path, content))
    assert "file.idx" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_idx, lambda p: checksum(p, "0" * 64), lambda p: read_npz(p, ["a"])])
def test_a_missing_file_or_a_folder_is_named(tmp_path, read):
    with pytest.raises(InvalidInput, match=r"absent\.gz does not exist"):
        read(tmp_path / "absent.gz")
    (tmp_path / "folder.gz").mkdir()
    with pytest.raises(InvalidInput, match=r"folder\.gz cannot be read"):
        read(tmp_path / "folder.gz")


def test_checksum_accepts_the_file_and_shows_twelve_digits_of_another(tmp_path):
    path = write(tmp_path, b"abc")
    good = hashlib.sha256(b"abc").hexdigest()
    checksum(path, good)
    checksum(path, good.upper())
    wrong = "0123456789abcdef" * 4
    with pytest.raises(InvalidInput, match=r"file\.idx") as caught:
        checksum(path, wrong)
    assert good[:12] in str(caught.value)
    assert good[:13] not in str(caught.value)
    assert wrong[:12] in str(caught.value)
    assert wrong[:13] not in str(caught.value)


def test_npz_gives_its_fields_and_names_a_missing_one(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3), y=np.ones(2))
    assert read_npz(path, ["x"])["x"].tolist() == [0, 1, 2]
    with pytest.raises(InvalidInput, match=r"a\.npz has no field 'z' \(it holds x, y\)"):
        read_npz(path, ["x", "z"])


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-30], lambda b: b"", lambda b: b"text" + b, lambda b: b[:40]]
)
def test_a_damaged_npz_is_named(tmp_path, damage):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(300))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput, match=r"a\.npz is not a readable npz"):
        read_npz(path, ["x"])


def test_npz_never_unpickles(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(InvalidInput, match="not a readable npz"):
        read_npz(path, ["x"])


def test_the_argument_goes_before_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path))
    (tmp_path / "other").mkdir()
    assert data_dir() == tmp_path
    assert data_dir(str(tmp_path / "other")) == tmp_path / "other"


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_data_folder_both_ways_to_name_it_are_given(monkeypatch, value):
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("FEDSOLVE_DATA", value)
    with pytest.raises(InvalidInput, match=r"data_dir or set .* FEDSOLVE_DATA"):
        data_dir()


def test_a_data_folder_that_is_none_says_where_it_was_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSOLVE_DATA", str(tmp_path / "gone"))
    with pytest.raises(InvalidInput, match=r"FEDSOLVE_DATA = .*gone is not a folder"):
        data_dir()
    with pytest.raises(InvalidInput, match=r"data_dir = .*lost is not a folder"):
        data_dir(tmp_path / "lost")
