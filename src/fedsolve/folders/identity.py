"""Whether a file is of the run that goes on from it: identities are compared, and the first difference is named.

An identity is a table of all that decides a number, as JSON gives it back. `versions` is among its entries where
results are the same to the bit only under one version of fedsolve.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedsolve.core.errors import InvalidInput, from_where_they_differ

VERSIONS = "versions"
_FEDSOLVE = re.compile(r"\bfedsolve ([^\s,]+)")


def first_difference(
    there: Mapping[str, Any], here: Mapping[str, Any], free: Collection[str] = ()
) -> str | None:
    """The first entry of `here` that is another in `there`, or missing; None if there is none but those of `free`.

    >>> first_difference({"seed": 0, "rounds": 9}, {"seed": 1, "rounds": 8})
    'seed'
    """
    return next((name for name, value in here.items() if there.get(name) != value and name not in free), None)


def check_identity(
    path: Path, there: Mapping[str, Any], here: Mapping[str, Any], free: Collection[str] = ()
) -> None:
    """Raise `InvalidInput` if a checkpoint's identity is another; another version of fedsolve comes before all else.

    Args:
        path: the checkpoint.
        there: its identity.
        here: that of the run which would go on from it.
        free: entries that may differ.
    """
    then, now = _version(there), _version(here)
    if then is not None and then != now:
        raise InvalidInput(
            f"the checkpoint {path} was written by fedsolve {then}, and this is fedsolve {now}, whose results may "
            f"differ: resume it with fedsolve {then}, or start anew in another folder"
        )
    name = first_difference(there, here, free)
    if name is not None:
        before, now = from_where_they_differ(str(there.get(name)), str(here[name]))
        raise InvalidInput(
            f"the checkpoint {path} has {name} = {before}, this run {now}: "
            "resume as it was, or start anew in another folder"
        )


def _version(identity: Mapping[str, Any]) -> str | None:
    """The version of fedsolve in an identity, None where its results are those of any."""
    found = _FEDSOLVE.search(str(identity.get(VERSIONS, "")))
    return None if found is None else found[1]
