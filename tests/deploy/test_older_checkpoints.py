"""Checkpoints from before the newest rounds: which stay, that runs go on from them, what a spoiled run is told."""

from __future__ import annotations

import os
import shutil
from functools import cache

import numpy as np
import pytest
from test_reply_outliers import sends

import fedsolve as fs
from deploy_small import deploy
from fedsolve.core.errors import Unavailable
from fedsolve.deploy.client import state
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.run_log import FAILED
from fedsolve.deploy.server import checkpoint
from fedsolve.deploy.server.coordinator import largest_update
from fedsolve.folders.run_folder import read_manifest

TRACKED = fs.FedFW(fs.geometry.L2Ball(3.0), steps=fs.frank_wolfe.Convex(0.3, 0.5))
METHODS = {"SCAFFOLD": fs.SCAFFOLD(0.1), "FedFW": TRACKED}
NAMES = ("checkpoint.safetensors", "checkpoint-previous.safetensors")


def loss(params, x):
    return ((x - params["w"]) ** 2).mean()


@cache
def oracle(client):
    return JaxOracle(loss, {"w": np.zeros(2)}, np.ones((4, 2)) + client, batch_size=2, epochs=1)


APP = client_app(lambda node: oracle(node.client))


def run(folder, rounds, method, **settings):
    given = {"app": APP, "params": {"w": np.zeros(2)}, "population": 4, "clients_per_round": 2} | settings
    return deploy(method, folder, rounds=rounds, **given)


def checkpoints(folder):
    return {path.name for path in (folder / "server").glob("checkpoint*")}


@pytest.fixture
def every_third(monkeypatch):
    """Checkpoints after 1, 4, 7, ... rounds stay, in place of 1, 11, 21, ...."""
    monkeypatch.setattr(state, "EVERY", 3)


def older(*rounds):
    return {f"checkpoint-round-{round}.safetensors" for round in rounds}


def go_back(name, folder, rounds, first, second, capsys):
    """Run, then again from either of the two older checkpoints: the bits are the same."""
    whole, *_ = run(folder, rounds, METHODS[name])
    assert checkpoints(folder) == {*NAMES, *older(first, second)}
    for gone, left in ((NAMES, second), ((*NAMES, *older(second)), first)):
        for file in gone:
            (folder / "server" / file).unlink()
        model, history, _ = run(folder, rounds, METHODS[name], resume=True)
        np.testing.assert_array_equal(model["w"], whole["w"])
        assert history.rounds["round"].tolist() == list(range(1, rounds + 1))
        assert f"checkpoint-round-{left}.safetensors is taken, of round {left}\n" in capsys.readouterr().out
        assert checkpoints(folder) == {*NAMES, *older(first, second)}


@pytest.mark.parametrize("name", METHODS)
def test_a_run_goes_on_from_an_older_checkpoint(name, every_third, tmp_path, capsys):
    """SCAFFOLD's clients go back by many rounds with it; FedFW's server has their points of then."""
    go_back(name, tmp_path, 9, 4, 7, capsys)


@pytest.mark.full
@pytest.mark.parametrize("name", METHODS)
def test_the_same_as_it_is(name, tmp_path, capsys):
    go_back(name, tmp_path, 23, 11, 21, capsys)


def test_a_damaged_one_is_passed_over(every_third, tmp_path):
    whole, *_ = run(tmp_path, 5, TRACKED)
    for file in (*NAMES, *older(4)):
        path = tmp_path / "server" / file
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
    model, *_ = run(tmp_path, 5, TRACKED, resume=True)
    np.testing.assert_array_equal(model["w"], whole["w"])


def test_a_folder_with_older_checkpoints_is_not_begun_anew(tmp_path):
    run(tmp_path, 2, TRACKED)
    for file in NAMES:
        (tmp_path / "server" / file).unlink()
    with pytest.raises(fs.InvalidInput, match=r"holds a run already: resume it \(resume=true\)"):
        run(tmp_path, 2, TRACKED)


def test_skipped_rounds_drop_no_older_checkpoint(every_third, tmp_path):
    """From round 5 on nobody's reply counts: what is there of before stays, however many rounds follow."""
    bad = sends(np.nan, range(4, 99), range(4))
    run(tmp_path, 12, fs.FedAvg(0.1), tamper=bad, shortfall="skip")
    assert checkpoints(tmp_path) == {*NAMES, *older(1, 4)}


