"""The table of results for a paper: LaTeX with the rules of booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedsolve.report.table import result_columns, result_rows, spread_words
from fedsolve.results.history import History

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{c: "\\" + c for c in "&%$#_{}"},
}


def latex_table(histories: Sequence[History], target: float | None = None) -> str:
    """The columns of the terminal's table as a `tabular`; the preamble needs `\\usepackage{booktabs}`.

    Args:
        histories: the runs, a row each.
        target: as in `fedsolve.report.table.result_rows`.

    Raises:
        InvalidInput: no histories.
    """
    columns = result_columns(histories, target)
    rows = [[column.text(row) for column in columns] for row in result_rows(histories, target)]
    head, *body = ([*map(latex, row)] for row in ([c.title for c in columns], *rows))
    lines = [f"{' & '.join(row)} \\\\" for row in body]
    spread = spread_words(histories)
    return "\n".join(
        [
            *([f"% {spread}"] if spread else []),
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            f"{' & '.join(head)} \\\\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def latex(text: str) -> str:
    """Text as LaTeX that prints it as it is.

    >>> latex("90 % of FedAvg_2")
    '90 \\\\% of FedAvg\\\\_2'
    """
    return re.sub(r"[\\~^±&%$#_{}]", lambda found: _SPECIAL[found[0]], text)
