"""The columns that a client's owner allows to be asked about."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fedsolve.core.errors import InvalidInput, check_integer, of_type, shown
from fedsolve.data.column_statistics.pooled import check_summable, to_numbers
from fedsolve.data.column_statistics.replies import Refused, join_bins, replies_to
from fedsolve.deploy.client.ledger import PrivacyBudget
from fedsolve.deploy.client.secure_sums import SecureSums, SumOrder
from fedsolve.deploy.jobs.column_records import (
    ClientReply,
    columns_digest,
    masked_record,
    read_masks,
    read_request,
    reply_record,
)
from fedsolve.deploy.messages.sanitize import about_request
from fedsolve.deploy.secure_rounds.words import Counts
from fedsolve.folders.files import locked, write_atomically
from fedsolve.folders.untrusted import loads, read_bytes

_ASKED = "questions.json"
_LARGEST = 2**22  # bytes of it


@dataclass(frozen=True)
class AllowedColumns:
    """What a client replies about its columns.

    Attributes:
        columns_of: node -> the columns, by name; None where statistics are not allowed.
        min_rows: rows with a value that a column must have, at least 1.
        budget: the noise that the owner demands, which statistics have none of.
        sums: the client's part in secure sums.
        max_questions: about a column that are answered, at least 1, counted over all experiments in a file of the node.

    Raises:
        InvalidInput: no integer of at least 1, no function, or columns beside a bound.
    """

    columns_of: Callable[[Any], Mapping[str, Any]] | None
    min_rows: int
    budget: PrivacyBudget
    sums: SecureSums
    max_questions: int

    def __post_init__(self) -> None:
        check_integer("min_rows", self.min_rows, 1)
        check_integer("max_questions", self.max_questions, 1)
        if self.columns_of is not None and (bound := self.budget.bound):
            raise InvalidInput(f"give statistics or {bound}, not both: statistics have no noise")
        if self.columns_of is not None and not callable(self.columns_of):
            raise InvalidInput(
                f"statistics = {shown(self.columns_of)} must be a function of the node or None"
            )

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
            requests, order, summed = read_request(record), None, {}
            if masks is not None:
                summed = check_summable(requests)
                digest = columns_digest(requests, node.run_config)
                order = SumOrder(masks.experiment, node.client, "statistics", None, digest, masks.order)
                self.sums.check_order(folder, order, log)
        log(f"sums and counts are asked of {', '.join(requests) or 'all columns'}")
        columns = self.columns_of(node)
        if not isinstance(columns, Mapping):
            raise InvalidInput(f"statistics gave {of_type(columns)}: give a mapping from names to columns")
        replies = replies_to(requests, columns, self.min_rows)
        known = set(map(str, columns)) & replies.keys()
        with about_request():
            over = self._asked_too_often(folder / f"client-{node.client}-asked", known)
            if over and masks is not None:
                raise InvalidInput(f"column {min(over)}: {self._refused.reason}")
        replies |= dict.fromkeys(over, self._refused)
        if order is not None:
            numbers = to_numbers(summed, replies)
            words = numbers.astype("<i8").tobytes()
            masked = self.sums.mask(folder, order, words, Counts(0, len(numbers)), log)
            return masked_record(node.client, masked)
        return reply_record(ClientReply(node.client, node.site, join_bins(replies, self.min_rows)))

    @property
    def _refused(self) -> Refused:
        return Refused(
            f"it was asked about {self.max_questions} times, as often as its owner allows (max_questions)"
        )

    def _asked_too_often(self, folder: Path, names: Collection[str]) -> set[str]:
        """Count a question about each column before it is answered; those with too many before.

        Raises:
            InvalidInput: the count is damaged or in use, or cannot be written.
        """
        path = folder / _ASKED
        with locked(folder):
            try:
                asked = loads(read_bytes(path, _LARGEST)) if path.exists() else {}
                over = {name for name in names if int(asked.get(name, 0)) >= self.max_questions}
            except (OSError, ValueError, TypeError, AttributeError):
                raise InvalidInput(
                    f"{path} is damaged, and how often columns were asked about is not known: restore the file"
                ) from None
            asked |= {name: int(asked.get(name, 0)) + 1 for name in names if name not in over}
            write_atomically(path, json.dumps(asked), private=True)
        return over
