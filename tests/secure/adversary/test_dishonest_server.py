"""What a server may try to read one client's message, on the apps of clients; each function is one attack.

The property: whatever the server sends, no sum is opened that one client's message can be told from, and clients say
in their logs what they refuse.
"""

import contextlib
import json

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import fedsolve as fs
from deploy_small import QUICK, QUICK_START, clients_of
from deploy_small import deploy_quick as deploy
from fake_grid import FakeGrid, over_the_wire
from fedsolve.core import wire
from fedsolve.core.errors import Unavailable
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.codec import pack, record_to_request
from fedsolve.deploy.message import EvaluateRequest, TrainRequest, request_digest
from fedsolve.deploy.method_spec import to_spec
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.secure.attempt import Words
from fedsolve.deploy.secure.client import NodeSecrets
from fedsolve.deploy.secure.primitives import ProtocolError, SumNotOpened
from fedsolve.deploy.server.server import server_app
from secure_small import ASKED, N32, N64, Small, many, message, words

VICTIM = 101
REQUEST_AT = 4 + 32 + 1 + 4 + 2  # tag, roster, kind, round and attempt come before the digest of the request


def secure(inner=None, **options):
    given = {"bound": 4.0, "max_clients": 6, "max_examples": 16, **options}
    return fs.Secure(inner or fs.FedAvg(0.1), **given)


def method(order, other):
    order["order"]["method"] = json.dumps(to_spec(other))


def fact(order, name, value):
    next(iter(order.config_records.values()))[name] = value


def scaled(order, name, scale):
    """Arrays in the wire's form, times a number."""
    numbers = np.frombuffer(order[name]["bytes"].data, np.uint8).copy()
    numbers[-8:] ^= scale
    order[name] = pack(numbers.tobytes())


ORDERS = {
    "a rate at which nothing is learnt": lambda order: method(order, secure(fs.FedAvg(1e-30))),
    "another scale of the words": lambda order: method(order, secure(max_clients=7)),
    "another bound": lambda order: method(order, secure(bound=1e-9)),
    "another method": lambda order: method(order, secure(fs.FedProx(0.1, mu=1.0))),
    "another model": lambda order: scaled(order, "broadcast", 1),
    "another key": lambda order: fact(order, "key", [1, 2]),
    "another population": lambda order: fact(order, "population", 7),
    "another first broadcast": lambda order: order.array_records.update({"first_digest": pack(bytes(32))}),
}
QUESTIONS = {
    "another model": lambda order: scaled(order, "model", 1),
    "another metric": lambda order: fact(order, "metrics", ["loss", "other"]),
    "steps": lambda order: [
        fact(order, "steps", 1),
        fact(order, "solver", json.dumps(to_spec(fs.client.SGD(0.1)))),
    ],
    "another part": lambda order: order.array_records.update({"summed_parts": pack(b"train validation")}),
}


def with_digest(order, kind):
    """The order with masks for what it asks now, as a server that knows the protocol makes them."""
    request = record_to_request(kind, over_the_wire(order), {})
    more = ()
    if kind is EvaluateRequest:
        more = (json.dumps([[None], list(request.parts), True]).encode(),)
    digest = request_digest(request, {}, *more)
    masks = bytearray(order["masks"]["bytes"].data)
    masks[REQUEST_AT : REQUEST_AT + 32] = digest
    order["masks"] = pack(bytes(masks))
    return order


def careful_clients():
    return client_app(lambda node: JaxOracle.of_task(QUICK, node.client), min_sum=5)


@pytest.mark.parametrize("knows", [False, True])
def test_orders_that_differ_for_one_client(knows, tmp_path, capsys):
    """All but one are asked something else, a round for each field; with masks of the real order, or of theirs."""
    names = list(ORDERS)

    def dishonest(node, kind, content):
        if kind == "train" and node != VICTIM:
            number = content["order"]["round"]
            ORDERS[names[number]](content)
            content = with_digest(content, TrainRequest) if knows else content
        return content

    found, history, _ = deploy(
        secure(), tmp_path, app=careful_clients(), dishonest=dishonest, rounds=len(names), shortfall="skip"
    )
    assert history.rounds["dropped"].tolist() == [6] * len(names)
    assert np.array_equal(found["w"], QUICK_START["w"])
    said = capsys.readouterr().out
    if knows:
        assert said.count("has the digest of another attempt, cohort or roster") >= 5 * (len(names) - 2)
    else:
        assert said.count("the sum is of answers to another request than this client was sent") >= 5 * len(
            names
        )


