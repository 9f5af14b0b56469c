"""What a client keeps on its machine: its own state, that of the round before, and its privacy ledger.

One file per experiment, client and round holds what the client became in that round; the last two that count are kept,
and those that go with the older checkpoints that the server keeps (`fedsolve.deploy.client.state`).
The server says in every order which update it used last: that is where the client goes on. So a round that is asked
for twice is not applied twice, an update that never arrived, or was rejected, is forgotten, and a server that goes
back by one round finds its clients' states of then, even where the newer file is damaged.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.errors import InvalidInput, check_range
from fedsolve.deploy.message import TrainReply, TrainRequest
from fedsolve.deploy.sanitize import about_request
from fedsolve.folders.files import locked, slug
from fedsolve.folders.run_folder import first_difference, load_tree, read_manifest, save_tree
from fedsolve.methods.privacy.accounting import ORDERS, STEPS, epsilon_of, renyi_epsilon, skellam_renyi
from fedsolve.methods.privacy.central import DifferentialPrivacy, honest
from fedsolve.methods.secure import Secure

# What a client has told under noise that clients add: counted over all experiments, bounded by its own owner.
#
# One file per client holds what all messages cost and the last reply, written before that reply is sent. A round that
# is asked for again gets the same bytes, which tell nothing new, also from a process that was started since; under
# masks, which are of one attempt, it is a new message. Neighbours are those of local privacy: all of the client's data
# replaced, and no amplification by sampling, since the server knows who sends.
#
# Noise of the client's own is Gaussian: t messages are one mechanism with mu^2 = mu_1^2 + ... + mu_t^2. Noise in
# shares is counted by Renyi divergences, which add up, too, and to which the Gaussian one of order alpha is alpha mu^2
# / 2. One message counts as one sum, with the noise of the honest clients of the smallest sum that it may be part of.


LEDGER = "ledger.safetensors"
_ROUNDING = 1 + 1e-9
_FLOAT32 = 1 + 1e-6  # in which an order may have its numbers


class Noise(NamedTuple):
    """The noise that clients add to a message or to the sum that it is part of."""

    multiplier: float  # its standard deviation over the norm that messages are clipped to
    squared_mu: float  # of Gaussian noise, else 0
    renyi: Any  # divergences of other noise at `renyi.ORDERS`, else 0


@dataclass(frozen=True)
class PrivacyBudget:
    """What a client's owner demands of noise: (max_epsilon, delta) over all messages, and min_noise for each."""

    max_epsilon: float | None = None
    delta: float = 1e-5
    min_noise: float | None = None

    def __post_init__(self) -> None:
        check_range("max_epsilon", self.max_epsilon, above=0, optional=True)
        check_range("delta", self.delta, above=0, below=1)
        check_range("min_noise", self.min_noise, above=0, optional=True)

    @property
    def bound(self) -> str:
        """The demand that nothing without noise meets, '' if there is none."""
        bounds = {"max_epsilon": self.max_epsilon, "min_noise": self.min_noise}
        return next((f"{name} = {value:g}" for name, value in bounds.items() if value is not None), "")

    def check(self, method: Algorithm) -> Noise | None:
        noise = _noise_of(method)
        if noise is None:
            self.refuse_without_noise(f"{name_of(method)} sends updates without noise of the clients' own")
        elif not noise.multiplier * _FLOAT32 >= (self.min_noise or 0):
            raise InvalidInput(
                f"{name_of(method)} has noise_multiplier = {noise.multiplier:g}, and this client asks for at least "
                f"min_noise = {self.min_noise:g}"
            )
        return noise

    def refuse_without_noise(self, what: str) -> None:
        """Raise `InvalidInput` that says what has no noise, if the owner demands any."""
        if self.bound:
            raise InvalidInput(
                f"{what}; this client has {self.bound} and takes part in LocalDP and in fs.Secure around "
                "DP(at='distributed') alone"
            )


