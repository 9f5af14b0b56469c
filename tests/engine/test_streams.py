"""Clients that are read as they are needed: the bits of a run whose clients all lie on the device."""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine import streaming as stream
from fedsolve.engine.evaluation import example_metrics
from fedsolve.engine.streaming import ClientStates
from fedsolve.folders import logs, run_folder
from fedsolve.folders.run_folder import RunFolder
from fedsolve.tasks import Accuracy, CrossEntropy, Softmax
from harness import crossed, make_clients, make_task

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
    monkeypatch.setattr(example_metrics, "WINDOW_BYTES", 2**10)


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


# Clients' states in a file: what was never written costs nothing, and a run killed anywhere goes on alike.

FIRST = {"a": np.array([[1.5, -2.0]], np.float32), "b": (np.int8(3), np.array(True))}


def states(values):
    values = np.asarray(values)
    return {
        "a": np.stack([FIRST["a"] * np.float32(v) for v in values]),
        "b": (values.astype(np.int8), values > 2),
    }


def read(kept, clients):
    return kept.read(np.array(clients), len(clients))


def write(kept, clients, values):
    read(kept, clients)
    kept.write(states(values))


def same_states(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_rows_come_back_and_who_never_came_has_none(tmp_path):
    kept = ClientStates(tmp_path, FIRST, 10**6, lasting=False)
    kept.begin()
    write(kept, [3, 4, 5, 70, 999_999], [1, 2, 3, 4, 5])
    write(kept, [4, 6, 999_999], [8, 9, 6])
    same_states(read(kept, [3, 999_999]), states([1, 6]))
    same_states(read(kept, [2, 4, 6]), jax.tree.map(lambda x, y: np.stack([x, *y]), FIRST, states([8, 9])))
    assert os.stat(tmp_path / "clients.states").st_size == 6 * ROW
    kept.close()


def opened(folder, known=None):
    kept = ClientStates(folder, FIRST, 100, lasting=True)
    if known is None:
        kept.begin()
    else:
        kept.restore(known)
    return kept


def checkpoint(kept):
    kept.commit()
    known = jax.tree.map(np.array, kept.known)
    kept.committed()
    return known


def begun(folder):
    """States with two checkpoints, behind which three clients have changed, two of them read before; what it knows."""
    kept = opened(folder)
    write(kept, [9, 2], [3, 3])
    checkpoint(kept)
    write(kept, [1, 2], [1, 2])
    known = checkpoint(kept)
    kept.write(states([5, 6]))
    write(kept, [2, 3], [7, 7])
    write(kept, [2], [8])
    kept.close()
    return known


def test_a_run_goes_on_with_what_its_checkpoint_knows(tmp_path):
    """Twice, since the second time rows are free that the first one left."""
    known = begun(tmp_path)
    for _ in range(2):
        kept = opened(tmp_path, jax.tree.map(np.array, known))
        same_states(read(kept, [1, 2, 9]), states([1, 2, 3]))
        same_states(read(kept, [3]), jax.tree.map(lambda x: np.stack([x]), FIRST))
        write(kept, [1, 2, 3, 9], [9, 9, 9, 9])
        kept.close()
    assert os.stat(tmp_path / "clients.states").st_size <= 7 * ROW


def test_rows_are_used_again(tmp_path):
    kept = opened(tmp_path)
    for value in range(20):
        write(kept, [1, 2, 3], [value, value + 1, value])
        checkpoint(kept)
    same_states(read(kept, [1, 2]), states([19, 20]))
    kept.close()
    assert os.stat(tmp_path / "clients.states").st_size == 6 * ROW


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 8
    path.write_bytes(content)


ROW = 10
DAMAGE = {
    "a flipped state": (lambda d: flip(d / "clients.states", 2), "the state of client 9"),
    "cut short": (lambda d: os.truncate(d / "clients.states", 35), "35 bytes, not 40"),
    "gone": (lambda d: (d / "clients.states").unlink(), "No such file"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(tmp_path, case):
    known = begun(tmp_path)
    damage, words = DAMAGE[case]
    damage(tmp_path)
    with pytest.raises(fs.InvalidInput, match=words) as error:
        read(opened(tmp_path, known), [0, 1, 2, 9])
    assert "\n" not in str(error.value)


TASK = make_task(make_clients(sizes=[2, 3, 1, 4, 2, 5, 3, 2, 1, 2, 4, 3]))


class Killed(BaseException):
    pass


def run(folder, resume=False, residency="stream"):
    options = {"rounds": 12, "clients_per_round": 2, "eval_every": 4, "residency": residency}
    return fs.run(fs.SCAFFOLD(0.1), TASK, out=folder, resume=resume, **options)


@pytest.fixture
def often(monkeypatch):
    """A checkpoint after every call, windows of a few rounds, calls of one."""
    monkeypatch.setattr(run_folder.RunFolder, "due", property(lambda self: True))
    monkeypatch.setattr("fedsolve.engine.loop._CALL_SECONDS", 1e-9)
    monkeypatch.setattr(stream, "WINDOW_BYTES", 2**8)


@pytest.mark.full
def test_killed_anywhere_it_goes_on_with_the_same_bits(often, tmp_path, monkeypatch):
    """At every kind of writing, before, in the middle and after; killed and resumed until it is through."""
    whole = run(None)
    writes = 0

    def dying(at):
        calls = itertools.count()

        def write_all(file, content):
            call = next(calls)
            if call == at:
                file.write(memoryview(content)[: len(content) // 2])
                raise Killed
            file.write(content)

        return write_all

    for step in (5, 11, 17):
        folder, resume = tmp_path / str(step), False
        for kill in itertools.count():
            write_all = dying(step + kill % 3)
            with monkeypatch.context() as patch:
                patch.setattr(logs, "write_all", write_all)
                try:
                    result = run(folder, resume)
                    break
                except Killed:
                    writes += 1
            resume = (folder / "checkpoint.safetensors").exists()
        same_states(result.params, whole.params)
        for name in ("train_loss", "client_loss_worst"):
            np.testing.assert_array_equal(result.metrics[name], whole.metrics[name])
    assert writes > 6


def test_a_checkpoint_and_its_states_belong_together(often, tmp_path):
    run(tmp_path / "run")
    with pytest.raises(fs.InvalidInput, match="give residency = 'stream'"):
        run(tmp_path / "run", resume=True, residency="device")
    os.truncate(tmp_path / "run" / "clients.states", 8)
    with pytest.raises(fs.InvalidInput, match="8 bytes, not"):
        run(tmp_path / "run", resume=True)


@pytest.mark.full
def test_two_runs_on_one_store_of_states(often, tmp_path):
    """The second is refused whatever it asks for, and the first goes on."""
    refused = []

    def second(at):
        for resume in (False, True):
            with pytest.raises(fs.InvalidInput, match="in use by another run"):
                run(tmp_path / "run", resume)
            refused.append(resume)

    options = {"rounds": 12, "clients_per_round": 2, "eval_every": 4, "residency": "stream"}
    result = fs.run(fs.SCAFFOLD(0.1), TASK, out=tmp_path / "run", callbacks=[second], **options)
    assert len(refused) >= 6
    same_states(result.params, run(None).params)


@pytest.mark.full
def test_a_full_disk_ends_the_run_in_words(often, tmp_path, monkeypatch):
    def full(file, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(logs, "write_all", full)
        with pytest.raises(fs.InvalidInput, match="No space left"):
            run(tmp_path / "run")
    assert jnp.isfinite(run(tmp_path / "other").metrics["train_loss"]).all()
