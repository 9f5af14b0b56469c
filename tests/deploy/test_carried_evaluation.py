"""Orders that carry an evaluation: the run is the one whose clients are asked in messages of their own."""

import contextlib
import json
import time

import jax
import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from test_client_evaluation import START, TASK, deployed

import fedsolve as fs
from fedsolve.core.errors import Unavailable
from fedsolve.deploy import exchange as pending_requests
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.codec import join, separate
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.deploy.registry import ClientRegistry
from fedsolve.deploy.run_log import ROUNDS
from fedsolve.deploy.server.checkpoint import DeploymentCheckpoint
from fedsolve.deploy.status import PHASES, PhaseClock
from fedsolve.results.clients import CLIENT_METRICS

ALONE = {"callbacks": [lambda at: None]}
"""What makes every evaluation end before the next orders."""


def count(grid, kind):
    return [what for _, what in grid.asked].count(kind)


def same(one, other, folder):
    """Model, record and clients' metrics of two runs in a/ and b/ of a folder, to the bit; seconds alone differ."""
    for x, y in zip(jax.tree.leaves(one[0]), jax.tree.leaves(other[0]), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
    for part in ("evaluations", "rounds"):
        mine, theirs = (getattr(run[1], part) for run in (one, other))
        assert list(mine) == list(theirs)
        for name in set(mine) - {"seconds"}:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
    np.testing.assert_equal(one[1].totals, other[1].totals)
    files = [(folder / x / "server" / CLIENT_METRICS).read_bytes() for x in "ab"]
    assert files[0] == files[1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        pytest.param(
            fs.FedAvg(0.3),
            {"evaluate": lambda params, _: {"test_norm": float(np.abs(params.weight).max())}},
            marks=pytest.mark.full,
        ),
        (fs.SCAFFOLD(0.3), {"eval_every": 2, "rounds": 5}),
        pytest.param(fs.FedPer("bias", 0.3), {"grace": float("inf")}, marks=pytest.mark.full),
        pytest.param(fs.Ditto(fs.FedAvg(0.3)), {}, marks=pytest.mark.full),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_the_run_is_that_of_messages_of_their_own(method, settings, tmp_path):
    """Two of four train: they are asked with their orders, the others at the same time."""
    given = {"rounds": 4, **settings}
    carried = deployed(method, tmp_path / "a", **given)
    alone = deployed(method, tmp_path / "b", **given, **ALONE)
    same(carried, alone, tmp_path)
    evaluations = len(alone[1].evaluations["round"])
    assert count(alone[2], "evaluate") == 4 * evaluations
    assert count(carried[2], "evaluate") == 4 * 2 + 2 * (evaluations - 2)  # the first and the last are alone
    assert count(carried[2], "train") == count(alone[2], "train") == 2 * given["rounds"]


@pytest.mark.full
def test_a_round_is_one_trip(tmp_path, monkeypatch):
    """Of four rounds: evaluation before the first, one trip each, evaluation after the last; it was nine trips."""
    trips = []

    def counted(pending, *rest):
        trips.append([each.exchange.kind for each in pending])
        pending_requests.send_and_wait(pending, *rest)

    for module in ("rounds", "evaluation"):
        monkeypatch.setattr(f"fedsolve.deploy.server.{module}.send_and_wait", counted)
    deployed(fs.FedAvg(0.3), tmp_path / "a", rounds=4)
    assert trips == [["evaluate"], ["train"], *[["train", "evaluate"]] * 3, ["evaluate"]]
    trips.clear()
    deployed(fs.FedAvg(0.3), tmp_path / "b", rounds=4, **ALONE)
    assert trips == [["evaluate"], *[["train"], ["evaluate"]] * 4]


RATE = fs.schedules.ReduceOnPlateau(0.3, "train_loss", patience=1, factor=0.5)


@pytest.mark.full_rows("grace")
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (fs.FedAvg(RATE), {}),
        (fs.FedAvg(0.3), {"grace": 5.0}),
        (fs.FedAvg(0.3), {"over_select": 0.5}),
        (fs.FedAvg(0.3), {"callbacks": [fs.callbacks.EarlyStopping("train_loss", 1, min_delta=100.0)]}),
    ],
    ids=["plateau", "grace", "over-selection", "stop rule"],
)
def test_what_needs_the_evaluation_first_has_it(method, settings, tmp_path):
    _, history, grid = deployed(method, tmp_path, rounds=3, **settings)
    assert count(grid, "evaluate") == 4 * len(history.evaluations["round"])
    if "callbacks" in settings:
        assert history.evaluations["round"].tolist() == [0, 1]


