"""Federated data sets: packed clients in memory and on disk, partitions and file readers."""

from fedsolve.data.federated import FederatedData
from fedsolve.data.grouping import from_table
from fedsolve.data.partitions import (
    IID,
    PARTITIONS,
    ByQuantity,
    Dirichlet,
    LabelsPerClient,
    Natural,
    Pachinko,
    Partition,
    Shards,
    as_partition,
)
from fedsolve.data.schema import Schema
from fedsolve.data.sources import checksum, data_dir, read_idx, read_npz
from fedsolve.data.stored import open
from fedsolve.data.writing import write

__all__ = [
    "IID",
    "PARTITIONS",
    "ByQuantity",
    "Dirichlet",
    "FederatedData",
    "LabelsPerClient",
    "Natural",
    "Pachinko",
    "Partition",
    "Schema",
    "Shards",
    "as_partition",
    "checksum",
    "data_dir",
    "from_table",
    "open",
    "read_idx",
    "read_npz",
    "write",
]


def __dir__() -> list[str]:
    return sorted(__all__)
