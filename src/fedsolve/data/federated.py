"""Federated data: one packed array per field, split into clients by counts.

Packing keeps uneven clients exact without padding: client i owns rows offsets[i] to offsets[i] + counts[i].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, check_integer, check_number, of_type
from fedsolve.core.trees import as_array, check_same_rows, first_merged
from fedsolve.core.types import Batch
from fedsolve.data.columns import (
    Columns,
    Numbered,
    as_names,
    as_rows,
    check_column,
    check_list,
    check_names,
    check_same_form,
    in_common_type,
    in_order,
    named_arrays,
)


@dataclass(frozen=True)
class FederatedData:
    """Examples of all clients, packed client after client.

    Attributes:
        examples: pytree of arrays of shape (total, ...), rows ordered by client; kept, not copied, so write to none.
        counts: examples of each client, shape (clients,), all at least 1.
        names: a name for each client.
        columns: the names of the columns of each array, in the order of `jax.tree.leaves`, None for one without; ()
            where none has any. Tables among `examples` bring their own.

    Raises:
        InvalidInput: no client, a client without examples, two clients of one name, fields of different length, or
            a non-finite number in a floating-point field (the client is named).
    """

    examples: Batch
    counts: np.ndarray
    names: tuple[str, ...] = ()
    columns: Columns = ()

    def __post_init__(self) -> None:
        counts = as_array("counts", self.counts)
        if counts.ndim != 1 or (len(counts) and counts.dtype.kind not in "iu"):
            raise InvalidInput(
                f"counts = {of_type(self.counts)} must be integers, one for each client, shape (clients,)"
            )
        counts = counts.astype(np.int64)
        object.__setattr__(self, "counts", counts)
        examples, columns = named_arrays("field", self.examples, self.columns, "its columns")
        object.__setattr__(self, "examples", examples)
        object.__setattr__(self, "columns", columns)
        if not isinstance(self.names, Sequence) or isinstance(self.names, str):
            raise InvalidInput(f"names = {of_type(self.names)} must be a list, one for each client")
        if not self.names:
            object.__setattr__(self, "names", Numbered(len(counts)))
        self._check()

    def _check(self) -> None:
        if len(self.counts) == 0:
            raise InvalidInput("federated data has no clients: give at least one")
        if len(self.names) != len(self.counts):
            raise InvalidInput(
                f"{len(self.names)} client names for {len(self.counts)} clients: give one each"
            )
        check_names(self.names)
        if (self.counts < 1).any():
            empty = self.names[int(np.argmax(self.counts < 1))]
            raise InvalidInput(f"{empty} has no examples: drop it or give it at least one")
        total = int(self.counts.sum())
        if not jax.tree.leaves(self.examples):
            raise InvalidInput("federated data holds no array: give examples as a pytree of arrays")
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.examples):
            where = jax.tree_util.keystr(path) or "the examples"
            if leaf.ndim == 0 or len(leaf) != total:
                raise InvalidInput(f"field {where} has shape {leaf.shape}: its first axis must be {total}")
            row = first_nonfinite_row(leaf)
            if row is not None:
                client, own = self._client_of(row)
                raise InvalidInput(
                    f"field {where} of {self.names[client]} holds a non-finite number in row {own}: clean the data "
                    "first; where NaN means a missing value, give a number in its place and a mask as a further field"
                )

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self.counts)

    @property
    def num_examples(self) -> int:
        """The number of examples of all clients together."""
        return int(self.counts.sum())

    @cached_property
    def offsets(self) -> np.ndarray:
        """First row of each client, shape (clients,)."""
        return np.concatenate([[0], np.cumsum(self.counts)[:-1]])

    def place(self, row: int, clients: np.ndarray | None = None, kind: str = "") -> str:
        """Say where a row of `examples` stands, for an error.

        Args:
            row: its number.
            clients: whose rows these are, one client after another; None for all.
            kind: a word before the client's name.

        Returns:
            Its number at its client, and the client's name.
        """
        client, own = self._client_of(row, clients)
        return f"row {own} of {kind}{self.names[client]}"

    def _client_of(self, row: int, clients: np.ndarray | None = None) -> tuple[int, int]:
        # also the row's number at that client
        ends = np.cumsum(self.counts if clients is None else self.counts[clients])
        i = int(np.searchsorted(ends, row, side="right"))
        return (i if clients is None else int(clients[i])), int(row - (ends[i - 1] if i else 0))

    @cached_property
    def merged_in_float32(self) -> tuple[str, ...]:
        # for each field with different numbers that are one in float32, where one of them stands
        lines, leaves = [], jax.tree_util.tree_leaves_with_path(self.examples)
        for (path, leaf), names in zip(leaves, self.columns or (None,) * len(leaves), strict=True):
            if (found := first_merged(leaf)) is not None:
                column = "" if leaf.ndim < 2 else f", column {repr(names[found[0]]) if names else found[0]}"
                where = jax.tree_util.keystr(path) or "of examples"
                lines.append(f"field {where}{column}, {self.place(found[1])}")
        return tuple(lines)

    def range_of(self, leaf: np.ndarray) -> tuple[int, int] | None:
        """The smallest and largest integer of an array of `examples`, if they are known without reading it.

        Args:
            leaf: the array.

        Returns:
            Both; None if nobody noted them.
        """
        return None

    def check_ranges(self, arrays: Sequence[np.ndarray]) -> None:
        """Raise `InvalidInput` if rows that were read hold an integer outside the range that was written.

        Args:
            arrays: for each leaf, in the order of `jax.tree.leaves`, some of its rows.

        Raises:
            InvalidInput: they do, with the file and the number.
        """

    def client(self, i: int) -> Batch:
        """The examples of client i.

        Args:
            i: its number, 0 .. num_clients - 1.

        Returns:
            A pytree of views, leaves of shape (counts[i], ...).

        Raises:
            InvalidInput: there is no such client.
        """
        if check_integer("client", i) >= self.num_clients:
            raise InvalidInput(f"client = {i} must be below {self.num_clients}")
        start = int(self.offsets[i])
        return jax.tree.map(lambda a: a[start : start + int(self.counts[i])], self.examples)

    def take(self, clients: np.ndarray) -> Batch:
        """The examples of some clients, shape (taken,), packed in their order.

        Args:
            clients: their numbers, integers (taken,), each 0 .. num_clients - 1.

        Returns:
            A pytree of new arrays, leaves of shape (their examples together, ...).
        """
        total = int(self.counts[clients].sum())
        taken = jax.tree.map(lambda a: np.empty((total, *a.shape[1:]), a.dtype), self.examples)
        self.read_into(clients, jax.tree.leaves(taken))
        return taken

    def read_into(self, clients: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        """Copy the examples of some clients, packed in their order, to the beginning of each leaf's array.

        Args:
            clients: their numbers, integers (taken,), each 0 .. num_clients - 1.
            arrays: for each leaf, in the order of `jax.tree.leaves`, an array of its type with at least as many rows.
        """
        starts, counts = self.offsets[clients], self.counts[clients]
        before = np.cumsum(counts) - counts
        rows = np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
        for leaf, array in zip(jax.tree.leaves(self.examples), arrays, strict=True):
            # "clip" checks no row, and buffers nothing
            np.take(leaf, rows, axis=0, out=array[: len(rows)], mode="clip")

    def sample(self, examples: int, seed: int = 0) -> FederatedData:
        """Draw whole clients at random that hold at least `examples` examples together, or all.

        Args:
            examples: the least number of examples, at least 1.
            seed: of the draw, at least 0.

        Returns:
            Their data, in the order of their numbers; numbers begin at 0 anew.

        Raises:
            InvalidInput: `examples` is no integer >= 1, `seed` none >= 0.
        """
        return self.of(self.draw(examples, seed))

    def draw(self, examples: int, seed: int = 0) -> np.ndarray:
        """Draw the numbers of the clients of a `sample`, in ascending order.

        Args:
            examples: the least number of examples, at least 1.
            seed: of the draw, at least 0.

        Returns:
            Integers (drawn,).

        Raises:
            InvalidInput: `examples` is no integer >= 1, `seed` none >= 0.
        """
        check_integer("examples", examples, 1)
        order = np.random.default_rng(check_integer("seed", seed)).permutation(self.num_clients)
        enough = int(np.searchsorted(np.cumsum(self.counts[order]), examples)) + 1
        return np.sort(order[:enough])

    def of(self, clients: np.ndarray) -> FederatedData:
        """Select clients by their numbers.

        Args:
            clients: their numbers, integers (taken,), each 0 .. num_clients - 1.

        Returns:
            Data of those clients, in that order, with their names; numbers begin at 0 anew.
        """
        names = tuple(self.names[i] for i in clients)
        return FederatedData(self.take(clients), self.counts[clients], names, self.columns)

    def hold_out(self, share: float, seed: int = 0) -> tuple[FederatedData, Batch]:
        """Hold out a random fraction of each client's examples: the remaining clients, and these examples together.

        Every client keeps at least one example.

        Args:
            share: of each client's examples, in (0, 1), rounded to whole ones.
            seed: of the draw, at least 0.

        Returns:
            The clients' remaining data, and the examples held out, packed.

        Raises:
            InvalidInput: a share outside (0, 1), or so small that nothing is held out.
        """
        check_number("validation", share, above=0, below=1)
        check_integer("seed", seed)
        draw = np.random.default_rng(seed)
        remaining, held_out = [], []
        for offset, count in zip(self.offsets, self.counts, strict=True):
            order = int(offset) + draw.permutation(int(count))
            some = min(round(share * int(count)), int(count) - 1)
            held_out.append(np.sort(order[:some]))
            remaining.append(np.sort(order[some:]))
        rows = np.concatenate(held_out)
        if not len(rows):
            raise InvalidInput(f"validation = {share} holds out no example of clients this small: give more")
        return self._rows(remaining, self.names), jax.tree.map(lambda a: a[rows], self.examples)

    def hold_out_clients(self, share: float, seed: int = 0) -> tuple[FederatedData, Batch]:
        """Hold out a random fraction of the clients: the remaining clients, and the examples of the others together.

        Args:
            share: of the clients, in (0, 1), rounded to whole clients.
            seed: of the draw, at least 0.

        Returns:
            The remaining clients, and the examples of the others, packed.

        Raises:
            InvalidInput: a share outside (0, 1), or of fewer than one client, or of all.
        """
        check_number("validation", share, above=0, below=1)
        check_integer("seed", seed)
        some = round(share * self.num_clients)
        if not 0 < some < self.num_clients:
            raise InvalidInput(
                f"validation = {share} holds out {some} of {self.num_clients} clients: give another"
            )
        order = np.random.default_rng(seed).permutation(self.num_clients)
        rows = [int(o) + np.arange(int(n)) for o, n in zip(self.offsets, self.counts, strict=True)]
        remaining = np.sort(order[some:])
        held_out = np.concatenate([rows[i] for i in np.sort(order[:some])])
        data = self._rows([rows[i] for i in remaining], tuple(self.names[i] for i in remaining))
        return data, jax.tree.map(lambda a: a[held_out], self.examples)

    def _rows(self, parts: Sequence[np.ndarray], names: Sequence[str]) -> FederatedData:
        order = np.concatenate(parts)
        packed = jax.tree.map(lambda a: a[order], self.examples)
        return FederatedData(packed, np.array([len(p) for p in parts]), tuple(names), self.columns)

    def in_order(self, columns: Columns, name: str) -> FederatedData:
        """The same with the columns of each array in an order, by their names where both have some.

        Args:
            columns: the names in that order, as `columns` has them.
            name: what an error calls these data.

        Returns:
            The data themselves where they are in order.

        Raises:
            InvalidInput: other names.
        """
        if self.columns in ((), columns):
            return self
        examples = in_order(name, self.examples, self.columns, columns, "those that train")
        return FederatedData(examples, self.counts, self.names, columns)

    @classmethod
    def from_clients(cls, clients: Sequence[Batch], names: Sequence[str] = ()) -> FederatedData:
        """Make federated data from one pytree of arrays per client, all of the same structure.

        Args:
            clients: for each a pytree of arrays of shape (examples, ...), or of tables of pandas, Polars or Arrow, at
                least one example. Columns with names go by name: they are put in the order of the first that have some.
            names: one for each client; empty for `client 0` and so on.

        Returns:
            The data, packed in the order given.

        Raises:
            InvalidInput: no client, clients that differ in structure, shapes or names of columns, a missing value, or
                integers that the type of all clients together would round.

        >>> FederatedData.from_clients([np.zeros((3, 2)), np.ones((1, 2))]).counts
        array([3, 1])
        """
        check_list("clients", clients, "one pytree of arrays for each client")
        if not clients:
            raise InvalidInput("federated data has no clients: give at least one")
        given = as_names(names)
        called = given if len(given) == len(clients) else Numbered(len(clients))
        packed: list[Batch] = []
        columns: Columns = ()
        for i, client in enumerate(clients):
            arrays, columns = named_arrays(f"{called[i]}:", client, columns)
            packed.append(arrays)
        counts = [check_same_form(c, packed[0], called[i], called[0]) for i, c in enumerate(packed)]
        examples = jax.tree_util.tree_map_with_path(
            lambda path, *parts: in_common_type(jax.tree_util.keystr(path) or "of examples", parts, called),
            *packed,
        )
        return cls(examples, np.array(counts), given, columns)

    @classmethod
    def from_partition(
        cls, examples: Batch, parts: Sequence[np.ndarray], names: Sequence[str] = ()
    ) -> FederatedData:
        """Make federated data from pooled arrays and each client's row numbers (see `fs.data.Partition`).

        Args:
            examples: a pytree of arrays of shape (all examples, ...).
            parts: for each client the rows that are its own, integers (n_i,).
            names: one for each client; empty for `client 0` and so on.

        Returns:
            The data, rows copied in the order of `parts`.

        Raises:
            InvalidInput: fields of different lengths, rows that are not there, or a client without any.
        """
        packed, total, columns = _pooled(examples)
        if not isinstance(parts, np.ndarray):
            check_list("parts", parts, "row numbers for each client")
        rows = [as_rows(f"the rows of client {i}", part, total) for i, part in enumerate(parts)]
        order = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        packed = jax.tree.map(lambda a: a[order], packed)
        return cls(packed, np.array([len(r) for r in rows], np.int64), as_names(names), columns)

    @classmethod
    def from_groups(cls, examples: Batch, groups: np.ndarray) -> FederatedData:
        """Make federated data from pooled arrays and a group id per example, with one client for each id.

        Args:
            examples: a pytree of arrays of shape (n, ...), or of tables.
            groups: an id for each example, shape (n,): integers of any size, text, or other values of one type with an
                order. None may be missing.

        Returns:
            The data, clients in the order of their ids, which are their names.

        Raises:
            InvalidInput: fields of different lengths, another number of ids, a missing id, or ids of several types.

        >>> FederatedData.from_groups(np.arange(4.0), np.array([7, 3, 7, 7])).names
        ('3', '7')
        """
        column, (_, total, _) = check_column("groups", groups), _pooled(examples)
        if len(column) != total:
            raise InvalidInput(f"{len(column)} group ids for {total} examples: give one for each example")
        check_same_rows([("the examples", leaf) for leaf in jax.tree.leaves(examples)] + [("groups", groups)])
        ids, inverse = np.unique(column, return_inverse=True)
        parts = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
        return cls.from_partition(examples, parts, tuple(str(i) for i in ids))


def _pooled(examples: Batch) -> tuple[Batch, int, Columns]:
    # arrays, how many rows they have, and their columns
    packed, columns = named_arrays("field", examples)
    lengths = {len(leaf) if leaf.ndim else -1 for leaf in jax.tree.leaves(packed)}
    if len(lengths) != 1 or -1 in lengths:
        raise InvalidInput(f"the pooled fields have lengths {sorted(lengths)}: give arrays of one length")
    return packed, lengths.pop(), columns


def first_nonfinite_row(array: np.ndarray) -> int | None:
    # with a number that is not finite; None if there is none
    if not np.issubdtype(array.dtype, np.inexact) or np.isfinite(array).all():
        return None
    return int(np.argmin(np.isfinite(array).reshape(len(array), -1).all(axis=1)))