def _noise_of(method: Any) -> Noise | None:
    # The noise that clients add under a method; `InvalidInput` if it names noise in shares and has none.
    kind, mu = method.traits.privacy, method.traits.gdp_mu
    if kind == "local" and math.isfinite(mu):
        return Noise(2 / mu, mu**2, 0.0)
    if kind != "distributed":
        return None
    of: Any = method.inner if isinstance(method, Secure) else None
    z = 0.0
    if isinstance(of, DifferentialPrivacy) and of.min_sum and (coder := of.update_coder):
        # of the noise that is drawn, whatever it is said to follow from
        z = math.sqrt(float(coder.variance) * honest(of.min_sum, of.corrupt)) / STEPS
    if not 1 / STEPS <= z < math.inf:
        raise InvalidInput(
            f"{name_of(method)} promises noise in shares and orders noise_multiplier = {z:g}: set it above 0, and put "
            "fs.Secure right around DP(at='distributed')"
        )
    return Noise(z, 0.0, np.array(skellam_renyi(z, of.population, of.cohort, "none")))


class Ledger:
    """The ledger of one client, held while an order is worked on."""

    def __init__(self, folder: Path, client: int, budget: PrivacyBudget) -> None:
        self._folder, self._client, self._budget = folder / f"client-{client}-sent", client, budget
        self.path = self._folder / LEDGER

    def send(
        self, order: TrainRequest, noise: Noise, make: Callable[[], TrainReply], log: Callable[[str], None]
    ) -> TrainReply:
        """The reply to an order: the one that it had already, or what `make` gives, once it is counted and kept."""
        with locked(self._folder):
            facts, last = self._read()
            fingerprint = _fingerprint(order)
            if last is not None and order.masks is None and facts["order"] == fingerprint:
                log(f"round {order.round + 1} is asked for again: client {self._client} sends what it sent")
                return last
            squared, delta = facts["squared_mu"] + noise.squared_mu, self._budget.delta
            renyi = np.array(facts.get("renyi", 0.0)) + noise.renyi  # earlier versions have none
            spent = _epsilon(squared, renyi, delta)
            self._check(spent)
            reply = make()
            messages = facts["messages"] + 1
            costs = {"squared_mu": squared, "renyi": renyi.tolist(), "messages": messages}
            self._write(costs | {"order": fingerprint}, reply)
            log(
                f"client {self._client} has sent {messages} messages: epsilon = {spent:.4g} at delta = {delta:g}"
            )
            return reply

    @about_request()
    def _check(self, spent: float) -> None:
        max_epsilon, delta = self._budget.max_epsilon, self._budget.delta
        if max_epsilon is not None and not spent <= max_epsilon * _ROUNDING:
            raise InvalidInput(
                f"client {self._client} would have spent epsilon = {spent:.4g} at delta = {delta:g} with this message, "
                f"above its max_epsilon = {max_epsilon:g}: it sends no more"
            )

    def _read(self) -> tuple[dict[str, Any], TrainReply | None]:
        if not self.path.exists():
            return {"squared_mu": 0.0, "messages": 0, "order": ""}, None
        try:
            facts = read_manifest(self.path)
            like = {"message": np.zeros(facts["bytes"], np.uint8)}
            message = np.asarray(load_tree(self.path, like)["message"]).tobytes()
        except InvalidInput as error:
            raise InvalidInput(
                f"client {self._client} sends nothing, as the epsilon that it has spent is not known: {error}"
            ) from None
        reply = facts["reply"]
        if "form" in reply:  # as earlier versions called it
            reply["signature"] = reply.pop("form")
        return facts, TrainReply(**reply, message=message, buffers={})

    def _write(self, facts: dict[str, Any], reply: TrainReply) -> None:
        fields = {f.name: getattr(reply, f.name) for f in dataclasses.fields(reply)}
        message, _ = fields.pop("message"), fields.pop("buffers")  # a private method sends none
        content = {"message": np.frombuffer(message, np.uint8)}
        save_tree(self.path, content, facts | {"reply": fields, "bytes": len(message)}, private=True)


