"""Seeded partitions of pooled examples into clients: the rules that federated papers use."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedsolve.core.building import Registry
from fedsolve.core.errors import InvalidInput, check_integer, check_number, unknown
from fedsolve.data.columns import check_column


class Partition(ABC):
    """Base class of partitions, which assign examples to clients; equal rules and seeds give equal results.

    Attributes:
        name: what `PARTITIONS` and a configuration call it.
        summary: one line for `fedsolve list partitions`.
        citation: key of the paper it comes from.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    citation: ClassVar[str]

    @abstractmethod
    def __call__(self, labels: Any, num_clients: int, seed: int = 0) -> list[np.ndarray]:
        """Assign examples to clients: row numbers that are ascending and disjoint, at least one for each client.

        Args:
            labels: one for each example, shape (examples,), of one type; none may be missing.
            num_clients: clients to deal to, at most one for each example.
            seed: of NumPy's default generator, >= 0.

        Returns:
            For each client integers (n_i,), n_i at least 1.

        Raises:
            InvalidInput: a request that the rule cannot meet.
        """


def begin(labels: Any, num_clients: int, seed: int) -> tuple[np.ndarray, int, np.random.Generator]:
    column = check_column("labels", labels)
    clients = check_integer("num_clients", num_clients, 1)
    if clients > len(column):
        raise InvalidInput(
            f"num_clients = {clients} is more than the {len(column)} examples: give at most {len(column)}"
        )
    return column, clients, np.random.default_rng(check_integer("seed", seed))


def finish(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.sort(np.asarray(part, np.int64)) for part in parts]


