"""What a server's folder keeps: two checkpoints, tracked states at the cost of what changed, and why a run ended."""

import errno
from functools import cache

import numpy as np
import pytest

import fedsolve as fs
from deploy_small import deploy
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.run_log import FAILED
from fedsolve.deploy.server import checkpoint, serve
from fedsolve.deploy.server.server_method import ServerMethod
from fedsolve.folders.run_folder import DEPLOYMENT, read_manifest, save_tree

CHECKPOINT, PREVIOUS = DEPLOYMENT.file, DEPLOYMENT.previous
METHOD = fs.FedFW(fs.geometry.L2Ball(3.0), steps=fs.frank_wolfe.Convex(0.3, 0.5))


def loss(params, x):
    return ((x - params["w"]) ** 2).mean()


@cache
def oracle(client):
    return JaxOracle(loss, {"w": np.zeros(2)}, np.ones((4, 2)) + client, batch_size=2, epochs=1)


APP = client_app(lambda node: oracle(node.client))


def run(folder, rounds, method=METHOD, **settings):
    given = {"app": APP, "params": {"w": np.zeros(2)}, "population": 3, "clients_per_round": 2} | settings
    return deploy(method, folder, rounds=rounds, **given)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:100])


def bare(path):
    save_tree(path, {"a": np.zeros(2)}, {"identity": read_manifest(path)["identity"]})


DAMAGE = {"flip": flip, "cut": cut, "fields": bare, "gone": lambda path: path.unlink()}


@pytest.mark.full
@pytest.mark.parametrize("kind", DAMAGE)
def test_the_checkpoint_before_is_taken(kind, tmp_path, capsys):
    """The newest cannot be read: the run goes on from the one before it, and ends where an undisturbed one ends.

    FedFW's server follows every client; its clients go back by one round, too.
    """
    undisturbed, *_ = run(tmp_path / "a", 5)
    run(tmp_path / "b", 4)
    out = tmp_path / "b" / "server"
    DAMAGE[kind](out / CHECKPOINT)
    model, history, _ = run(tmp_path / "b", 5, resume=True)
    np.testing.assert_array_equal(model["w"], undisturbed["w"])
    assert history.rounds["round"].tolist() == [1, 2, 3, 4, 5]
    assert capsys.readouterr().out.count("the checkpoint before it is taken, of round 3\n") == 1
    assert read_manifest(out / PREVIOUS)["round"] == 4


def test_without_another_it_is_an_error(tmp_path):
    run(tmp_path, 2)
    out = tmp_path / "server"
    kept = list(out.glob("checkpoint*"))
    assert {CHECKPOINT, PREVIOUS} < {path.name for path in kept}
    for path in kept:
        bare(path)
    with pytest.raises(fs.InvalidInput, match="has no experiment: it is not of this version"):
        run(tmp_path, 3, resume=True)


@pytest.mark.full
def test_a_save_costs_what_changed(tmp_path):
    """Of twelve clients two take part in a round: two states are written, and at most two a client are kept."""
    written = []
    save = checkpoint.save_tree

    def counted(path, tree, manifest):
        written.append(path.name)
        save(path, tree, manifest)

    try:
        checkpoint.save_tree = counted
        run(tmp_path, 6, population=12)
    finally:
        checkpoint.save_tree = save
    states = [name for name in written if name != CHECKPOINT]
    assert len(states) == 12  # two a round
    assert len(set(states)) == 12
    kept = [path.name.split("-")[1] for path in (tmp_path / "server" / "followed").iterdir()]
    assert max(kept.count(client) for client in kept) <= 2


def test_an_evaluation_that_raises(tmp_path):
    """One line that says where, in failed.txt too; the mended run goes on from the round before."""

    def evaluate(params, buffers):
        if evaluate.broken and np.any(params["w"] != 0):
            return {"test_accuracy": 1 / 0}
        return {"test_accuracy": 1.0}

    evaluate.broken = True
    with pytest.raises(
        fs.InvalidInput, match=r"evaluate raised ZeroDivisionError after round 1 \(division by"
    ):
        run(tmp_path, 2, evaluate=evaluate)
    assert "test_checkpoint.py, line" in (tmp_path / "server" / FAILED).read_text()
    evaluate.broken = False
    with pytest.raises(
        fs.InvalidInput, match="no checkpoint"
    ):  # nothing was kept: the first round had not ended
        run(tmp_path, 2, evaluate=evaluate, resume=True)
    run(tmp_path, 2, evaluate=evaluate)


