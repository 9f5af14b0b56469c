"""Partitions: what all of them promise, what each of them promises, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsolve.config.catalogue import BIBTEX
from fedsolve.core.errors import InvalidInput
from fedsolve.data import (
    IID,
    PARTITIONS,
    ByQuantity,
    Dirichlet,
    LabelsPerClient,
    Natural,
    Pachinko,
    Shards,
    as_partition,
)
from fedsolve.data.partitions import fill_empty

COMPLETE = [
    IID(),
    Dirichlet(1e-6),
    Dirichlet(0.3),
    Dirichlet(1e6),
    LabelsPerClient(1),
    LabelsPerClient(2),
    Shards(1),
    Shards(2),
    ByQuantity(0.0),
    ByQuantity(2.0),
    ByQuantity(100.0),
]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def skew(labels, parts):
    """Mean total-variation distance between a client's label shares and the pooled shares, by examples."""
    classes = int(labels.max()) + 1
    pooled = np.bincount(labels, minlength=classes) / len(labels)
    distances = [np.abs(np.bincount(labels[p], minlength=classes) / len(p) - pooled).sum() / 2 for p in parts]
    return np.average(distances, weights=[len(p) for p in parts])


@pytest.mark.parametrize("partition", COMPLETE, ids=repr)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_row_belongs_to_exactly_one_client_and_no_client_is_empty(partition, data):
    clients = data.draw(st.integers(1, 12), "clients")
    classes = data.draw(st.integers(1, 4), "classes")
    rows = data.draw(st.integers(max(2 * clients, classes), 60), "rows")
    labels = np.arange(rows) % classes
    labels = labels[np.random.default_rng(data.draw(st.integers(0, 99), "shuffle")).permutation(rows)]
    if isinstance(partition, LabelsPerClient) and not classes / clients <= partition.k <= classes:
        with pytest.raises(InvalidInput, match="k = "):
            partition(labels, clients, 0)
        return
    parts = partition(labels, clients, data.draw(st.integers(0, 2**40), "seed"))
    assert len(parts) == clients
    assert min(len(p) for p in parts) >= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(rows))
    assert all(p.dtype == np.int64 and (np.diff(p) > 0).all() for p in parts)


@pytest.mark.parametrize("partition", COMPLETE, ids=repr)
def test_the_seed_alone_decides(partition):
    labels = np.arange(600) % 10
    clients = 10
    assert same(partition(labels, clients, 3), partition(labels, clients, 3))
    assert not same(partition(labels, clients, 3), partition(labels, clients, 4))


@pytest.mark.parametrize("partition", COMPLETE, ids=repr)
def test_one_client_for_each_example_is_the_limit(partition):
    if isinstance(partition, Shards | LabelsPerClient):
        partition = type(partition)(1)
    parts = partition(np.arange(9) % 3, 9, 0)
    assert sorted(int(p[0]) for p in parts) == list(range(9))
    with pytest.raises(InvalidInput, match="10 "):
        partition(np.arange(9) % 3, 10, 0)


def test_iid_sizes_differ_by_one_at_most_and_labels_are_mixed():
    labels = np.repeat(np.arange(10), 103)
    parts = IID()(labels, 20, 0)
    assert {len(p) for p in parts} == {51, 52}
    assert skew(labels, parts) < 0.25


