"""Rows of a file that lie here and there: the same through a map and by calls, whatever is in memory."""

import os

import numpy as np
import pytest

from fedsolve.data import stored
from fedsolve.data.stored import Column

ROWS = np.random.default_rng(0).random((500, 3)).astype(np.float32)
STARTS = np.array([3, 0, 100, 101, 499, 250])
COUNTS = np.array([2, 1, 1, 40, 1, 7])


def column(folder):
    (folder / "rows").write_bytes(b"before" + ROWS.tobytes())
    return Column("rows", "<f4", (3,), 6, 500, 0)


@pytest.mark.parametrize("way", ["map", "map in parts", "calls", "calls, half of it in memory"])
def test_rows_are_those_of_the_file(tmp_path, monkeypatch, way):
    here = column(tmp_path)
    if way == "map in parts":
        monkeypatch.setattr(stored, "_PART", 1000)
    if way.startswith("calls"):
        monkeypatch.setattr(stored, "_DENSE", 0)
    if way.endswith("in memory"):
        preadv, limit = os.preadv, 1300

        def partly(file, buffers, offset, flags=0):
            if flags and offset >= limit:
                raise BlockingIOError
            return preadv(file, [buffers[0][: limit - offset] if flags else buffers[0]], offset)

        monkeypatch.setattr(stored, "_IF_IN_MEMORY", 1)
        monkeypatch.setattr(os, "preadv", partly)
    into = np.zeros((60, 3), np.float32)
    stored.gather(tmp_path / "rows", here, STARTS, COUNTS, into)
    wanted = np.concatenate([ROWS[a : a + n] for a, n in zip(STARTS, COUNTS, strict=True)])
    np.testing.assert_array_equal(into[: len(wanted)], wanted)
    assert not into[len(wanted) :].any()


@pytest.mark.parametrize("dense", [0, 2**16])
def test_a_file_that_has_become_shorter_is_refused(tmp_path, monkeypatch, dense):
    monkeypatch.setattr(stored, "_DENSE", dense)
    here = column(tmp_path)
    os.truncate(tmp_path / "rows", 100)
    with pytest.raises(OSError, match="shorter"):
        stored.gather(tmp_path / "rows", here, STARTS, COUNTS, np.zeros((60, 3), np.float32))
