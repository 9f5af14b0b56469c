"""`fedsolve doctor`: what is there and what is not."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from fedsolve.tasks.ready.characters import FILE


@pytest.fixture
def lines(call, monkeypatch):
    """From versions of packages that are not as installed, None for missing, to the lines by name."""

    def ask(*arguments, **versions):
        real = importlib.metadata.version

        def version(name):
            found = versions[name] if name in versions else real(name)
            if found is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr(importlib.metadata, "version", version)
        ended = call("doctor", "--json", *arguments)
        assert ended.code == 0
        return {line["name"].strip(): line for line in json.loads(ended.out)}

    return ask


def test_every_package_is_there_or_missing(lines):
    found = lines(jax="0.9.1", flwr=None, pyarrow=None)
    assert "0.9.1" in found["jax"]["words"]
    assert "(needs " in found["jax"]["words"]
    assert found["numpy"]["found"]
    assert not found["[flower]"]["found"]
    assert found["[sweep]"]["words"].startswith("pyarrow is missing")
    assert not {"[dev]", "[test]", "[all]"} & set(found)
    assert "cores" in found["devices"]["words"]


def test_data_that_are_there_and_that_are_not(lines, tmp_path, monkeypatch):
    (tmp_path / FILE).touch()
    found = lines("--data-dir", str(tmp_path))
    assert found["femnist-sample"]["found"]
    assert not found["mnist"]["found"]
    monkeypatch.delenv("FEDSOLVE_DATA", raising=False)
    assert "FEDSOLVE_DATA" in lines()["data"]["words"]
    assert "is not a folder" in lines("--data-dir", str(tmp_path / "none"))["data"]["words"]


def test_as_a_table(call):
    ended = call("doctor")
    assert ended.code == 0
    assert "[plot]" in ended.out
    assert ended.out.startswith("fedsolve ")
