"""Reading one npz file of the data folder after its check sum has been verified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedsolve.data import sources


def read_checked(
    data_dir: str | Path | None, name: str, sha256: str, fields: Sequence[str]
) -> dict[str, np.ndarray]:
    """Named arrays of the file `name` in the data folder (default: the environment variable FEDSOLVE_DATA).

    Raises:
        InvalidInput: no data folder, or a file that is missing, damaged or another version.
    """
    path = sources.data_dir(data_dir) / name
    sources.checksum(path, sha256)
    return sources.read_npz(path, fields)
