"""Write the pages of kept experiments again from their data: after a change of pictures, words or verdicts.

    python tools/redraw.py                 # all of experiments/
    python tools/redraw.py lasso-1 fmri

Nothing is run. Times, versions and machine stay those of the run. Then: `make generate`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fedsolve.studies.experiment import ARCHIVE, Context
from fedsolve.studies.pages import write_results
from fedsolve.studies.reproduce import find, program_folders


def redraw(folder: Path) -> None:
    """Replace a folder's page, pictures, tables and results."""
    told = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    name, seconds = told["experiment"], told["seconds"]
    found = find(name)
    outcome = found.run(Context(folder, stored_only=True))
    for old in (*folder.glob("*.png"), *folder.glob("*.csv")):
        old.unlink()
    write_results(
        folder, name, found, outcome, float("nan") if seconds is None else seconds, told["made_with"]
    )
    print(name)


if __name__ == "__main__":
    folders = program_folders()
    kept = [name for name, folder in folders.items() if (folder / ARCHIVE).is_file()]
    for name in sys.argv[1:] or kept:
        redraw(folders[name])
