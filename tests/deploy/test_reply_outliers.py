"""A reply far beyond what is usual: it is left out and named, whatever its size, type, field and round."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from malformed import with_bytes

import fedsolve as fs
from conformance.properties import task
from deploy_small import clients_of, deploy
from deploy_small import round_lines as lines
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.server.coordinator import check_usual, part_norms
from fedsolve.folders.run_folder import DEPLOYMENT, RunFolder, read_manifest
from fedsolve.methods.robust.reductions import FACTOR
from harness import crossed

CLIENTS, ROUND = 6, 6


def loss(params, x):
    return ((x - params["w"]) ** 2).sum(-1).mean()


def app_of(dtype="float64"):
    @cache
    def oracle(client):
        start, x = np.zeros(2, dtype), np.ones((4, 2), dtype) + client
        return JaxOracle(loss, {"w": start}, x, batch_size=2, epochs=1)

    return client_app(lambda node: oracle(node.client))


APPS = {dtype: app_of(dtype) for dtype in ("float32", "float64")}


def run(folder, tamper=None, method=None, dtype="float64", **settings):
    given = {"app": APPS[dtype], "params": {"w": np.zeros(2, dtype)}, "population": CLIENTS, "rounds": ROUND}
    return deploy(method or fs.FedAvg(0.1), folder, tamper=tamper, **given | settings)


def sends(size, rounds=(1,), clients=(0,), dtype="float64", at=0):
    """In these rounds, from 0, a number of these clients' messages is `size`, or what it gives for the round."""

    def tamper(node, what, content):
        if what != "train" or "reply" not in content:
            return content
        round = content["reply"]["round"]
        if node - 101 not in clients or round not in rounds:
            return content
        numbers = np.frombuffer(content["message"]["bytes"].data, dtype).copy()
        numbers[at] = size(round) if callable(size) else size
        return with_bytes(content, "message", numbers.tobytes())

    return tamper


def crashes(rounds=(1,), clients=(0,)):
    """In these rounds these clients' processes die."""

    def tamper(node, what, content):
        if what == "train" and node - 101 in clients and content["reply"]["round"] in rounds:
            raise OSError("killed")
        return content

    return tamper


@pytest.mark.parametrize(
    ("dtype", "size", "at"),
    [
        pytest.param("float64", 1e18, 0, marks=pytest.mark.full),
        ("float64", -1e100, 1),
        pytest.param("float64", 1e153, 0, marks=pytest.mark.full),
        pytest.param(
            "float64", 1e100, 2, marks=pytest.mark.full
        ),  # the loss, of which a method may make its step
        pytest.param("float32", 1e18, 0, marks=pytest.mark.full),
    ],
)
def test_it_is_left_out_and_named(dtype, size, at, tmp_path):
    """The run has the bits of one in which that client's process died in that round."""
    model, history, _ = run(tmp_path / "a", sends(size, dtype=dtype, at=at), dtype=dtype)
    without, record, _ = run(tmp_path / "b", crashes(), dtype=dtype)
    np.testing.assert_array_equal(model["w"], without["w"])
    for name in ("largest_norm", "largest_norm_client", "median_norm", "dropped", "rejected"):
        np.testing.assert_array_equal(history.rounds[name], record.rounds[name])
    said = lines(tmp_path / "a")
    assert [len(line["reasons"]) for line in said] == [0, 1, 0, 0, 0, 0]
    field = ("delta", "delta", "loss")[at]
    assert said[1]["reasons"][0].startswith(
        f"client 0: the norm of its {field} is {abs(size):.6g}, more than 100,000"
    )


