"""Clients measure a model in a deployment: the simulation's numbers, and a run that is as it was without."""

import json
from dataclasses import replace

import jax.numpy as jnp
import malformed
import numpy as np
import pytest
from flwr.app import ConfigRecord

import fedsolve as fs
from deploy_small import ask, clients_of, deploy
from fake_grid import over_the_wire
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.codec import to_record
from fedsolve.deploy.message import PartMetrics
from fedsolve.deploy.method_spec import to_spec
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.deploy.server.coordinator import Coordinator, Federation
from fedsolve.deploy.server.evaluation import EvaluationResult, read_metrics
from fedsolve.results.callbacks import EachClient, EarlyStopping, FineTuning, KeepBest
from fedsolve.results.clients import read_client_metrics
from harness import Softmax, cross_entropy, joined, make_clients

SIZES, HELD = (7, 3, 7, 3), (4, 4, 4, 0)  # two sizes of clients, a program each
START = Softmax.of(0.5 * np.random.default_rng(1).standard_normal(15))
METRICS = ("loss", "accuracy", "parts")


def accuracy(model, batch):
    return jnp.mean((jnp.argmax(batch.x @ model.weight + model.bias, axis=1) == batch.y) * 1.0)


class Parts:
    """A mean over parts of examples: those of class 0 have none."""

    def counts(self, batch):
        return batch.y

    def each(self, model, batch):
        return batch.x @ model.weight[:, 0]

    def __call__(self, model, batch):
        return jnp.mean(self.each(model, batch))


HELD_OUT = make_clients([n or 1 for n in HELD], seed=5)[:3]
TASK = fs.Task(
    "measured", lambda key: START, cross_entropy, fs.FederatedData.from_clients(make_clients(SIZES)),
    metrics={"accuracy": accuracy, "parts": Parts()}, batch_size=4,
    validation=joined(HELD_OUT), validation_clients=np.repeat(np.arange(3), HELD[:3]),
)  # fmt: skip
APP = clients_of(TASK)
OPTIONS = {"rounds": 2, "clients_per_round": 2}


def deployed(method, folder, **more):
    given = {"app": APP, "params": START, "population": 4, "client_metrics": METRICS, **OPTIONS}
    return deploy(method, folder, **(given | more))


def looks():
    """What is called back in both: the clients one by one, and after two local steps."""
    return EachClient(), FineTuning(2, 0.4, rounds=[0, 2])


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(fs.FedAvg(0.3), marks=pytest.mark.full),
        fs.FedPer("bias", 0.3),
        pytest.param(fs.Ditto(fs.FedAvg(0.3)), marks=pytest.mark.full),
    ],
    ids=lambda m: m.name,
)
def test_the_record_is_the_simulations(method, tmp_path):
    """Every column from round 0 on, each client as it is and fine-tuned, and the bits of a run that asks nothing."""
    mine, theirs = looks(), looks()
    model, history, grid = deployed(method, tmp_path / "a", callbacks=mine)
    found = fs.run(method, TASK, dtype="float64", eval_every=1, callbacks=theirs, **OPTIONS).metrics
    seen = history.evaluations
    assert seen["round"].tolist() == [0, 1, 2]
    assert seen["clients_measured"].tolist() == [4] * 3
    alike = [name for name in found if name in seen and name not in ("round", "seconds")]
    for part in ("train", "validation"):
        assert {f"{part}_{name}" for name in METRICS} <= set(alike)
    assert {f"client_{m}_{kind}" for m in METRICS for kind in ("mean", "p10", "p90", "worst")} <= set(alike)
    assert not method.personal or "validation_accuracy_p90" in alike
    for name in alike:
        np.testing.assert_allclose(seen[name], found[name], rtol=1e-12, err_msg=name)
    for i, kind in ((0, "found"), (1, "before"), (1, "after")):
        same_clients(getattr(mine[i], kind), getattr(theirs[i], kind))
    tuned = mine[1]
    assert np.abs(tuned.after[2].column("loss") - tuned.before[2].column("loss")).min() > 1e-3
    same_clients(read_client_metrics(tmp_path / "a" / "server"), mine[0].found)
    same_clients(read_client_metrics(tmp_path / "a" / "server", validation=True, steps=2), tuned.after)
    without, record, other = deployed(method, tmp_path / "b", client_metrics=())
    for a, b in zip(model, without, strict=True):
        assert a.tobytes() == b.tobytes()
    for name, column in history.rounds.items():
        np.testing.assert_array_equal(column, record.rounds[name], err_msg=name)
    kinds = [[kind for _, kind in g.asked] for g in (grid, other)]
    assert kinds[0].count("evaluate") == 3 * 4 + 2 * 4  # what was asked is not asked again for a callback
    assert kinds[1].count("evaluate") == 0


