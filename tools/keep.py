"""Keep finished runs beside their programs in experiments/: page, pictures, tables, results, the parts as one file.

    python tools/keep.py runs/lasso-1 runs/lasso-2

What was kept of the experiment before goes. Then: `minutes` of the study, `make generate`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from fedsolve.studies.experiment import ARCHIVE, PARTS, pack
from fedsolve.studies.reproduce import program_folders

MADE = ("page.html", "results.json", ARCHIVE, "*.png", "*.csv")
"""What a run leaves in its folder, beside its parts."""


def keep(run: Path) -> None:
    """Put a run's folder in the place of what is kept of its experiment."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    if results["quick"]:
        sys.exit(f"{run} is a quick run, whose numbers mean nothing: run it whole")
    to = program_folders()[results["experiment"]]
    shutil.rmtree(to / PARTS, ignore_errors=True)
    for old in [path for pattern in MADE for path in to.glob(pattern)]:
        old.unlink()
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("under-way", ".*"), dirs_exist_ok=True)
    if (to / PARTS).is_dir():
        pack(to)
    print(f"{to.name}: {results['seconds'] / 60:.1f} minutes of processor time")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        keep(Path(name))
