"""Folders that anybody may have written: what shows them refuses them in one line, and is not held up."""

from __future__ import annotations

import json
import time
import zlib

import numpy as np
import pytest
from runs_made_up import CONFIG

import fedsolve as fs
from fedsolve.cli.configuration.config import read_toml
from fedsolve.folders.sealed import write_arrays

DEEP = 100_000
GOOD = {
    "label": "FedAvg", "task": "t", "settings": {}, "seconds": 1.0, "compile_seconds": 0.0, "notes": [],
    "evaluations": {"round": [0], "seconds": [0.0], "train_loss": [1.0]}, "rounds": {"round": []},
}  # fmt: skip
HOSTILE = {
    "lists": ("history.json", "[" * DEEP),
    "tables": ("history.json", '{"a":' * DEEP),
    "deep but whole": (
        "history.json",
        json.dumps(GOOD | {"settings": {"a": 0}}).replace("0}", "[" * 80 + "]" * 80 + "}"),
    ),
    "dotted key": ("config.toml", "a" + ".a" * 20_000 + " = 1"),
    "dotted table": ("config.toml", "[1" + ".1" * 20_000 + "]"),
    "quoted key": ("config.toml", '""' + '.""' * 20_000 + " = 1"),
    "nested list": ("config.toml", "a = " + "[" * DEEP),
    "nested whole list": ("config.toml", "task = 'digits'\nmethod = " + "[" * 80 + "]" * 80),
    "large number": ("history.json", json.dumps(GOOD | {"rounds": {"round": [10**400]}})),
    "label": ("history.json", json.dumps(GOOD | {"label": {"a": 1}})),
    "task": ("history.json", json.dumps(GOOD | {"task": ["a"]})),
    "notes": ("history.json", json.dumps(GOOD | {"notes": [1, {}]})),
    "seconds": ("history.json", json.dumps(GOOD | {"seconds": [1]})),
    "no table": ("history.json", "[1, 2]"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_shown_is_refused_in_one_line(call, tmp_path, kind):
    name, text = HOSTILE[kind]
    (tmp_path / name).write_text(text)
    began = time.process_time()
    ended = call("show", tmp_path)
    assert time.process_time() - began < 5
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert kind not in ("dotted key", "dotted table", "quoted key") or "100 dots" in ended.err


@pytest.mark.parametrize("kind", [kind for kind, (name, _) in HOSTILE.items() if name == "history.json"])
def test_what_is_loaded_is_refused_in_one_line(tmp_path, kind):
    (tmp_path / "history.json").write_text(HOSTILE[kind][1])
    with pytest.raises(fs.InvalidInput) as error:
        fs.load(tmp_path)
    assert "history.json" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 500


def test_a_checkpoint_with_a_strange_header_is_refused(call, tmp_path):
    """Sealed as it should be: a seal is no signature."""
    (tmp_path / "config.toml").write_text(CONFIG)
    deep: list = []
    for _ in range(300):
        deep = [deep]
    junk = b"no rows of a record"
    (tmp_path / "record.bin").write_bytes(junk)
    facts = {"bytes": len(junk), "checksum": zlib.crc32(junk), "evaluations": 1, "rounds": 1, "seconds": 1.0}
    no_rows = {"record": facts, "identity": {}}
    for manifest in ({"record": deep}, {"record": {"bytes": "x"}}, {}, deep, no_rows):
        write_arrays(tmp_path / "checkpoint.safetensors", {"x": np.zeros(1)}, manifest)
        ended = call("show", tmp_path)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "checkpoint.safetensors holds no record" in ended.err


def test_long_lines_that_are_no_keys_are_read(tmp_path):
    """Dots of numbers and of remarks are not counted."""
    path = tmp_path / "c.toml"
    path.write_text(f"# {'.' * 119}\ngrid = [{', '.join(['0.1'] * 300)}]\ntitle = 'a. b. c.'\n")
    assert len(read_toml(path)["grid"]) == 300


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("fedsolve-data.json", fs.data.open),
        ("state.json", lambda folder: fs.data.from_table(folder, x=["a"], y="b", client="c")),
    ],
)
def test_data_of_others_are_refused_in_one_line(tmp_path, name, read):
    """A folder of data, and one of Hugging Face's datasets."""
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_text('{"a":' * DEEP)
    with pytest.raises(fs.InvalidInput) as error:
        read(tmp_path)
    assert name in str(error.value)
    assert "\n" not in str(error.value)
