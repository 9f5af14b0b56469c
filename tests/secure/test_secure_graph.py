"""The graph hides every honest client: its width by exact probabilities, its argument by enumeration."""

import random
from fractions import Fraction
from itertools import combinations, product
from math import ceil, comb

import pytest

from fedsolve.deploy.secure.attempt import MaskGraph, Width, ways, width
from fedsolve.deploy.secure.primitives import ProtocolError


def tail(clients, marked, drawn, least):
    """P[at least `least` marked], from the probability of each number by its product of fractions."""
    total = Fraction(0)
    for hits in range(least, min(marked, drawn) + 1):
        if drawn - hits <= clients - marked:
            total += Fraction(comb(marked, hits) * comb(clients - marked, drawn - hits), comb(clients, drawn))
    return total


@pytest.mark.parametrize(("clients", "marked", "drawn"), [(7, 3, 4), (8, 2, 5), (6, 6, 3), (6, 0, 2)])
def test_ways_are_counted(clients, marked, drawn):
    for least in range(drawn + 2):
        sets = sum(len(set(s) & set(range(marked))) >= least for s in combinations(range(clients), drawn))
        assert ways(clients, marked, drawn, least) == sets


@pytest.mark.parametrize("clients", [33, 40, 64, 100, 333, 1000])
def test_a_width_is_safe_and_no_smaller_one_is(clients):
    found = width(clients, clients)
    bad, lost = ceil(0.05 * clients), ceil(0.2 * clients)

    def holds(reach, arrived):
        hidden = Fraction(clients * (clients - 1), 2) * tail(clients, bad, 2 * reach, 2 * arrived)
        return hidden <= Fraction(1, 2**40) and clients * tail(
            clients, lost, reach, reach - arrived + 1
        ) <= Fraction(1, 2**20)

    assert holds(*found)
    assert not any(holds(found.reach - 1, arrived) for arrived in range(1, found.reach))
    assert 2 * found.reach < clients - 1


@pytest.mark.parametrize(("clients", "cohort"), [(100, 70), (300, 200), (1000, 500)])
def test_a_cohort_that_the_server_chooses_after_it_has_seen_the_ring(clients, cohort):
    """All corrupt clients may be in it: of the places between, more must be reached."""
    reach, arrived = width(clients, cohort)
    bad, gone = ceil(0.05 * clients), clients - cohort + ceil(0.2 * cohort)
    pairs = Fraction(clients * (clients - 1), 2)
    assert pairs * tail(clients, bad, 2 * reach, 2 * arrived) <= Fraction(1, 2**40)
    assert clients * tail(clients, gone, reach, reach - arrived + 1) <= Fraction(1, 2**20)
    assert reach > width(clients, clients).reach
    assert width(1000, 100) is None  # half of it may be corrupt: all pairs share masks


def test_more_corrupt_or_lost_clients_need_more_masks_up_to_all_pairs():
    widths = [width(200, 200, corrupt, 0.2) for corrupt in (0.02, 0.05, 0.1)]
    assert widths == sorted(widths, key=lambda w: w.reach)
    assert len(set(widths)) == 3
    assert width(200, 200, 0.05, 0.3).reach > width(200, 200, 0.05, 0.1).reach
    assert width(40, 40, 0.45, 0.3) is None


@pytest.mark.full_rows("1")
@pytest.mark.parametrize("arrived", [1, 2])
def test_honest_clients_stay_connected_unless_two_places_are_corrupt(arrived):
    """Every honest, corrupt or missing part of a ring of 9 in which 2 on each side share masks."""
    graph = MaskGraph(range(9), range(9))
    graph.width = Width(2, arrived)
    assert graph.neighbours(0) == [1, 2, 7, 8]
    places = [(i, [(i + s) % 9 for s in (1, 2)]) for i in range(9)]
    open_ = closed = parted = 0
    for parts in product("hcm", repeat=9):
        honest = {i for i in range(9) if parts[i] == "h"}
        try:
            graph.check_arrived({i for i in range(9) if parts[i] != "m"})
        except ProtocolError:
            closed += 1
            continue
        open_ += 1
        reached, new = set(), {min(honest, default=None)} - {None}
        while new:
            reached |= new
            new = {j for i in new for j in graph.neighbours(i)} & honest - reached
        if reached != honest:
            parted += 1
            bad = [set(where) for i, where in places if sum(parts[j] == "c" for j in where) >= arrived]
            assert any(a.isdisjoint(b) for a, b in combinations(bad, 2))
    assert min(open_, closed, parted) > 0


def test_neighbours_are_near_in_the_ring_of_all_clients():
    """Of a cohort those at most `reach` places away; up to 64 clients all others."""
    ring = random.Random(0).sample(range(100), 100)
    graph = MaskGraph(range(80), ring)
    reach = graph.width.reach
    for i in range(80):
        here = ring.index(i)
        near = {ring[(here + s) % 100] for s in range(-reach, reach + 1)} - {i}
        assert graph.neighbours(i) == sorted(j for j in near if j < 80)
    every = MaskGraph(range(64), ring)
    assert all(every.neighbours(i) == [j for j in range(64) if j != i] for i in range(64))
