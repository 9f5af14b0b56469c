"""Federated data sets: packed clients in memory and on disk, partitions and file readers."""

from fedsolve.data.column_statistics.report import Statistics
from fedsolve.data.column_statistics.statistics import statistics
from fedsolve.data.federated import FederatedData
from fedsolve.data.grouping import from_table
from fedsolve.data.on_disk.stored import open
from fedsolve.data.on_disk.writing import write
from fedsolve.data.partitioning.pachinko import Pachinko
from fedsolve.data.partitioning.partition import Partition
from fedsolve.data.partitioning.partitions import (
    IID,
    PARTITIONS,
    ByQuantity,
    Dirichlet,
    LabelsPerClient,
    Natural,
    Shards,
    as_partition,
)
from fedsolve.data.schema import Schema
from fedsolve.data.sources import checksum, data_dir, read_idx, read_npz

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
    "Statistics",
    "as_partition",
    "checksum",
    "data_dir",
    "from_table",
    "open",
    "read_idx",
    "read_npz",
    "statistics",
    "write",
]


def __dir__() -> list[str]:
    return sorted(__all__)
