"""The Mermaid graph of docs/architecture.md as its picture: the site runs no scripts."""

from __future__ import annotations

import re

BLOCK = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
PICTURE = "diagrams/packages.svg"


def as_pictures(page: str) -> str:
    """A page with the picture in place of the graph."""
    return BLOCK.sub(f"![The packages, and which imports which]({PICTURE})", page)