@pytest.mark.full_rows("False")
@pytest.mark.parametrize("knows", [False, True])
def test_questions_that_differ_for_one_client(knows, tmp_path, capsys):
    """The same of evaluations, whose sums are metrics."""
    names = list(QUESTIONS)

    def dishonest(node, kind, content):
        if kind == "evaluate" and node != VICTIM and (number := content["question"]["round"]):
            QUESTIONS[names[number - 1]](content)
            content = with_digest(content, EvaluateRequest) if knows else content
        return content

    _, history, _ = deploy(
        secure(), tmp_path, dishonest=dishonest, rounds=len(names), client_metrics=("loss",),
        callbacks=[lambda evaluated: None],
    )  # fmt: skip
    assert history.evaluations["clients_measured"].tolist() == [6, *[0] * len(names)]
    said = capsys.readouterr().out
    why = (
        "has the digest of another attempt"
        if knows
        else "answers to another request than this client was sent"
    )
    assert said.count(why) >= 5  # some questions cannot be answered at all


def test_a_configuration_that_differs_for_one_client(tmp_path):
    """Flower's run configuration, which the owner's code may read, is part of what is asked."""

    class Two(FakeGrid):
        def _deliver(self, message):
            self.run_config = {"data": "none"} if message.metadata.dst_node_id != VICTIM else {}
            return super()._deliver(message)

    import deploy_small

    real = deploy_small.FakeGrid
    deploy_small.FakeGrid = Two
    try:
        _, history, _ = deploy(secure(), tmp_path, app=careful_clients(), rounds=1, shortfall="skip")
    finally:
        deploy_small.FakeGrid = real
    assert history.rounds["dropped"].tolist() == [6]


def test_an_order_without_masks(tmp_path, capsys):
    """The client does not send in the clear what its method sums."""
    sent = []

    def dishonest(node, kind, content):
        if kind == "train" and node == VICTIM:
            del content["masks"]
        return content

    def tamper(node, kind, content):
        if kind == "train" and node == VICTIM:
            sent.append(content)
        return content

    deploy(
        secure(), tmp_path, app=clients_of(QUICK), dishonest=dishonest, tamper=tamper, rounds=1, repeats=0,
        shortfall="skip",
    )  # fmt: skip
    assert len(sent) == 1
    assert "message" not in sent[0]
    assert "has nothing to mask the reply by" in capsys.readouterr().out


def test_a_state_that_the_server_brings(tmp_path, capsys):
    """No server of sums knows a state: one that it brings would make a client's message what the server wants."""

    def dishonest(node, kind, content):
        if kind == "train" and content["order"]["round"] == 1:
            content["tracked_state"] = pack(wire.encode({"w": np.zeros(3)}))
        return content

    _, history, _ = deploy(
        secure(fs.SCAFFOLD(0.1)), tmp_path, dishonest=dishonest, rounds=2, shortfall="skip"
    )
    assert history.rounds["dropped"].tolist() == [0, 6]
    assert "brings a state, which no server of secure sums knows" in capsys.readouterr().out


def test_a_first_broadcast_for_one_client(tmp_path, capsys):
    """Of a method with a state one client is told to begin from another broadcast than all are told of."""

    def dishonest(node, kind, content):
        if kind == "train" and node == VICTIM:
            content["first_broadcast"] = content["broadcast"]
            scaled(content, "first_broadcast", 3)
        return content

    _, history, _ = deploy(
        secure(fs.SCAFFOLD(0.1)), tmp_path, dishonest=dishonest, rounds=1, shortfall="skip"
    )
    assert history.rounds["dropped"].tolist() == [1]
    assert "another first broadcast than those of other clients" in capsys.readouterr().out


