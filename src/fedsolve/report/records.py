"""What finished runs have in common for a reader: data frame, CSV, LaTeX and a notebook's plot of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from fedsolve.folders.files import write_atomically
from fedsolve.report.latex import latex_table
from fedsolve.report.notebook import html_table
from fedsolve.results.frames import Part, csv_text, frame, stacked
from fedsolve.results.history import History


class Records(ABC):
    """One finished run or several, by their histories."""

    @property
    @abstractmethod
    def histories(self) -> tuple[History, ...]:
        """The record of each run."""

    def frame(self, part: Part = "evaluations") -> Any:
        """All evaluations or all rounds as a data frame of pandas, or of polars where only that is installed.

        Its columns are `method`, `seed` and those of the record: `round`, `train_loss`, ...

        Raises:
            InvalidInput: neither is installed, or another part than "evaluations" or "rounds".
        """
        return frame(stacked(self.histories, part))

    def to_csv(self, path: str | Path, part: Part = "evaluations") -> Path:
        """Write what `frame` has as a CSV file, atomically; numbers read back exactly.

        Raises:
            InvalidInput: the file cannot be written, or another part than "evaluations" or "rounds".
        """
        return write_atomically(path, csv_text(stacked(self.histories, part)))

    def to_latex(self, target: float | None = None) -> str:
        """The table of results as LaTeX text, for a preamble with `\\usepackage{booktabs}`.

        Args:
            target: what the column "Rounds to" counts to, a fraction or a loss; by default an accuracy of 0.9.

        Raises:
            InvalidInput: `target` is no finite number.
        """
        return latex_table(self.histories, target)

    def _repr_html_(self) -> str:
        return html_table(self.histories)