def test_dirichlet_is_more_skewed_the_smaller_alpha():
    labels = np.repeat(np.arange(10), 200)
    found = [skew(labels, Dirichlet(alpha)(labels, 10, 0)) for alpha in (0.01, 0.3, 3.0, 1e5)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.6
    assert found[-1] < 0.02


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    """The share of one of N clients under Dirichlet(a) has variance (1/N)(1 - 1/N) / (N a + 1).

    N = 4, a = 1: 0.1875 / 5 = 0.0375, standard deviation 0.194, over 500 classes of 400 examples.
    """
    labels = np.repeat(np.arange(500), 400)
    parts = Dirichlet(1.0)(labels, 4, 0)
    shares = np.stack([np.bincount(labels[p], minlength=500) / 400 for p in parts])
    assert abs(shares.mean() - 0.25) < 1e-12
    assert abs(shares.var() - 0.0375) < 0.003


def test_an_empty_client_gets_one_example_of_the_largest():
    """Sizes 4, 5, 0, 0: the second gives one, then the first of the two equal ones."""
    parts = [np.arange(4), np.arange(4, 9), np.zeros(0, int), np.zeros(0, int)]
    filled = fill_empty(parts, np.random.default_rng(0))
    assert [len(p) for p in filled] == [3, 4, 1, 1]
    assert filled[2][0] >= 4 > filled[3][0]
    assert np.array_equal(np.sort(np.concatenate(filled)), np.arange(9))


def test_dirichlet_gives_an_empty_client_one_example_of_the_largest():
    """Fifty examples of one class under alpha = 1e-6 fall to one client: the others get one each."""
    sizes = sorted(len(p) for p in Dirichlet(1e-6)(np.zeros(50, int), 5, 0))
    assert sizes == [1, 1, 1, 1, 46]


@settings(max_examples=40, deadline=None)
@given(k=st.integers(1, 5), clients=st.integers(5, 30), seed=st.integers(0, 1000))
def test_labels_per_client_holds_at_most_k_and_shares_evenly(k, clients, seed):
    labels = np.repeat(np.arange(5), 60)
    parts = LabelsPerClient(k)(labels, clients, seed)
    held = [np.unique(labels[p]) for p in parts]
    assert all(len(h) == k for h in held)
    holders = np.bincount(np.concatenate(held), minlength=5)
    assert holders.max() - holders.min() <= 1


def test_labels_per_client_keeps_its_promise_when_a_class_is_rarer_than_its_clients():
    labels = np.array([0] * 50 + [1])
    parts = LabelsPerClient(1)(labels, 8, 0)
    assert all(len(np.unique(labels[p])) == 1 for p in parts)


def test_shards_hold_few_labels_of_equal_size():
    """The split of McMahan et al.: 100 clients x 2 shards of 300 sorted examples hold 2 labels."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
    parts = Shards(2)(labels, 100, 0)
    assert {len(p) for p in parts} == {600}
    assert max(len(np.unique(labels[p])) for p in parts) == 2


def test_quantity_sizes_follow_sigma_and_labels_do_not():
    labels = np.repeat(np.arange(4), 5000)
    equal, uneven = ByQuantity(0.0)(labels, 100, 0), ByQuantity(2.0)(labels, 100, 0)
    assert {len(p) for p in equal} == {200}
    assert {len(p) for p in ByQuantity(0.0)(labels, 300, 0)} == {66, 67}
    assert skew(labels, uneven) < 0.1


def test_quantity_sizes_have_a_logarithm_of_deviation_sigma():
    """Of 500 clients: sigma 0.7 is known to 0.7 / sqrt(1000) = 0.022; sizes average 400, so 1 is small."""
    logs = np.log([len(p) for p in ByQuantity(0.7)(np.zeros(200_000), 500, 0)])
    assert logs.std() == pytest.approx(0.7, abs=0.066)


def test_natural_is_one_client_for_each_group():
    groups = np.array(["b", "a", "b", "c", "a"])
    assert same(Natural()(groups), [np.array([1, 4]), np.array([0, 2]), np.array([3])])
    two = Natural()(groups, 2, seed=1)
    assert len(two) == 2
    assert all(any(np.array_equal(p, q) for q in Natural()(groups)) for p in two)
    drawn = {tuple(np.concatenate(Natural()(groups, 2, seed=s))) for s in range(20)}
    assert len(drawn) == 3
    with pytest.raises(InvalidInput, match="4 of 3 groups"):
        Natural()(groups, 4)


FINE = np.repeat(np.arange(20), 50)
COARSE = FINE // 5


@pytest.mark.full
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), clients=st.integers(1, 40))
def test_pachinko_draws_equal_disjoint_clients(seed, clients):
    parts = Pachinko()(FINE, clients, seed, coarse=COARSE)
    assert {len(p) for p in parts} == {1000 // clients}
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    assert same(parts, Pachinko()(FINE, clients, seed, coarse=COARSE))


def test_pachinko_skews_coarse_labels_and_spreads_fine_ones():
    """Coarse alpha .1: most of a client lies in one coarse label; fine alpha 10: about evenly below it.

    Only the first clients are free draws (the last ones get what is left), so few are taken: 5 x 20 of 1,000.
    """
    top, below = [], []
    for seed in range(20):
        for p in Pachinko(per_client=20)(FINE, 5, seed, coarse=COARSE):
            counts = np.bincount(COARSE[p], minlength=4)
            top.append(counts.max() / 20)
            inside = np.bincount(FINE[p], minlength=20).reshape(4, 5)[counts.argmax()]
            below.append(inside.max() / inside.sum())
    assert np.mean(top) > 0.75
    assert np.mean(below) < 0.45
    flat = [
        np.bincount(COARSE[p], minlength=4).max() / 20
        for p in Pachinko(coarse_alpha=1e4, per_client=20)(FINE, 5, 0, coarse=COARSE)
    ]
    assert np.mean(flat) < 0.5


def transcript_of_pachinko(fine, coarse, clients, seed, per_client):
    """Algorithm 4 of Reddi et al. 2021, word by word: a tree with a probability on each edge, from which what is empty
    is cut and the rest renormalised; it draws from the generator in the library's order."""
    rng = np.random.default_rng(seed)
    images = {y: list(rng.permutation(np.flatnonzero(fine == y))) for y in np.unique(fine)}
    tree = {c: list(np.unique(fine[coarse == c])) for c in np.unique(coarse)}

    def renormalised_draw(edges):
        total = sum(edges.values())
        at, r = 0.0, rng.random()
        for child, weight in edges.items():
            at += weight / total
            if r < at:
                return child
        return child

    parts = []
    for _ in range(clients):
        p = dict(zip(tree, rng.dirichlet([0.1] * len(tree)), strict=True))
        q = {c: dict(zip(tree[c], rng.dirichlet([10.0] * len(tree[c])), strict=True)) for c in tree}
        mine = []
        for _ in range(per_client):
            c = renormalised_draw({c: w for c, w in p.items() if any(images[y] for y in tree[c])})
            y = renormalised_draw({y: w for y, w in q[c].items() if images[y]})
            mine.append(images[y].pop())
        parts.append(np.sort(mine))
    return parts


@pytest.mark.parametrize(("clients", "per_client"), [(5, 20), (20, 48)])
def test_pachinko_is_the_paper_s(clients, per_client):
    """With 48 of 50 images a client drawn, whole labels and superclasses run out on the way."""
    for seed in range(3):
        want = transcript_of_pachinko(FINE, COARSE, clients, seed, per_client)
        assert same(Pachinko(per_client=per_client)(FINE, clients, seed, coarse=COARSE), want)


def test_pachinko_uses_every_row_when_all_are_asked_for():
    parts = Pachinko(coarse_alpha=1e-3)(FINE, 10, 0, coarse=COARSE)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))