def test_a_column_that_one_site_has(tmp_path):
    """Sites without it do not add zeros to a sum that would be the one site's: they leave it as a whole."""
    sites = [{"age": np.arange(20.0) + i} | ({"rare": np.arange(20.0)} if i == 0 else {}) for i in range(5)]
    app = client_app(lambda node: None, statistics=lambda node: sites[node.client], min_sum=3)
    server = server_app(fs.FedAvg(0.1), {"w": np.zeros(1)}, rounds=1, population=5)
    config = {
        "job": "statistics",
        "columns": "age=0:90, rare=0:90",
        "secure": True,
        "out": str(tmp_path / "run"),
    }
    config |= {"connect-seconds": 0.2, "round-seconds": 0.2}
    grid = FakeGrid(app, list(range(5)), tmp_path / "nodes", run_config=config)
    with pytest.raises(Unavailable, match="1 clients arrived, fewer than min_sum = 3"):
        server(grid, Context(1, 1, {}, RecordDict(), config))


def test_columns_that_differ_for_one_site(tmp_path, capsys):
    """One is asked for its ages, the others for a column of which the server knows the sums."""
    sites = [{"age": np.arange(20.0) + i, "known": np.zeros(20)} for i in range(5)]
    app = client_app(lambda node: None, statistics=lambda node: sites[node.client], min_sum=3)
    server = server_app(fs.FedAvg(0.1), {"w": np.zeros(1)}, rounds=1, population=5)
    config = {"job": "statistics", "columns": "age=0:90", "secure": True, "out": str(tmp_path / "run")}
    config |= {"connect-seconds": 0.2, "round-seconds": 0.2}

    def dishonest(node, kind, content):
        if kind == "query.statistics" and node != VICTIM:
            content["request"]["columns"] = content["request"]["columns"].replace("age", "known")
        return content

    grid = FakeGrid(app, list(range(5)), tmp_path / "nodes", dishonest=dishonest, run_config=config)
    with pytest.raises(Unavailable, match="1 clients arrived, fewer than min_sum = 3"):
        server(grid, Context(1, 1, {}, RecordDict(), config))
    assert capsys.readouterr().out.count("answers to another request than this client was sent") >= 4


def test_examples_that_one_client_holds_out(tmp_path, capsys):
    """Metrics of them would be its own: they are summed where all clients have such examples."""
    some = QUICK.hold_out(0.4, seed=1)

    def app(holding_out):
        problems = [JaxOracle.of_task(some if i in holding_out else QUICK, i) for i in range(6)]
        return client_app(lambda node: problems[node.client])

    for holding_out, columns in (((0,), []), (range(6), ["validation_loss"])):
        folder = tmp_path / str(len(columns))
        _, history, _ = deploy(secure(), folder, app=app(holding_out), rounds=1, client_metrics=("loss",))
        assert [name for name in history.evaluations if "validation" in name] == columns
        assert history.evaluations["clients_measured"].tolist() == [6, 6]


# The server's own program below: it has all keys of a server, and keeps no rule.

OTHER = ASKED[::-1]


def both(small, victim=0):
    """One round of which the victim has one order, and all others one of another request."""
    server = small.server
    real = server.begin("train", 0, small.clients, N32, N64, ASKED)
    server._attempts.clear()
    fake = server.begin("train", 0, small.clients, N32, N64, OTHER)
    replies = {victim: small.reply(real, victim)}
    for client in small.clients:
        if client != victim:
            asked = Words(words(client), N32, N64, "train", 0, OTHER)
            replies[client] = small.node(client).mask(fake.order(client), asked)
    return real, fake, replies


def test_masks_of_two_requests_do_not_cancel(tmp_path):
    """All words added up are as random as one message; of a sum of the others the victim is missing."""
    small = Small(tmp_path, 6)
    real, fake, replies = both(small)
    for sums in (real, fake):
        for client, reply in replies.items():
            with contextlib.suppress(ProtocolError):
                sums.add(client, reply)
    assert real.arrived == (0,)
    assert fake.arrived == (1, 2, 3, 4, 5)
    with pytest.raises(SumNotOpened, match="1 clients arrived"):
        real.close()
    real._sealed |= fake._sealed  # it says that all have arrived
    real.close()
    small.log.clear()
    for member in small.clients:
        with pytest.raises(ProtocolError, match="does not have the shares that clients"):
            real.add_shares(member, small.node(member).unmask(real.unmask_request(member)))
    assert sum("have sent no shares that this one can use" in line for line in small.log) == 6