class Silent(JaxOracle):
    """Measures no model."""

    measure = LocalProblem.measure


class Idle(JaxOracle):
    """Takes part in no round."""

    def begin(self, *given):
        raise fs.InvalidInput("it rests")


def test_one_part_may_be_refused_alone(tmp_path, capsys):
    """Client 2 measures nothing and trains; client 3 trains not and is measured."""

    def oracle_for(node):
        kind = {2: Silent, 3: Idle}.get(node.client, JaxOracle)
        return kind.of_task(TASK, node.client, params=START)

    settings = {"app": client_app(oracle_for), "clients_per_round": 4, "rounds": 3, "max_share": 0.9}
    carried = deployed(fs.SCAFFOLD(0.3), tmp_path / "a", **settings)
    said = capsys.readouterr().out
    assert "evaluation after round 1: client 2 does not count: refused: this Silent measures no model" in said
    assert "round 2: client 3 does not count: refused: it rests" in said
    assert carried[1].evaluations["clients_measured"].tolist() == [3] * 4
    assert carried[1].rounds["dropped"].tolist() == [1] * 3
    same(carried, deployed(fs.SCAFFOLD(0.3), tmp_path / "b", **settings, **ALONE), tmp_path)


def changed(part, name, value):
    """Client 1's answers that carry both, with another fact."""

    def tamper(node, kind, content):
        if node == 102 and "evaluate.answer" in content:
            content[part] = ConfigRecord(dict(content[part]) | {name: value})
        return content

    return tamper


def without(node, kind, content):
    if node == 102 and kind == "train":
        separate(content, "evaluate")
    return content


def unasked(node, kind, content):
    if node == 102 and kind == "train" and "evaluate.answer" not in content:
        return join({"train": content, "evaluate": RecordDict({"answer": ConfigRecord({"steps": 0})})})
    return content


@pytest.mark.gate(
    "tamper-measured0-dropped0-it is of round 5, not of 1",
    "without-measured4-dropped4-it has no answer as this version of fedsolve writes it",
)
@pytest.mark.parametrize(
    ("tamper", "measured", "dropped", "words"),
    [
        (changed("evaluate.answer", "round", 5), [4, 3, 4], [0, 0], "it is of round 5, not of 1"),
        (changed("evaluate.train", "examples", 0), [4, 3, 4], [0, 0], "it counts 0 examples"),
        (changed("evaluate.train", "extra", 0), [4, 3, 4], [0, 0], "it has an unknown extra"),
        (changed("reply", "round", 5), [4, 4, 4], [0, 1], "it is of round 5, not of 1"),
        (without, [4, 3, 4], [0, 0], "it has no answer as this version of fedsolve writes it"),
        (unasked, [4, 4, 4], [1, 0], "it has ['evaluate.answer'] besides what a reply has"),
    ],
)
def test_each_part_is_checked_as_if_it_came_alone(tamper, measured, dropped, words, tmp_path, capsys):
    _, history, _ = deployed(fs.FedAvg(0.3), tmp_path, tamper=tamper, clients_per_round=4, rounds=2)
    assert words in capsys.readouterr().out
    assert history.evaluations["clients_measured"].tolist() == measured
    assert history.rounds["dropped"].tolist() == dropped


@pytest.mark.full
def test_a_round_that_is_repeated_evaluates_once(tmp_path):
    """The first two trainers' first replies of round 2 are refused, and asked for again without the evaluation."""
    refused = set()

    def tamper(node, kind, content):
        if kind == "train" and "evaluate.answer" in content and node not in refused:
            refused.add(node)
            answer = separate(content, "evaluate")
            return join({"train": RecordDict(), "evaluate": answer})
        return content

    carried = deployed(fs.SCAFFOLD(0.3), tmp_path / "a", tamper=tamper, rounds=2)
    assert len(refused) == 2
    assert carried[1].rounds["dropped"].tolist() == [0, 0]
    assert count(carried[2], "train") == 6
    alone = deployed(fs.SCAFFOLD(0.3), tmp_path / "b", rounds=2, **ALONE)
    for x, y in zip(jax.tree.leaves(carried[0]), jax.tree.leaves(alone[0]), strict=True):
        np.testing.assert_array_equal(x, y)
    assert carried[1].evaluations["clients_measured"].tolist() == [4] * 3


