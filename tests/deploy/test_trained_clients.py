"""Clients with a training loop of their own: equal to the oracle of the same loop, to sums by hand, and what fails."""

from __future__ import annotations

import json
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from deploy_small import deploy
from fake_grid import FakeGrid
from fedsolve.core.errors import Unavailable
from fedsolve.core.introspect import first_cohort
from fedsolve.core.oracle import NeedsMore, Outcome, TrainedRound
from fedsolve.core.wire import ring_words
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.oracles.trained import run_loop
from fedsolve.deploy.run_log import ROUNDS
from fedsolve.deploy.server.server_method import ServerMethod
from fedsolve.methods.secure import Secure
from fedsolve.methods.trained import with_loop
from fedsolve.results.clients import read_client_metrics

torch = pytest.importorskip("torch")
DRAW = np.random.default_rng(0)
X = torch.tensor(DRAW.standard_normal((3, 12, 5)), dtype=torch.float32)
Y = torch.tensor(DRAW.integers(0, 3, (3, 12)))
LOSS = torch.nn.functional.cross_entropy
WEIGHTS = np.array([2.0, 5.0, 3.0])
TIMES = 3


def module():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


def batches(client):
    return list(zip(X[client].split(4), Y[client].split(4), strict=True))


def sgd(model, round, client):
    """The loop of a user: one epoch of plain SGD."""
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches(client):
        optimiser.zero_grad()
        LOSS(model(x), y).backward()
        optimiser.step()
    return {"examples": 12, "steps": 3}


def trained(node):
    return fs.flower.TrainedClient(module(), partial(sgd, client=node.client))


def pull(model, round, client):
    """A loop on arrays: towards the client's number, in a step that depends on the round."""
    model["w"] += 0.25 * (client - model["w"]) / round
    return {"examples": int(WEIGHTS[client]), "steps": client + 1}


def start():
    return {"w": np.arange(3, dtype=np.float32)}


def pulled(node):
    return fs.flower.TrainedClient(start(), partial(pull, client=node.client))


def deployed(method, tmp_path, oracle_for=pulled, params=None, **settings):
    given = {"rounds": TIMES, "population": 3} | settings
    app = client_app(oracle_for)
    return deploy(method, tmp_path, app=app, params=start() if params is None else params, **given)[:2]


def far(a, b):
    return max(float(np.abs(np.asarray(a[name]) - b[name]).max()) for name in b)


def test_the_same_loop_as_an_oracle(tmp_path):
    """Plain SGD without dropout: three rounds of FedAvg end where those of a `TorchOracle` end."""
    params = fs.flower.torch_parameters(module())
    method = fs.FedAvg(client_lr=0.1)
    by_loop, record = deployed(method, tmp_path / "a", trained, params)
    wanted, _ = deployed(
        method, tmp_path / "b", lambda n: fs.flower.TorchOracle(module(), LOSS, batches(n.client)), params
    )
    assert far(params, wanted) > 0.01
    assert far(by_loop, wanted) <= 1e-6
    assert "client_loss" not in record.rounds  # the loop tells none, and none is made up


@pytest.mark.full_rows("uniform")
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_means_by_hand(tmp_path, weighting):
    """A NumPy transcript of FedAvg, FedNova and DiLoCo; the local rate of the method moves nothing."""
    p = WEIGHTS / WEIGHTS.sum() if weighting == "examples" else np.full(3, 1 / 3)
    tau = np.array([1, 2, 3])
    plain = nova = outer = start()["w"].astype(np.float64)
    momentum = np.zeros(3)
    for round in range(1, TIMES + 1):
        moved = [0.25 * (client - plain) / round for client in range(3)]
        plain = plain + p @ np.array(moved)
        moved = np.array([0.25 * (client - nova) / round for client in range(3)])
        nova = nova + (p @ tau) * (p @ (moved / tau[:, None]))
        moved = p @ np.array([0.25 * (client - outer) / round for client in range(3)])
        momentum = 0.9 * momentum + moved
        outer = outer + 0.7 * (moved + 0.9 * momentum)
    for wanted, method in ((plain, fs.FedAvg), (nova, fs.FedNova), (outer, fs.DiLoCo)):
        rates = [
            deployed(method(client_lr=rate, weighting=weighting), tmp_path / f"{method.__name__}{rate}")[0][
                "w"
            ]
            for rate in (0.1, 3.0)
        ]
        np.testing.assert_allclose(rates[0], wanted, rtol=2e-6)
        np.testing.assert_allclose(rates[0], rates[1], rtol=2e-6)


