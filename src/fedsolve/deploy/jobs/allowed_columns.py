"""The columns that a client's owner allows to be asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput, of_type, shown
from fedsolve.data.column_statistics.replies import replies_to
from fedsolve.data.column_statistics.summed_columns import to_numbers
from fedsolve.deploy.client.secure_sums import SecureSums, SumOrder
from fedsolve.deploy.jobs.column_records import (
    ClientReply,
    columns_digest,
    masked_record,
    read_masks,
    read_request,
    reply_record,
)
from fedsolve.deploy.secure_rounds.words import Counts


@dataclass(frozen=True)
class AllowedColumns:
    """What a client replies about its columns.

    Attributes:
        columns_of: node -> the columns, by name; None where statistics are not allowed.
        min_rows: rows with a value that a column must have, at least 1.
        max_epsilon: the client's bound on epsilon, which statistics would not keep; None for no bound.
        sums: the client's part in secure sums.

    Raises:
        InvalidInput: no integer of at least 1, no function, or columns beside a bound.
    """

    columns_of: Callable[[Any], Mapping[str, Any]] | None
    min_rows: int
    max_epsilon: float | None
    sums: SecureSums = field(default_factory=SecureSums)

    def __post_init__(self) -> None:
        check_integer("min_rows", self.min_rows, 1)
        if self.columns_of is not None and not callable(self.columns_of):
            raise InvalidInput(
                f"statistics = {shown(self.columns_of)} must be a function of the node or None"
            )
        if self.columns_of is not None and self.max_epsilon is not None:
            raise InvalidInput("give statistics or max_epsilon, not both: statistics have no noise")

    def reply(self, node: Any, folder: Path, record: RecordDict, log: Callable[[str], None]) -> RecordDict:
        """Sums and counts over the rows of a node's columns, masked where the request is for a sum of all clients.

        Args:
            node: on which the client runs.
            folder: where the node keeps its states.
            record: the request.
            log: told what was asked.

        Raises:
            InvalidInput: statistics are not allowed, the request cannot be used, or the columns are none.
        """
        if self.columns_of is None:
            raise InvalidInput("no statistics are allowed here: its client_app has no statistics=")
        masks = read_masks(record)
        if masks is None and self.sums.min_sum is not None:
            raise InvalidInput(
                f"this client allows sums of at least {self.sums.min_sum} clients alone (min_sum): ask with --secure"
            )
        requests, all_columns = read_request(record)
        log(f"sums and counts are asked of {'all columns' if all_columns else ', '.join(requests)}")
        columns = self.columns_of(node)
        if not isinstance(columns, Mapping):
            raise InvalidInput(f"statistics gave {of_type(columns)}: give a mapping from names to columns")
        replies = replies_to(requests, all_columns, columns, self.min_rows)
        if masks is not None:
            numbers = to_numbers(requests, replies)
            digest = columns_digest(requests, node.run_config)
            order = SumOrder(masks.experiment, node.client, "statistics", None, digest, masks.order)
            words = numbers.astype("<i8").tobytes()
            masked = self.sums.mask(folder, order, words, Counts(0, len(numbers)), log)
            return masked_record(node.client, masked)
        return reply_record(ClientReply(node.client, node.site, replies))
