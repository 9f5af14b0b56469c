"""The documents do what they say: their code runs, their sources and tables are the package's."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedsolve.algorithms.catalogue import ALGORITHMS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_readme_code_runs():
    """The README's Python blocks run in order, as one reader would type them, and end with results."""
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 6
    names: dict = {}
    exec(blocks[0], names)
    assert names["result"].metrics["test_accuracy"][-1] > 0.9
    exec(blocks[1], names)
    loss = names["result"].metrics["train_loss"]
    assert loss[-1] < loss[0]
    assert names["result"].params["w"].dtype == np.float64
    exec(blocks[2], names)
    assert (names["result"].metrics["gap"] > 0).all()
    assert names["result"].rounds["bytes_up"][-1] == 3  # three clients, one byte each
    exec(blocks[3], names)
    assert names["found"].best_settings["client_lr"] in (0.01, 0.03, 0.1, 0.3)
    exec(blocks[4], names)


def test_readme_federation_runs(tmp_path, monkeypatch):
    """The README's two apps, and those of docs/deployment.md, train on the fake grid."""
    for package in ("torch", "sklearn"):
        pytest.importorskip(package)
    from flwr.app import Context, RecordDict

    from fake_grid import FakeGrid

    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    page = (ROOT / "docs" / "deployment.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for source, server, client in ((blocks[5], "server_app", "client_app"), (block, "server", "client")):
        names: dict = {}
        exec("import fedsolve as fs\n" + source, names)
        grid = FakeGrid(names[client], [0, 1, 2], tmp_path / client)
        names[server](grid, Context(1, 1, {}, RecordDict(), {"rounds": 2, "out": str(tmp_path / server)}))
        assert (tmp_path / server / "history.json").exists()


def test_readme_names_every_method():
    """Each catalogue entry stands in the README's table of methods."""
    table = README[README.index("## Methods") : README.index("## Command line")]
    missing = [name for name in ALGORITHMS if f"`{name}`" not in table]
    assert not missing


def test_adding_an_algorithm_shows_the_real_source():
    """The page shows src/fedsolve/algorithms/fedprox.py as it is, not as it was."""
    page = (ROOT / "docs" / "adding-an-algorithm.md").read_text()
    source = (ROOT / "src" / "fedsolve" / "algorithms" / "fedprox.py").read_text().rstrip()
    assert source in page


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_files_that_are_named_exist(page):
    """Every `path` in backquotes that looks like a file of the repository, and every picture, exists."""
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:docs|benchmarks|experiments|src|tests)/[\w./-]+\.\w+)`", text)
    named += re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert not [n for n in named if not (ROOT / n).exists()]
