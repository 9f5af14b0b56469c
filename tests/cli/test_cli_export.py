"""`fedsolve export`: files that other programs read back as the trained model, a card beside each, and refusals."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedsolve as fs
from fedsolve.results.history import History
from fedsolve.results.record_files import FEDERATION, write_record

NETS = """
import functools
import numpy as np, torch
import fedsolve as fs

class Net(torch.nn.Sequential):
    def __init__(self):
        norm = torch.nn.BatchNorm1d(3)
        norm.register_buffer("mask", torch.tensor([True, False, True]))
        super().__init__(torch.nn.Linear(2, 3), norm, torch.nn.Linear(3, 2))
        self[2].bias.requires_grad = False

def small():
    return torch.nn.Linear(2, 2)

def broken():
    raise ValueError("no weights today")

def data(rows, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, 2)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int)

@functools.cache
def sides() -> fs.Task:
    torch.manual_seed(0)
    clients = [data(8, 1), data(12, 2)]
    return fs.tasks.from_torch(Net(), torch.nn.functional.cross_entropy, clients, test=data(10, 3))
"""

CONFIG = """
task = "nets:sides"
method = [{ name = "FedAvg", settings = { client_lr = 0.3 } }]
"""
READY = {"made_by": {"task": "digits"}}


def record(task, settings, epsilon=()):
    """The history of two rounds."""
    rounds = {"round": np.arange(1, 3)} | ({"epsilon": np.array(epsilon)} if len(epsilon) else {})
    last = {"round": np.array([2]), "seconds": np.array([1.0]), "train_loss": np.array([0.5])}
    return History("DP|x\n- y", task, {"seed": 77123, **settings}, last, rounds)


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """The module `nets` of the user's own, and where it lies."""
    pytest.importorskip("torch")
    home = tmp_path_factory.mktemp("export")
    (home / "nets.py").write_text(NETS)
    sys.path.insert(0, str(home))
    try:
        import nets

        yield nets, home
    finally:
        sys.path.remove(str(home))
        sys.modules.pop("nets", None)


@pytest.fixture(scope="module")
def nets(code):
    """Runs: `module` of one of the nets, `elsewhere/task` names its task."""
    nets, home = code
    result = fs.run(fs.FedAvg(0.3), nets.sides(), rounds=2)
    result.save(home / "module")
    result.save(home / "elsewhere" / "task")
    (home / "elsewhere" / "task" / "config.toml").write_text(CONFIG)
    return home


