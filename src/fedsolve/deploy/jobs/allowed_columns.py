"""The columns that a client's owner allows to be asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import RecordDict

from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.data.column_statistics.replies import replies_to
from fedsolve.deploy.jobs.column_records import ClientReply, read_request, reply_record


@dataclass(frozen=True)
class AllowedColumns:
    """What a client replies about its columns.

    Attributes:
        columns_of: node -> the columns, by name; None where statistics are not allowed.
        min_rows: rows with a value that a column must have, at least 1.
        max_epsilon: the client's bound on epsilon, which statistics would not keep; None for no bound.
        min_sum: clients whose sum alone the server may see, which statistics would not keep; None for any.

    Raises:
        InvalidInput: no integer of at least 1, or columns beside a bound.
    """

    columns_of: Callable[[Any], Mapping[str, Any]] | None
    min_rows: int
    max_epsilon: float | None
    min_sum: int | None = None

    def __post_init__(self) -> None:
        check_integer("min_rows", self.min_rows, 1)
        if self.columns_of is not None and self.max_epsilon is not None:
            raise InvalidInput("give statistics or max_epsilon, not both: statistics have no noise")
        if self.columns_of is not None and self.min_sum is not None:
            raise InvalidInput(
                "give statistics or min_sum, not both: the server sees each client's statistics"
            )

    def reply(self, node: Any, record: RecordDict, log: Callable[[str], None]) -> RecordDict:
        """Sums and counts over the rows of a node's columns; `log` is told what was asked.

        Raises:
            InvalidInput: statistics are not allowed, the request cannot be used, or the columns are none.
        """
        if self.columns_of is None:
            raise InvalidInput("no statistics are allowed here: its client_app has no statistics=")
        requests, all_columns = read_request(record)
        log(f"sums and counts are asked of {'all columns' if all_columns else ', '.join(requests)}")
        columns = self.columns_of(node)
        if not isinstance(columns, Mapping):
            raise InvalidInput(f"statistics gave {of_type(columns)}: give a mapping from names to columns")
        replies = replies_to(requests, all_columns, columns, self.min_rows)
        return reply_record(ClientReply(node.client, node.site, replies))
