"""What the adapter owns: cohorts, judging replies, shortfalls, durable states, checkpoints, bytes."""

import jax
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import fedsolve as fs
from conformance.properties import SAMPLING
from deploy_small import POPULATION, QUICK, QUICK_START, simulated
from deploy_small import deploy_quick as deploy
from deploy_small import round_lines as rows
from fedsolve.core.errors import Unavailable
from fedsolve.deploy import codec
from fedsolve.deploy.flower import client_app
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.run_log import FAILED
from fedsolve.folders.run_folder import read_manifest

METHOD = fs.SCAFFOLD(0.3)


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def altered(record, part, **facts):
    """A copy of a reply with some facts changed."""
    new = RecordDict(dict(record))
    new[part] = ConfigRecord(dict(record[part]) | facts)
    return new


def with_message(record, change):
    """A copy of a reply whose message is float64 numbers, changed."""
    numbers = np.frombuffer(record["message"]["bytes"].data).copy()
    data = change(numbers).tobytes()
    new = RecordDict(dict(record))
    new["message"] = ArrayRecord({"bytes": Array("uint8", (len(data),), "bytes", data)})
    return new


def nan(numbers):
    numbers[3] = np.nan
    return numbers


def huge(numbers):
    return numbers * 1e9


def short(numbers):
    return numbers[:-1]


BAD = {
    "NaN": (lambda r: with_message(r, nan), "not finite"),
    "norm": (lambda r: with_message(r, huge), "above the bound 1000"),
    "length": (lambda r: with_message(r, short), "ends early"),
    "signature": (lambda r: altered(r, "reply", signature="0123456789ab"), "other shapes or types"),
    "round": (lambda r: altered(r, "reply", round=0), "of round 0, not of"),
    "experiment": (lambda r: altered(r, "reply", experiment="other-1"), "of experiment other-1"),
    "client": (lambda r: altered(r, "reply", client=0), "of client 0, not of 1"),
    "nothing": (lambda r: RecordDict({}), "cannot be read"),
    "silence": (lambda r: None, "no answer within"),
}

BOUNDED = {"sampling": SAMPLING, "rounds": 2, "norm_bound": 1000.0}


@pytest.fixture(scope="module")
def without_client_1(tmp_path_factory):
    """The model of a run in which client 1 never answers."""

    def lose(node, what, content):
        return None if node == 102 and what == "train" else content

    return deploy(METHOD, tmp_path_factory.mktemp("without"), tamper=lose, **BOUNDED)[0]


@pytest.mark.gate("signature", "nothing", "silence")
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_never_touches_the_model(kind, tmp_path, without_client_1):
    """Client 1's reply of round 2 is bad: that round is what the other two make of it, and the log says why."""
    spoil, reason = BAD[kind]
    seen = []

    def tamper(node, what, content):
        if node == 102 and what == "train":
            seen.append(content)
            return spoil(content)
        return content

    model, history, _ = deploy(METHOD, tmp_path, tamper=tamper, **BOUNDED)
    same(model, without_client_1)
    assert len(seen) == 1
    assert rows(tmp_path)[1]["reasons"][0].startswith("client 1: ")
    assert reason in rows(tmp_path)[1]["reasons"][0]
    assert history.rounds["dropped"].tolist() == [0, 1]
    assert history.rounds["rejected"].tolist() == [0, 1]


@pytest.mark.full
def test_an_update_that_was_not_used_is_taken_back(tmp_path):
    """Client 1's answer of round 2 is lost after it was trained; in round 4 it starts from where it was before.

    So the run ends where one ends in which client 1 never trained in round 2. Cohorts are all clients; in round 3 it
    rests, since it kept round 2 waiting.
    """

    def lose(node, what, content):
        return None if node == 102 and what == "train" and content["reply"]["round"] == 1 else content

    lost, *_ = deploy(METHOD, tmp_path / "a", tamper=lose, rounds=4)
    never, *_ = deploy(METHOD, tmp_path / "b", deaf=[(102, 1)], rounds=4)
    same(lost, never)
    kept = sorted((tmp_path / "a" / "node-102").rglob("*.safetensors"))
    # round 4 began from the state after round 1
    assert [read_manifest(path)["round"] for path in kept] == [0, 3]


