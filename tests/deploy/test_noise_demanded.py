"""Noise that a client's owner demands: how much, what it costs by the client's own count, and where it stops."""

import dataclasses
import json

import numpy as np
import pytest

import fedsolve as fs
from deploy_small import QUICK, ask, clients_of
from deploy_small import deploy_quick as deploy
from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.client.state import LEDGER, Ledger, PrivacyBudget
from fedsolve.deploy.codec import to_record
from fedsolve.deploy.message import PROTOCOL, ProtocolRequest, TrainReply
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.secure import client as node_secrets
from fedsolve.deploy.server.coordinator import Coordinator, Federation
from fedsolve.folders.run_folder import read_manifest
from fedsolve.methods.privacy.accounting import epsilon_of

DELTA = 1e-5
PLAN = {"cohort": 6, "population": 6, "delta": DELTA, "scalars": {"loss": 0}}
FEDAVG = fs.FedAvg(0.1, weighting="uniform")


def in_shares(z, **options):
    given = PLAN | {"at": "distributed", "min_sum": 4, "corrupt": 0.25, "sampling": "none"} | options
    return fs.Secure(fs.privacy.DifferentialPrivacy(FEDAVG, z, 1.0, **given), bound=4.0, max_clients=6)


def local(z):
    return fs.privacy.LocalDifferentialPrivacy(FEDAVG, 0.5, noise_multiplier=z, delta=DELTA)


def bounded(**bounds):
    return client_app(lambda node: JaxOracle.of_task(QUICK, node.client), min_sum=4, **bounds)


def reference(multipliers, squared_mu=0.0):
    """Epsilon of Skellam noise with these multipliers, and of Gaussian noise: Corollary 4.1 of Agarwal et al. (2021).

    All of a client's data are replaced: two vectors of whole numbers of norm at most 1.01 s differ by twice that in l2,
    and in l1 by sqrt(d) times as much, at most by the square.
    """
    s, best = 2.0**15, np.inf
    l2 = 2 * 1.01 * s
    l1 = 2 * 1.01 * s * 1.01 * s  # of so many entries as this norm allows
    for alpha in [*np.arange(2, 64), 128, 256, 512, 1024]:
        r = alpha * squared_mu / 2
        for z in multipliers:
            v = (z * s) ** 2
            r += alpha * l2**2 / (2 * v) + min(((2 * alpha - 1) * l2**2 + 6 * l1) / (4 * v**2), 1.5 * l1 / v)
        best = min(best, r + np.log1p(-1 / alpha) - np.log(DELTA * alpha) / (alpha - 1))
    return best


def order_of(method, masks=b"masks", round=0):
    population = getattr(method.inner, "population", 6)
    given = {
        "population": population,
        "sampling": fs.sampling.Uniform(6),
        "seed": 0,
        "experiment": "x-1",
    }
    server = Coordinator(method, {"w": np.zeros(2)}, Federation(**given))
    server.draw_cohort()
    return dataclasses.replace(server.train_request(0), masks=masks, round=round)


def send(folder, method, bounds=None, **order):
    """The epsilon that the ledger of client 0 says after a message."""
    budget, lines = PrivacyBudget(**{"delta": DELTA, **(bounds or {})}), []
    reply = TrainReply("x-1", 0, 0, "", 1, b"", {})
    Ledger(folder, 0, budget).send(
        order_of(method, **order), budget.check(method), lambda: reply, lines.append
    )
    return float(lines[-1].split("epsilon = ")[1].split()[0])


def test_epsilon_is_that_of_the_paper(tmp_path):
    """By the client's own count: without amplification, whatever sampling the order names, for all kinds of noise."""
    assert send(tmp_path, in_shares(4.0)) == pytest.approx(reference([4.0]), rel=1e-3)
    sampled = in_shares(5.0, sampling="fixed", population=12)
    assert send(tmp_path, sampled, round=1) == pytest.approx(reference([4.0, 5.0]), rel=1e-3)
    beside = send(tmp_path, local(8.0), masks=None)
    assert beside == pytest.approx(reference([4.0, 5.0], 1 / 16), rel=1e-3)
    assert read_manifest(tmp_path / "client-0-sent" / LEDGER)["messages"] == 3


def test_gaussian_noise_alone_is_counted_exactly(tmp_path):
    assert send(tmp_path, local(4.0), masks=None) == pytest.approx(epsilon_of(0.5, DELTA), rel=1e-3)


def test_a_round_that_is_answered_twice_counts_twice(tmp_path):
    """Masks are of one attempt: the second is a new message, which the server may open as well."""
    once = send(tmp_path, in_shares(4.0))
    assert send(tmp_path, in_shares(4.0)) == pytest.approx(reference([4.0, 4.0]), rel=1e-3)
    assert reference([4.0, 4.0]) > 1.2 * once