@pytest.fixture(scope="module")
def untrained(code):
    """The same folders without a run, for refusals, and `plain` of a ready task."""
    nets, home = code
    net = nets.Net()
    arrays = [{n: x.detach().numpy() for n, x in of} for of in (net.named_parameters(), net.named_buffers())]
    for folder in ("module", "elsewhere/task"):
        write_record(home / "none" / folder, record("own", {}), *arrays)
    (home / "none" / "elsewhere" / "task" / "config.toml").write_text(CONFIG)
    write_record(home / "none" / "plain", record("digits", {}), {"w": np.ones(3)}, about=READY)
    return home / "none"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder of a run of a ready task in JAX, and its result."""
    path = tmp_path_factory.mktemp("plain") / "run"
    result = fs.run(fs.FedAvg(0.3), fs.tasks.digits(num_clients=2, model="softmax"), rounds=1)
    result.save(path)
    return path, result


def front_matter(text):
    """The YAML of a card, and what follows it."""
    yaml = pytest.importorskip("yaml")
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


@pytest.mark.full
def test_safetensors_are_the_parameters_by_name(call, plain):
    folder, result = plain
    ended = call("export", folder, "--to", "safetensors", "--out", "new/digits.safetensors")
    assert ended.code == 0
    assert ended.out == "650 parameters into new/digits.safetensors, model card new/digits.safetensors.md\n"
    read, (weight, bias) = load_file("new/digits.safetensors"), result.params
    assert read.keys() == fs.load(folder).params.keys()
    by_shape = {array.shape: array for array in read.values()}
    np.testing.assert_array_equal(by_shape[10, 64], weight)
    np.testing.assert_array_equal(by_shape[10,], bias)


@pytest.mark.full
def test_a_state_dict_is_all_that_the_module_loads(call, nets):
    import torch

    trained = fs.load(nets / "module")
    files = {"module": "a.pt", "elsewhere/task": "b.pth"}
    for (folder, out), more in zip(
        files.items(), (("--module", "nets:Net"), ("--trust", "nets")), strict=True
    ):
        ended = call("export", nets / folder, "--to", "torch", "--out", out, *more, "--json")
        assert (ended.code, ended.document["parameters"]) == (0, 23)
        state = torch.load(out, weights_only=True)
        net = sys.modules["nets"].Net()
        net.load_state_dict(state, strict=True)
        assert state["1.num_batches_tracked"] > 0
        assert state["1.mask"].tolist() == [True, False, True]
        assert state["2.bias"].shape == (2,)
        for name, array in (trained.params | trained.buffers).items():
            np.testing.assert_array_equal(state[name], array)
    net.eval()
    x, _ = sys.modules["nets"].data(20, 4)
    with torch.no_grad():
        labels = net(torch.tensor(x)).argmax(1)
    again = fs.load(nets / "module", module=sys.modules["nets"].Net())
    np.testing.assert_array_equal(again.predict(x), labels)
    merged = call("export", nets / "module", "--to", "safetensors", "--out", "m.safetensors")
    assert merged.code == 0
    assert set(load_file("m.safetensors")) == set(trained.params) | set(trained.buffers)


@pytest.mark.full
def test_an_onnx_graph_computes_what_the_module_does(call, nets, tmp_path):
    """For any number of rows, without places of this machine; a graph that computes something else is not written."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="fedsolve[onnx] is not installed")
    import onnxruntime
    import torch

    folder = nets / "elsewhere" / "task"
    ended = call("export", folder, "--to", "onnx", "--out", "m.onnx", "--trust", "nets", "--json")
    assert ended.code == 0, ended.err
    assert ended.document["rows of this check"] == 10
    assert ended.document["largest difference from PyTorch"] < 1e-5
    card = Path("m.onnx.md").read_text()
    assert "| Rows of this check | 10 |" in card
    assert str(nets).encode() not in Path("m.onnx").read_bytes()
    session = onnxruntime.InferenceSession("m.onnx")
    module = fs.load(folder, module=sys.modules["nets"].Net()).module().eval()
    for rows in (1, 5):
        x = np.random.default_rng(rows).normal(size=(rows, 2)).astype(np.float32)
        (found,) = session.run(None, {session.get_inputs()[0].name: x})
        np.testing.assert_allclose(found, module(torch.from_numpy(x)).detach().numpy(), rtol=0, atol=1e-5)
    np.savez("rows.npz", x=x)
    given = ("export", nets / "module", "--to", "onnx", "--module", "nets:Net")
    assert call(*given, "--out", "n.onnx", "--input", "rows.npz").code == 0
    ended = call(*given, "--out", "o.onnx")
    assert ended.code == 2
    assert "give --input FILE" in ended.err