@pytest.mark.full
def test_a_repeated_round_is_not_applied_twice(tmp_path):
    """Replies of two clients are lost twice: they are asked again, and the run is the undisturbed one."""
    lost = []

    def twice(node, what, content):
        if what == "train" and content["reply"]["round"] == 1 and node in (101, 103) and lost.count(node) < 2:
            lost.append(node)
            return None
        return content

    model, history, grid = deploy(METHOD, tmp_path, tamper=twice, min_replies=6)
    undisturbed, *_ = deploy(METHOD, tmp_path / "fine")
    same(model, undisturbed)
    assert sorted(lost) == [101, 101, 103, 103]
    assert history.rounds["rejected"].tolist() == [0, 4, 0]
    assert [n for n, what in grid.asked if what == "train"].count(101) == 5


def test_a_skipped_round_changes_nothing(tmp_path):
    """Fewer than four replies count in round 2, which is skipped: the model stands still for a round."""

    def lose(node, what, content):
        return None if what == "train" and content["reply"]["round"] == 1 and node < 104 else content

    models = []
    model, history, _ = deploy(
        METHOD, tmp_path, tamper=lose, min_replies=4, shortfall="skip",
        evaluate=lambda params, buffers: models.append(params) or {},
    )  # fmt: skip
    same(models[1], models[2])
    assert history.rounds["dropped"].tolist() == [0, 6, 0]
    assert any(
        (x != y).any() for x, y in zip(jax.tree.leaves(models[2]), jax.tree.leaves(model), strict=True)
    )


def test_too_few_replies_end_the_run_with_reasons(tmp_path):
    def refuse(node, what, content):
        return RecordDict({"refused": ConfigRecord({"why": "disk full"})}) if what == "train" else content

    with pytest.raises(
        Unavailable,
        match=r"round 1: 0 of 6 replies count, 3 are needed, after 2 attempts .*client 4: refused: disk full",
    ):
        deploy(METHOD, tmp_path, tamper=refuse, repeats=1)
    assert "disk full" in (tmp_path / "server" / FAILED).read_text()


def test_fewer_clients_than_the_quorum(tmp_path):
    with pytest.raises(Unavailable, match=r"2 of 6 clients connected within 0.2 s \(missing: 1, 2, 4, 5\)"):
        deploy(METHOD, tmp_path, clients=[0, 3])


def test_a_client_that_is_not_there_is_missed(tmp_path):
    """Client 5 never connects; a quorum of five is enough, and the log says who was missed."""
    _, history, _ = deploy(METHOD, tmp_path, clients=[0, 1, 2, 3, 4], quorum=5)
    assert history.rounds["dropped"].tolist() == [1, 1, 1]
    assert rows(tmp_path)[0]["reasons"] == ["client 5: not connected within 0.2 s"]


@pytest.mark.full_rows("method0")
@pytest.mark.parametrize(
    "method",
    [
        METHOD,
        fs.FedFW(fs.geometry.L2Ball(9.0), steps=fs.frank_wolfe.Convex(0.3, 0.5)),
        pytest.param(fs.FedDuAdam(0.3), marks=pytest.mark.full),
    ],
)
def test_resume_gives_the_same_bits(method, tmp_path):
    """A run that died in round 3 (its replies arrived, its update was not kept) goes on as if nothing was."""
    undisturbed, whole, _ = deploy(method, tmp_path / "a", rounds=5, sampling=fs.sampling.Uniform(4), seed=3)
    folder = tmp_path / "b"

    class Died(Exception):
        pass

    def die(node, what, content):
        if what == "train" and content["reply"]["round"] == 2 and die.alive:
            die.count += 1
            if die.count == 4:
                die.alive = False
                raise Died
        return content

    die.alive, die.count = True, 0
    with pytest.raises(Died):
        deploy(method, folder, tamper=die, rounds=5, sampling=fs.sampling.Uniform(4), seed=3)
    model, history, _ = deploy(method, folder, rounds=5, sampling=fs.sampling.Uniform(4), seed=3, resume=True)
    same(model, undisturbed)
    assert history.rounds["round"].tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(history.rounds["bytes_up"], whole.rounds["bytes_up"])
    assert {n: x.tolist() for n, x in history.totals.items()} == {
        n: x.tolist() for n, x in whole.totals.items()
    }


