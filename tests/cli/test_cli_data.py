"""`fedsolve data`: what it says, what it fetches and converts, and what it refuses."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import pytest

from fedsolve.tasks.catalogue import TASKS
from fedsolve.tasks.datasets import download as catalogue
from tasks.small_files import DATA, needs


def test_every_task_that_reads_files_has_a_data_set(call):
    rows = call("data", "--json").document
    reading = {name for name, entry in TASKS.items() if "data folder" in entry.summary}
    reading -= {"femnist-autoencoder", "newsgroups-minilm"}  # of the files of femnist and news
    assert {row["task"] for row in rows} == reading | {"next-word"}  # whose data a package brings
    assert len(rows) == len(catalogue.DATASETS)
    table = call("data").out
    for row in rows:
        assert row["name"] in table
        said = call("data", row["name"]).out
        for text in (row["home"], row["licence"], row["run"], *(o["url"] for o in row["originals"])):
            assert text in said
        assert all(
            o["url"].startswith(("https://", "http://qwone.com/", "http://fashion-mnist."))
            for o in row["originals"]
        )


@needs("libsvm")
def test_a_set_is_fetched_once_converted_and_read(call, monkeypatch):
    """Over file: URLs; the second call fetches nothing, a third converts the same from a folder."""
    texts = {
        n: gzip.decompress((DATA / "libsvm" / f"{n}.gz").read_bytes())
        for n in ("a9a", "a9a.t", "w8a", "mushrooms")
    }
    Path("server").mkdir()
    for name, text in texts.items():
        Path("server", name).write_bytes(text)
    found = catalogue.DATASETS["libsvm"]
    local = [dataclasses.replace(o, url=Path("server", o.name).resolve().as_uri()) for o in found.originals]
    monkeypatch.setitem(catalogue.DATASETS, "libsvm", dataclasses.replace(found, originals=tuple(local)))
    first = call("data", "libsvm", "--to", "d")
    assert first.code == 0
    assert first.err.count("fetching file:") == 4
    assert Path("d/libsvm/w8a").read_bytes() == texts["w8a"]
    assert first.out.splitlines()[-1] == "fedsolve run libsvm FedAvg --data-dir d"
    again = call("data", "libsvm", "--to", "d", "--json")
    assert "fetching" not in again.err
    assert len(again.document["files"]) == 4
    assert call("data", "libsvm", "--from", "server", "--to", "e").code == 0
    assert Path("e/libsvm/a9a").read_bytes() == texts["a9a"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("mnits",), "unknown data set 'mnits': did you mean 'mnist'?"),
        (("mnist", "--from", "x"), "--from needs --to"),
        (("--to", "d"), "--from and --to need the NAME"),
        (("mnist", "--from", "nowhere", "--to", "d"), "--from nowhere is not a folder"),
        (("mnist", "--from", ".", "--to", "d"), "lacks train-images-idx3-ubyte.gz or "),
        (("femnist", "--to", "d"), "femnist cannot be fetched as a file: LEAF's script"),
        (("handwriting", "--to", "d"), "no converter is here: femnist is read instead"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_writes_nothing(call, words, expected):
    ended = call("data", *words)
    assert ended.code == 2
    assert expected in ended.err
    assert ended.err.count("\n") == 1
    assert not Path("d").exists()