@pytest.mark.full
def test_a_module_of_16_bits_keeps_its_types_and_has_a_graph_in_32(call, tmp_path, monkeypatch):
    """onnxruntime has no products in 16 bits, and said so in a traceback."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "halves.py").write_text(
        "import torch\n\n\ndef net():\n    torch.manual_seed(0)\n    return torch.nn.Linear(4, 3).bfloat16()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import torch
    from halves import net
    from safetensors.torch import load_file as load_tensors

    rows = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    task = fs.tasks.from_torch(net(), torch.nn.functional.cross_entropy, [(rows, np.arange(12) % 3)] * 2)
    result = fs.run(fs.FedAvg(0.1), task, rounds=2)
    result.save("run")
    np.savez("rows.npz", x=rows)
    assert call("export", "run", "--to", "safetensors", "--out", "m.safetensors").code == 0
    given = ("--module", "halves:net")
    assert call("export", "run", "--to", "torch", "--out", "m.pt", *given).code == 0
    for found in (load_tensors("m.safetensors"), torch.load("m.pt")):
        for name, p in result.module().state_dict().items():
            assert found[name].dtype == torch.bfloat16
            assert torch.equal(found[name], p)
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="fedsolve[onnx] is not installed")
    ended = call("export", "run", "--to", "onnx", "--out", "m.onnx", *given, "--input", "rows.npz", "--json")
    assert ended.code == 0, ended.err
    assert "in float32" in Path("m.onnx.md").read_text()


@pytest.mark.full
def test_a_graph_that_computes_something_else_is_refused(nets, monkeypatch):
    pytest.importorskip("onnxruntime", reason="fedsolve[onnx] is not installed")
    from fedsolve.cli import weight_files as onnx_file

    result = fs.load(nets / "module", module=sys.modules["nets"].Net())
    graph = onnx_file._graph

    def of_another(module, inputs):
        module[2].weight.data += 1e-3
        content = graph(module, inputs)
        module[2].weight.data -= 1e-3
        return content

    monkeypatch.setattr(onnx_file, "_graph", of_another)
    with pytest.raises(fs.InvalidInput, match="differs from the module by"):
        onnx_file.as_onnx(result, nets / "module", np.ones((4, 2), np.float32))


@pytest.mark.full
def test_the_card_has_counts_settings_metrics_and_no_place(call, plain):
    pytest.importorskip("yaml")
    folder, result = plain
    call("export", folder, "--to", "safetensors", "--out", "digits.safetensors")
    text = Path("digits.safetensors.md").read_text()
    head, body = front_matter(text)
    assert head == {
        "license": None,
        "library_name": "safetensors",
        "tags": ["federated-learning", "fedavg"],
        "metrics": ["accuracy", "loss"],
    }
    assert "# FedAvg on digits" in body
    assert f"| Test accuracy (%) | {100 * result.final('test_accuracy'):.6g} |" in body
    assert "| Clients | 2 |" in body
    assert f"| Training examples of all clients | {result.history.settings['examples']:,} |" in body
    assert "| algorithm | FedAvg(client_lr=0.3) |" in body
    assert "no differential privacy" in body
    assert str(folder.parent) not in text
    assert os.getcwd() not in text
    assert not re.search(rf"\b{re.escape(platform.node())}\b", text)


@pytest.fixture
def recorded(tmp_path):
    """`recorded(task, settings, epsilon)`: the folder of a record with one array and one buffer of the same name."""

    def write(task, settings, epsilon=()):
        write_record(tmp_path / "run", record(task, settings, epsilon), {"w": np.ones(3)}, {"w": np.zeros(2)})
        return tmp_path / "run"

    return write


def test_a_card_of_private_runs_hides_seed_and_paths(call, recorded):
    secret = {
        "sites": "Ward Seven",
        "data": "/home/ann smith/a.csv",
        "algorithm": "DP(of=PosixPath('/home/ann b/c'), z=~/d, n=1/2)",
    }
    folder = recorded(FEDERATION, {"population": 1200, "delta": 0.1, **secret}, [1.25, 2.5])
    assert call("export", folder, "--to", "safetensors", "--out", "m.safetensors").code == 0
    text = Path("m.safetensors.md").read_text()
    head, body = front_matter(text)
    assert head["tags"] == ["federated-learning", "dp-x-y"]
    assert "# DP|x - y on federation" in body
    assert "epsilon = 2.5 after all rounds" in body
    assert "simulation" not in body
    assert "| Clients | 1,200 |" in body
    assert "| algorithm |" not in body
    assert "| population |" not in body
    assert "| delta | 0.1 |" in body
    for hidden in ("77123", "Ward", "ann", "smith", "/home"):
        assert hidden not in text
    assert set(load_file("m.safetensors")) == {"w", "buffers.w"}


def test_a_card_of_a_simulation_says_where_its_epsilon_holds(call, recorded):
    folder = recorded("digits", {}, [1.0, np.nan])
    assert call("export", folder, "--to", "safetensors", "--out", "m.safetensors").code == 0
    assert "epsilon = 1 after all rounds" in Path("m.safetensors.md").read_text()
    assert "In a simulation the noise follows from the seed" in Path("m.safetensors.md").read_text()


@pytest.mark.parametrize(
    ("folder", "given", "message"),
    [
        ("plain", "--to gguf --out m.gguf", "--to gguf is not supported: give safetensors, torch or onnx"),
        ("plain", "--to torch --out m.bin", "m.bin must end in .pt or .pth"),
        ("plain", "--to safetensors --out m.safetensors --module nets:Net", "leave it out"),
        ("plain", "--to torch --out m.pt --input x.csv", "--input has rows for the check of --to onnx"),
        (
            "plain",
            "--to torch --out m.pt",
            "the task digits is not from PyTorch: --to torch and onnx support",
        ),
        ("plain", "--to torch --out m.pt --module nets:Net", "parameter of the module"),
        ("module", "--to torch --out m.pt", "its code: give --module MODULE:NAME"),
        ("module", "--to torch --out m.pt --module nets:small", "parameter of the module"),
        ("module", "--to torch --out m.pt --module nets:broken", "ValueError: no weights today"),
        ("module", "--to torch --out m.pt --module nets:data", "TypeError"),
        ("module", "--to torch --out m.pt --module nets:NETS", "name in nets"),
        ("module", "--to torch --out m.pt --module nets:fs", "name a torch.nn.Module"),
        ("elsewhere/task", "--to torch --out m.pt", "give --trust nets if you trust"),
    ],
)
def test_what_is_not_supported_is_one_line_and_leaves_no_file(
    call, untrained, tmp_path, folder, given, message
):
    before = sorted(tmp_path.iterdir())
    ended = call("export", untrained / folder, *given.split())
    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_nothing_is_overwritten_and_weights_come_with_their_card(call, recorded, tmp_path, monkeypatch):
    given = ("export", recorded("digits", {}), "--to", "safetensors", "--out", tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors.md").write_text("mine")
    ended = call(*given)
    assert (ended.code, (tmp_path / "m.safetensors.md").read_text()) == (2, "mine")
    assert "the model card" in ended.err
    assert not (tmp_path / "m.safetensors").exists()
    (tmp_path / "m.safetensors.md").unlink()
    from fedsolve.folders import files

    write, full = files.write_atomically, OSError(28, "No space left on device")

    def first_alone(path, content):
        if path.suffix == ".md":
            raise full
        return write(path, content)

    monkeypatch.setattr(files, "write_atomically", first_alone)
    assert call(*given).code == 2
    assert not (tmp_path / "m.safetensors").exists()


def test_several_and_personal_models_are_refused(call, tmp_path):
    task = fs.Task.from_arrays(
        lambda p, x: (x @ p["w"]).mean(), {"w": np.zeros(2)}, [np.ones((3, 2))], name="own"
    )
    fs.run(fs.FedAvg(0.3), task, rounds=1, seeds=2).save(tmp_path / "seeds")
    fs.run(fs.Ditto(fs.FedAvg(0.1)), task, rounds=1).save(tmp_path / "own")
    for folder, message in (("seeds", "such as seed-0"), ("own", "has a model for each client")):
        ended = call("export", tmp_path / folder, "--to", "safetensors", "--out", "m.safetensors", "--json")
        assert ended.code == 2
        assert message in json.dumps(ended.document) + ended.err
    assert (
        call("export", tmp_path / "seeds" / "seed-1", "--to", "safetensors", "--out", "m.safetensors").code
        == 0
    )
