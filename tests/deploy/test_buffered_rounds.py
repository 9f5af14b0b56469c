"""FedBuff and FedAsync on a federation: late replies, losses, forged replies, resumed servers; repeated to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrivals_small import differences, recorded, repeat
from flwr.app import ConfigRecord, RecordDict

import fedsolve as fs
from deploy_small import POPULATION, PROBLEM, clients_of, deploy, start
from deploy_small import round_lines as lines
from fake_grid import FakeGrid
from fedsolve.core.errors import Unavailable
from fedsolve.deploy.flower import client_app
from fedsolve.deploy.oracles.jax import JaxOracle

SLOW = {(101, 0): 2, (103, 0): 3, (104, 1): 2, (102, 1): 3, (105, 2): 1, (106, 1): 2}
"""Looks in vain for the reply to the first order of a node and version."""
SETTINGS = {"rounds": 5, "clients_per_round": 4, "slow": SLOW, "round_seconds": 5.0}
METHODS = {
    "FedBuff": fs.FedBuff(0.3, buffer=2, server_lr=0.7),
    "FedBuff+FedAdam by examples": fs.Buffered(fs.FedAdam(0.1, weighting="examples"), 3, 0.9),
    "FedAsync": fs.FedAsync(0.3, staleness="hinge", a=10.0, b=0.0),
    "FedBuff+DiLoCo": fs.Buffered(fs.DiLoCo(0.1), 2),
}


def evaluate(params, buffers):
    return {"test_sum": float(sum(jnp.sum(x) for x in jax.tree.leaves(params)))}


APPS = {dtype: clients_of(PROBLEM, start(dtype)) for dtype in ("float32", "float64")}


@pytest.fixture
def arrivals(monkeypatch):
    return recorded(monkeypatch)


@pytest.fixture
def differing(monkeypatch, arrivals, tmp_path):
    """What of the server's folder differs from the engine's run with the same arrivals."""

    def differing(method, dtype="float64"):
        given = (arrivals, method, PROBLEM, start(dtype), monkeypatch, dtype, 0)
        return differences(tmp_path / "server", repeat(*given))

    return differing


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("FedBuff", "float64"),
        pytest.param("FedBuff", "float32", marks=pytest.mark.full),
        pytest.param("FedBuff+FedAdam by examples", "float32", marks=pytest.mark.full),
        pytest.param("FedAsync", "float64", marks=pytest.mark.full),
        pytest.param("FedBuff+DiLoCo", "float32", marks=pytest.mark.full),
    ],
)
def test_the_arrivals_repeat_to_the_bit(name, dtype, tmp_path, arrivals, differing):
    """Stragglers and a lost order: the model and the record of rounds are those of `fs.run`."""
    given = {"app": APPS[dtype], "params": start(dtype), "round_seconds": 0.2}
    deploy(METHODS[name], tmp_path, **SETTINGS | given, deaf=[(102, 0), (106, 0)])
    assert differing(METHODS[name], dtype) == []
    assert max(t - version for t, row in arrivals.items() for version in row.values()) > 0
    # another order is another model: the comparison is not of what is equal in any case
    idle = min(set(range(POPULATION)) - {*arrivals[4], *arrivals[3]})
    arrivals[4] = dict(sorted([*list(arrivals[4].items())[1:], (idle, 4)]))
    assert "scale" in differing(METHODS[name], dtype)


def test_a_transcript_in_numpy(tmp_path, arrivals):
    """FedBuff on quadratics: w <- w + 0.5 (1/K) sum (1 + tau)^-1/2 D,  D = -0.2 (w_{t - tau} - mean x_i)."""
    rows = [np.random.default_rng(i).standard_normal((3, 2)) + i for i in range(POPULATION)]

    def loss(w, x):
        return jnp.mean(jnp.sum((x - w) ** 2, axis=1)) / 2

    app = client_app(
        lambda node: JaxOracle(loss, np.zeros(2), rows[node.client], batch_size=None, local_steps=1)
    )
    method = fs.FedBuff(0.2, buffer=2, server_lr=0.5)
    model, *_ = deploy(method, tmp_path, app=app, params=np.zeros(2), **SETTINGS)
    path, late = [np.zeros(2)], []
    for t, row in sorted(arrivals.items()):
        terms = []
        for client, version in row.items():
            update = -0.2 * (path[version] - rows[client].mean(axis=0))
            terms.append((1 + t - version) ** -0.5 * update)
            late.append(t - version)
        path.append(path[-1] + 0.5 * np.mean(terms, axis=0))
    np.testing.assert_allclose(model, path[-1], rtol=1e-12)
    assert max(late) >= 1


def test_forged_and_stale_replies_are_refused_and_block_nobody(tmp_path, arrivals, differing):
    """Client 1 answers in the name of another version and client 2 of another client; client 3 never answers."""

    def tamper(node, what, content):
        if what != "train" or node not in (102, 103, 104):
            return content
        if node == 104:
            return None
        new, facts = RecordDict(dict(content)), dict(content["reply"])
        new["reply"] = ConfigRecord(facts | ({"round": facts["round"] + 1} if node == 102 else {"client": 0}))
        return new

    method, given = (
        METHODS["FedBuff"],
        SETTINGS | {"slow": {}, "evaluate": evaluate, "round_seconds": 0.01, "clients_per_round": 6},
    )
    deploy(method, tmp_path, tamper=tamper, **given)
    reasons = " ".join(reason for line in lines(tmp_path) for reason in line["reasons"])
    for words in ("client 1: it is of round", "client 2: it is of client 0, not of 2", "client 3: no answer"):
        assert words in reasons
    assert {client for row in arrivals.values() for client in row} <= {0, 4, 5}
    assert differing(method) == []


class Dying(FakeGrid):
    """A grid whose server's process ends at a look for replies."""

    left = 0

    def pull_messages(self, message_ids):
        type(self).left -= 1
        if type(self).left == 0:
            raise KeyboardInterrupt
        return super().pull_messages(message_ids)


