"""Parts in one file: read as before, beside further ones; equal parts make equal files; damage is said."""

from __future__ import annotations

import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.studies.experiment import ARCHIVE, PARTS, Context, has_parts, pack


def must_not_run():
    raise AssertionError("the kept part was computed again")


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        Context(tmp_path).part(f"part {number}", {"n": number}, lambda n=number: {"x": np.full(2, n)})
    pack(tmp_path)
    return tmp_path


def test_packed_parts_are_read_and_others_added(folder):
    assert [path.name for path in folder.iterdir()] == [ARCHIVE]
    context = Context(folder)
    for _ in range(2):
        assert has_parts(folder)
        for number in range(3):
            assert context.part(f"part {number}", {"n": number}, must_not_run)["x"].tolist() == [number] * 2
        context.part("part 3", {"n": 3}, lambda: {"x": np.ones(1)})
        if (folder / PARTS).exists():
            pack(folder)
    assert context.part("part 3", {"n": 3}, must_not_run)["x"] == 1
    assert not (folder / PARTS).exists()


def test_a_new_part_stands_in_front_of_the_packed_one(folder):
    """As one that another version made, which is computed anew."""
    context = Context(folder)
    assert context.part("part 1", {"n": 1}, lambda: {"x": np.zeros(1)}, version="new")["x"] == 0
    assert context.part("part 1", {"n": 1}, must_not_run, version="new")["x"] == 0
    pack(folder)
    assert context.part("part 1", {"n": 1}, must_not_run, version="new")["x"] == 0


def test_equal_parts_make_equal_archives(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / PARTS).mkdir()
    before = (folder / ARCHIVE).read_bytes()
    Context(folder).part("part 3", {}, lambda: {"x": np.ones(1)})
    pack(folder)
    assert (folder / ARCHIVE).read_bytes() != before
    with pytest.raises(InvalidInput, match="holds no parts"):
        pack(other)


@pytest.mark.parametrize(
    ("name", "settings"), [("part 1", {"n": 1}), ("part 9", {})], ids=["archive", "file"]
)
def test_damage_is_said(folder, name, settings):
    if name == "part 9":
        Context(folder).part(name, settings, lambda: {"x": np.ones(1)})
    damaged = next((folder / PARTS).iterdir()) if name == "part 9" else folder / ARCHIVE
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with pytest.raises(InvalidInput, match="is damaged: remove it to compute it again"):
        Context(folder).part(name, settings, must_not_run)
