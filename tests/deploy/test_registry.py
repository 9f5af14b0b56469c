"""Who a client is: numbers belong to the first node that claims them, and nothing else that a node says matters."""

import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedsolve as fs
from deploy_small import deploy_quick as deploy
from fake_grid import FakeGrid
from fedsolve.core.errors import Unavailable
from fedsolve.deploy.registry import BINDINGS, ClientRegistry, NodeBindings
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.status import ClientStatuses

SIGNATURE = "['w'] float32[2]"
VERSIONS = {"fedsolve": fs.__version__, "flwr": "1.41.0", "python": "3.11.9", "framework": "torch 2.13.0+cpu"}


def says(versions=VERSIONS, **facts):
    """An answer to who a client is; versions of None are what nodes older than 0.2 reported."""
    known = {"client": ConfigRecord({"client": 1, "signature": SIGNATURE} | facts)}
    return RecordDict(known if versions is None else known | {"versions": ConfigRecord(versions)})


def teller() -> ClientApp:
    """A client that says the number of its node's configuration, and nothing else."""
    app = ClientApp()

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return Message(says(client=context.node_config["client-id"]), reply_to=message)

    return app


class Meeting:
    """A registry on a grid, and what it logged."""

    def __init__(
        self, folder, clients, keys=None, takeover=True, experiment="one", tamper=None, population=6
    ):
        self.grid = FakeGrid(teller(), clients, folder, tamper)
        self.grid.keys |= keys or {}
        self.log, self.population = [], population
        self.path = folder / BINDINGS
        self.again(takeover, experiment)

    def again(self, takeover=True, experiment="one"):
        settings = Settings(
            rounds=1, population=self.population, takeover=takeover, out=str(self.path.parent)
        )
        self.clients = ClientStatuses(self.population)
        self.registry = ClientRegistry(
            self.grid, settings, experiment, SIGNATURE, self.clients, self.log.append
        )

    def here(self):
        return self.registry.poll()


def test_the_first_claim_is_kept(tmp_path):
    """Node 103 claims client 1 as well: it is refused once, until node 102 is gone; then the number moves."""
    meeting = Meeting(tmp_path, [0, 1, 1], {n: bytes([n]) for n in (101, 102, 103)})
    assert meeting.here() == meeting.here() == {0: 101, 1: 102}
    refusals = [line for line in meeting.log if "refused" in line]
    assert refusals == [
        "node 103 is refused: client 1 belongs to another node, which claimed it first: this one does not count, "
        "unless that one goes"
    ]
    del meeting.grid.nodes[102]
    assert meeting.here() == {0: 101, 1: 103}
    assert "client 1 is at another node now: the one that had it is gone" in meeting.log
    meeting.grid.nodes[102] = {"client-id": 1}  # the first comes back: too late
    assert meeting.here() == {0: 101, 1: 103}


def test_a_claim_outlives_the_server(tmp_path):
    """After a restart the intruder, asked first this time, is still refused; another experiment starts anew."""
    meeting = Meeting(tmp_path, [1, 1], {101: b"intruder", 102: b"owner"})
    meeting.grid.nodes.pop(101)
    assert meeting.here() == {1: 102}
    meeting.grid.nodes = {101: {"client-id": 1}} | meeting.grid.nodes
    meeting.again()
    assert meeting.here() == {1: 102}
    meeting.again(experiment="two")
    assert meeting.here() == {1: 101}


def test_without_takeover_only_the_key_counts(tmp_path):
    """Node 102 with the owner's key goes and comes back under another node number; nobody else gets its client."""
    meeting = Meeting(tmp_path, [1], {101: b"owner", 102: b"intruder", 103: b"owner"}, takeover=False)
    assert meeting.here() == {1: 101}
    meeting.grid.nodes = {102: {"client-id": 1}}
    assert meeting.here() == {}
    assert meeting.log[-1].endswith("which claimed it first: this one does not count")
    meeting.grid.nodes[103] = {"client-id": 1}
    assert meeting.here() == {1: 103}


def test_a_key_has_one_number(tmp_path):
    """A node that comes back as another client gives its first number up, or is refused where keys are final."""
    for takeover, here in ((True, {2: 102}), (False, {})):
        folder = tmp_path / str(takeover)
        folder.mkdir()
        meeting = Meeting(folder, [1], {101: b"key", 102: b"key", 103: b"other"}, takeover)
        assert meeting.here() == {1: 101}
        meeting.grid.nodes = {102: {"client-id": 2}}
        assert meeting.here() == here
        meeting.grid.nodes[103] = {"client-id": 1}
        assert meeting.here() == (here | {1: 103} if takeover else here)


def test_a_node_that_is_started_again(tmp_path):
    """Nodes without keys of their own: the new one waits until Flower has dropped the old one, then is the client."""
    meeting = Meeting(tmp_path, [0, 1])
    assert meeting.here() == {0: 101, 1: 102}
    meeting.again()
    meeting.grid.nodes[103] = {"client-id": 1}
    assert meeting.here() == {0: 101, 1: 102}
    del meeting.grid.nodes[102]
    assert meeting.here() == {0: 101, 1: 103}