def fill_empty(parts: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    # one example for each empty client, drawn from the client that has most (the first of equals)
    filled = [np.asarray(part, np.int64) for part in parts]
    sizes = np.array([len(part) for part in filled])
    for i in np.flatnonzero(sizes == 0):
        giver = int(np.argmax(sizes))
        row = int(rng.integers(sizes[giver]))
        filled[i] = filled[giver][row : row + 1]
        filled[giver] = np.delete(filled[giver], row)
        sizes[i], sizes[giver] = 1, sizes[giver] - 1
    return filled


# Pachinko allocation over a hierarchy of labels (Reddi et al. 2021, the federated CIFAR-100).
#
# It stands apart because it alone draws examples one by one and alone needs a second label.


@dataclass(frozen=True)
class Pachinko(Partition):
    """Pachinko allocation (Reddi et al. 2021): each client draws coarse label, fine label and example in turn.

    Examples are drawn without replacement, client by client.

    Each client draws p ~ Dirichlet(coarse_alpha) over the coarse labels and, below each of them,
    q ~ Dirichlet(fine_alpha) over its fine labels. An example takes a coarse label by p, a fine label by q
    and then any unused example; a label without unused examples is taken out and the rest renormalised.
    Rows left over are not used.

    Attributes:
        coarse_alpha: > 0, 0.1 in the paper.
        fine_alpha: > 0, 10 in the paper.
        per_client: examples of a client; None for examples // num_clients (100 of 50,000 in the paper); at least 1.

    Raises:
        InvalidInput: an alpha out of its range, a per_client that is no integer from 1.
    """

    coarse_alpha: float = 0.1
    fine_alpha: float = 10.0
    per_client: int | None = None

    name = "pachinko"
    summary = "hierarchical Dirichlet over coarse and fine labels, equal sizes, without replacement"
    citation = "reddi2021fedopt"

    def __post_init__(self) -> None:
        check_number("coarse_alpha", self.coarse_alpha, above=0, at_most=1e6)
        check_number("fine_alpha", self.fine_alpha, above=0, at_most=1e6)
        if self.per_client is not None:
            check_integer("per_client", self.per_client, 1)

    def __call__(
        self, labels: Any, num_clients: int, seed: int = 0, *, coarse: Any = None
    ) -> list[np.ndarray]:
        # coarse: the coarse label of each example, (examples,)
        column, clients, rng = begin(labels, num_clients, seed)
        each = len(column) // clients if self.per_client is None else self.per_client
        if each * clients > len(column):
            raise InvalidInput(
                f"{clients} clients of per_client = {each} need {each * clients} examples, "
                f"there are {len(column)}: give fewer"
            )
        fine, parents = _hierarchy(column, coarse)
        pools = [list(rng.permutation(np.flatnonzero(fine == f))) for f in range(len(parents))]
        return finish([self._draw(pools, parents, each, rng) for _ in range(clients)])

    def _draw(
        self, pools: list[list[int]], parents: np.ndarray, each: int, rng: np.random.Generator
    ) -> np.ndarray:
        # the rows of one client; they are taken out of the pools
        children = [np.flatnonzero(parents == c) for c in range(int(parents.max()) + 1)]
        p = rng.dirichlet(np.full(len(children), float(self.coarse_alpha)))
        q = [rng.dirichlet(np.full(len(below), float(self.fine_alpha))) for below in children]
        left = np.array([len(pool) for pool in pools])
        rows = []
        for _ in range(each):
            c = _choose(p, np.bincount(parents, weights=left), rng)
            f = children[c][_choose(q[c], left[children[c]], rng)]
            rows.append(pools[f].pop())
            left[f] -= 1
        return np.array(rows)


def _choose(weights: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> int:
    # an index with something left, by its weight; any of them if their weights have underflowed
    cumulative = np.cumsum(np.where(left > 0, weights, 0.0))
    if not cumulative[-1] > 0:
        cumulative = np.cumsum(left > 0, dtype=float)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def _hierarchy(labels: np.ndarray, coarse: Any) -> tuple[np.ndarray, np.ndarray]:
    # fine label of each example and coarse label of each fine label, both numbered from 0
    if coarse is None:
        raise InvalidInput("the partition pachinko needs the coarse labels: give coarse=, shape (examples,)")
    column = check_column("coarse labels", coarse)
    if len(column) != len(labels):
        raise InvalidInput(f"{len(column)} coarse labels for {len(labels)} examples: give one each")
    names, fine = np.unique(labels, return_inverse=True)
    above = np.unique(column, return_inverse=True)[1]
    parents = np.zeros(len(names), np.int64)
    parents[fine] = above
    if (parents[fine] != above).any():
        bad = int(np.argmax(parents[fine] != above))
        raise InvalidInput(
            f"label {labels[bad]} of row {bad} has two coarse labels: give each label the same one everywhere"
        )
    return fine, parents


# Seeded partitions of pooled examples into clients: the rules that federated papers use.


@dataclass(frozen=True)
class IID(Partition):
    """IID partition (McMahan et al. 2017): examples are assigned at random; sizes differ by at most one.

    >>> [len(part) for part in IID()(np.zeros(7), 3)]
    [3, 2, 2]
    """

    name = "iid"
    summary = "random assignment, equal sizes"
    citation = "mcmahan2017fedavg"

    def __call__(self, labels: Any, num_clients: int, seed: int = 0) -> list[np.ndarray]:
        column, clients, rng = begin(labels, num_clients, seed)
        return finish(np.array_split(rng.permutation(len(column)), clients))


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Dirichlet partition (Yurochkin et al. 2019): each class is split in proportions drawn from Dirichlet(alpha).

    Small alpha: few classes a client and uneven sizes; large alpha: close to iid. A client left empty is
    given one example drawn from the client that then has most. (Hsu et al. 2019 draw the proportions for
    each client over the classes instead, with equal sizes.)

    Attributes:
        alpha: concentration, > 0 and at most 1e6.

    Raises:
        InvalidInput: an alpha out of its range.
    """

    alpha: float

    name = "dirichlet"
    summary = "each class split in Dirichlet(alpha) proportions: label and size skew"
    citation = "yurochkin2019bayesian"

    def __post_init__(self) -> None:
        check_number("alpha", self.alpha, above=0, at_most=1e6)

    def __call__(self, labels: Any, num_clients: int, seed: int = 0) -> list[np.ndarray]:
        column, clients, rng = begin(labels, num_clients, seed)
        splits = []
        classes, column = np.unique(column, return_inverse=True)
        for label in range(len(classes)):
            rows = rng.permutation(np.flatnonzero(column == label))
            shares = rng.dirichlet(np.full(clients, float(self.alpha)))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
            splits.append(np.split(rows, np.minimum(cuts, len(rows))))
        return finish(fill_empty([np.concatenate(mine) for mine in zip(*splits, strict=True)], rng))


@dataclass(frozen=True)
class LabelsPerClient(Partition):
    """Label partition: each client holds at most k classes, and each class is split evenly among its clients.

    The least used classes are given out first, equals at random, so every class is held by equally many
    clients (but for one). Follows the `#C = k` split of Li et al. 2022, which draws the classes freely.

    Attributes:
        k: classes of a client, >= 1, at most those of the labels, and num_clients * k must reach them all.

    Raises:
        InvalidInput: a k that is no integer from 1.
    """

    k: int

    name = "labels"
    summary = "at most k classes for each client"
    citation = "li2022silos"

    def __post_init__(self) -> None:
        check_integer("k", self.k, 1)

    def __call__(self, labels: Any, num_clients: int, seed: int = 0) -> list[np.ndarray]:
        column, clients, rng = begin(labels, num_clients, seed)
        classes, column = np.unique(column, return_inverse=True)
        if self.k > len(classes):
            raise InvalidInput(
                f"k = {self.k} labels per client is more than the classes: give k <= {len(classes)}"
            )
        if self.k * clients < len(classes):
            raise InvalidInput(
                f"{clients} clients of k = {self.k} labels cannot hold {len(classes)} classes: "
                f"give k >= {-(-len(classes) // clients)} or more clients"
            )
        holders: list[list[int]] = [[] for _ in classes]
        for client in range(clients):
            used = np.array([len(h) for h in holders])
            for label in np.argsort(used + rng.random(len(classes)))[: self.k]:  # equals in random order
                holders[label].append(client)
        owned: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label, mine in enumerate(holders):
            rows = rng.permutation(np.flatnonzero(column == label))
            for client, part in zip(mine, np.array_split(rows, len(mine)), strict=True):
                owned[client].append(part)
        return finish(fill_empty([np.concatenate(parts) for parts in owned], rng))


@dataclass(frozen=True)
class Shards(Partition):
    """Shard partition (McMahan et al. 2017): examples sorted by label, in shards, `per_client` for each client.

    Attributes:
        per_client: shards of a client, 2 in the paper; num_clients * per_client <= examples.

    Raises:
        InvalidInput: a per_client that is no integer from 1.
    """

    per_client: int = 2

    name = "shards"
    summary = "sorted by label and cut into shards, per_client shards for each client: the pathological split"
    citation = "mcmahan2017fedavg"

    def __post_init__(self) -> None:
        check_integer("per_client", self.per_client, 1)

    def __call__(self, labels: Any, num_clients: int, seed: int = 0) -> list[np.ndarray]:
        column, clients, rng = begin(labels, num_clients, seed)
        total = clients * self.per_client
        if total > len(column):
            raise InvalidInput(
                f"{clients} clients of per_client = {self.per_client} shards need {total} examples, "
                f"there are {len(column)}: give fewer clients or shards"
            )
        order = rng.permutation(len(column))
        order = order[np.argsort(column[order], kind="stable")]
        shards = np.array_split(order, total)
        dealt = rng.permutation(total).reshape(clients, self.per_client)
        return finish([np.concatenate([shards[s] for s in mine]) for mine in dealt])


@dataclass(frozen=True)
class ByQuantity(Partition):
    """Quantity partition: random examples, with client sizes in proportion to log-normal draws, at least 1.

    The sizes are those of Li et al. 2020.

    Attributes:
        sigma: standard deviation of the logarithm of the sizes, >= 0; 0 gives equal sizes. Li et al.: 2.

    Raises:
        InvalidInput: a sigma outside [0, 100].
    """

    sigma: float

    name = "quantity"
    summary = "log-normal sizes, random labels"
    citation = "li2020fedprox"

    def __post_init__(self) -> None:
        check_number("sigma", self.sigma, at_least=0, at_most=100)

    def __call__(self, labels: Any, num_clients: int, seed: int = 0) -> list[np.ndarray]:
        column, clients, rng = begin(labels, num_clients, seed)
        exponent = self.sigma * rng.standard_normal(clients)
        weights = np.exp(exponent - exponent.max())
        exact = weights / weights.sum() * (len(column) - clients)
        sizes = 1 + np.floor(exact).astype(np.int64)
        largest_remainders = np.argsort(np.floor(exact) - exact, kind="stable")
        sizes[largest_remainders[: len(column) - sizes.sum()]] += 1
        return finish(np.split(rng.permutation(len(column)), np.cumsum(sizes)[:-1]))


@dataclass(frozen=True)
class Natural(Partition):
    """Natural partition (Caldas et al. 2018): one client for each group id, such as a writer; ids in order.

    Called with the group ids in the place of the labels. With `num_clients` that many groups are drawn
    without replacement and the rows of the others are left out; without it there is a client for each.

    >>> Natural()(np.array([7, 3, 7, 7]))
    [array([1]), array([0, 2, 3])]
    """

    name = "natural"
    summary = "one client for each group id, such as a writer"
    citation = "caldas2018leaf"

    def __call__(self, labels: Any, num_clients: int | None = None, seed: int = 0) -> list[np.ndarray]:
        # `labels` are the group ids
        ids, inverse = np.unique(check_column("groups", labels), return_inverse=True)
        parts = np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])
        rng = np.random.default_rng(check_integer("seed", seed))
        if num_clients is None:
            return finish(parts)
        if check_integer("num_clients", num_clients, 1) > len(ids):
            raise InvalidInput(f"num_clients = {num_clients} of {len(ids)} groups: give at most {len(ids)}")
        return finish([parts[i] for i in np.sort(rng.choice(len(ids), num_clients, replace=False))])


_CLASSES = (IID, Dirichlet, LabelsPerClient, Shards, ByQuantity, Natural, Pachinko)
PARTITIONS: Registry[type[Partition]] = Registry("partition", {cls.name: cls for cls in _CLASSES})


def as_partition(value: Partition | str | Mapping[str, Any]) -> Partition:
    """Make a partition from its name, or from a table with its name and parameters; a partition is returned as it is.

    Args:
        value: a partition, its name, or a table {name = ..., parameter = ...}.

    Returns:
        The partition itself if it is one, otherwise a new one of `PARTITIONS`.

    Raises:
        InvalidInput: an unknown name or parameter (with the nearest match), a missing one, or a value that is
            refused.

    >>> as_partition({"name": "dirichlet", "alpha": 0.3})
    Dirichlet(alpha=0.3)
    """
    if isinstance(value, Partition):
        return value
    table = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = str(table.pop("name", ""))
    cls = PARTITIONS.find(name)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise unknown(f"parameter of the partition {name}", key, fields)
    for key, f in fields.items():
        if key not in table and f.default is dataclasses.MISSING:
            raise InvalidInput(f"partition {name} needs {key}: give {{name = '{name}', {key} = ...}}")
    return cls(**table)