def test_a_rate_that_reacts_is_told_to_the_clients(tmp_path):
    """The model of the simulation, whose evaluations are the server's here, also where the run was interrupted."""
    method = fs.FedAvg(fs.schedules.ReduceOnPlateau(6.0, "train_loss", 1, factor=0.5))
    sampling, rounds = fs.sampling.Uniform(3), 6
    wanted = fs.run(method, QUICK, rounds=rounds, eval_every=2, sampling=sampling, seed=3, dtype="float64")
    assert wanted.history.notes[-1].startswith("client_lr 6 became 3 after round ")

    def evaluate(params, buffers):
        with jax.enable_x64(True):
            losses = [QUICK.loss(params, QUICK.data.client(i)) for i in range(POPULATION)]
        return {"train_loss": float(np.average(losses, weights=QUICK.data.counts))}

    given = {"sampling": sampling, "seed": 3, "eval_every": 2, "evaluate": evaluate}
    deploy(method, tmp_path, rounds=4, **given)
    with pytest.raises(fs.InvalidInput, match="has eval_every = 2, this run 1, and its rate reacts"):
        deploy(method, tmp_path, rounds=rounds, resume=True, **given | {"eval_every": 1})
    model, history, _ = deploy(method, tmp_path, rounds=rounds, resume=True, **given)
    assert history.notes == wanted.history.notes
    for mine, other in zip(jax.tree.leaves(model), jax.tree.leaves(wanted.params), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-11)


def test_fewer_rounds_than_done(tmp_path):
    """A run of 2 rounds is no run of 1: nothing is cut off."""
    deploy(METHOD, tmp_path, rounds=2)
    before = (tmp_path / "server" / "checkpoint.safetensors").read_bytes()
    with pytest.raises(
        fs.InvalidInput, match="has done 2 rounds, rounds = 1 are asked for: ask for at least 2"
    ):
        deploy(METHOD, tmp_path, rounds=1, resume=True)
    assert (tmp_path / "server" / "checkpoint.safetensors").read_bytes() == before


def test_a_lost_state_is_said(tmp_path):
    """A node that comes back without its state folder does not take part; it says what is missing."""
    folder = tmp_path
    deploy(METHOD, folder, rounds=1)
    next((folder / "node-102").rglob("client-1-round-1.safetensors")).unlink()
    deploy(METHOD, folder, rounds=2, resume=True)
    (said,) = rows(folder)[1]["reasons"]
    assert "the state of client 1 after round 1 is not at" in said
    assert "a new file cannot replace it, c must stay the mean of all clients' c_i" in said


def test_a_foreign_state_is_said(tmp_path):
    """Another client's file in the place of one's own is refused, not used."""
    deploy(METHOD, tmp_path, rounds=1)
    mine = next((tmp_path / "node-102").rglob("client-1-round-1.safetensors"))
    mine.write_bytes(next((tmp_path / "node-103").rglob("client-2-round-1.safetensors")).read_bytes())
    deploy(METHOD, tmp_path, rounds=2, resume=True)
    assert "holds client 2 of experiment" in rows(tmp_path)[1]["reasons"][0]


