"""What travels beside the model: BatchNorm's statistics are averaged plainly and stay out of the step sizes."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

import fedsolve as fs
from deploy_small import deploy
from fedsolve.deploy.flower import client_app

torch = pytest.importorskip("torch")


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def oracle(node, made=None):
    rng = np.random.default_rng(node.client)
    x = torch.tensor(rng.standard_normal((12, 3)) + node.client, dtype=torch.float32)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    return fs.flower.TorchOracle(made or module(), torch.nn.functional.mse_loss, loader)


START, BESIDE = fs.flower.torch_parameters(module()), fs.flower.torch_buffers(module())


def run(folder, **settings):
    seen = []

    def watch(node, what, content):
        if what == "train" and "buffers" in content:
            seen.append({name: x.numpy() for name, x in content["buffers"].items()})
        return content

    kept = []
    given = {"population": 3, "tamper": watch, "params": START, "app": client_app(oracle), "buffers": BESIDE}
    model, history, _ = deploy(
        fs.FedDuAdam(0.05), folder, evaluate=lambda p, b: kept.append(b) or {}, **(given | settings)
    )
    return model, kept, seen, history


@pytest.mark.full
def test_statistics_are_averaged_plainly(tmp_path):
    """After each round the server's statistics are the mean of the three clients'; counters count batches."""
    _, kept, seen, _ = run(tmp_path, rounds=2)
    for t in range(2):
        for name in BESIDE:
            mean = np.mean([s[name] for s in seen[3 * t : 3 * t + 3]], axis=0)
            np.testing.assert_allclose(kept[t + 1][name], mean, rtol=1e-6)
    assert kept[2]["1.num_batches_tracked"] == 6  # three batches a round
    assert kept[2]["1.num_batches_tracked"].dtype == np.int64
    assert np.abs(kept[2]["1.running_mean"]).max() > 0.1


def only_origin():
    """The one buffer is 0 and stays so."""
    torch.manual_seed(0)
    made = torch.nn.Linear(3, 1)
    made.register_buffer("origin", torch.zeros(2))
    return made


@pytest.mark.parametrize(
    ("make", "buffer", "size"),
    [
        (module, "1.running_var", 1e18),
        (module, "1.num_batches_tracked", 2**60),
        (only_origin, "origin", 1e30),
    ],
)
def test_one_that_is_far_beyond_the_others_is_left_out_and_named(make, buffer, size, tmp_path, capsys):
    """From the first round on, also where all others are 0: they are beside the model, but would spoil it as well."""
    sent, start = {}, fs.flower.torch_buffers(make())

    def lies(node, what, content):
        if what == "train" and "buffers" in content:
            arrays = {name: x.numpy() for name, x in content["buffers"].items()}
            if node == 101:
                arrays[buffer] = np.full_like(arrays[buffer], size)
                content["buffers"] = ArrayRecord({name: Array(x) for name, x in arrays.items()})
            sent[node] = arrays
        return content

    given = {"tamper": lies, "app": client_app(lambda node: oracle(node, make())), "buffers": start}
    _, kept, _, history = run(tmp_path, **given, params=fs.flower.torch_parameters(make()), rounds=1)
    assert history.rounds["rejected"].tolist() == [1]
    for name in start:
        np.testing.assert_allclose(kept[1][name], (sent[102][name] + sent[103][name]) / 2, rtol=1e-6)
    assert "round 1: client 0 does not count: the norm of its " in capsys.readouterr().out


@pytest.mark.full
def test_resume_keeps_them(tmp_path):
    whole, kept, _, _ = run(tmp_path / "a", rounds=3)
    run(tmp_path / "b", rounds=2)
    model, again, _, _ = run(tmp_path / "b", rounds=3, resume=True)
    for name in START:
        np.testing.assert_array_equal(model[name], whole[name])
    for name in BESIDE:
        np.testing.assert_array_equal(again[-1][name], kept[-1][name])


def test_step_sizes_do_not_see_them(tmp_path):
    """Statistics of another scale leave the doubly adaptive step of round 1 as it is."""
    _, _, _, one = run(tmp_path / "a", rounds=1)
    other = BESIDE | {"1.running_var": np.full(4, 1e6, np.float32)}
    _, _, _, two = run(tmp_path / "b", rounds=1, buffers=other)
    assert one.rounds["server_lr"].tolist() == two.rounds["server_lr"].tolist()


def test_a_server_that_was_not_told(tmp_path):
    with pytest.raises(fs.FedsolveError, match=r"it has the buffer 1.num_batches_tracked, unlike the server"):
        run(tmp_path, rounds=1, buffers={}, repeats=0)
