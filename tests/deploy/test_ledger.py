"""What a client tells under local privacy: the same bytes for the same question, counted, and bounded by its owner."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from deploy_small import ask
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.client.state import LEDGER
from fedsolve.deploy.codec import to_record
from fedsolve.deploy.oracles.jax import JaxOracle
from fedsolve.deploy.server.coordinator import Coordinator, Federation
from fedsolve.folders.run_folder import load_tree, read_manifest, save_tree
from fedsolve.methods.privacy.accounting import epsilon_of, gaussian_epsilon

DELTA = 1e-5


def private(**noise):
    given = {"noise_multiplier": 4.0} | noise
    return fs.privacy.LocalDifferentialPrivacy(fs.FedExP(0.1), 0.5, delta=DELTA, **given)


def orders(method, rounds=3, experiment="x-1"):
    """Orders of some rounds for client 0, without replies."""
    given = {"population": 2, "sampling": fs.sampling.Uniform(2), "seed": 0, "experiment": experiment}
    server = Coordinator(method, {"w": np.zeros(2)}, Federation(**given))
    found = []
    for _ in range(rounds):
        server.draw_cohort()
        found.append(to_record(server.train_request(0)))
        server.finish_round({}, 2)
    return found


def app(**bound):
    """A new process would have one as new."""

    def loss(params, x):
        return jnp.mean((x - params["w"]) ** 2)

    def oracle(node):
        return JaxOracle(loss, {"w": np.zeros(2)}, np.ones((4, 2)), batch_size=2, epochs=1)

    return client_app(oracle, **bound)


def sent(answer):
    return answer["message"]["bytes"].data


def ledger(folder):
    return folder / "client-0-sent" / LEDGER


def test_a_question_asked_again_gets_the_same_bytes(tmp_path, capsys):
    """Thrice, the last time of another process: one message, one price; another question is another message."""
    first, second, _ = orders(private())
    answers = [ask(app(), first, tmp_path)]
    spent = ledger(tmp_path).read_bytes()
    answers += [ask(app(), first, tmp_path), ask(app(), first, tmp_path)]
    assert len({sent(a) for a in answers}) == 1
    assert len({str(a["reply"]) for a in answers}) == 1
    assert ledger(tmp_path).read_bytes() == spent
    assert ledger(tmp_path).stat().st_mode & 0o077 == 0
    facts = read_manifest(ledger(tmp_path))
    assert (facts["messages"], facts["squared_mu"]) == (1, 0.25)
    said = capsys.readouterr().out
    assert f"has sent 1 messages: epsilon = {epsilon_of(0.5, DELTA):.4g} at delta = 1e-05" in said
    assert said.count("is asked for again: client 0 sends what it sent") == 2
    # the next round, and the same one under another name: each is new
    for again in (second, orders(private(), 1, "y-1")[0]):
        assert sent(ask(app(), again, tmp_path)) != sent(answers[0])
    assert read_manifest(ledger(tmp_path))["squared_mu"] == 0.75
    # the first question once more: its answer is no longer kept, so it is a new one and costs
    assert sent(ask(app(), first, tmp_path)) != sent(answers[0])
    assert read_manifest(ledger(tmp_path))["messages"] == 4


def test_a_client_stops_at_its_own_bound(tmp_path):
    """Two messages are within it, the third is not, whatever experiment asks; a repetition is free."""
    most = epsilon_of(np.sqrt(0.5), DELTA)
    bound = {"max_epsilon": most, "delta": DELTA}
    first, second, third = orders(private())
    ask(app(**bound), first, tmp_path)
    second_answer = ask(app(**bound), second, tmp_path)
    kept = ledger(tmp_path).read_bytes()
    for beyond in (third, *orders(private(), 1, "y-1"), *orders(private(noise_multiplier=1e-3), 1)):
        why = ask(app(**bound), beyond, tmp_path)["refused"]["why"]
        assert "client 0 would have spent epsilon = " in why
        assert f"above its max_epsilon = {most:g}: it sends no more" in why
    assert sent(ask(app(**bound), second, tmp_path)) == sent(second_answer)
    assert ledger(tmp_path).read_bytes() == kept


@pytest.mark.full_rows("method2")
@pytest.mark.parametrize(
    "method",
    [
        fs.FedExP(0.1),
        fs.SCAFFOLD(0.1),
        fs.privacy.DifferentialPrivacy(
            fs.FedExP(0.1), 1.0, 0.5, cohort=2, population=2, delta=DELTA, sampling="none", at="client"
        ),
    ],
)
def test_a_bound_admits_no_method_without_noise_of_the_client(method, tmp_path):
    (order,) = orders(method, 1)
    why = ask(app(max_epsilon=100.0), order, tmp_path)["refused"]["why"]
    assert "sends updates without noise of the clients' own" in why
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_noise_that_is_none_is_refused(tmp_path):
    """A server's way around the ranges: an array where a number belongs, a noise of zero or none."""
    (order,) = orders(private(), 1)
    good = json.loads(order["order"]["method"])
    array = {"array": "AAAAAAAA8P8=", "dtype": "float64", "shape": [1]}  # minus infinity
    for fields in (
        {"share": array},
        {"noise_multiplier": array},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": None},
        {"noise_multiplier": float("nan")},
        {"epsilon": float("inf")},
    ):
        order["order"]["method"] = json.dumps(good | {"fields": good["fields"] | fields})
        assert list(ask(app(max_epsilon=8.0), order, tmp_path)) == ["refused"]
    assert not ledger(tmp_path).exists()


def test_a_damaged_ledger_sends_nothing(tmp_path):
    first, second, _ = orders(private())
    ask(app(), first, tmp_path)
    data = bytearray(ledger(tmp_path).read_bytes())
    for place in (20, len(data) // 2, len(data) - 1):
        bad = bytearray(data)
        bad[place] ^= 1
        ledger(tmp_path).write_bytes(bad)
        for order in (first, second):
            why = ask(app(), order, tmp_path)["refused"]["why"]
            assert "client 0 sends nothing, as the epsilon that it has spent is not known: the " in why
            assert str(tmp_path) not in why
            assert tmp_path.name not in why
    ledger(tmp_path).write_bytes(data)
    assert "reply" in ask(app(), second, tmp_path)


def test_epsilon_of_numbers():
    """That of the compiled form, and the ends of its range."""
    for mu in (1e-6, 0.1, 1.0, 30.0):
        with jax.enable_x64(True):
            wanted = float(gaussian_epsilon(mu, DELTA))
        assert epsilon_of(mu, DELTA) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    assert epsilon_of(0.0, DELTA) == 0.0
    assert epsilon_of(float("inf"), DELTA) == epsilon_of(float("nan"), DELTA) == float("inf")


@pytest.mark.parametrize("bound", [{"max_epsilon": 0}, {"max_epsilon": -1.0}, {"delta": 0.0}, {"delta": 1.0}])
def test_bounds_that_are_none(bound):
    with pytest.raises(fs.InvalidInput, match=next(iter(bound))):
        app(**bound)


def test_a_ledger_of_an_earlier_version_is_read(tmp_path):
    """There the reply's `signature` was its `form`: what was sent stays counted, and is sent again for nothing."""
    (first,) = orders(private(), 1)
    answer = ask(app(), first, tmp_path)
    path = ledger(tmp_path)
    facts = read_manifest(path)
    facts["reply"]["form"] = facts["reply"].pop("signature")
    like = {"message": np.zeros(facts["bytes"], np.uint8)}
    save_tree(path, load_tree(path, like), facts, private=True)
    assert sent(ask(app(), first, tmp_path)) == sent(answer)