@pytest.mark.parametrize(
    ("coarse", "message"),
    [
        (None, "coarse="),
        (COARSE[:-1], "999 coarse labels for 1000"),
        (np.arange(1000) % 2, "two coarse labels"),
    ],
)
def test_pachinko_refuses_a_hierarchy_it_cannot_use(coarse, message):
    with pytest.raises(InvalidInput, match=message):
        Pachinko()(FINE, 2, 0, coarse=coarse)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(0), "alpha = 0 must be finite and > 0"),
        (lambda: Dirichlet(float("nan")), "alpha = nan"),
        (lambda: Dirichlet("0.3"), "alpha = '0.3' must be a number"),
        (lambda: LabelsPerClient(0), "k = 0 must be an integer of at least 1"),
        (lambda: LabelsPerClient(1.5), r"k = 1\.5"),
        (lambda: LabelsPerClient(True), "k = True"),
        (lambda: Shards(0), "per_client = 0"),
        (lambda: ByQuantity(-1.0), r"sigma = -1\.0"),
        (lambda: Pachinko(coarse_alpha=0.0), "coarse_alpha"),
        (lambda: Pachinko(fine_alpha=-1.0), "fine_alpha"),
        (lambda: Pachinko(per_client=0), "per_client = 0"),
    ],
)
def test_parameters_are_checked_at_construction(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


LABELS = np.arange(12) % 4


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (lambda: IID()(LABELS, 13), "num_clients = 13 is more than the 12 examples"),
        (lambda: IID()(LABELS, 0), "num_clients = 0"),
        (lambda: IID()(LABELS, 2.0), r"num_clients = 2\.0"),
        (lambda: IID()(LABELS, 2, -1), "seed = -1"),
        (lambda: IID()(LABELS.reshape(3, 4), 2), r"shape \(3, 4\)"),
        (lambda: IID()(np.zeros(0), 1), r"shape \(0,\)"),
        (lambda: LabelsPerClient(5)(LABELS, 3), "k = 5 .* k <= 4"),
        (
            lambda: LabelsPerClient(1)(LABELS, 3),
            "3 clients of k = 1 labels cannot hold 4 classes: give k >= 2",
        ),
        (lambda: Shards(4)(LABELS, 4), "need 16 examples, there are 12"),
        (lambda: Pachinko(per_client=7)(LABELS, 2, coarse=LABELS), "need 14 examples"),
    ],
)
def test_infeasible_requests_are_refused_in_one_line(request_, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        request_()
    assert "\n" not in str(caught.value)


def test_the_catalogue_names_summarises_and_cites_every_partition():
    assert list(PARTITIONS) == ["iid", "dirichlet", "labels", "shards", "quantity", "natural", "pachinko"]
    for cls in PARTITIONS.values():
        assert cls.summary
        assert cls.citation in BIBTEX


def test_equal_partitions_are_equal_keys():
    assert hash(Dirichlet(0.3)) == hash(Dirichlet(0.3))
    assert Dirichlet(0.3) == Dirichlet(0.3) != Dirichlet(0.4)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Shards(3), Shards(3)),
        ("iid", IID()),
        ({"name": "labels", "k": 2}, LabelsPerClient(2)),
        ({"name": "pachinko"}, Pachinko()),
    ],
)
def test_as_partition(value, expected):
    assert as_partition(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("dirichle", "did you mean 'dirichlet'"),
        ("dirichlet", "partition dirichlet needs alpha"),
        ({"name": "dirichlet", "alpa": 1}, "did you mean 'alpha'"),
        ({"alpha": 1}, "unknown partition"),
        (3, "unknown partition '3'"),
    ],
)
def test_as_partition_refuses(value, message):
    with pytest.raises(InvalidInput, match=message):
        as_partition(value)
