"""A process that answers several messages: it keeps a client's problem and its programs, and every bit is the same."""

from __future__ import annotations

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_small import key, local_work, same, train

import fedsolve as fs
from deploy_small import PROBLEM, deploy
from deploy_small import start as jax_start
from fedsolve.deploy.client import worker
from fedsolve.deploy.client.app import NodeContext, OracleCache, client_app
from fedsolve.deploy.oracles.node_oracle import LocalProblem

torch = pytest.importorskip("torch")
linear_model = pytest.importorskip("sklearn.linear_model")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((20, 6)).astype(np.float32), RNG.integers(0, 3, 20)


class Counting(nn.Module):
    """A layer that counts how often it was called, and scales by it."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x / self.calls


class Noisy(TensorDataset):
    """Examples with noise from a generator of the dataset's own."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.own = np.random.default_rng(7)

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + float(self.own.normal()), y


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), Counting(), nn.Dropout(0.3), nn.Linear(4, 3))


def torch_oracle(node=None, scale=1.0):
    scale = scale if node is None else 1.0 + node.client
    data = Noisy(torch.tensor(X) * scale, torch.tensor(Y))
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator())
    return fs.flower.TorchOracle(module(), nn.functional.cross_entropy, loader)


def jax_oracle(node):
    return fs.flower.JaxOracle.of_task(PROBLEM, node.client)


def sklearn_oracle(node):
    x = X * (1 + node.client)
    return fs.flower.SklearnOracle(linear_model.LogisticRegression(), x, Y, batch_size=4, epochs=1)


FRAMEWORKS = {
    "torch": (torch_oracle, fs.flower.torch_parameters(module()), fs.flower.torch_buffers(module())),
    "jax": (jax_oracle, jax_start(), None),
    "sklearn": (sklearn_oracle, fs.flower.sklearn_parameters(linear_model.LogisticRegression(), 6, Y), None),
}


def run(framework, folder, *, keep, clients=1, rounds=2, metrics=("loss",)):
    """How often a problem was made, the models, and what clients measured."""
    oracle_for, params, buffers = FRAMEWORKS[framework]
    made, apps, found = [], {}, []

    def counted(node):
        made.append(node.client)
        return oracle_for(node)

    def app(message, context):
        """Each node's process, or one for each message."""
        apps.setdefault(context.node_id, client_app(counted))
        return (apps[context.node_id] if keep else client_app(counted))(message, context)

    given = {
        "population": clients,
        "rounds": rounds,
        "round_seconds": 60.0,
        "eval_every": 2,
        "client_metrics": metrics,
    }
    evaluate = lambda params, buffers: found.append((params, buffers)) or {"n": 0.0}  # noqa: E731
    method = fs.SCAFFOLD(0.1) if framework != "torch" else fs.FedAvg(0.1)
    _, history, _ = deploy(
        method, folder, app=app, params=params, buffers=buffers, evaluate=evaluate, **given
    )
    return len(made), found, np.array(history.evaluations.get("train_loss", ()))


@pytest.mark.gate("torch")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bits_are_those_of_a_process_for_each_message(framework, tmp_path):
    """Dropout, running statistics, shuffles, generators and counters of the client's code included."""
    kept, fresh = (run(framework, tmp_path / str(keep), keep=keep) for keep in (True, False))
    assert kept[0] == 1
    assert fresh[0] > 3
    assert len(kept[1]) == len(kept[2]) == 2
    assert same(kept[1:], fresh[1:])


@pytest.mark.full
def test_ten_messages_compile_once(tmp_path):
    """So do messages of other clients of the same sizes, in the same process."""
    run("torch", tmp_path / "before", keep=True, rounds=1, metrics=())
    programs = [worker._compiled(f)._cache_size() for f in (worker._train, worker._steps)]
    run("torch", tmp_path / "after", keep=True, clients=3, rounds=10, metrics=())
    assert [worker._compiled(f)._cache_size() for f in (worker._train, worker._steps)] == programs