def same_clients(mine, theirs):
    """The metrics of clients by round: names, examples and every metric."""
    assert list(mine) == list(theirs)
    for round, found in theirs.items():
        assert mine[round].names == tuple(found.names)
        assert mine[round].examples.tolist() == found.examples.tolist()
        assert mine[round].metrics.keys() == found.metrics.keys()
        for name, column in found.metrics.items():
            np.testing.assert_allclose(mine[round].metrics[name], column, rtol=1e-12, err_msg=name)


@pytest.mark.full
def test_a_rate_reacts_to_what_clients_find(tmp_path):
    """Lowered after each round, as none lowers the loss on held-out examples by 100: the simulation's model."""
    rate = fs.schedules.ReduceOnPlateau(0.3, "validation_loss", patience=1, factor=0.5, min_delta=100.0)
    model, history, _ = deployed(fs.FedAvg(rate), tmp_path)
    found = fs.run(fs.FedAvg(rate), TASK, dtype="float64", eval_every=1, **OPTIONS)
    np.testing.assert_allclose(model.weight, found.params.weight, rtol=1e-12)
    assert history.notes[-1] == found.history.notes[-1]
    assert "0.3 became 0.15 after round 1" in history.notes[-1]


def test_a_resumed_run_measures_on(tmp_path):
    """Ended by a callback, killed as it measures, then resumed: record, model and clients of a run that was not."""
    stop = EarlyStopping("client_loss_worst", 1, min_delta=100.0)
    _, first, _ = deployed(fs.FedPer("bias", 0.3), tmp_path / "a", callbacks=[stop])
    assert first.notes[-1].startswith("ended after round 1 of 2: client_loss_worst was no better than")
    file = tmp_path / "a" / "server" / "client-metrics.jsonl"
    with open(file, "a") as cut_short:
        cut_short.write('{"round": 1, "st')

    def kill(at):
        assert at.round < 2

    with pytest.raises(AssertionError):
        deployed(fs.FedPer("bias", 0.3), tmp_path / "a", callbacks=[kill], resume=True)
    keep = KeepBest("validation_loss", tmp_path / "best")
    model, history, _ = deployed(fs.FedPer("bias", 0.3), tmp_path / "a", callbacks=[keep], resume=True)
    whole, record, _ = deployed(fs.FedPer("bias", 0.3), tmp_path / "b")
    np.testing.assert_array_equal(model.weight, whole.weight)
    for name, column in record.evaluations.items():
        if name != "seconds":
            np.testing.assert_array_equal(history.evaluations[name], column, err_msg=name)
    same_clients(*(read_client_metrics(tmp_path / x / "server", validation=True) for x in "ab"))
    best = fs.load(tmp_path / "best")
    assert best.metrics["round"][-1] in (1, 2)
    file.write_text(file.read_text() + '{"round": 1}\n')
    with pytest.raises(fs.InvalidInput, match=r"line \d+: no metrics of clients as fedsolve writes them"):
        read_client_metrics(file.parent)


@pytest.mark.parametrize(
    ("look", "more", "words"),
    [
        (EachClient(unseen=True), {}, "a federation has no held-out clients"),
        (
            EachClient(),
            {"client_metrics": ()},
            "clients measure nothing in this run: give server_app client_metrics",
        ),
        (lambda at: at.clients(steps=2), {}, "solver = None must be one such as fs.client.SGD"),
        (lambda at: at.clients(steps=-1), {}, "steps = -1 must be an integer of at least 0"),
        (
            EachClient(validation=True),
            {"app": 0},
            "no client has validation examples: give their oracles some",
        ),
        (lambda at: 1, {}, "a callback returned 1: return None to continue"),
    ],
)
def test_what_a_callback_cannot_have_is_one_line(look, more, words, tmp_path):
    if "app" in more:
        rest = replace(TASK, validation=None, validation_clients=None)
        more = {"app": clients_of(rest), "client_metrics": "loss"}
    with pytest.raises(fs.InvalidInput, match=words):
        deployed(fs.FedAvg(0.3), tmp_path, callbacks=[look], rounds=1, **more)


def test_steps_that_end_nowhere_are_told(tmp_path, capsys):
    """Rates that take the weights beyond what numbers can be: no client counts, and the run goes on."""
    tuned = FineTuning(40, 1.7e308, rounds=[0])
    deployed(fs.FedAvg(0.3), tmp_path, callbacks=[tuned], rounds=1, client_metrics="loss")
    assert "client 2" not in tuned.after[0].names
    where, why = (
        "evaluation after round 0 and 40 local steps: client 2",
        "the model of client 2 is not finite after 40",
    )
    assert f"{where} does not count: refused: {why} local steps" in capsys.readouterr().out


