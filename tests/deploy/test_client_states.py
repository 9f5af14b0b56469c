"""What a client keeps: damage is found, the round before is there to go back to, what was lost may be mended."""

import shutil
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import fedsolve as fs
from deploy_small import deploy
from deploy_small import distance as loss
from fedsolve.core.types import module
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.client.state import ClientState, StateLost
from fedsolve.deploy.client.worker import Worker
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.server.coordinator import Coordinator, Federation
from fedsolve.methods.wrappers.wrapper import Wrapper

PARAMS = {"w": np.zeros(2)}


@cache
def problem(client):
    return JaxOracle(loss, PARAMS, np.arange(8.0).reshape(4, 2) + client, batch_size=2, epochs=1)


APP = client_app(lambda node: problem(node.client))
SMALL = {"app": APP, "params": PARAMS, "population": 2, "min_replies": 1}


def flip(path, place):
    """One bit of one byte, counted from the end, where the numbers are."""
    data = bytearray(path.read_bytes())
    data[-place] ^= 4
    path.write_bytes(data)


def test_one_flipped_bit_is_found_and_the_round_before_is_whole(tmp_path):
    """Every byte of the newer file in turn; the server that goes back by one round finds what it needs."""
    state = ClientState(tmp_path, "x-1", 3)
    older, newer = ({"c": np.arange(3.0) + i} for i in range(2))
    state.save(4, older, 2)
    state.save(5, newer, 4)
    assert [p.name for p in sorted(tmp_path.rglob("client-*"))] == [
        "client-3-round-5.safetensors",
        "client-3-round-6.safetensors",
    ]
    path = state.path(5)
    good = path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0
    for place in range(1, len(good) + 1):
        flip(path, place)
        with pytest.raises(StateLost, match="client 3 after round 6 is damaged"):
            state.load(5, older)
        path.write_bytes(good)
        np.testing.assert_array_equal(state.load(5, older)["c"], newer["c"])
    flip(path, 1)
    np.testing.assert_array_equal(state.load(4, newer)["c"], older["c"])
    state.save(5, newer, 4)  # the round again, after the server went back
    np.testing.assert_array_equal(state.load(5, older)["c"], newer["c"])
    with pytest.raises(StateLost, match=r"after round 4 is not at .*, only of rounds \[5, 6\]"):
        state.load(3, older)


def scaffold_orders():
    """Three rounds of SCAFFOLD and client 0 alone: the orders, and what the coordinator is after each."""
    return Coordinator(fs.SCAFFOLD(0.1), PARAMS, Federation(1, fs.sampling.Uniform(1), 0, "x-1"))


def one_round(server, folder):
    server.draw_cohort()
    order = server.train_request(0)
    reply = Worker(problem(0), folder).train(order)
    server.finish_round({0: server.validate_reply(0, reply)}, 1)
    return order, reply


def test_a_server_goes_back_by_one_round(tmp_path):
    """Its older checkpoint and the client's older state give the bits that the round gave before."""
    server = scaffold_orders()
    one_round(server, tmp_path)
    one_round(server, tmp_path)
    held = server.state
    _, first = one_round(server, tmp_path)
    newest = next(tmp_path.rglob("client-0-round-3.safetensors"))
    flip(newest, 1)
    server.draw_cohort()
    with pytest.raises(
        StateLost, match=r"after round 3 is damaged.*a new file cannot replace it, c must stay the mean"
    ):
        Worker(problem(0), tmp_path).train(server.train_request(0))
    server.state = held
    _, again = one_round(server, tmp_path)
    assert again.message == first.message


@pytest.mark.gate("gone")
@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_what_the_server_follows_mends_a_lost_state(damage, tmp_path, capsys):
    """FedFW: the server knows each client's point from its codes, and sends it back; the run is the undisturbed one."""
    method = fs.FedFW(fs.geometry.L1Ball(3.0), steps=fs.frank_wolfe.Convex(0.3, 0.5))
    wanted, *_ = deploy(method, tmp_path / "whole", rounds=3, **SMALL)
    folder = tmp_path / damage
    deploy(method, folder, rounds=2, **SMALL)
    path = next((folder / "node-102").rglob("client-1-round-2.safetensors"))
    path.unlink() if damage == "gone" else flip(path, 1)
    setting = SMALL | {"min_replies": 2}
    found, history, _ = deploy(method, folder, rounds=3, resume=True, **setting)
    assert history.rounds["rejected"].tolist() == [0, 0, 1]  # told, then asked again with the state
    np.testing.assert_array_equal(found["w"], wanted["w"])
    assert "it goes on from the state that the server tracks" in capsys.readouterr().out