@pytest.mark.full_rows("too few")
@pytest.mark.parametrize("end", ["killed", "too few"])
def test_a_server_that_ends_before_the_evaluation_makes_up_for_it(end, tmp_path):
    """In round 3, whose orders carry the evaluation after round 2: it is asked for anew, in any of three ways."""

    def tamper(node, kind, content):
        if kind == "train" and "evaluate.answer" in content and content["reply"]["round"] == 2:
            if end == "killed":
                raise RuntimeError("killed")
            return RecordDict()
        return content

    settings = {"rounds": 4, "repeats": 0}
    with pytest.raises(RuntimeError if end == "killed" else Unavailable):
        deployed(fs.FedPer("bias", 0.3), tmp_path / "a", tamper=tamper, **settings)
    if end == "killed":
        _, short, _ = deployed(
            fs.FedPer("bias", 0.3), tmp_path / "a", resume=True, **settings | {"rounds": 2}
        )
        assert short.evaluations["round"].tolist() == [0, 1, 2]
    rounds = []
    more = {} if end == "killed" else {"callbacks": [lambda at: rounds.append(at.round)]}
    resumed = deployed(fs.FedPer("bias", 0.3), tmp_path / "a", resume=True, **settings, **more)
    assert rounds == ([] if end == "killed" else [2, 3, 4])
    whole = deployed(fs.FedPer("bias", 0.3), tmp_path / "b", **settings, **ALONE)
    np.testing.assert_array_equal(resumed[0].weight, whole[0].weight)
    for name in set(whole[1].evaluations) - {"seconds"}:
        np.testing.assert_array_equal(resumed[1].evaluations[name], whole[1].evaluations[name], err_msg=name)
    assert (np.diff(resumed[1].evaluations["seconds"]) > 0).all()


def test_a_round_is_its_phases(tmp_path, monkeypatch):
    """Half a tenth of a second each for the evaluation here, for asking who is there, and for the checkpoint."""

    def slowly(function):
        def called(*given, **more):
            time.sleep(0.05)
            return function(*given, **more)

        return called

    for kind, name in ((DeploymentCheckpoint, "save"), (ClientRegistry, "poll")):
        monkeypatch.setattr(kind, name, slowly(getattr(kind, name)))
    begun = time.perf_counter()
    deployed(fs.FedAvg(0.3), tmp_path, rounds=3, evaluate=slowly(lambda *model: {"test_x": 0.0}))
    rows = [json.loads(line) for line in (tmp_path / "server" / ROUNDS).read_text().splitlines()]
    assert sum(row["seconds"] for row in rows) < time.perf_counter() - begun
    for i, row in enumerate(rows):
        phases = row["phases"]
        assert tuple(phases) == PHASES
        assert sum(phases.values()) == pytest.approx(row["seconds"], abs=1e-9)
        assert phases["checkpoint"] >= 0.05 <= phases["wait"]
        assert (phases["evaluation"] >= 0.05) == (i > 0)
        assert phases["training"] < row["seconds"] - 0.1


def test_time_within_a_phase_is_its_own():
    now = [0.0]
    clock = PhaseClock(lambda: now[0])

    def spend(seconds):
        now[0] += seconds

    spend(9)
    clock.begin()
    spend(1)
    with clock.during("training"):
        spend(2)
        with clock.during("replies"):
            spend(4)
        spend(8)
    with contextlib.suppress(ValueError), clock.during("evaluation"):
        spend(16)
        raise ValueError
    spend(32)
    spent = {"update": 33.0, "training": 10.0, "replies": 4.0, "evaluation": 16.0}
    assert clock.seconds() == dict.fromkeys(PHASES, 0.0) | spent