def lied(changes):
    """Client 1's answers with other facts of what it measured on its training examples."""

    def tamper(node, kind, content):
        if node == 102 and kind == "evaluate":
            content["train"] = ConfigRecord(dict(content["train"]) | changes)
        return content

    return tamper


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"means": [float("nan"), 0.5, 0.5]}, "its train loss is nan, no finite number"),
        ({"means": [1.0, 0.5]}, "it has 2 means where 3 metrics were asked for"),
        ({"means": [1, 1, 1]}, "its train loss is 1, no finite number"),
        ({"counts": [3, -1, 3]}, "its train accuracy is a mean over -1, which is no count"),
        ({"counts": [2, 3, 3]}, "its train loss is a mean over 2 of its 3 examples"),
        ({"examples": 0}, "it counts 0 examples, not 1 to 2,147,483,647"),
        ({"examples": 2**31}, "it counts 2147483648 examples"),
        ({"examples": True}, "its examples is True, a bool, not an int"),
        ({"extra": 1}, "it has an unknown extra: another version of fedsolve?"),
    ],
)
def test_what_cannot_be_believed_does_not_count(changes, why, tmp_path, capsys):
    """The client is told by number and reason, the others' metrics are theirs alone, and it trains on."""
    _, history, _ = deployed(fs.FedAvg(0.3), tmp_path, tamper=lied(changes), rounds=1, clients_per_round=4)
    assert f"evaluation after round 1: client 1 does not count: {why}" in capsys.readouterr().out
    assert history.evaluations["clients_measured"].tolist() == [3, 3]
    assert history.rounds["dropped"].tolist() == [0]
    own = [float(cross_entropy(START, TASK.data.client(i))) for i in (0, 2, 3)]
    assert history.evaluations["client_loss_worst"][0] == pytest.approx(max(own), rel=1e-6)
    assert history.evaluations["train_loss"][0] == pytest.approx(np.average(own, weights=[7, 7, 3]), rel=1e-6)


def test_an_answer_of_another_round_or_client_does_not_count(tmp_path, capsys):
    def tamper(node, kind, content):
        changes = {101: {"round": 5}, 102: {"client": 0}, 103: {"experiment": "another-1"}}
        if kind == "evaluate" and node in changes:
            content["answer"] = ConfigRecord(dict(content["answer"]) | changes[node])
        return content

    _, history, _ = deployed(fs.FedAvg(0.3), tmp_path, tamper=tamper, rounds=1)
    said = capsys.readouterr().out
    for words in (
        "it is of round 5, not of 0",
        "it is of client 0, not of 1",
        "it is of experiment another-1",
    ):
        assert words in said
    assert history.evaluations["clients_measured"].tolist() == [1, 1]


def test_a_silent_client_stalls_one_evaluation_and_no_round(tmp_path, capsys):
    """It is asked at the start, left alone once, and asked again; it trains all the while, as in a run without."""

    def tamper(node, kind, content):
        return None if node == 104 and kind == "evaluate" else content

    settings = {
        "clients_per_round": 4,
        "rounds": 3,
        "grace": 0.2,
    }  # with which no order carries the evaluation
    _, history, grid = deployed(fs.FedAvg(0.3), tmp_path, tamper=tamper, **settings)
    assert history.evaluations["clients_measured"].tolist() == [3] * 4
    assert history.rounds["participants"].tolist() == [4] * 3
    assert history.total("dropped") == 0
    assert grid.asked.count((104, "evaluate")) == 2
    assert capsys.readouterr().out.count("client 3 does not count: no answer in time") == 2
    assert np.isnan(history.evaluations["validation_loss"]).sum() == 0


def test_a_metric_that_no_client_has_is_told_before_anything_trains(tmp_path):
    words = (
        "no client evaluates client_metrics = .'los',.; client 0: refused: unknown metric of client 0 "
        "'los': did you mean 'loss'"
    )
    with pytest.raises(fs.InvalidInput, match=words):
        deployed(fs.FedAvg(0.3), tmp_path, client_metrics="los")


@pytest.mark.full
def test_a_client_that_cannot_measure_says_so_and_trains(tmp_path, capsys):
    class Trains(JaxOracle):
        measure = LocalProblem.measure

    def oracle_for(node):
        kind = Trains if node.client == 2 else JaxOracle
        return kind.of_task(TASK, node.client, params=START)

    app = client_app(oracle_for)
    _, history, _ = deployed(fs.FedAvg(0.3), tmp_path, app=app, rounds=1, clients_per_round=4)
    assert history.evaluations["clients_measured"].tolist() == [3, 3]
    assert history.total("dropped") == 0
    assert "client 2 does not count: refused: this Trains measures no model" in capsys.readouterr().out


