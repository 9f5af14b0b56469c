"""The columns that a client's owner allows to be asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedsolve.core.checks import check_integer
from fedsolve.core.errors import InvalidInput, of_type
from fedsolve.data.column_statistics.replies import replies_to
from fedsolve.data.column_statistics.summed_columns import to_numbers
from fedsolve.deploy.client.ledger import PrivacyBudget
from fedsolve.deploy.client.secure_sums import SecureSums, SumOrder
from fedsolve.deploy.jobs.column_records import (
    ClientReply,
    masked_record,
    read_masks,
    read_request,
    reply_record,
)
from fedsolve.deploy.messages.sanitize import about_request


@dataclass(frozen=True)
class AllowedColumns:
    """What a client replies about its columns.

    Attributes:
        columns_of: node -> the columns, by name; None where statistics are not allowed.
        min_rows: rows with a value that a column must have, at least 1.
        budget: the noise that the owner demands, which statistics have none of.
        sums: the client's part in secure sums.

    Raises:
        InvalidInput: no integer of at least 1, or columns beside a bound.
    """

    columns_of: Callable[[Any], Mapping[str, Any]] | None
    min_rows: int
    budget: PrivacyBudget
    sums: SecureSums = field(default_factory=SecureSums)

    def __post_init__(self) -> None:
        check_integer("min_rows", self.min_rows, 1)
        if self.columns_of is not None and (bound := self.budget.bound):
            raise InvalidInput(f"give statistics or {bound}, not both: statistics have no noise")

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
        with about_request():
            if self.columns_of is None:
                raise InvalidInput("no statistics are allowed here: its client_app has no statistics=")
            masks = read_masks(record)
            if masks is None and self.sums.min_sum is not None:
                raise InvalidInput(
                    f"this client allows sums of at least {self.sums.min_sum} clients alone (min_sum): ask with "
                    "--secure"
                )
            requests, all_columns = read_request(record)
        log(f"sums and counts are asked of {'all columns' if all_columns else ', '.join(requests)}")
        columns = self.columns_of(node)
        if not isinstance(columns, Mapping):
            raise InvalidInput(f"statistics gave {of_type(columns)}: give a mapping from names to columns")
        replies = replies_to(requests, all_columns, columns, self.min_rows)
        if masks is not None:
            words = to_numbers(requests, replies).astype("<i8").tobytes()
            order = SumOrder(masks.experiment, node.client, "statistics", None, masks.order)
            masked = self.sums.mask(folder, order, words, log)
            return masked_record(node.client, masked)
        return reply_record(ClientReply(node.client, node.site, replies))