def test_a_full_disk_is_said(tmp_path, monkeypatch, capsys):
    """The line that says so is not hidden by the failure to write it down."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def unsaved(path, *_):
        raise fs.InvalidInput(
            f"cannot write {path}: No space left on device; what was saved before is intact"
        )

    run(tmp_path, 1)
    monkeypatch.setattr(checkpoint, "save_tree", unsaved)
    monkeypatch.setattr(serve.Path, "write_text", full)
    with pytest.raises(fs.InvalidInput, match="No space left on device; what was saved before is intact"):
        run(tmp_path, 2, resume=True)
    assert "failed.txt cannot be written: No space left on device" in capsys.readouterr().out
    monkeypatch.undo()
    run(tmp_path, 2, resume=True)


# A federation that grows: another site joins between two rounds.


@pytest.mark.full_rows("own")
@pytest.mark.parametrize(
    "method", [fs.FedAvg(0.1), fs.build("Ditto+FedAvg", {"client_lr": 0.1})], ids=["all", "own"]
)
def test_a_federation_grows(method, tmp_path):
    """It goes on as a new run of all sites would that begins with its model; the record says when who was there."""
    former, *_ = run(tmp_path / "a", 2, method, clients_per_round=None)
    model, history, _ = run(tmp_path / "a", 4, method, clients_per_round=None, population=4, resume=True)
    wanted, *_ = run(tmp_path / "b", 2, method, clients_per_round=None, population=4, params=former)
    np.testing.assert_allclose(model["w"], wanted["w"], rtol=1e-12)
    assert history.rounds["participants"].tolist() == [3, 3, 4, 4]
    assert "3 clients for 2 rounds, and 4 from there on" in history.notes
    _, again, _ = run(tmp_path / "a", 5, method, clients_per_round=None, population=4, resume=True)
    assert [note for note in again.notes if "from there on" in note] == [
        "3 clients for 2 rounds, and 4 from there on"
    ]
    words = "population = 4, this run 3, of .*: it may only grow; resume as it was, or end it there"
    with pytest.raises(fs.InvalidInput, match=words):
        run(tmp_path / "a", 6, method, clients_per_round=None, resume=True)


PRIVATE = fs.privacy.LocalDifferentialPrivacy(fs.FedExP(0.1), 0.5, noise_multiplier=1.0, delta=1e-5)


@pytest.mark.full_rows("FedFW")
@pytest.mark.parametrize(
    ("method", "why"),
    [
        pytest.param(fs.SCAFFOLD(0.1), "its server counts them", id="SCAFFOLD"),
        pytest.param(METHOD, "its server counts them", id="FedFW"),
        pytest.param(PRIVATE, "its guarantees are for that number", id="private"),
    ],
)
def test_a_federation_whose_number_of_sites_counts_does_not_grow(method, why, tmp_path):
    run(tmp_path, 1, method)
    with pytest.raises(
        fs.InvalidInput, match=rf"3, this run 4, .*{why}; .*\(rounds = 1\) .* initial = '.*server'"
    ):
        run(tmp_path, 2, method, population=4, resume=True)
    run(tmp_path, 2, method, resume=True)


def test_which_methods_count_the_clients():
    """Those that divide by their number: by the letters of the code that does, not by running it."""
    free = [fs.FedAvg(0.1), fs.FedAdam(0.1), fs.FedDuAdam(0.1), fs.FedProx(0.1, mu=0.1), fs.FedPer("w", 0.1)]
    counting = [fs.SCAFFOLD(0.1), fs.build("FedDyn", {"client_lr": 0.1}), METHOD]
    for methods, counts in ((free, False), (counting, True)):
        for method in methods:
            prepared, server = ServerMethod.prepare(method, {"w": np.zeros(2), "v": np.zeros(1)}, 3)
            with prepared.precision():
                assert prepared.counts_clients(server) is counts, method