def replay(recorded, model, round, client):
    """A loop that ends where another one did."""
    for name, value in recorded[int(round), client].items():
        model[name][...] = value
    return {"examples": int(WEIGHTS[client]), "steps": client + 1}


def recording(recorded, model, round, client):
    told = pull(model, round, client)
    recorded[int(round), client] = {name: value.copy() for name, value in model.items()}
    return told


def test_the_simulation_that_replays_has_its_bits(tmp_path):
    method, recorded = fs.FedAvg(0.1), {}
    model, _ = deployed(
        method,
        tmp_path,
        lambda n: fs.flower.TrainedClient(start(), partial(recording, recorded, client=n.client)),
    )
    task = fs.tasks.from_training(start(), partial(replay, recorded), [0, 1, 2])
    found = fs.run(method, task, rounds=TIMES, eval_every=TIMES, chunk=1, progress=False)
    assert np.asarray(found.params["w"]).tobytes() == np.asarray(model["w"]).tobytes()


def test_a_secure_sum_is_the_integers_of_the_replay(tmp_path, monkeypatch):
    """What the server opens of three masked messages is, modulo 2^64, the sum of those made from the differences."""
    opened, recorded, update = [], {}, ServerMethod.update

    def seen(self, server, message, *more):
        opened.append(message)
        return update(self, server, message, *more)

    monkeypatch.setattr(ServerMethod, "update", seen)
    method = Secure(fs.FedAvg(client_lr=0.1), bound=10.0, max_clients=3, max_examples=100)
    deployed(
        method,
        tmp_path,
        lambda n: fs.flower.TrainedClient(start(), partial(recording, recorded, client=n.client)),
        rounds=1,
        connect_seconds=5.0,
        round_seconds=60.0,
    )
    own, w = with_loop(method), jax.tree.map(jnp.asarray, start())
    broadcast = own.broadcast(own.init(w), fs.core.algorithm.Cohort(jnp.int32(0), jnp.int32(3), 3))
    messages = []
    for client in range(3):
        outcome = Outcome(recorded[1, client], jnp.int32(WEIGHTS[client]), jnp.int32(client + 1))
        messages.append(own.train(broadcast, (), TrainedRound(outcome, jnp.int32(client)))[0])
    rings = [(*m.sums, m.weight, m.clipped) for m in messages]
    assert len(opened) == 1
    for total, *parts in zip((*opened[0].sums, opened[0].weight, opened[0].clipped), *rings, strict=True):
        words = [ring_words(part) for part in parts]
        np.testing.assert_array_equal(ring_words(total), sum(words[1:], words[0]))


def by_hand(counting, rounds=TIMES):
    """FedAvg of loops that pull; `counting`: the clients that count in some rounds, in others all."""
    w = start()["w"].astype(np.float64)
    for round in range(1, rounds + 1):
        here = np.array(counting.get(round, range(3)))
        w = w + WEIGHTS[here] @ [0.25 * (client - w) / round for client in here] / WEIGHTS[here].sum()
    return w


# What fails: named in one line with client and round, and the round goes on without it.


def other_shape(model):
    model["w"] = np.zeros(4, np.float32)


def other_type(model):
    model["w"] = model["w"].astype(np.float64)


def other_name(model):
    model["v"] = model.pop("w")


def not_finite(model):
    model["w"][1] = np.nan


def raises(model):
    raise KeyError("patient 7")


def refuses(model):
    raise fs.InvalidInput("the command ended with exit code 3")


FAILURES = {
    other_shape: "came back with float32[4] as 'w', where it had float32[3]",
    other_type: "came back with float64[3] as 'w', where it had float32[3]",
    other_name: "came back with nothing as 'w', where it had float32[3]",
    not_finite: "'w' not finite",
    raises: "failed: KeyError",
    refuses: "the command ended with exit code 3",
}