def test_a_client_stops_before_its_bound(tmp_path):
    """Two sums are within it; a third is not, in this experiment or in another one."""
    app = bounded(max_epsilon=reference([4.0, 4.0]) + 1e-6)
    deploy(in_shares(4.0), tmp_path, app=app, rounds=2, out=str(tmp_path / "first"))
    for name, more in (("first", {"resume": True, "rounds": 3}), ("second", {"rounds": 1})):
        with pytest.raises(Unavailable, match=r"would have spent epsilon = .* above its max_epsilon"):
            deploy(in_shares(4.0), tmp_path, app=app, repeats=0, out=str(tmp_path / name), **more)
    path = tmp_path / "node-101" / "client-0-sent" / LEDGER
    assert read_manifest(path)["messages"] == 2


def test_noise_that_is_lowered_during_a_run_is_refused(tmp_path):
    """The server's record goes on to say another epsilon: the clients answer the first round alone."""
    app = bounded(min_noise=2.0)

    def lowering(message, context):
        order = message.content.get("order")
        if order is not None and order["round"] == 1:
            method = json.loads(order["method"])
            method["fields"]["inner"]["fields"]["noise_multiplier"] = 1.9
            order["method"] = json.dumps(method)
        return app(message, context)

    with pytest.raises(
        Unavailable, match=r"round 2.*has noise_multiplier = 1.9, and this client asks .* = 2"
    ):
        deploy(in_shares(2.0), tmp_path, app=lowering, rounds=2, repeats=0)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (in_shares(1.1), None),
        (in_shares(np.float32(1.1)), None),
        (local(1.1), None),
        (in_shares(1.09), "has noise_multiplier = 1.09, and this client asks for at least min_noise = 1.1"),
        (local(0.5), "has noise_multiplier = 0.5"),
        (fs.Secure(FEDAVG, bound=4.0, max_clients=6), "without noise of the clients' own"),
        (fs.privacy.DifferentialPrivacy(FEDAVG, 9.0, 1.0, sampling="none", **PLAN), "without noise"),
    ],
)
def test_the_least_noise_of_a_message(method, words):
    """Of the client's own, or in shares."""
    budget = PrivacyBudget(min_noise=1.1)
    if words is None:
        assert budget.check(method) is not None
    else:
        with pytest.raises(InvalidInput, match=words):
            budget.check(method)


@pytest.mark.parametrize(
    "method",
    [in_shares(0.0), in_shares(1e-9), in_shares(5.0).inner, fs.FedProx(0.1)],
    ids=["none", "too little", "no sum", "no promise"],
)
def test_noise_in_shares_that_is_none_is_refused_whatever_the_owner_says(method):
    """No noise, too little for whole numbers, and none at all without `fs.Secure`; what promises none passes."""
    if method.traits.privacy == "distributed":
        with pytest.raises(InvalidInput, match="promises noise in shares"):
            PrivacyBudget().check(method)
    else:
        assert PrivacyBudget().check(method) is None


def test_a_number_that_wraps_around_is_no_way_around(tmp_path):
    """98,304 squared does not fit into an int32: the variance of a share is that of the number that is counted."""
    coder = in_shares(np.int32(3)).inner.update_coder
    assert float(coder.variance) == (3 * 2**15) ** 2 / 3


def test_metrics_have_no_noise(tmp_path):
    """A client whose owner demands noise adds to no sum of metrics, of a method whose updates have noise, too."""
    with pytest.raises(InvalidInput, match="metrics have no noise"):
        deploy(in_shares(4.0), tmp_path, app=bounded(min_noise=1.0), rounds=1, client_metrics=("loss",))


@pytest.mark.parametrize("bound", [0, -1.0, float("nan"), "2"])
def test_least_noises_that_are_none(bound):
    with pytest.raises(InvalidInput, match="min_noise"):
        client_app(clients_of, min_noise=bound)


@pytest.mark.parametrize(("bounds", "second"), [({}, True), ({"max_epsilon": 8.0}, False)], ids=str)
def test_a_client_that_counts_opens_no_second_sum(bounds, second, tmp_path, monkeypatch):
    """Of two sums that its one message is part of the noise may be less than that of each."""
    made = []
    monkeypatch.setattr(node_secrets, "NodeSecrets", lambda *given: made.append(given))
    ask(
        bounded(**bounds), to_record(ProtocolRequest("x-1", "hello", b"")), tmp_path, kind=f"query.{PROTOCOL}"
    )
    assert [given[5] for given in made] == [second]
