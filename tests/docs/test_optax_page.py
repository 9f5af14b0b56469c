"""docs/optax.md says what tools/optax_table.py finds by trying every optimiser."""

from __future__ import annotations

import sys
from pathlib import Path

import optax
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import optax_table  # noqa: E402

PAGE = (ROOT / "docs/optax.md").read_text()


@pytest.mark.full
def test_every_optimiser_is_on_the_page():
    """And four, one of each outcome, are as the page says."""
    names = {f"`{name}`" for name, _ in optax_table.optimisers()}
    assert all(name in PAGE for name in names)
    for name in ("sgd", "dog", "noisy_sgd", "sophia"):
        factory = getattr(optax, name, None) or getattr(optax.contrib, name)
        client, server = optax_table.tried(name, factory)
        (row,) = [line for line in PAGE.splitlines() if f"`{name}`" in line]
        assert row.endswith(f" | {client} | {server} |")


@pytest.mark.full
def test_all_are_as_the_page_says():
    if f"optax {optax.__version__} " not in PAGE:
        pytest.skip("another version of optax")
    assert optax_table.page() == PAGE, "run: make generate"