def test_a_second_sum_without_one_client(tmp_path):
    """The difference of two sums of one round would be its message: members answer for one."""
    small = Small(tmp_path, 6)
    sums = small.gather(small.begin(), range(6))
    for member in small.clients:
        sums.add_shares(member, small.answer(sums, member))
    again = small.gather(small.begin(), range(5))
    for member in small.clients:
        with pytest.raises(ProtocolError, match="differs by 1 clients, fewer than min_sum = 3"):
            small.answer(again, member)
    same = small.gather(small.begin(), range(6))
    for member in small.clients:
        same.add_shares(member, small.answer(same, member))
    assert same.result().words == sums.result().words


def test_a_second_sum_that_one_owner_does_not_allow(tmp_path):
    """It differs by four clients of nine; the owner of one allows sums of five, those of the members of three."""
    small = Small(tmp_path, 9)
    for clients, refused in ((range(9), False), (range(4, 9), True)):
        sums = small.begin(cohort=range(9))
        for client in clients:
            node = NodeSecrets(tmp_path, "e", client, 5 if client == 4 else 3, log=small.log.append)
            sums.add(client, node.mask(sums.order(client), message(sums, words(client))))
        sums.close()
        if refused:
            with pytest.raises(ProtocolError, match="differs by 4 clients, fewer than min_sum = 5"):
                small.answer(sums, 0)
        else:
            small.answer(sums, 0)


def test_a_sum_of_fewer_than_one_owner_allows(tmp_path):
    """Of six that were asked three are said to be lost; the members' own owners would allow a sum of three."""
    small = Small(tmp_path, 6)
    sums = small.begin()
    careful = NodeSecrets(tmp_path, "e", 0, 5, log=small.log.append)
    sums.add(0, careful.mask(sums.order(0), message(sums, words(0))))
    small.gather(sums, [1, 2])
    for member in (1, 2, 3):
        with pytest.raises(ProtocolError, match="3 clients arrived, fewer than min_sum of clients 0"):
            sums.add_shares(member, small.answer(sums, member))
    with pytest.raises(SumNotOpened, match=": attempts are without") as error:
        sums.result()
    assert (error.value.at_fault, error.value.disputes, error.value.unwilling) == ((), (), (0,))


def test_statistics_of_one_site(tmp_path):
    """A server may number statistics as rounds: of all of them together members open sums of one set."""
    small = Small(tmp_path, 5)
    sums = small.gather(small.begin(0, "statistics"), range(5))
    for member in small.clients:
        small.answer(sums, member)
    for number in (1, 7):
        other = small.gather(small.begin(number, "statistics"), range(4))
        with pytest.raises(ProtocolError, match="another sum of this round was opened"):
            small.answer(other, 0)


def test_committee_and_ring_cannot_be_searched(tmp_path, drawn):
    """Keys, cohorts, requests and attempts that a server chooses change neither: they follow from coins alone, which
    honest clients show after they have accepted the roster, and for no other roster."""
    small = many(tmp_path, 40)
    roster = small.server.roster
    rings = {
        small.server.begin(kind, round, range(cohort), N32, N64, bytes([cohort] * 32)).attempt.roster.ring
        for kind, round, cohort in (("train", 0, 40), ("evaluate", 5, 38))
    }
    assert rings == {roster.ring}
    node = small.node(3)
    other = roster.to_bytes().replace(roster.server_key, bytes(range(32)))
    with pytest.raises(ProtocolError, match="another than this experiment began with"):
        node.enrol(other)  # its coin would draw another committee
    forged = bytes(32) + roster.coins[32:]
    with pytest.raises(ProtocolError, match="the coin of client 0 is not the one of the roster"):
        node.reveal(forged)
