"""Clients that are read as they are needed: the bits of a run whose clients all lie on the device."""

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine import streaming as stream
from fedsolve.engine.evaluation import blocks
from fedsolve.folders.run_folder import RunFolder
from fedsolve.tasks import Accuracy, CrossEntropy, Softmax
from harness import crossed

MODEL = Softmax(6, 4)


def clients(counts, seed=0):
    rng = np.random.default_rng(seed)
    return [
        fs.Examples(rng.random((n, 6), np.float32), rng.integers(0, 4, n).astype(np.int32)) for n in counts
    ]


def task(counts, data=None, **more):
    test = clients([50], seed=1)[0]
    data = fs.FederatedData.from_clients(clients(counts)) if data is None else data
    metrics = {"accuracy": Accuracy(MODEL)}
    return fs.Task(
        "streamed", MODEL.init, CrossEntropy(MODEL), data, test, metrics=metrics, batch_size=2, **more
    )


UNEVEN = np.random.default_rng(2).integers(1, 9, 200)
ONE_LONG = np.concatenate([UNEVEN, [300]])
CASES = {
    "SCAFFOLD, a random number of uneven clients": (
        fs.SCAFFOLD(0.1),
        UNEVEN,
        {"sampling": fs.sampling.Bernoulli(0.03), "chunk": 3},
    ),
    "FedAdam, one client with many examples": (
        fs.FedAdam(0.1),
        ONE_LONG,
        {"clients_per_round": 8, "dtype": "float64"},
    ),
    "FedBuff, on the clock of a fleet": (
        fs.FedBuff(0.1, buffer=3),
        UNEVEN,
        {"systems": "stragglers", "clients_per_round": 6},
    ),
    "SCAFFOLD, all clients": (fs.SCAFFOLD(0.1), UNEVEN[:6], {}),
    "FedPer, each client measured with its own": (
        fs.FedPer("bias", 0.1),
        UNEVEN,
        {"clients_per_round": 6},
    ),
}


@pytest.fixture
def small(monkeypatch):
    """Windows and blocks of a few clients, which change every few rounds and grow."""
    monkeypatch.setattr(stream, "WINDOW_BYTES", 2**9)
    monkeypatch.setattr(blocks, "WINDOW_BYTES", 2**10)


def same(one, other):
    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_array_equal(a, b)
    for table in ("metrics", "rounds"):
        a, b = getattr(one, table), getattr(other, table)
        assert set(a) == set(b)
        for name in set(a) - {"seconds"}:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("case", crossed(CASES, [next(iter(CASES))]))
def test_bits_are_those_of_resident_clients(case, small, tmp_path):
    """Model, every metric, every round's log; from arrays in memory and from a folder."""
    algorithm, counts, options = CASES[case]
    options = {"rounds": 12, "eval_every": 5, "seed": 3} | options
    resident = fs.run(algorithm, task(counts), **options, residency="device")
    streamed = fs.run(algorithm, task(counts), **options, residency="stream")
    same(streamed, resident)
    assert any("streamed" in note for note in streamed.history.notes)
    stored = task(counts, fs.data.write(clients(counts), tmp_path / "d"))
    same(fs.run(algorithm, stored, **options, residency="stream"), resident)
    same(fs.run(algorithm, stored, **options), resident)


@pytest.mark.full
def test_windows_hold_few_clients(small, monkeypatch):
    """What lies on the device is a cohort's clients and their states, not the population's."""
    held = []
    enter = stream.Stream.enter

    def seen(self, state):
        packed, state = enter(self, state)
        held.append([len(packed.counts), *(len(x) for x in jax.tree.leaves(state.clients))])
        return packed, state

    monkeypatch.setattr(stream.Stream, "enter", seen)
    many = np.full(500, 3)
    fs.run(fs.SCAFFOLD(0.1), task(many), rounds=12, clients_per_round=4, residency="stream", eval_every=6)
    assert max(max(h) for h in held) < 50
    assert all(len(set(h)) == 1 for h in held)


