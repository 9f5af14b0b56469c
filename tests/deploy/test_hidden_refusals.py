"""What a server is told of a refusal by a client whose owner allows sums alone: nothing that may depend on data."""

import dataclasses
import json

import numpy as np
import pytest

import fedsolve as fs
from deploy_small import ask
from deploy_small import distance as loss
from fedsolve.data.column_replies import Measure
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.client.secure_sums import SecureSums
from fedsolve.deploy.codec import to_record
from fedsolve.deploy.column_records import ColumnsRequest
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.server.coordinator import Coordinator, Federation

NOTHING = "this client does not answer"
SECURE = fs.Secure(fs.FedAvg(1e300, weighting="uniform"), bound=4.0, max_clients=6)


def same(node):
    return JaxOracle(loss, {"w": np.zeros(2)}, np.ones((4, 2)), batch_size=2, epochs=1)


def requests(method=SECURE, steps=0, **facts):
    given = {"population": 4, "sampling": fs.sampling.Uniform(4), "seed": 0, "experiment": "x-1"}
    server = Coordinator(method, {"w": np.zeros(2)}, Federation(**given))
    server.draw_cohort()
    question = server.evaluate_requests(("loss",), steps, fs.client.SGD(1e300))(0)
    masked = (
        dataclasses.replace(one, masks=b"masks", **facts) for one in (server.train_request(0), question)
    )
    return {one.NAME: to_record(one) for one in masked}


def why(app, record, folder, kind):
    return ask(app, record, folder, kind=kind)["refused"]["why"]


def fails(error):
    def raising(node):
        raise error

    return raising


OF_DATA = {
    "an update that is not finite": (same, "train", "update of client 0 is not finite"),
    "a file of the owner's": (fails(fs.InvalidInput("north.csv, line 3: age is empty")), "query", "line 3"),
    "the owner's code": (fails(KeyError("age")), "train", "KeyError"),
    "the owner's code, asked for metrics": (fails(ValueError("row 7")), "evaluate", "ValueError"),
    "a model that is not finite after steps": (same, "evaluate", "not finite after 5 local steps"),
}


@pytest.fixture
def enrolled(monkeypatch):
    """As if the protocol had nothing against an order, before it is worked on."""
    monkeypatch.setattr(SecureSums, "check_order", lambda *given: None)


@pytest.mark.parametrize("case", OF_DATA)
def test_the_server_is_told_nothing_that_depends_on_data(case, tmp_path, capsys, enrolled):
    """The same words for all; the node's log has the reason, and a server that may read messages is told it."""
    problem, kind, reason = OF_DATA[case]
    steps = 5 if "steps" in case else 0
    record = requests(steps=steps)["order" if kind == "train" else "question"]
    hidden = why(client_app(problem, min_sum=3), record, tmp_path, kind)
    assert hidden in (NOTHING, f"client 0: {NOTHING}")
    out, err = capsys.readouterr()
    assert reason in out + err
    assert reason in why(client_app(problem), record, tmp_path, kind)


def test_a_question_that_came_with_an_order_is_refused_as_silently(tmp_path, enrolled):
    order, question = requests(steps=5).values()
    for name, part in question.items():
        order[f"evaluate.{name}"] = part
    answer = ask(client_app(same, min_sum=3), order, tmp_path)
    assert [answer[name]["why"] for name in ("refused", "evaluate.refused")] == [NOTHING, NOTHING]


def test_columns_that_cannot_be_read(tmp_path, enrolled):
    def columns(node):
        raise ValueError("row 7 of age")

    masked = to_record(ColumnsRequest({"age": Measure(0.0, 1.0)}, experiment="x-1"))
    masked["masks"] = requests()["order"]["masks"]
    for min_sum, told in ((3, NOTHING), (None, "client 0: ValueError, see the node's log")):
        app = client_app(same, statistics=columns, min_sum=min_sum)
        assert why(app, masked, tmp_path, "query.statistics") == told


def test_refusals_of_a_request_keep_their_words(tmp_path):
    """They say what the server knows; without them nobody could find a fault."""
    app = client_app(same, min_sum=3, statistics=lambda node: {})

    def told(record, kind="train"):
        return why(app, record, tmp_path, kind)

    unknown = requests()["order"]
    unknown["order"]["method"] = json.dumps({"class": "its.own.Method", "fields": {}})
    assert "needs 'its.own.Method', which this client does not know" in told(unknown)
    other = requests()["order"]
    other["order"]["signature"] = other["order"]["signature"].replace("2", "3")
    assert "w" in told(other)
    assert "allows sums of at least 3 clients alone" in told(requests(fs.FedAvg(0.1))["order"])
    assert "order is for client 1" in told(requests(client=1)["order"])
    # before the client knows that its update would not be finite, nor how its model fares after steps
    assert "no roster was accepted yet" in told(requests()["order"])
    assert "no roster was accepted yet" in told(requests(steps=5)["question"], "evaluate")
    assert "ask with --secure" in told(to_record(ColumnsRequest({})), "query.statistics")