@pytest.mark.parametrize("fault", FAILURES, ids=lambda f: f.__name__)
def test_a_loop_that_fails(tmp_path, fault, capsys):
    """Client 1 in round 2: the others' mean is the round's, and it is back in round 3."""

    def train(client, model, round):
        told = pull(model, round, client)
        if client == 1 and round == 2:
            fault(model)
        return told

    model, record = deployed(
        fs.FedAvg(0.1),
        tmp_path,
        lambda n: fs.flower.TrainedClient(start(), partial(train, n.client)),
    )
    np.testing.assert_allclose(model["w"], by_hand({2: [0, 2]}), rtol=2e-6)
    assert record.rounds["rejected"].tolist() == [0, 1, 0]
    reasons = [
        json.loads(line)["reasons"] for line in (tmp_path / "server" / ROUNDS).read_text().splitlines()
    ]
    (reason,) = reasons[1]
    assert FAILURES[fault] in reason
    assert "client 1 in round 2" in reason
    assert "patient 7" not in reason
    log = capsys.readouterr()
    assert ("patient 7" in log.out + log.err) == (fault is raises)  # the owner's own log has the traceback


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "train returned None: it must return the number of examples"),
        (0, "examples = 0 must be an integer of at least 1"),
        ({"examples": 3, "steps": 1.5}, "steps = 1.5"),
        ({"examples": 3, "accuracy": "good"}, "accuracy = 'good' must be a number"),
    ],
)
def test_what_a_loop_returns(tmp_path, returned, words):
    client = fs.flower.TrainedClient(start(), lambda model, round: returned)
    with pytest.raises(fs.InvalidInput, match="client 0 in round 1") as error:
        client.loop.run(start(), fs.flower.TrainingRound(1, tmp_path), 0)
    assert words in str(error.value)


def test_a_method_that_needs_more_is_refused_before_the_first_round(tmp_path):
    """By the server, whose clients have said that they have loops of their own; a client refuses an order itself."""
    with pytest.raises(
        fs.InvalidInput, match=r"all 3 clients have refused: SCAFFOLD needs .*: take FedAvg: "
    ) as error:
        deployed(fs.SCAFFOLD(client_lr=0.1), tmp_path)
    assert str(error.value).count("SCAFFOLD needs") == 1
    assert "\n" not in str(error.value)
    client = fs.flower.TrainedClient(start(), lambda model, round: 3)
    method = with_loop(fs.SCAFFOLD(client_lr=0.1))
    broadcast = method.broadcast(method.init(start()), first_cohort(3))
    with pytest.raises(NeedsMore, match="corrected by control variates"):
        run_loop(client, method, broadcast, method.enrol(broadcast, start()), TrainedRound(None, 0), 0)
    steps = lambda n: fs.flower.TrainedClient(start(), lambda model, round: 3)  # noqa: E731
    with pytest.raises(Unavailable, match=r"number of local steps: return it .* as 'steps'"):
        deployed(fs.FedNova(client_lr=0.1), tmp_path / "b", steps, repeats=0)


def test_the_round_goes_on_without_a_loop_that_never_ends(tmp_path, monkeypatch, capsys):
    """Client 2 in round 2, whose loop runs until this test ends: cut at the deadline, and named in one line."""
    begun, over, threads, deliver = threading.Event(), threading.Event(), [], FakeGrid._deliver

    def endless(client, model, round):
        if client == 2 and round == 2:
            begun.set()
            over.wait()
        return pull(model, round, client)

    def delivered(self, message):
        asked = message.metadata.dst_node_id, message.metadata.message_type, message.metadata.group_id
        if asked != (103, "train", "2"):
            return deliver(self, message)
        threads.append(threading.Thread(target=deliver, args=(self, message)))
        threads[0].start()
        begun.wait()
        return None  # it has not answered

    monkeypatch.setattr(FakeGrid, "_deliver", delivered)
    try:
        model, record = deployed(
            fs.FedAvg(0.1),
            tmp_path,
            lambda n: fs.flower.TrainedClient(start(), partial(endless, n.client)),
            rounds=2,
        )
        assert threads[0].is_alive()
    finally:
        over.set()
        threads[0].join()
    np.testing.assert_allclose(model["w"], by_hand({2: [0, 1]}, rounds=2), rtol=2e-6)
    assert record.rounds["rejected"].tolist() == [0, 1]
    assert "fedsolve: round 2: client 2 does not count: no answer within 0.2 s\n" in capsys.readouterr().out