@pytest.mark.full
def test_a_latecomer_starts_as_all_did(tmp_path):
    """FedFW: a client that joins in round 2 starts from the first model, not from that of round 2."""
    method = fs.FedFW(fs.geometry.L2Ball(9.0), steps=fs.frank_wolfe.Convex(0.3, 0.5))
    model, *_ = deploy(method, tmp_path, sampling=SAMPLING)
    setup, state, _ = simulated(method, QUICK)
    with jax.enable_x64(True):
        wanted = setup.algorithm.export(state.server)
    for x, y in zip(jax.tree.leaves(model), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.full
def test_same_seed_same_cohorts(tmp_path):
    def cohorts(folder, seed):
        _, _, grid = deploy(fs.FedAvg(0.1), folder, rounds=4, clients_per_round=2, seed=seed)
        asked = [grid.nodes[n]["client-id"] for n, what in grid.asked if what == "train"]
        return [sorted(asked[i : i + 2]) for i in range(0, 8, 2)]

    assert cohorts(tmp_path / "a", 1) == cohorts(tmp_path / "b", 1)
    assert cohorts(tmp_path / "a2", 1) != cohorts(tmp_path / "c", 2)


def test_bytes_are_those_of_the_records(tmp_path):
    """Frank-Wolfe atoms travel as atoms: far fewer bytes up than down; the payload is the encoded message."""
    payload, sent = [], []

    def watch(node, what, content):
        if what == "train":
            payload.append(len(content["message"]["bytes"].data))
            sent.append(codec.record_bytes(content))
        return content

    _, history, _ = deploy(
        fs.FedFW(fs.geometry.L1Ball(30.0), steps=fs.frank_wolfe.Convex(0.3, 0.5)),
        tmp_path,
        tamper=watch,
        rounds=1,
    )
    assert set(payload) == {1}  # one of 34 vertices: one byte
    assert history.total("bytes_up") == sum(sent) < history.total("bytes_down") / 3


def another_model(node):
    loss = lambda w, batch: (w["v"] ** 2).sum()  # noqa: E731
    return JaxOracle(loss, {"v": np.zeros(2)}, np.ones((3, 1)), batch_size=None, epochs=1)


def test_another_model_is_told_at_once(tmp_path):
    with pytest.raises(
        fs.InvalidInput,
        match=r"refused: the model of client 0 has \['v'\] float64\[2\] where the server's has \['w'\]",
    ):
        deploy(METHOD, tmp_path, app=client_app(another_model))


def test_two_nodes_of_one_number(tmp_path):
    with pytest.raises(Unavailable, match=r"\(missing: 2\); refused: client 1 belongs to another node"):
        deploy(METHOD, tmp_path, clients=[0, 1, 1, 3, 4, 5])


def test_a_node_without_a_number(tmp_path):
    from fake_grid import FakeGrid
    from fedsolve.deploy.server.serve import Deployment, serve
    from fedsolve.deploy.server.settings import Settings

    grid = FakeGrid(client_app(another_model), [0], tmp_path)
    grid.nodes = {101: {}}
    settings = Settings(rounds=1, population=1, connect_seconds=0.2, out=str(tmp_path / "server"))
    with pytest.raises(
        fs.InvalidInput, match=r"does not say which client it is: start it with --node-config 'client-id=0'"
    ):
        serve(grid, Deployment.of(METHOD, QUICK_START, settings))


def test_a_folder_that_holds_a_run(tmp_path):
    deploy(fs.FedAvg(0.1), tmp_path, rounds=1)
    with pytest.raises(fs.InvalidInput, match="holds a run already: resume it"):
        deploy(fs.FedAvg(0.1), tmp_path, rounds=1)
    with pytest.raises(fs.InvalidInput, match=r"has algorithm = .* resume as it was"):
        deploy(fs.FedAvg(0.2), tmp_path, rounds=2, resume=True)
    assert not (tmp_path / "server" / FAILED).exists()  # the run that lies there has not failed


def test_a_node_that_did_not_answer_is_asked_again(tmp_path):
    """Client 1's process dies on the first question who it is; it takes part all the same."""
    questions = []

    def die(node, what, content):
        questions.append(node)
        if questions.count(102) == 1 and node == 102:
            raise OSError
        return content

    _, history, _ = deploy(fs.FedAvg(0.1), tmp_path, tamper=die, rounds=1, connect_seconds=5.0)
    assert history.total("dropped") == 0


@pytest.mark.full
def test_the_record_is_kept(tmp_path):
    """Every round is evaluated; record, model and page lie in the folder."""
    _, history, _ = deploy(
        fs.FedDuAdam(0.3), tmp_path, evaluate=lambda p, b: {"test_accuracy": 0.5, "train_loss": 1.0}
    )
    assert history.column("test_accuracy").tolist() == [0.5] * 4
    assert (history.rounds["server_lr"] > 0).all()
    names = {path.name for path in (tmp_path / "server").iterdir()}
    assert {"history.json", "model.safetensors", "page.html", "metrics.jsonl", "rounds.jsonl"} <= names