def test_the_largest_norm_of_each_round_is_logged(tmp_path):
    """Clients lie at 1 to 6, the model near 0: the last one's message is the largest."""
    _, history, _ = run(tmp_path, rounds=1)
    deltas = np.array([0.36 * (1 + i) for i in range(CLIENTS)])  # two steps at 0.1 of gradients 2 (w - x)
    losses = [2 * (c**2 + (0.8 * c) ** 2) / 2 for c in 1.0 + np.arange(CLIENTS)]
    norms = np.sqrt(2 * deltas**2 + np.square(losses))
    assert history.rounds["largest_norm"][0] == pytest.approx(norms[-1], rel=1e-12)
    assert history.rounds["largest_norm_client"].tolist() == [CLIENTS - 1]
    assert history.rounds["median_norm"][0] == pytest.approx(np.median(norms), rel=1e-12)
    (line,) = lines(tmp_path)
    assert (line["largest_norm"], line["largest_norm_client"]) == (
        history.rounds["largest_norm"][0],
        CLIENTS - 1,
    )


def test_infinity_is_no_bound_of_its_own(tmp_path):
    """As the configuration of a new app says it."""
    _, history, _ = run(tmp_path, sends(1e18), norm_bound=float("inf"), rounds=2)
    assert history.rounds["rejected"].tolist() == [0, 1]


@pytest.mark.full_rows("clients0")
@pytest.mark.parametrize("clients", [(0,), (0, 1)])
def test_an_attack_that_grows_tenfold_is_left_out_from_its_seventh_round(clients, tmp_path):
    """Honest clients answer each with larger updates, which must make no room for the next one."""
    rounds = 14
    tamper = sends(lambda round: 10.0**round, range(1, rounds), clients)
    model, history, _ = run(tmp_path, tamper, rounds=rounds)
    rejected = history.rounds["rejected"]
    assert rejected.tolist() == [0] * 7 + [len(clients)] * 7
    assert {reason.split(":")[0] for line in lines(tmp_path) for reason in line["reasons"]} == {
        f"client {client}" for client in clients
    }
    honest = 1.0 + np.arange(CLIENTS)[len(clients) :].mean()
    assert np.abs(model["w"] - honest).max() < FACTOR


@pytest.mark.gate("1")
@pytest.mark.parametrize("cohort", [1, 2, 3])
def test_small_cohorts(cohort, tmp_path):
    """From the second round a single client is judged by what came before, two from the first."""
    first = 0 if cohort > 1 else 1
    tamper = sends(1e100, range(first, 20), (2,))
    model, history, grid = run(
        tmp_path, tamper, rounds=8, population=4, clients_per_round=cohort, shortfall="skip", min_replies=1
    )
    asked = sum(1 for node, what in grid.asked if (node, what) == (103, "train"))
    assert history.rounds["rejected"].sum() == asked > 0
    assert np.abs(model["w"]).max() < 10


def test_most_clients_beyond_the_usual_count(tmp_path):
    """Four of six send 1e18 in the third round."""
    _, history, _ = run(tmp_path, sends(1e18, (2,), range(4)))
    assert history.rounds["rejected"].tolist() == [0] * 6


class Died(Exception):
    pass


def dies_after(rounds):
    """An evaluation that raises once so many were made."""
    seen = []

    def evaluate(model, buffers):
        seen.append(1)
        if len(seen) > rounds:
            raise Died
        return {}

    return evaluate


def test_a_resumed_run_decides_the_same(tmp_path):
    """Norms fall by orders before the attack: only what earlier rounds had lets the larger honest one pass."""
    shrinks = fs.FedAvg(fs.schedules.Exponential(0.1, 0.05))
    tamper = sends(lambda round: {2: 1e5, 3: 1e6}[round], (2, 3), (4,))
    whole, history, _ = run(tmp_path / "a", tamper, shrinks)
    assert history.rounds["rejected"].tolist() == [0, 0, 0, 1, 0, 0]
    folder = tmp_path / "b"
    with pytest.raises(fs.FedsolveError, match="evaluate raised Died after round 2"):
        run(folder, tamper, shrinks, evaluate=dies_after(2))
    assert set(read_manifest(folder / "server" / DEPLOYMENT.file)["usual_norms"]) == {
        "delta",
        "loss",
        "message",
    }
    model, record, _ = run(folder, tamper, shrinks, resume=True)
    np.testing.assert_array_equal(model["w"], whole["w"])
    assert record.rounds["rejected"].tolist() == history.rounds["rejected"].tolist()


def without(facts):
    return {name: x for name, x in facts.items() if name != "usual_norms"}


