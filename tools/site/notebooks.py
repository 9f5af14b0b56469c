"""Tutorials and the gallery: Python files in docs/, executed, as notebooks that the site shows and offers.

A source has cells that begin with `# %%` (percent format): `python FILE` runs it whole, editors run it cell by cell.
What was executed is kept in site/executed by the digest of the source and of the package, and is not executed again.
A cell that fails ends the build.

python tools/site/notebooks.py [NAME ...]       # execute these alone, or all
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KEPT = ROOT / "site" / "executed"
TUTORIALS = (
    "first-run", "own-problem", "own-algorithm", "sparse-models", "constraints", "tuning-free", "sweep",
    "pytorch-user", "network", "deployment", "privacy", "clinical-statistics",
)  # fmt: skip
"""Those of docs/tutorials, in the order of reading."""
SOURCES = {name: ROOT / "docs" / "tutorials" / f"{name}.py" for name in TUTORIALS}
SOURCES["gallery"] = ROOT / "docs" / "gallery.py"
_SECONDS = 600
"""The longest that a cell may take, on a machine that is busy with other work."""


def executed(name: str) -> Path:
    """The notebook of a source with its outputs; executed now unless it was before, or FAST is set.

    Raises:
        CellExecutionError: a cell failed.
    """
    import jupytext
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    kept = KEPT / f"{name}-{_digest(SOURCES[name])}.ipynb"
    if os.environ.get("FAST") and not kept.is_file():  # to look at the text: `make docs FAST=1`
        kept = KEPT / f"{name}-not-executed.ipynb"
        KEPT.mkdir(parents=True, exist_ok=True)
        notebook = jupytext.read(SOURCES[name], fmt="py:percent")
        notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
        nbformat.write(notebook, kept)
    elif not kept.is_file():
        print(f"executing {name}", flush=True)
        notebook = jupytext.read(SOURCES[name], fmt="py:percent")
        notebook.metadata = nbformat.from_dict(
            {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        )
        os.environ |= {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100", "TQDM_DISABLE": "1"}
        with tempfile.TemporaryDirectory() as folder:  # what it writes is its own
            config = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})  # no port is opened
            patience = {"timeout": _SECONDS, "startup_timeout": _SECONDS}
            where = {"metadata": {"path": folder}}
            NotebookClient(notebook, config=config, resources=where, **patience).execute()
        KEPT.mkdir(parents=True, exist_ok=True)
        for former in KEPT.glob(f"{name}-{'?' * 16}.ipynb"):
            former.unlink()
        nbformat.write(notebook, kept)
    return kept


def _digest(source: Path) -> str:
    """Of all that decides what a notebook shows, besides the machine."""
    found = hashlib.sha256()
    for path in (source, *sorted((ROOT / "src").rglob("*.py"))):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SOURCES:
        print(executed(chosen).relative_to(ROOT))
