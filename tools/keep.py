"""Keep finished runs beside their programs in experiments/: page, pictures, tables, results, the parts as one file.

    python tools/keep.py runs/lasso-1 runs/lasso-2

What was kept of the experiment before goes. Then: `minutes` of the study, `make generate`.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import zipfile
from pathlib import Path

from fedsolve.folders.files import write_atomically
from fedsolve.studies.experiment import ARCHIVE, PARTS, read_archive
from fedsolve.studies.reproduce import program_folders

MADE = ("page.html", "results.json", ARCHIVE, "*.png", "*.csv")
"""What a run leaves in its folder, beside its parts."""
ALIKE = (1980, 1, 1, 0, 0, 0)  # equal parts make equal archives


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


def pack(folder: Path) -> None:
    """Put all parts of a folder into its archive; their files go."""
    files = sorted((folder / PARTS).glob("*.npz"))
    if not files:
        sys.exit(f"{folder / PARTS} holds no parts: run the experiment into {folder} first")
    archive = folder / ARCHIVE
    parts = dict(read_archive(archive, archive.stat().st_mtime_ns)) if archive.exists() else {}
    parts |= {file.name: file.read_bytes() for file in files}
    buffer = io.BytesIO()
    # parts are archives themselves: stored as they are, the last of them would be found in an archive cut short
    with zipfile.ZipFile(buffer, "w") as new:
        for name, data in sorted(parts.items()):
            new.writestr(zipfile.ZipInfo(name, ALIKE), data, zipfile.ZIP_DEFLATED)
    write_atomically(archive, buffer.getvalue())
    for file in files:
        file.unlink()
    (folder / PARTS).rmdir()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        keep(Path(name))