NUMBERS = ArrayRecord({"client": Array(np.ones(3)), "signature": Array(np.ones(3))})
STRANGE = {
    "negative": says(client=-1),
    "too large": says(client=6),
    "far too large": says(client=2**62),
    "true": says(client=True),
    "real": says(client=1.0),
    "text": says(client="1"),
    "list": says(client=[1]),
    "bytes": says(client=b"1"),
    "another model": says(signature="['w'] float32[3]"),
    "a number for a model": says(signature=3),
    "constants that are numbers": says(constants=[3]),
    "no model": RecordDict({"client": ConfigRecord({"client": 1}), "versions": ConfigRecord(VERSIONS)}),
    "nothing": RecordDict({}),
    "arrays": RecordDict({"client": NUMBERS, "versions": ConfigRecord(VERSIONS)}),
    "metrics": RecordDict({"client": MetricRecord({"client": 1}), "versions": ConfigRecord(VERSIONS)}),
    "no versions": says(None),
    "one version": says({"fedsolve": fs.__version__}),
    "a version more": says(VERSIONS | {"cuda": "13"}),
    "a number for a version": says(VERSIONS | {"python": 3}),
    "versions in arrays": RecordDict(dict(says(None)) | {"versions": NUMBERS}),
    "a version that forges a log": says(VERSIONS | {"fedsolve": "9\n\x1b[31mfedsolve: done" + "c" * 9999}),
    "a framework that forges a label": says(VERSIONS | {"framework": 'torch"} 1\n'}),
    "refusal without reason": RecordDict({"refused": ConfigRecord({})}),
    "refusal in arrays": RecordDict({"refused": NUMBERS}),
    "refusal that forges a log": RecordDict(
        {"refused": ConfigRecord({"why": "x\nfedsolve: \x1b[31mdone" + "a" * 9999})}
    ),
    "model that forges a log": says(signature="x\n\x1b[31mfedsolve: done " + "b" * 9999),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_strange_answer_is_a_refusal(kind, tmp_path):
    """It costs its node, nobody else, and the log one short printable line."""
    meeting = Meeting(
        tmp_path, [0, 1], tamper=lambda node, what, content: STRANGE[kind] if node == 102 else content
    )
    assert meeting.here() == {0: 101}
    told = [line for line in meeting.log if "refused" in line]
    assert len(told) == 1
    assert told[0].isprintable()
    assert len(told[0]) < 400
    with pytest.raises(Unavailable, match="1 of 2 clients connected"):
        meeting.registry.wait_for_quorum(2, 0.01)


def test_what_clients_must_share_is_compared(tmp_path):
    """A client with other frozen weights than most takes no part for as long as it has, the first one neither."""
    digests = {101: "head 1", 102: "head 2", 103: "head 1"}
    meeting = Meeting(
        tmp_path, [0, 1, 2], tamper=lambda node, _, __: says(client=node - 101, constants=[digests[node]])
    )
    assert meeting.here() == {0: 101, 2: 103}
    assert any("client 1 has another 'head' than most clients" in line for line in meeting.log)
    meeting.grid.nodes = {101: {"client-id": 0}, 103: {"client-id": 2}}
    assert meeting.here() == {0: 101, 2: 103}
    digests[102] = "head 1"
    meeting.grid.nodes[102] = {"client-id": 1}
    assert meeting.here() == {0: 101, 1: 102, 2: 103}
    meeting.grid.nodes = {102: {"client-id": 1}, 103: {"client-id": 2}}
    assert meeting.here() == {1: 102, 2: 103}
    digests[101] = "head 3"
    meeting.grid.nodes = {101: {"client-id": 0}} | meeting.grid.nodes
    assert meeting.here() == {1: 102, 2: 103}


def test_a_number_outside_is_none_of_a_quorum(tmp_path):
    """Six are needed; the sixth node says -1."""

    def lie(node, what, content):
        return says(client=-1) if node == 106 else content

    with pytest.raises(
        Unavailable, match=r"5 of 6 clients .*\(missing: 5\); refused: client -1 is none of the 6"
    ):
        deploy(fs.FedAvg(0.1), tmp_path, tamper=lie)


def test_a_wait_is_announced(tmp_path):
    meeting = Meeting(tmp_path, [0], population=6)
    with pytest.raises(Unavailable, match=r"within 0\.01 s"):
        meeting.registry.wait_for_quorum(3, 0.01)
    assert meeting.registry.wait([0, 4, 5], 0.01) == {0: 101}
    waits = [f"waiting at most 0.01 s for {whom}" for whom in ("2 more clients", "client 4, client 5")]
    assert [line for line in meeting.log if "wait" in line] == waits


def test_a_damaged_file_of_claims(tmp_path):
    for text in ("{", "[]", '{"experiment": "one"}', '{"experiment": "one", "keys": {"a": 1}}', "\0" * 40):
        (tmp_path / BINDINGS).write_text(text)
        with pytest.raises(
            fs.InvalidInput, match=r"clients\.json cannot be read .*: restore it, or delete it"
        ):
            NodeBindings(tmp_path / BINDINGS, "one")


def test_an_intruder_in_a_run(tmp_path):
    """A second node of client 1 that would spoil everything is never asked to train, on resume neither."""
    settings = {"keys": {n: bytes([n]) for n in range(101, 108)}, "clients": [0, 1, 2, 3, 4, 5, 1]}
    *_, grid = deploy(fs.FedAvg(0.1), tmp_path, rounds=2, **settings)
    assert (107, "train") not in grid.asked
    began = time.monotonic()
    settings["clients"] = [1, 1, 2, 3, 4, 5, 0]
    swapped = settings | {
        "keys": {101: bytes([107]), 102: bytes([102]), 107: bytes([101])}
        | {n: bytes([n]) for n in (103, 104, 105, 106)}
    }
    *_, grid = deploy(fs.FedAvg(0.1), tmp_path, rounds=3, resume=True, **swapped)
    assert (101, "train") not in grid.asked
    assert (107, "train") in grid.asked
    assert time.monotonic() - began < 60