@pytest.mark.full
def test_what_looks_at_all_examples_is_refused():
    judged = task(UNEVEN, whole={"norm": lambda params, batch: 1.0})
    with pytest.raises(fs.InvalidInput, match=r"whole sets.*eval_examples"):
        fs.run(fs.FedAvg(0.1), judged, rounds=1, residency="stream")
    sampled = task(UNEVEN, whole={"norm": lambda params, batch: 1.0}, eval_examples=20)
    result = fs.run(fs.FedAvg(0.1), sampled, rounds=2, clients_per_round=3, residency="stream")
    assert result.metrics["train_norm"][-1] == 1


def test_sizes_are_foreseen(monkeypatch):
    """Clients are streamed where they take more than a quarter of the memory; what does not fit is refused."""
    from fedsolve.engine import streaming as residency

    assert not fs.run(fs.FedAvg(0.1), task(UNEVEN), rounds=1).history.notes
    with monkeypatch.context() as patch:
        patch.setattr(residency, "total_bytes", lambda: 20_000)
        (note,) = fs.run(fs.FedAvg(0.1), task(UNEVEN), rounds=1, clients_per_round=3).history.notes
        assert note.startswith("clients are streamed (0.0 MB of examples)")
    monkeypatch.setattr(residency, "free_bytes", lambda: 5000)
    with pytest.raises(fs.InvalidInput, match=r"residency = 'device' needs.*0.0 MB are free.*'stream'"):
        fs.run(fs.FedAvg(0.1), task(UNEVEN), rounds=1, residency="device")
    monkeypatch.setattr(stream, "free_bytes", lambda: 5000)
    with pytest.raises(fs.InvalidInput, match="fewer clients a round"):
        fs.run(fs.FedAvg(0.1), task(UNEVEN), rounds=1, residency="stream")


@pytest.mark.parametrize("damage", ["cut", pytest.param("gone", marks=pytest.mark.full)])
def test_a_folder_that_is_damaged_while_it_is_read(damage, small, tmp_path, monkeypatch):
    """The run ends in one line with its last checkpoint, and goes on when the file is back."""
    monkeypatch.setattr(RunFolder, "due", property(lambda self: True))
    data = fs.data.write(clients(UNEVEN), tmp_path / "d")
    path, whole = tmp_path / "d" / "examples-0.npy", (tmp_path / "d" / "examples-0.npy").read_bytes()
    options = {"rounds": 12, "clients_per_round": 3, "eval_every": 4, "residency": "stream"}
    options |= {"out": tmp_path / "run"}

    def harm(at):
        if at.round == 4:
            path.unlink() if damage == "gone" else path.write_bytes(whole[:2000])

    with pytest.raises(fs.InvalidInput, match=r"examples-0.npy cannot be read any more") as error:
        fs.run(fs.FedAvg(0.1), task(UNEVEN, data), callbacks=[harm], **options)
    assert "\n" not in str(error.value)
    path.write_bytes(whole)
    result = fs.run(fs.FedAvg(0.1), task(UNEVEN, fs.data.open(tmp_path / "d")), resume=True, **options)
    same_model = fs.run(fs.FedAvg(0.1), task(UNEVEN), rounds=12, clients_per_round=3)
    for a, b in zip(jax.tree.leaves(result.params), jax.tree.leaves(same_model.params), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.full
def test_a_run_goes_on_with_its_own_folder_alone(tmp_path):
    """Known by its description: neither run reads the examples for it."""
    options = {"clients_per_round": 3, "residency": "stream", "out": tmp_path / "run"}
    first = fs.data.write(clients(UNEVEN), tmp_path / "first")
    other = fs.data.write(clients(UNEVEN, seed=5), tmp_path / "other")
    fs.run(fs.FedAvg(0.1), task(UNEVEN, first), rounds=2, **options)
    with pytest.raises(fs.InvalidInput, match="has data = "):
        fs.run(fs.FedAvg(0.1), task(UNEVEN, other), rounds=4, resume=True, **options)
    on_device = options | {"residency": "device"}  # a method without client states may change over
    result = fs.run(fs.FedAvg(0.1), task(UNEVEN, first), rounds=4, resume=True, **on_device)
    same_model = fs.run(fs.FedAvg(0.1), task(UNEVEN, first), rounds=4, clients_per_round=3)
    for a, b in zip(jax.tree.leaves(result.params), jax.tree.leaves(same_model.params), strict=True):
        np.testing.assert_array_equal(a, b)
