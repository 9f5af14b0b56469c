"""docs/tuning-free.md: its code runs, and a run logs what it says."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tuning-free.md").read_text()


def test_code_runs():
    """The one block composes every method and runs a line search on the digits."""
    pytest.importorskip("sklearn")
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict = {}
    exec(block, names)
    assert len(names["methods"]) == 7
    assert (names["result"].rounds["loss_evaluations"] >= 1).all()