@pytest.mark.parametrize("looks", [12, *(pytest.param(looks, marks=pytest.mark.full) for looks in (20, 25))])
def test_a_server_that_dies_within_a_buffer_goes_on(looks, tmp_path, monkeypatch, arrivals, differing):
    """The arrivals of both processes together repeat to the bit; replies of the lost buffer are asked for again."""
    monkeypatch.setattr("deploy_small.FakeGrid", Dying)
    Dying.left = looks
    method, given = METHODS["FedBuff+DiLoCo"], SETTINGS | {"evaluate": evaluate}
    with pytest.raises(KeyboardInterrupt):
        deploy(method, tmp_path, **given)
    deploy(method, tmp_path, **given, resume=bool(arrivals))
    assert differing(method) == []


def test_nobody_left_ends_the_run_with_the_reasons(tmp_path):
    def fail(node, what, content):
        return {} if what == "train" else content

    with pytest.raises(Unavailable, match=r"0 of 2 replies count, and no other client can be asked \(client"):
        deploy(METHODS["FedBuff"], tmp_path, tamper=lambda n, w, c: RecordDict(fail(n, w, c)), repeats=1)


REFUSED = [
    (METHODS["FedBuff"], {"over_select": 0.5, "clients_per_round": 2}, "FedBuff has no synchronous rounds, which over"),
    (METHODS["FedBuff"], {"sampling": fs.sampling.Bernoulli(0.5)}, "which sampling is for"),
    (fs.FedBuff(0.1), {}, "buffer = 10 but the federation has 6 clients"),
    (fs.Proximal(METHODS["FedBuff"], 0.1), {}, "on a federation, FedBuff must be the outermost wrapper"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "given", "why"), REFUSED)
def test_what_is_refused(method, given, why, tmp_path):
    with pytest.raises(fs.InvalidInput, match=why):
        deploy(method, tmp_path, **given)
