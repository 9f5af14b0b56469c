"""The Python blocks of docs/scale.md run, one after another, as one reader would type them."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()


def parts(folder):
    """The tables that the page reads."""
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


def blocks(tmp_path, monkeypatch, chosen):
    for package in ("pyarrow", "scipy", "sklearn", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    parts(tmp_path / "parts")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
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
