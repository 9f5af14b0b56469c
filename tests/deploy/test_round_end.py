"""The end of a round: what is kept is finite, no client has more than its share, one reply is in memory at a time."""

import errno
import json
import weakref

import jax
import numpy as np
import pytest
from malformed import with_bytes

import fedsolve as fs
from deploy_small import deploy_quick as deploy
from deploy_small import distance as loss
from fake_grid import over_the_wire
from fedsolve import wire
from fedsolve.core import trees
from fedsolve.core.types import module, replace
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.codec import to_record
from fedsolve.deploy.message import TrainReply
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.run_log import FAILED, ROUNDS, round_reporter
from fedsolve.deploy.server.coordinator import Coordinator, Federation, ReplyStore
from fedsolve.deploy.server.rounds import read_and_validate
from fedsolve.deploy.signature import signature_digest
from fedsolve.methods.server.server_optimizer import ServerOptimizer


@module
class Cubic(ServerOptimizer):
    """w <- w + |D|^2 D: overflows where D does not."""

    def init(self, params):
        return ()

    def step(self, params, state, delta, measured, cohort):
        return trees.axpy(trees.squared_norm(delta), delta, params), state


METHOD = fs.FedOpt(fs.client.SGD(0.1), Cubic())


def oracle(node):
    return JaxOracle(loss, {"w": np.zeros(2)}, np.ones((4, 2)) + node.client, batch_size=None, epochs=1)


APP = client_app(oracle, trusted=(Cubic,))


def overflow(*rounds):
    """Client 1 sends a finite update in these rounds after which the model would not be."""

    def tamper(node, what, content):
        if node != 102 or what != "train" or content["reply"]["round"] not in rounds:
            return content
        return with_bytes(content, "message", np.array([1e120, 1e120, 0.0]).tobytes())

    return tamper


def run(folder, **settings):
    models = []
    given = {"app": APP, "params": {"w": np.zeros(2)}, "population": 2, "rounds": 3} | settings
    given["norm_bound"] = 1e300  # else the update is left out before it does any harm
    found = deploy(METHOD, folder, evaluate=lambda p, b: models.append(p["w"]) or {}, **given)
    return models, found


def test_a_model_that_is_not_finite_is_not_kept(tmp_path, capsys):
    """Round 2 is void: the model stands still for it, client 0's update is not used either, and the run goes on."""
    models, (_, history, _) = run(tmp_path, tamper=overflow(1))
    np.testing.assert_array_equal(models[1], models[2])
    assert (models[3] != models[2]).all()
    assert history.rounds["dropped"].tolist() == [0, 2, 0]
    said = "round 2: the model would not be finite after it; the largest norm is client 1's, 1.41421e+120: the round is"
    assert said in capsys.readouterr().out


def test_a_run_that_only_diverges_ends(tmp_path):
    """After `repeats` void rounds the run ends with the last good checkpoint, from which it can go on."""
    with pytest.raises(
        fs.Diverged, match=r"round 3: .*, as after the 1 rounds before: the last checkpoint is kept"
    ):
        run(tmp_path, tamper=overflow(1, 2), repeats=1)
    assert "would not be finite" in (tmp_path / "server" / FAILED).read_text()
    assert len((tmp_path / "server" / ROUNDS).read_text().splitlines()) == 2
    models, (_, history, _) = run(tmp_path, resume=True)
    assert np.isfinite(models).all()
    assert history.rounds["round"].tolist() == [1, 2, 3]


def coordinator(method, clients, **more):
    made = Coordinator(
        method,
        {"w": np.zeros(2)},
        Federation(clients, fs.sampling.Uniform(clients), 0, "a-1"),
        **more,
    )
    made.draw_cohort()
    return made


def answer(made, client, examples=1, **changes):
    """What is accepted of a reply through the codec, of zeros but for what is changed."""
    message = wire.encode(replace(made.method.zero_message, **changes))
    reply = TrainReply(
        "a-1", made.state.round, client, signature_digest(made.method.zero_message), examples, message, {}
    )
    return read_and_validate(made, client, over_the_wire(to_record(reply)))


@pytest.mark.parametrize(("share", "mean"), [(None, 1.0), (0.5, 0.5), (0.75, 0.75), (0.1, 0.5)])
def test_no_client_counts_for_more_than_its_share(share, mean):
    """Client 1 says that it has two billion examples, client 0 has 10: with a cap it moves the model by its share."""
    made = coordinator(fs.FedAvg(0.1), 2, max_share=share)
    one = {"w": np.ones(2)}
    accepted = {0: answer(made, 0, 10), 1: answer(made, 1, 2**31 - 1, delta=one)}
    made.finish_round(accepted, 2)
    np.testing.assert_allclose(made.model["w"], mean, rtol=1e-6)


def finished(reply_store, order):
    made = coordinator(fs.FedAvg(0.1), 20, reply_store=reply_store)
    rng = np.random.default_rng(0)
    deltas = rng.standard_normal((20, 2))
    made.finish_round({i: answer(made, i, 5 + i, delta={"w": deltas[i]}) for i in order}, 20)
    return made.model["w"]


class FullDisk:
    def seek(self, at):
        pass

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self):
        pass


def test_a_round_is_the_same_however_replies_wait(tmp_path):
    """In memory, on disk, or in memory because the disk is full; in whatever order they come."""
    expected = finished(ReplyStore(), range(20))
    full = ReplyStore(tmp_path, 0)
    full._file = FullDisk()
    for reply_store, order in (
        (ReplyStore(tmp_path, 0), range(20)),
        (ReplyStore(tmp_path, 8), range(19, -1, -1)),
        (full, range(20)),
    ):
        np.testing.assert_array_equal(finished(reply_store, order), expected)
    assert not list(tmp_path.iterdir())  # the file has no name


def test_one_reply_is_in_memory_at_a_time(monkeypatch, tmp_path):
    """Twenty replies are summed while at most two messages exist: the one that is added, and the one before."""
    alive, most = set(), []
    get = ReplyStore.get

    def counted(self, number):
        found = get(self, number)
        (delta,) = jax.tree.leaves(found[0].delta)
        alive.add(number)
        weakref.finalize(delta, alive.discard, number)
        most.append(len(alive))
        return found

    monkeypatch.setattr(ReplyStore, "get", counted)
    finished(ReplyStore(tmp_path, 0), range(20))
    assert len(most) == 20
    assert max(most) <= 2


def test_the_log_of_rounds_is_standard_json_where_a_loss_is_not_finite(tmp_path):
    def refuse(token):
        raise ValueError(token)

    entry = {
        "round": 1,
        "rounds": 2,
        "replies": 3,
        "rejected": 0,
        "bytes_up": 1,
        "bytes_down": 1,
        "seconds": 0.1,
        "largest_norm": None,
        "largest_norm_client": None,
    }
    round_reporter(tmp_path)(entry | {"loss": float("nan")})
    (line,) = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=refuse)["loss"] == "NaN"