def _epsilon(squared_mu: float, renyi: np.ndarray, delta: float) -> float:
    if not renyi.any():
        return epsilon_of(math.sqrt(squared_mu), delta)
    return float(renyi_epsilon(renyi + np.array(ORDERS) * squared_mu / 2, 1, delta, np))


def _fingerprint(order: TrainRequest) -> str:
    # A digest of all that a reply without client state depends on.
    names = ("experiment", "round", "client", "population", "key", "method", "signature")
    facts = [getattr(order, name) for name in names]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(order.broadcast)
    return digest.hexdigest()


# Which older checkpoints a deployment keeps, so that the server and its clients keep the states that go with them.


EVERY = 10
"""Rounds between two checkpoints that are kept beside the newest two."""


def is_kept(done: int) -> bool:
    """Whether the checkpoint after so many rounds is kept: after 1, 11, 21, ... rounds."""
    return done % EVERY == 1


def pinned(rounds: Iterable[int], done: int) -> set[int]:
    """Those of a client's states, by rounds from 0, that the kept checkpoints go on from: the last two there can be.

    >>> sorted(pinned([0, 4, 9, 12, 19, 21], done=22))
    [9, 19]
    """
    rounds, last = list(rounds), done - (done - 1) % EVERY
    before = ([r for r in rounds if r < retained] for retained in (last, last - EVERY))
    return {max(earlier) for earlier in before if earlier}


class StateLost(InvalidInput):
    """The state that an order goes on from is not here, or damaged."""

    about_request = True


class ClientState:
    """The state of one client in one experiment, kept below a folder of the node."""

    def __init__(self, folder: Path, experiment: str, client: int) -> None:
        if slug(experiment) != experiment:  # it becomes a path here, and comes from elsewhere
            raise InvalidInput(
                f"{experiment!r} is not a name of an experiment: use letters, digits and _.+- only"
            )
        self._folder = folder / experiment
        self._facts = {"experiment": experiment, "client": client}

    @property
    def loop(self) -> Path:
        """The folder for what a training loop of the client's own keeps."""
        return self._folder / f"client-{self._facts['client']}-loop"

    def path(self, round: int) -> Path:
        return self._folder / f"client-{self._facts['client']}-round-{round + 1}.safetensors"

    def load(self, last_used_round: int, initial_state: Any) -> Any:
        """The state after the last round that the server used, -1 for the initial one; `StateLost` if it is gone."""
        if last_used_round < 0:
            return initial_state
        path = self.path(last_used_round)
        what = f"the state of client {self._facts['client']} after round {last_used_round + 1}"
        if not path.exists():
            rounds = sorted(round + 1 for round in self._rounds())
            raise StateLost(f"{what} is not at {path}" + (f", only of rounds {rounds}" if rounds else ""))
        try:
            manifest = read_manifest(path)
            state = load_tree(path, initial_state)
        except InvalidInput as error:
            raise StateLost(f"{what} is damaged: {error}") from None
        if first_difference(manifest, self._facts | {"round": last_used_round}):
            raise InvalidInput(
                f"{path} holds client {manifest.get('client')} of experiment {manifest.get('experiment')} after "
                f"round {manifest.get('round', -1) + 1}: move it away and restore the right file"
            )
        return state

    def save(self, round: int, state: Any, last_used_round: int) -> None:
        """Write the state after this round; of older ones those stay that the server may go back to."""
        # They are that of `last_used_round` and those of the older checkpoints that the server keeps. A newer one
        # stays: an order that took so long that its round is over may end after the next one's.
        path = self.path(round)
        save_tree(path, state, self._facts | {"round": round}, private=True)  # it follows from the data
        older = {old for old in self._rounds() if old < round}
        used = {old for old in older if old <= last_used_round}
        for old in older - {last_used_round} - pinned(used, round):
            self.path(old).unlink(missing_ok=True)

    def _rounds(self) -> set[int]:
        paths = self._folder.glob(f"client-{self._facts['client']}-round-*.safetensors")
        numbers = [path.stem.rpartition("-")[2] for path in paths]
        return {int(n) - 1 for n in numbers if n.isdigit()}
