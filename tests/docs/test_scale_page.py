"""The programs of docs/scale.md and docs/simulated-time.md run, and those of docs/own-data.md on tables."""

import re
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCALE, TIME, OWN = ((DOCS / f"{name}.md").read_text() for name in ("scale", "simulated-time", "own-data"))


def parts(folder):
    """The tables that docs/own-data.md reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    columns = {
        "user": np.arange(100) % 7,
        "height": np.ones(100),
        "weight": np.ones(100),
        "y": np.arange(100) % 2,
    }
    pq.write_table(pa.table(columns | {"x": list(np.ones((100, 59)))}), folder / "part-0.parquet")


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def blocks(tmp_path, monkeypatch, chosen):
    for package in ("pyarrow", "scipy", "sklearn", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    parts(tmp_path / "parts")
    names: dict = {}
    tables = [block for block in blocks_of(OWN) if "from_table" in block]
    for block in blocks_of(SCALE) + tables + blocks_of(TIME):
        if chosen(block):
            exec(block, names)
    return names


def test_its_data(tmp_path, monkeypatch):
    names = blocks(tmp_path, monkeypatch, lambda block: "fs.run(" not in block)
    assert names["data"].num_clients == 1000
    assert names["people"].num_clients == names["stored"].num_clients == 7
    assert names["tagged"].data.examples.x.indices.shape == (300, 64)


@pytest.mark.full
def test_its_runs(tmp_path, monkeypatch):
    names = blocks(tmp_path, monkeypatch, lambda block: True)
    assert names["result"].metrics["energy"][-1] > 0
    assert names["late"].timeline.versions.shape == (20, 10)
