"""Clients read as they are needed: the windows of a run, one after another, the next one while the device computes.

Who comes in a round follows from the key and the round alone, so the cohorts of the next rounds are drawn ahead, as
many as fit a window; their clients' examples are read by a thread, and their states when the window is entered, after
those of the one before are written back.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.engine.background import in_background
from fedsolve.engine.client_states import ClientStates
from fedsolve.engine.clients import PackedClients
from fedsolve.engine.layout import free_bytes
from fedsolve.engine.population import WINDOW_BYTES, Packer, Population, padded, row_bytes
from fedsolve.engine.processes import everywhere
from fedsolve.engine.round import RunState
from fedsolve.engine.window import Window
from fedsolve.errors import InvalidInput
from fedsolve.sampling import Sampling
from fedsolve.types import replace

_DRAWN = 2**20  # clients of all cohorts that are drawn at once
_COPIES = 4  # of a window: on the host and on the device, this one and the next


@dataclass(frozen=True)
class _Loaded:
    """A window on the device: its clients, ascending, and the rounds first .. stop - 1 that it serves."""

    packed: PackedClients
    clients: np.ndarray
    first: int
    stop: int


class Stream:
    """The windows of one run.

    Attributes:
        population: all that they are made of.
        places: clients of a window; a cohort that needs more makes it grow, which compiles the round anew.
    """

    def __init__(
        self,
        population: Population,
        sampling: Sampling,
        key: Array,
        rounds: int,
        cohort: int,
        state_bytes: int,
    ) -> None:
        """Windows of about `WINDOW_BYTES`.

        Args:
            population: the clients.
            sampling, key: who comes.
            rounds: of the run.
            cohort: clients of a round, about.
            state_bytes: of a client's own state.

        Raises:
            InvalidInput: no memory holds a cohort's window.
        """
        self.population, data = population, population.data
        self._sampling, self._key, self._rounds_in_all = sampling, key, rounds
        row = row_bytes(data, population.dtype)
        self._bytes = row, state_bytes + 16
        mean = data.num_examples / data.num_clients
        enough = max(math.ceil(1.25 * cohort), int(WINDOW_BYTES / (mean * row + self._bytes[1])))
        self.places = min(data.num_clients, cohort * rounds, enough)
        self._rows = min(data.num_examples, math.ceil(self.places * mean * 1.1) + int(data.counts.max()))
        drawn = jax.eval_shape(partial(_cohorts, population=data.num_clients, rounds=1), *self._given(0))[
            0
        ].size
        most = max(1, min(rounds, _DRAWN // drawn))
        self._ahead = min(most, _rounds_in(self.places, cohort, data.num_clients))
        self._check_room()
        self._packer: Packer | None = None
        self._states: ClientStates | None = None
        self._here: _Loaded | None = None
        self._next: Future[_Loaded] | None = None

    def keep_states(self, states: ClientStates) -> None:
        """Keep clients' states there: before the first window."""
        self._states = states

    def rounds_from(self, done: int) -> int:
        """Rounds that one window serves after so many."""
        return self._window(done).stop - done

    def enter(self, state: RunState) -> tuple[PackedClients, RunState]:
        """The window of the round that is next, and the state with its clients' own."""
        new = self._window(int(state.round))
        if new is self._here:
            return new.packed, state
        self.write_back(state)
        self._here, self._next = new, None
        if new.stop < self._rounds_in_all:
            self._next = in_background(self._load, new.stop)
        if self._states is not None:
            clients = self._states.read(new.clients, new.packed.counts.shape[0])
            state = replace(state, clients=everywhere(clients, self.population.mesh, may_alias=False))
        return new.packed, state

    def write_back(self, state: RunState) -> None:
        """Put the states of the window's clients where all are kept."""
        if self._states is not None and self._here is not None:
            self._states.write(state.clients)

    def look(self, state: RunState, clients: np.ndarray, places: int) -> Any:
        """The states of clients by their numbers, ascending, stacked, with room for so many in all."""
        if self._states is None:
            return None
        self.write_back(state)
        return self._states.look(clients, places)

    def _window(self, done: int) -> _Loaded:
        """The window that serves the next round, once it is read."""
        if self._here is not None and self._here.first <= done < self._here.stop:
            return self._here
        if self._next is None:
            self._next = in_background(self._load, done)
        return self._next.result()

    def _load(self, first: int) -> _Loaded:
        """Draw cohorts from a round on, as many as fit, and read their clients; all clients where there is room."""
        population, data = self.population, self.population.data
        with jax.enable_x64(population.dtype == jnp.float64):
            if self.places == data.num_clients:
                return self._everyone(first)
            drawn = _cohorts(*self._given(first), population=data.num_clients, rounds=self._ahead)
            ids, present = (np.asarray(x) for x in drawn)
            clients, rounds = self._fitting(ids, present)
            slots = np.searchsorted(clients, ids[:rounds])
            window = Window(
                first=np.int32(first),
                slots=jnp.asarray(padded(self._ahead, np.minimum(slots, self.places - 1)), jnp.int32),
                numbers=jnp.asarray(padded(self.places, clients, data.num_clients), jnp.int32),
                population=data.num_clients,
            )
            packed = replace(self._pack(clients), window=window)
            return _Loaded(
                everywhere(packed, population.mesh),
                clients,
                first,
                min(first + rounds, self._rounds_in_all),
            )

    def _everyone(self, first: int) -> _Loaded:
        """The whole population: the program is that of clients that lie on the device."""
        everyone = np.arange(self.places)
        packed = everywhere(self._pack(everyone), self.population.mesh)
        return _Loaded(packed, everyone, first, self._rounds_in_all)

    def _pack(self, clients: np.ndarray) -> PackedClients:
        if self._packer is None or (self._packer.places, self._packer.rows) != (self.places, self._rows):
            self._packer = Packer(self.population, self.places, self._rows)
        return self._packer.pack(clients)

    def _fitting(self, ids: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, int]:
        """The clients, ascending, of as many cohorts as a window has room for, at least one; and how many cohorts."""
        counts = self.population.data.counts
        seen, found, clients, rows = np.zeros(len(counts), bool), [], 0, 0
        for round, (cohort, here) in enumerate(zip(ids, present, strict=True)):
            new = cohort[here]
            new = new[~seen[new]]
            clients, rows = clients + len(new), rows + int(counts[new].sum())
            if clients > self.places or rows > self._rows:
                if round:
                    return np.sort(np.concatenate(found)), round
                self._grow(clients, rows)
            seen[new] = True
            found.append(new)
        return np.sort(np.concatenate(found)), len(ids)

    def _grow(self, clients: int, rows: int) -> None:
        """Make room for a larger cohort."""
        data = self.population.data
        self.places = min(data.num_clients, max(self.places, math.ceil(1.25 * clients)))
        self._rows = min(data.num_examples, max(self._rows, math.ceil(1.25 * rows)))
        self._check_room()

    def _check_room(self) -> None:
        row, state = self._bytes
        needed, free = _COPIES * (self._rows * row + self.places * state), free_bytes()
        if needed > free:
            raise InvalidInput(
                f"the clients of a cohort ({self.places:,} with {self._rows:,} examples) need {needed / 1e9:.1f} GB "
                f"while they train, and {free / 1e9:.1f} GB are free: take fewer clients a round"
            )

    def _given(self, first: int) -> tuple[Sampling, Array, Array]:
        return self._sampling, self._key, jnp.int32(first)


def _rounds_in(places: int, cohort: int, population: int) -> int:
    """About as many rounds as have so many different clients together, 2^31 where all fit."""
    if places >= population:
        return 2**31
    expected = math.log1p(-places / population) / math.log1p(-cohort / population)
    return math.ceil(1.1 * expected) + 1


@partial(jax.jit, static_argnames=("population", "rounds"))
def _cohorts(
    sampling: Sampling, key: Array, first: Array, *, population: int, rounds: int
) -> tuple[Array, Array]:
    """Who comes in each of so many rounds, as `one_round` draws it."""

    def one(round: Array) -> tuple[Array, Array]:
        return sampling.draw(jax.random.fold_in(key, round), round, population)

    return jax.lax.map(one, first + jnp.arange(rounds, dtype=jnp.int32))