def test_what_the_loop_keeps_is_there_after_a_restart(tmp_path):
    """Each message has a new client: the folder is one client's in one experiment; rounds are counted from 1."""
    seen = []

    def train(client, model, round):
        file = round.folder / "optimiser"
        seen.append((client, int(round), file.read_text() if file.exists() else ""))
        file.write_text(f"{client} after {round}")
        return pull(model, round, client)

    def new(node):
        return fs.flower.TrainedClient(start(), partial(train, node.client))

    deployed(fs.FedAvg(0.1), tmp_path, new)
    assert sorted(seen) == [
        (c, r, f"{c} after {r - 1}" if r > 1 else "") for c in range(3) for r in range(1, TIMES + 1)
    ]


def test_metrics_of_clients(tmp_path):
    """By `evaluate` of the model that is asked about; without it those that the loop returned last."""

    def train(client, model, round):
        if client == 0:  # which trains a copy
            model = {"w": model["w"].copy()}
        return pull(model, round, client) | {"loss": 1.0 + client, "accuracy": round / 4}

    def evaluate(model):
        return {"loss": float(np.square(model["w"]).sum())}

    def by_evaluate(node):
        return fs.flower.TrainedClient(start(), partial(train, node.client), evaluate=evaluate, examples=7)

    model, record = deployed(fs.FedAvg(0.1), tmp_path / "a", by_evaluate, client_metrics="loss")
    assert record.evaluations["train_loss"][0] == pytest.approx(5.0)
    assert record.final("train_loss") == pytest.approx(float(np.square(model["w"]).sum()))
    assert record.rounds["client_loss"] == pytest.approx([WEIGHTS @ [1, 2, 3] / WEIGHTS.sum()] * TIMES)

    def by_loop(node):
        return fs.flower.TrainedClient(start(), partial(train, node.client))

    deployed(fs.FedAvg(0.1), tmp_path / "b", by_loop, client_metrics="loss, accuracy")
    found = read_client_metrics(tmp_path / "b" / "server")
    assert found[3].metrics["loss"].tolist() == [1.0, 2.0, 3.0]
    assert found[3].metrics["accuracy"].tolist() == [0.75] * 3
    assert np.isnan(found[0].metrics["accuracy"]).all()  # none before its first round
    (note,) = [note for note in record.notes if "training loop" in note]
    assert note.startswith("client 0: its training loop left the model as it was")


# What modules have beside parameters of 32 bits in rows.


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4, bias=False)
        self.out.weight = self.embed.weight
        self.frozen = torch.nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.conv = torch.nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)
        self.turned = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).T)
        self.sixteen = torch.nn.Parameter(torch.full((3,), 1 / 3, dtype=torch.bfloat16))
        self.norm = torch.nn.BatchNorm1d(3)


def test_tensors_of_all_kinds(tmp_path):
    """Tied ones are sent once, frozen ones not; layouts and types stay; buffers are averaged; 16 bits move exactly."""
    made = {}

    def train(client, model, round):
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.125 * (client + 1))
            model.norm.running_mean.add_(client)
            model.norm.num_batches_tracked.add_(3)
        return 1

    def new(node):
        made[node.client] = Tied()
        return fs.flower.TrainedClient(made[node.client], partial(train, node.client))

    params, before = fs.flower.trained_parameters(Tied()), Tied()
    assert params.keys() == {
        "embed.weight", "conv.weight", "conv.bias", "turned", "sixteen", "norm.weight", "norm.bias",
    }  # fmt: skip
    assert params["sixteen"].dtype == np.float32
    params["sixteen"] = np.full(3, 1 / 3, np.float32)  # which 16 bits round
    model, _ = deployed(
        fs.FedAvg(0.1, weighting="uniform"), tmp_path, new, params,
        rounds=1, buffers=fs.flower.torch_buffers(Tied()),
    )  # fmt: skip
    third = float(torch.tensor(1 / 3, dtype=torch.bfloat16))
    ends = [float((torch.tensor(third) + 0.125 * (c + 1)).bfloat16()) for c in range(3)]
    np.testing.assert_allclose(model["sixteen"], 1 / 3 + np.mean(np.subtract(ends, third)), rtol=1e-6)
    for name in params.keys() - {"sixteen"}:
        np.testing.assert_allclose(model[name], params[name] + 0.25, rtol=1e-6)
    one = made[2]
    np.testing.assert_allclose(
        one.conv.bias.detach(), params["conv.bias"] + 0.375, rtol=1e-6
    )  # as the loop left it
    assert one.out.weight is one.embed.weight
    assert one.sixteen.dtype == torch.bfloat16
    assert one.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert not one.turned.is_contiguous()
    assert torch.equal(one.frozen.weight, before.frozen.weight)
    fs.flower.trained_assign(one, model)
    np.testing.assert_allclose(one.turned.detach().numpy(), params["turned"] + 0.25, rtol=1e-6)


