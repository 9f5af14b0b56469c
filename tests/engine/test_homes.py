"""Which device trains which client where each keeps some of the clients' states."""

from __future__ import annotations

import numpy as np
import pytest

from fedsolve.engine.compute.sharding.homes import Homes


@pytest.mark.parametrize(("clients", "devices", "capacity"), [(7, 2, 5), (9, 3, 9), (10, 4, 6)])
def test_each_device_trains_as_many_and_lends_the_surplus_alone(clients, devices, capacity):
    rng = np.random.default_rng(0)
    places = -(-capacity // devices)
    homes = Homes(clients, devices, places)
    for _ in range(6):
        ids = rng.permutation(clients)[:capacity].astype(np.int32)
        present = np.arange(capacity) < rng.integers(0, capacity + 1)
        *grids, lodging = homes.assign(ids, present, places)
        seated, there = map(np.asarray, grids)
        cohort = ids[present]
        assert sorted(seated[there]) == sorted(cohort)
        share = -(-len(cohort) // devices)
        assert there.sum(1).max(initial=0) <= share
        assert all(row[: row.sum()].all() for row in there)  # those present come first
        at_home = np.bincount(cohort // homes.block, minlength=devices)
        assert np.asarray(lodging.lent).sum() == np.maximum(at_home - share, 0).sum()
        for device, row in enumerate(np.asarray(lodging.rows)):
            used = row[there[device]]
            assert len(set(used)) == len(used)
            assert (used < homes.block + homes.room).all()
            lent = np.asarray(lodging.lent)[device][there[device]]
            assert ((used >= homes.block) == lent).all()
            mine = seated[device][there[device]]
            assert ((mine // homes.block != device) == lent).all()
            assert (used[~lent] == mine[~lent] % homes.block).all()


def test_states_by_number_and_in_rows():
    """5 clients on 2 devices, room for 1."""
    homes = Homes(5, 2, 1)
    rows = homes.laid_out(np.arange(1, 6))
    assert rows.tolist() == [1, 2, 3, 0, 4, 5, 0, 0]
    assert homes.laid_out(rows) is rows
    assert Homes.of(5, 4, 2, 2**23 + 1, always=False) == Homes(5, 2, 2)
    assert Homes.of(5, 5, 2, 2**23, always=True) == Homes(5, 2, 0)
    assert Homes.of(5, 4, 2, 2**23, always=False) is None