class Killed(BaseException):
    pass


STEPS = (0, 2, 4, *(pytest.param(i, marks=pytest.mark.full) for i in (1, 3, 5, 6, 7, 8, 9, 10, 11, 12)))


@pytest.fixture(scope="module")
def three_rounds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three")
    run(folder, 3, TRACKED)
    return folder


@pytest.fixture(scope="module")
def six_rounds(tmp_path_factory):
    return run(tmp_path_factory.mktemp("six"), 6, TRACKED)[0]


@pytest.mark.gate("4")
@pytest.mark.parametrize("step", STEPS)
def test_killed_while_older_ones_are_made(step, every_third, three_rounds, six_rounds, tmp_path, monkeypatch):
    """The process dies before any of the steps by which rounds 4 to 6 are saved: the run ends with the same bits."""
    folder, left = tmp_path / "run", [step]
    shutil.copytree(three_rounds, folder)

    def counted(function):
        def call(*given, **options):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return function(*given, **options)

        return call

    places = ((os, "link"), (checkpoint.RunFolder, "save"), (checkpoint.Path, "unlink"))
    with monkeypatch.context() as patched:
        for place, name in places:
            patched.setattr(place, name, counted(getattr(place, name)))
        with pytest.raises(Killed):
            run(folder, 6, TRACKED, resume=True)
    model, history, _ = run(folder, 6, TRACKED, resume=True)
    np.testing.assert_array_equal(model["w"], six_rounds["w"])
    assert history.rounds["round"].tolist() == list(range(1, 7))
    assert older(4) < checkpoints(folder)
    assert read_manifest(folder / "server" / "checkpoint-round-4.safetensors")["round"] == 4


def test_a_spoiled_run_names_the_update_and_where_to_go_back_to(every_third, tmp_path):
    """A fixed bound lets 1e100 pass in round 5, after which no honest client's numbers can be summed."""
    settings = {"clients_per_round": None, "repeats": 0}
    whole, *_ = run(tmp_path / "a", 6, fs.FedAvg(0.1), **settings)
    folder = tmp_path / "b"
    spoiled = sends(1e100, (4,), (3,))
    with pytest.raises(Unavailable) as raised:
        run(folder, 6, fs.FedAvg(0.1), tamper=spoiled, norm_bound=1e300, **settings)
    said = str(raised.value)
    assert "client 0: its norm is inf, above the bound 1e+300" in said
    assert "the update with the largest norm, 1e+100, is of client 3 in round 5; to go on" in said
    names = "checkpoint.safetensors, checkpoint-previous.safetensors"
    assert f"to go on from checkpoint-round-4.safetensors, which is older, remove {names} and resume" in said
    assert said in (folder / "server" / FAILED).read_text()
    for file in NAMES:
        (folder / "server" / file).unlink()
    model, *_ = run(folder, 6, fs.FedAvg(0.1), resume=True, **settings)
    np.testing.assert_array_equal(model["w"], whole["w"])


@pytest.mark.parametrize(
    ("largest", "said"),
    [
        ([2.0, 9.0, 8.0], "the update with the largest norm, 9, is of client 11 in round 2"),
        ([1e100, np.nan, np.inf], "the update with the largest norm, 1e+100, is of client 10 in round 1"),
    ],
)
def test_the_largest_update_is_named(largest, said):
    columns = {"round": np.arange(1, 4), "largest_norm": largest, "largest_norm_client": 10 + np.arange(3)}
    found = largest_update(columns)
    assert found is not None
    assert found[1] == said


def test_no_norms_are_known():
    assert largest_update({"round": np.arange(3)}) is None


@pytest.mark.parametrize(
    ("rounds", "done", "stay"),
    [
        (range(10), 10, {0}),
        (range(11), 11, {0, 10}),
        (range(23), 23, {10, 20}),
        ([3, 17, 30], 32, {17, 30}),
        ([3], 40, {3}),
        ([], 5, set()),
    ],
)
def test_which_states_of_a_client_stay(rounds, done, stay):
    """Those after which no more were used before a checkpoint of 1, 11, 21, ... rounds done, of the last two such."""
    assert state.pinned(rounds, done) == stay
