"""A constraint set as an intersection of supersets, one for each client (Dadras et al. 2024, section 4.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsolve.core.errors import InvalidInput, shown
from fedsolve.core.trees import as_array
from fedsolve.core.types import module
from fedsolve.geometry.regularizer import require


@module
class SplitSets:
    """Supersets D_i of a set D, one for each client, whose intersection is D (Dadras et al. 2024, section 4.3).

    Attributes:
        sets: the different supersets.
        of_client: the number of each client's superset, integers of shape (clients,).

    Raises:
        InvalidInput: sets that are no tuple of sets with a linear minimisation, numbers that name none of them.
    """

    sets: tuple[Any, ...]
    of_client: Any

    def __post_init__(self) -> None:
        instead = "a set, such as L2Ball(10.0)"
        if not isinstance(self.sets, list | tuple):
            raise InvalidInput(
                f"sets = {shown(self.sets)} must be a tuple of sets, such as (L2Ball(1.0), L1Ball(1.0))"
            )
        sets = tuple(require("FedFW with split sets", s, "lmo", instead) for s in self.sets)
        object.__setattr__(self, "sets", sets)
        numbers = as_array("of_client", self.of_client)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not len(numbers):
            raise InvalidInput("of_client must be one integer for each client")
        if numbers.min() < 0 or numbers.max() >= len(sets):
            raise InvalidInput(
                f"of_client holds numbers {numbers.min()} to {numbers.max()}: there are {len(sets)} sets, "
                f"0 to {len(sets) - 1}"
            )
        object.__setattr__(self, "of_client", numbers.astype(np.int32))