@pytest.mark.full
def test_a_checkpoint_of_before_has_no_usual_norms(tmp_path, monkeypatch):
    """It goes on, and is judged from its next round on by what it sees."""
    undisturbed, *_ = run(tmp_path / "a")
    save = RunFolder.save
    monkeypatch.setattr(RunFolder, "save", lambda self, tree, facts: save(self, tree, without(facts)))
    run(tmp_path / "b", rounds=3)
    monkeypatch.undo()
    assert "usual_norms" not in read_manifest(tmp_path / "b" / "server" / DEPLOYMENT.file)
    model, history, _ = run(tmp_path / "b", sends(1e100, (4,)), resume=True)
    assert history.rounds["rejected"].tolist() == [0, 0, 0, 0, 1, 0]
    assert np.abs(model["w"] - undisturbed["w"]).max() < 1


@pytest.mark.parametrize(
    "given", [[], {"delta": -1.0}, {"delta": float("inf")}, {"delta": "1"}, {"delta": None}]
)
def test_usual_norms_that_are_none(given):
    with pytest.raises(fs.InvalidInput, match="its usual norms are not numbers by field"):
        check_usual(given)


def test_a_fixed_bound_takes_its_place(tmp_path):
    """A run whose clients may send anything up to a bound is told so."""
    model, history, _ = run(tmp_path, sends(1e18), norm_bound=1e50)
    assert history.rounds["rejected"].sum() == 0
    assert history.rounds["largest_norm"][1] == pytest.approx(1e18)
    assert np.abs(model["w"]).max() > 1e16


def test_what_is_averaged_beside_the_model_is_judged_too():
    buffers = {"mean": np.array([3.0, 4.0], np.float32), "seen": np.array(7), "big": np.array([1e300, 1e300])}
    parts = part_norms({"w": np.array([6.0, 8.0])}, {name: buffers[name] for name in ("mean", "seen")})
    assert parts == {"message": 10.0, "buffers": 5.0, "counters": 7.0}
    assert part_norms({"w": np.ones(1)}, buffers)["buffers"] == np.finfo(float).max
    assert part_norms({"w": np.zeros(1)}, {"mean": np.zeros(2)}) == {"message": 0.0, "buffers": 1.0}


def test_under_central_privacy_nothing_is_compared(tmp_path):
    """Who is left out, and the norms of the record, would follow from single clients' data."""
    setting = {"cohort": CLIENTS, "population": CLIENTS, "delta": 1e-5, "sampling": "none"}
    method = fs.privacy.DifferentialPrivacy(fs.FedAvg(0.1, weighting="uniform"), 1e-9, 0.5, **setting)
    model, history, _ = run(tmp_path, sends(1e18), method)
    assert history.rounds["rejected"].sum() == 0
    assert "largest_norm" not in history.rounds
    assert np.abs(model["w"]).max() < 10  # each is clipped to 0.5


UNEVEN = task((1, 1, 1, 400))
HONEST = {
    "SCAFFOLD": fs.ControlVariates(fs.FedDuAdam(0.1)),
    "FedNova": fs.FedNova(0.01),  # sends the sum of its rates, 400 times as large
    "Ditto": fs.Ditto(fs.FedAvg(1e-3)),
    "FedYogi": fs.FedYogi(0.3, server_lr=1.0),
    "FedAdam": fs.FedAdam(0.3, server_lr=1.0),
    "FedLiLS": fs.FedLiLS(),
    "FedAvg": fs.FedAvg(1.0),
}


@pytest.mark.full
@pytest.mark.parametrize("name", crossed(HONEST, ["SCAFFOLD"]))
def test_honest_clients_of_very_different_size_all_count(name, tmp_path):
    """Three clients of one example, one of 400: benchmarks/update_norms.py measures more of them."""
    _, history, _ = deploy(HONEST[name], tmp_path, app=clients_of(UNEVEN), population=4, rounds=4)
    assert history.rounds["rejected"].tolist() == [0] * 4
    assert history.rounds["largest_norm"].max() < 1e-2 * FACTOR * history.rounds["median_norm"].min()