def test_a_state_is_sent_back_once(tmp_path):
    """The order after the loss has the state, and no order after the round in which the client used it."""
    method = fs.FedFW(fs.geometry.L1Ball(3.0), steps=fs.frank_wolfe.Convex(0.3, 0.5))
    server = Coordinator(method, PARAMS, Federation(1, fs.sampling.Uniform(1), 0, "x-1"))
    brought = []
    for t in range(4):
        if t == 1:
            server.report_lost_state(0)
        order, _ = one_round(server, tmp_path)
        brought.append(order.tracked_state is not None)
    assert brought == [False, True, False, False]


@module
class Momentum(Wrapper):
    """A client keeps what it sent last; the server keeps nothing of it, so that nothing breaks where it is lost."""

    title = "Kept"
    inner: fs.Algorithm

    def init_client(self, broadcast):
        return jax.tree.map(jnp.zeros_like, broadcast.params)

    def train(self, broadcast, client, oracle):
        message, _ = self.inner.train(broadcast, (), oracle)
        kept = jax.tree.map(lambda d, c: d + 0.5 * c, message.delta, client)
        return replace(message, delta=kept), kept


def test_a_state_of_which_nobody_keeps_a_mean_starts_anew(tmp_path, capsys):
    app = client_app(lambda node: problem(node.client), trusted=(Momentum,))
    setting = SMALL | {"app": app}
    deploy(Momentum(fs.FedAvg(0.1)), tmp_path, rounds=1, **setting)
    next((tmp_path / "node-102").rglob("client-1-round-1.safetensors")).unlink()
    _, history, _ = deploy(Momentum(fs.FedAvg(0.1)), tmp_path, rounds=2, resume=True, **setting)
    assert history.total("rejected") == 0
    assert "the state of client 1 after round 1 is not at" in (said := capsys.readouterr().out)
    assert "it starts with a new one" in said


def count_of(folder, client, round):
    """Steps that a client's AdamW has counted, in its file after a round."""
    path = next(folder.rglob(f"client-{client}-round-{round}.safetensors"))
    (count,) = [x for name, x in load_file(path).items() if "count" in name]
    return int(count)


@pytest.mark.full
def test_an_optimiser_that_is_kept_goes_on_after_a_restart(tmp_path, capsys):
    """DiLoCo: served anew after two rounds of three, the model of the undisturbed run; two steps a round are counted.
    Where a client's file is lost, its moments and its count start anew.
    """
    method = fs.DiLoCo(0.1)
    wanted, *_ = deploy(method, tmp_path / "whole", rounds=3, **SMALL)
    stopped, lost = tmp_path / "stopped", tmp_path / "lost"
    deploy(method, stopped, rounds=2, **SMALL)
    shutil.copytree(stopped, lost)
    found, history, _ = deploy(method, stopped, rounds=3, resume=True, **SMALL)
    np.testing.assert_array_equal(found["w"], wanted["w"])
    assert [count_of(stopped, 1, round) for round in (2, 3)] == [4, 6]
    next((lost / "node-102").rglob("client-1-round-2.safetensors")).unlink()
    other, history, _ = deploy(method, lost, rounds=3, resume=True, **SMALL)
    assert (count_of(lost, 0, 3), count_of(lost, 1, 3)) == (6, 2)
    assert np.abs(other["w"] - wanted["w"]).max() > 1e-4
    assert history.total("rejected") == 0
    assert "it starts with a new one" in capsys.readouterr().out


@pytest.mark.full
def test_personal_leaves_stay_in_the_clients_file(tmp_path):
    """FedRep of one leaf: no order or reply has room for the other, and a client that lost it begins anew."""
    start = {"w": np.zeros(2), "own": np.full(5, 3.0)}

    def own_loss(params, x):
        return jnp.mean((x - params["w"]) ** 2) + jnp.sum(params["own"] ** 2)

    method = fs.FedRep("own", 0.1, personal_lr=0.1, passes=1)
    sampling = fs.sampling.Uniform(1)
    server = Coordinator(method, start, Federation(1, sampling, 0, "x-1"))
    data, said = np.arange(8.0).reshape(4, 2), []
    client = JaxOracle(own_loss, start, data, batch_size=2, epochs=1)
    for round, lost in enumerate((False, False, True)):
        if lost:
            shutil.rmtree(tmp_path)
        server.draw_cohort()
        order = server.train_request(0)
        assert len(order.broadcast) == 2 * 8 + 4  # w and the number of the round
        assert len(order.first_broadcast or b"") == 0
        reply = Worker(client, tmp_path, log=said.append).train(order)
        assert len(reply.message) == 2 * 8 + 8  # the displacement of w and the mean loss
        server.finish_round({0: server.validate_reply(0, reply)}, 1)
        (own,) = load_file(next(tmp_path.rglob(f"client-0-round-{round + 1}.safetensors"))).values()
        steps = 2 if lost else 2 * (round + 1)
        np.testing.assert_allclose(own, 3.0 * 0.8**steps, rtol=1e-12)
    assert len(said) == 1
    assert "it starts with a new one" in said[0]
    np.testing.assert_array_equal(server.model["own"], start["own"])
