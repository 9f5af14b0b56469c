"""Orders of every malformed kind through the real codec: each is one refusal in one line, and leaves no trace."""

import json

import malformed
import numpy as np

import fedsolve as fs
from deploy_small import ask
from deploy_small import distance as loss
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.codec import to_record
from fedsolve.deploy.method_spec import to_spec
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.oracles.node_oracle import check_same
from fedsolve.deploy.server.coordinator import Coordinator, Federation

BESIDE = {"mean": np.ones(2, np.float32)}


class Beside(JaxOracle):
    """A client with something beside its model."""

    buffers = BESIDE

    def load_buffers(self, buffers):
        check_same("buffer", {n: b.shape for n, b in buffers.items()}, {"mean": (2,)})


def oracle(node):
    return Beside(loss, {"w": np.zeros(2)}, np.arange(8.0).reshape(4, 2), batch_size=2, epochs=1)


APP = client_app(oracle)


def order(method, **more):
    given = {"population": 2, "sampling": fs.sampling.Uniform(2), "seed": 0, "experiment": "good-1"}
    coordinator = Coordinator(method, {"w": np.zeros(2)}, Federation(**given), **more)
    coordinator.draw_cohort()
    return to_record(coordinator.train_request(0))


def every(record):
    """A number of malformed copies of a good order of every kind."""
    yield from malformed.facts(record, "order")
    yield from malformed.parts(record)
    yield from malformed.lengths(record, "broadcast")
    after = record["broadcast"]["bytes"].data[16:]  # the number of the round
    for bad in (np.nan, np.inf, 1e308):
        yield (
            f"a model of {bad}",
            malformed.with_bytes(record, "broadcast", np.full(2, bad).tobytes() + after),
        )
    yield from malformed.arrays(record, "buffers")
    yield "a state of no length", malformed.with_bytes(record, "state", b"xyz", shape=(7,))
    yield "a first of no length", malformed.with_bytes(record, "first", b"xyz")
    spec = to_spec(fs.FedAvg(0.1))
    for name, method in {
        "deep": "[" * 100_000 + "]" * 100_000,
        "long": json.dumps(spec).replace("0.1", "1" * 5000),
        "infinite": json.dumps(spec).replace("0.1", "Infinity"),
        "a rule": json.dumps(to_spec(fs.server.ServerSGD())),
        "an attack": json.dumps({"function": "fedsolve.folders.files:write_atomically"}),
        "private": json.dumps(
            to_spec(fs.privacy.LocalDifferentialPrivacy(fs.FedExP(0.1), 0.5, 1.0, delta=1e-5))
        ),
    }.items():
        yield f"a method that is {name}", malformed.with_fact(record, "order", "method", method)
    for key in ([], [1], [1, 2, 3], [-1, 2], [1, 2**32], [0.5, 1.0]):
        yield f"key {key}", malformed.with_fact(record, "order", "key", key)


FINE = ["order.experiment = 'text'", "order.key = [1, 2]", "no buffers", "buffers is {}"]
"""Other orders, not malformed ones: the server asks for another run, or averages nothing beside the model."""


def test_every_kind_is_refused(tmp_path):
    record = order(fs.FedAvg(0.1), buffers=BESIDE)
    assert "reply" in ask(APP, record, tmp_path)
    cases = list(every(record))
    assert len(cases) >= 200
    accepted = []
    for name, bad in cases:
        answer = ask(APP, bad, tmp_path)
        if list(answer) != ["refused"]:
            accepted.append(name)
            continue
        why = answer["refused"]["why"]
        assert why.isprintable(), (name, why)
        assert 0 < len(why) <= 310, (name, why)
    assert accepted == FINE
    assert not list(tmp_path.rglob("*"))


def test_an_exception_is_told_by_its_type(tmp_path, capsys):
    """What a client's own code says stays in its log: it may quote data."""

    def broken(node):
        raise KeyError("patient 4711")

    record = order(fs.FedAvg(0.1))
    for kind in ("query", "train"):
        answer = ask(client_app(broken), record, tmp_path, kind=kind)
        who = "client 0: " if kind == "query" else ""  # whom it asks to train, the server knows
        assert dict(answer["refused"]) == {"why": f"{who}KeyError, see the node's log", "lost": False} | (
            {"client": 0} if kind == "query" else {}
        )
        said = "".join(capsys.readouterr())
        assert "patient 4711" in said
        assert "in broken" in said  # with the place