PRIVATE = fs.privacy.LocalDifferentialPrivacy(fs.FedExP(0.3), 0.5, noise_multiplier=1.0, delta=1e-5)


def test_private_methods_tell_no_metrics(tmp_path):
    """The server refuses to ask before anybody is asked anything; a client refuses to answer, whoever asks."""
    words = "LocalDP.* protects client updates, and metrics of each client would reveal information about its examples"
    with pytest.raises(fs.InvalidInput, match=words):
        deployed(PRIVATE, tmp_path)
    asked = coordinator(PRIVATE).evaluate_requests(("loss",), 0, None)(0)
    answer = ask(APP, to_record(asked), tmp_path, kind="evaluate")
    assert "protects client updates" in answer["refused"]["why"]
    bounded = client_app(lambda node: JaxOracle.of_task(TASK, node.client, params=START), max_epsilon=8.0)
    answer = ask(bounded, QUESTION, tmp_path, kind="evaluate")
    assert "metrics have no noise; this client has max_epsilon = 8" in answer["refused"]["why"]


def coordinator(method):
    given = {"population": 4, "sampling": fs.sampling.Uniform(4), "seed": 0, "experiment": "good-1"}
    return Coordinator(method, START, Federation(**given))


ASKED = coordinator(fs.FedPer("bias", 0.3)).evaluate_requests(METRICS, 2, fs.client.SGD(0.1))(0)
QUESTION = to_record(ASKED)


def test_malformed_questions_are_refused_and_leave_no_trace(tmp_path):
    good = ask(APP, QUESTION, tmp_path, kind="evaluate")
    assert "answer" in good
    cases = [*malformed.facts(QUESTION, "question"), *malformed.parts(QUESTION)]
    cases += [*malformed.lengths(QUESTION, "model"), *malformed.lengths(QUESTION, "first_broadcast")]
    for bad in (["x"] * 33, ["loss", "loss"], [], [1], ["loss", "\x1b[2J"]):
        cases.append((f"metrics {bad}", malformed.with_fact(QUESTION, "question", "metrics", bad)))
    for solver in ("null", "{}", json.dumps(to_spec(fs.FedAvg(0.1)))):
        cases.append((f"solver {solver}", malformed.with_fact(QUESTION, "question", "solver", solver)))
    assert len(cases) > 200
    accepted = []
    for name, bad in cases:
        answer = ask(APP, bad, tmp_path, kind="evaluate")
        if list(answer) == ["refused"]:
            assert answer["refused"]["why"].isprintable(), name
        else:
            accepted.append(name)
    assert accepted == ["question.experiment = 'text'", "question.key = [1, 2]"]
    assert not list(tmp_path.rglob("*"))


def test_malformed_answers_are_refused(tmp_path):
    good = ask(APP, QUESTION, tmp_path, kind="evaluate")
    assert set(read_metrics(ASKED, good)) == {"train", "validation"}
    cases = [*malformed.parts(good)]
    for part in ("answer", "train", "validation"):
        cases += malformed.facts(good, part)
    long = {"means": [0.0] * 10**5}
    cases.append(("long", malformed.with_part(good, "train", ConfigRecord(dict(good["train"]) | long))))
    assert [name for name, bad in cases if refusal(bad) is None] == ["no validation"]
    why = [refusal(bad) or "" for _, bad in cases]
    assert all(words.isprintable() and len(words) < 400 for words in why)


def refusal(record):
    """Why an answer does not count, None if it does."""
    try:
        read_metrics(ASKED, over_the_wire(record))
    except fs.InvalidInput as error:
        return str(error)
    return None


def test_clients_without_a_metrics_examples_are_in_no_percentile():
    """Client 2 has none of them, whatever it says their mean is: all are those of 1, 3 and 5."""
    own = {0: (1.0, 2), 1: (3.0, 1), 2: (-9.0, 0), 3: (5.0, 4)}
    answers = {i: {"train": PartMetrics(4, {"loss": mean}, {"loss": n})} for i, (mean, n) in own.items()}
    found = EvaluationResult(1, 0, ("loss",), answers, {})
    columns = found.columns()
    want = {
        "mean": 3.0,
        "p10": np.percentile([1, 3, 5], 10),
        "p90": np.percentile([1, 3, 5], 90),
        "worst": 5.0,
    }
    for name, value in want.items():
        assert columns[f"client_loss_{name}"] == pytest.approx(value), name
    assert columns["train_loss"] == pytest.approx((2 * 1.0 + 3.0 + 4 * 5.0) / 7)
    np.testing.assert_array_equal(found.clients("train").metrics["loss"], [1.0, 3.0, np.nan, 5.0])