def test_one_program_serves_every_oracle_of_the_same_sizes():
    """Each with its own examples; a program keeps no oracle in memory, and the oracle of a round keeps its problem."""
    first, second = torch_oracle(), torch_oracle(scale=2.0)
    found = [local_work(fs.FedAvg(0.1), problem, problem.params) for problem in (first, second)]
    programs = train._cache_size()
    gone = weakref.ref(torch_oracle())
    assert gone() is None
    again = [local_work(fs.FedAvg(0.1), torch_oracle(scale=s), first.params) for s in (1.0, 2.0)]
    assert train._cache_size() == programs
    assert all(same(a, b) for a, b in zip(found, again, strict=True))
    assert not same(found[0], found[1])
    alone, w = torch_oracle().begin(key(), 5, "float32"), jax.tree.map(jnp.asarray, first.params)
    other = torch_oracle()
    assert float(alone.loss(w, 0)) == float(other.begin(key(), 5, "float32").loss(w, 0))


def test_statistics_of_a_message_do_not_stay():
    """Where the server sends none, local work begins from those that the problem was made with."""
    problem = torch_oracle()
    before = problem.buffers
    with problem.restored():
        local_work(fs.FedAvg(0.1), problem, problem.params)
        assert not same(problem.buffers, before)
    assert same(problem.buffers, before)


def node(client=0, **run_config):
    return NodeContext(client, "", {"client-id": client}, run_config)


class Nothing(LocalProblem):
    """A problem without data."""

    params, num_examples = {"w": np.zeros(2)}, 1

    def begin(self, key, client, dtype, noise=None):
        raise NotImplementedError


def test_a_problem_is_made_once_for_a_run_and_a_configuration():
    """1 and True are two configurations; the order of their entries does not matter."""
    made = []
    kept = OracleCache(lambda node: made.append(node) or Nothing())
    asked = [
        (1, node(a=1, b=2)), (1, node(b=2, a=1)), (1, node(a=True, b=2)), (2, node(a=True, b=2)), (2, node(1)),
        (2, node(1)), (1, node(a=1, b=2)),
    ]  # fmt: skip
    calls = []
    for run_id, context in asked:
        with kept.borrow(run_id, context):
            calls.append(len(made))
    assert calls == [1, 1, 2, 3, 4, 4, 5]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_examples_leave_memory_before_others_are_read(framework):
    """Without a wait for Python's search for cycles."""
    made = []

    def oracle_for(context):
        assert all(old() is None for old in made)
        problem = FRAMEWORKS[framework][0](context)
        made.append(weakref.ref(problem))
        return problem

    kept = OracleCache(oracle_for)
    for run_id in range(2):
        with kept.borrow(run_id, node()) as problem:
            assert problem.num_examples == made[-1]().num_examples
            del problem
    assert len(made) == 2


def test_after_an_exception_a_problem_is_made_anew():
    """Whether it was raised in the owner's function or in a message's work."""
    made, wrong = [], iter([True, False, False])

    def oracle_for(context):
        made.append(context)
        if next(wrong):
            raise OSError("the disk is away")
        return Nothing()

    kept = OracleCache(oracle_for)
    with pytest.raises(OSError, match="away"), kept.borrow(1, node()):
        pass
    with pytest.raises(ZeroDivisionError), kept.borrow(1, node()):
        1 / 0  # noqa: B018
    for _ in range(2):
        with kept.borrow(1, node()):
            assert len(made) == 3


def test_a_loss_that_failed_fails_no_later_message(tmp_path):
    """What PyTorch raised in one message's program is told in its reply, and the next message is answered."""
    failing = []

    def oracle_for(context):
        def loss(outputs, targets):
            if failing and failing.pop():
                raise RuntimeError("out of memory")
            return nn.functional.cross_entropy(outputs, targets)

        return fs.flower.TorchOracle(module(), loss, [(torch.tensor(X), torch.tensor(Y))])

    app, told = client_app(oracle_for), []

    def watch(node, what, content):
        if what == "train":
            told.append("message" in content)
            failing[:] = [True] if len(told) == 1 else []
        return content

    params, buffers = FRAMEWORKS["torch"][1:]
    deploy(
        fs.FedAvg(0.1), tmp_path, app=app, clients=[0], population=1, tamper=watch, params=params, buffers=buffers,
        repeats=3, round_seconds=60.0,
    )  # fmt: skip
    assert told == [True, False, True, True]