@pytest.mark.full_rows("factors0-True")
@pytest.mark.parametrize(("factors", "exact"), [((1.25, 0.75, 1.9), True), ((1.25, 0.75, 97.0), False)])
def test_numbers_of_16_bits_travel_in_16(tmp_path, factors, exact):
    """With `Cast` the server adds up, in float32, differences in bfloat16: exact where no weight changes twofold."""
    begin = np.linspace(0.5, 2, 300).astype(jnp.bfloat16)
    ends = [(begin.astype(np.float32) * factor).astype(jnp.bfloat16) for factor in factors]

    def new(node):
        def train(model, round):
            model["w"][...] = ends[node.client]
            return 1

        return fs.flower.TrainedClient({"w": begin.copy()}, train)

    method, given = (
        fs.FedAvg(0.1, weighting="uniform"),
        {"params": {"w": begin.astype(np.float32)}, "rounds": 1},
    )
    whole, record = deployed(method, tmp_path / "a", new, **given)
    cast = fs.Compressed(method, fs.compression.Cast("bfloat16"))
    short, by_cast = deployed(cast, tmp_path / "b", new, **given)
    saved = record.rounds["bytes_up"][0] - by_cast.rounds["bytes_up"][0]
    assert abs(saved - 3 * 600) < 100
    moved = [(end.astype(np.float32) - begin.astype(np.float32)).astype(jnp.bfloat16) for end in ends]
    wanted = begin.astype(np.float32) + np.mean(moved, axis=0, dtype=np.float32)
    np.testing.assert_allclose(short["w"], wanted, rtol=1e-6)
    assert (short["w"].tobytes() == whole["w"].tobytes()) == exact


def test_buffers_are_averaged_and_protected_methods_refuse_those_that_move(tmp_path):
    def train(moves, client, model, round):
        if moves:
            model.running_mean.add_(client)
            model.num_batches_tracked.add_(3)
        return 1

    def oracles(moves):
        return lambda node: fs.flower.TrainedClient(
            torch.nn.BatchNorm1d(2), partial(train, moves, node.client)
        )

    layer = torch.nn.BatchNorm1d(2)
    given = {"params": fs.flower.trained_parameters(layer), "buffers": fs.flower.torch_buffers(layer)}
    app = client_app(oracles(True))
    deploy(fs.FedAvg(0.1), tmp_path / "a", app=app, population=3, rounds=2, **given)
    saved = fs.load(tmp_path / "a" / "server").buffers
    np.testing.assert_allclose(saved["running_mean"], [2.0, 2.0])
    assert int(saved["num_batches_tracked"]) == 6
    private = fs.privacy.LocalDifferentialPrivacy(
        fs.FedAvg(0.1, weighting="uniform"), clip_norm=1.0, epsilon=8.0, delta=1e-5
    )
    deployed(private, tmp_path / "b", oracles(False), rounds=1, **given)
    with pytest.raises(Unavailable, match="protects the parameters, not the buffers that training changes"):
        deployed(private, tmp_path / "c", oracles(True), rounds=1, repeats=0, **given)


def test_an_estimator(tmp_path):
    """scikit-learn's own steps: a client alone goes where the estimator goes alone."""
    sklearn = pytest.importorskip("sklearn.linear_model")
    x, y = X[0].double().numpy(), (Y[0].numpy() > 0).astype(int)

    def estimator():
        made = sklearn.SGDClassifier(
            loss="log_loss", learning_rate="constant", eta0=0.1, random_state=0, shuffle=False
        )
        return made.partial_fit(x[:2], y[:2], classes=[0, 1])

    def train(model, round):
        model.partial_fit(x, y)
        return len(x)

    alone = estimator()
    for _ in range(TIMES):
        alone.partial_fit(x, y)
    model, _ = deployed(
        fs.FedAvg(0.1), tmp_path, lambda n: fs.flower.TrainedClient(estimator(), train),
        fs.flower.trained_parameters(estimator()), population=1,
    )  # fmt: skip
    np.testing.assert_allclose(model["coef_"], alone.coef_, rtol=1e-12)
    np.testing.assert_allclose(model["intercept_"], alone.intercept_, rtol=1e-12)
