"""Malformed replies and orders of every kind through the real codec: each is a refusal in one line, and no more."""

import dataclasses
import json
from functools import cache

import jax
import malformed
import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

import fedsolve as fs
from deploy_small import deploy
from deploy_small import distance as loss
from fake_grid import over_the_wire
from fedsolve import wire
from fedsolve.core.errors import InvalidInput, check_same
from fedsolve.core.types import replace
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.codec import to_record
from fedsolve.deploy.message import TrainReply
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.run_log import ROUNDS
from fedsolve.deploy.server.coordinator import Coordinator, Federation
from fedsolve.deploy.server.rounds import read_and_validate
from fedsolve.deploy.signature import signature_digest
from fedsolve.methods.server.dua import Spread

METHOD = fs.FedExP(0.1, weighting="examples")
BESIDE = {"mean": np.ones(2, np.float32), "seen": np.array(3)}


class Beside(JaxOracle):
    """A client with something beside its model."""

    buffers = BESIDE

    def load_buffers(self, buffers):
        check_same(
            "buffer", {n: b.shape for n, b in buffers.items()}, {n: b.shape for n, b in BESIDE.items()}
        )
        self.buffers = dict(buffers)


@cache
def problem(client):
    examples = np.arange(8.0).reshape(4, 2) + client
    return Beside(loss, {"w": np.zeros(2)}, examples, batch_size=2, epochs=1)


APP = client_app(lambda node: problem(node.client))


def run(folder, rounds, tamper, **settings):
    given = {"app": APP, "params": {"w": np.zeros(2)}, "buffers": BESIDE, "population": 2, "min_replies": 1}
    return deploy(METHOD, folder, rounds=rounds, tamper=tamper, **given, **settings)


def every(record):
    """A number of malformed copies of a good reply of every kind."""
    rng = np.random.default_rng(0)
    yield from malformed.facts(record, "reply")
    yield from malformed.parts(record)
    yield from malformed.lengths(record, "message")
    yield from malformed.numbers(record, "message", rng, 60)
    yield from malformed.arrays(record, "buffers")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A reply of client 1 in round 1, and the coordinator that asked for it."""
    found = []

    def watch(node, what, content):
        if node == 102 and what == "train":
            found.append(content)
        return content

    run(tmp_path_factory.mktemp("good"), 1, watch)
    name = found[0]["reply"]["experiment"]
    coordinator = Coordinator(
        METHOD,
        {"w": np.zeros(2)},
        Federation(2, fs.sampling.Uniform(2), 0, name),
        buffers=BESIDE,
    )
    assert coordinator.draw_cohort() == [0, 1]
    return found[0], coordinator


def test_every_kind_is_refused(good):
    """At least 200 malformed replies through Flower's bytes: one line each, and nothing of the server's changes."""
    record, coordinator = good
    read_and_validate(coordinator, 1, over_the_wire(record))  # as it is, it counts
    held, before = coordinator.state, jax.device_get(coordinator.state)
    cases = list(every(record))
    assert len(cases) >= 200
    for name, bad in cases:
        with pytest.raises(InvalidInput) as refused:
            read_and_validate(coordinator, 1, over_the_wire(bad))
        reason = str(refused.value)
        assert len(reason) < 700, (name, reason)
        assert reason.isprintable(), (name, reason)
    assert coordinator.state is held
    jax.tree.map(np.testing.assert_array_equal, dataclasses.astuple(held), dataclasses.astuple(before))


@pytest.mark.full
def test_the_run_goes_on(good, tmp_path):
    """Client 1 sends another malformed reply in every round: the run is the one in which it always refuses."""
    cases = list(every(good[0]))[::24]
    left = iter(cases)

    def spoil(node, what, content):
        return next(left)[1] if node == 102 and what == "train" else content

    def refuse(node, what, content):
        refused = RecordDict({"refused": ConfigRecord({"why": "no"})})
        return refused if node == 102 and what == "train" else content

    spoiled, history, _ = run(tmp_path / "bad", len(cases), spoil)
    alone, *_ = run(tmp_path / "alone", len(cases), refuse)
    np.testing.assert_array_equal(spoiled["w"], alone["w"])
    assert history.rounds["rejected"].tolist() == [1] * len(cases)
    for line in (tmp_path / "bad" / "server" / ROUNDS).read_text().splitlines():
        assert json.loads(line)["reasons"][0].startswith("client 1: ")


LEGITIMATE = {"order.experiment = 'text'", "order.key = [1, 2]", "no buffers", "buffers is {}"}
"""What an order may hold although the server would not send it."""


def test_every_malformed_order_is_refused(good, tmp_path):
    """At least 200 malformed orders: the client answers in one line each, and answers the right one as before."""
    _, coordinator = good
    order = to_record(coordinator.train_request(1))

    def ask(record):
        message = Message(over_the_wire(record), 102, "train")
        message.metadata.__dict__["_message_id"] = "an order"
        context = Context(1, 102, {"client-id": 1, "state-dir": str(tmp_path)}, RecordDict(), {})
        return over_the_wire(APP(message, context).content)

    before = ask(order)
    cases = [
        *malformed.facts(order, "order"), *malformed.parts(order), *malformed.lengths(order, "broadcast"),
        *malformed.arrays(order, "buffers"),
    ]  # fmt: skip
    assert len(cases) >= 200
    for name, bad in cases:
        if name in LEGITIMATE:
            continue
        answer = ask(bad)
        assert list(answer) == ["refused"], name
        why = answer["refused"]["why"]
        assert len(why) < 400, (name, why)
        assert why.isprintable(), (name, why)
    assert ask(order)["message"]["bytes"].data == before["message"]["bytes"].data


def judged(method, change):
    """What becomes of a reply of zeros with some of its numbers changed; nothing is trained."""
    params = {"w": np.zeros(2)}
    coordinator = Coordinator(method, params, Federation(2, fs.sampling.Uniform(2), 0, "a-1"))
    coordinator.draw_cohort()
    empty = coordinator.method.zero_message
    message = wire.encode(change(empty))
    reply = TrainReply("a-1", 0, 1, signature_digest(empty), 1, message, {})
    return read_and_validate(coordinator, 1, over_the_wire(to_record(reply)))


def test_claims_are_held_against_what_follows(tmp_path):
    """A client within the clip norm -10,000 times, and a squared norm that its displacement does not have."""
    setting = {"cohort": 2, "population": 2, "delta": 1e-3, "sampling": "none", "clipping": "adaptive"}
    private = fs.privacy.DifferentialPrivacy(
        fs.FedAvg(0.1, weighting="uniform"), 1.0, 0.5, at="client", **setting
    )
    judged(private, lambda m: replace(m, within=np.array(1.0)))
    with pytest.raises(
        InvalidInput, match="its within is -10000: it must be at least 0 and at most 1 and whole"
    ):
        judged(private, lambda m: replace(m, within=np.array(-1e4)))
    judged(fs.FedExP(0.1), lambda m: m)
    with pytest.raises(InvalidInput, match="its squared_norm is 1e"):
        judged(fs.FedExP(0.1), lambda m: replace(m, measured=Spread(np.array(1e12))))
    noisy = fs.privacy.LocalDifferentialPrivacy(fs.FedExP(0.1), 0.5, noise_multiplier=1.0, delta=1e-5)
    judged(noisy, lambda m: replace(m, measured=Spread(np.array(-3.0))))  # noise has any sign
