"""Which device trains which client where each keeps some of the clients' states."""

from __future__ import annotations

import numpy as np
import pytest

from fedsolve.engine.compute.sharding import StateSharding
from harness import crossed


@pytest.mark.parametrize(
    ("clients", "devices", "capacity"), crossed([(7, 2, 5), (9, 3, 9), (10, 4, 6)], [(7, 2, 5)])
)
def test_each_device_trains_as_many_and_moves_the_surplus_alone(clients, devices, capacity):
    rng = np.random.default_rng(0)
    places = -(-capacity // devices)
    state_sharding = StateSharding(clients, devices, places)
    for _ in range(6):
        ids = rng.permutation(clients)[:capacity].astype(np.int32)
        present = np.arange(capacity) < rng.integers(0, capacity + 1)
        *grids, state_rows = state_sharding.assign(ids, present, places)
        seated, there = map(np.asarray, grids)
        cohort = ids[present]
        assert sorted(seated[there]) == sorted(cohort)
        share = -(-len(cohort) // devices)
        assert there.sum(1).max(initial=0) <= share
        assert all(row[: row.sum()].all() for row in there)  # those present come first
        kept = np.bincount(cohort // state_sharding.block, minlength=devices)
        assert np.asarray(state_rows.moved).sum() == np.maximum(kept - share, 0).sum()
        for device, row in enumerate(np.asarray(state_rows.rows)):
            used = row[there[device]]
            assert len(set(used)) == len(used)
            assert (used < state_sharding.block + state_sharding.spare).all()
            moved = np.asarray(state_rows.moved)[device][there[device]]
            assert ((used >= state_sharding.block) == moved).all()
            mine = seated[device][there[device]]
            assert ((mine // state_sharding.block != device) == moved).all()
            assert (used[~moved] == mine[~moved] % state_sharding.block).all()


def test_states_by_number_and_in_rows():
    """5 clients on 2 devices, 1 spare row each."""
    state_sharding = StateSharding(5, 2, 1)
    rows = state_sharding.by_device(np.arange(1, 6))
    assert rows.tolist() == [1, 2, 3, 0, 4, 5, 0, 0]
    assert state_sharding.by_device(rows) is rows
    assert StateSharding.of(5, 4, 2, 2**23 + 1, always=False) == StateSharding(5, 2, 2)
    assert StateSharding.of(5, 5, 2, 2**23, always=True) == StateSharding(5, 2, 0)
    assert StateSharding.of(5, 4, 2, 2**23, always=False) is None
