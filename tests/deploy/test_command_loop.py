"""A training loop that is a command: files out and back, its end, and what it is refused for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import ConfidentialError
from fedsolve.deploy.oracles import command
from fedsolve.deploy.oracles.command import CommandLoop
from fedsolve.deploy.processes import is_alive
from fedsolve.tasks.training_loops import TrainingLoop, TrainingRound

BEGIN = """
import json, sys, time
import ml_dtypes  # numpy's bfloat16
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file, save_file

folder, state, round = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
model = load_file(folder / "model.safetensors")
"""
END = """
save_file(model, folder / "trained.safetensors")
(folder / "results.json").write_text(json.dumps(results))
"""
RESULTS = "results = {'examples': 40, 'steps': 3, 'loss': 0.5}\n"


def loop_of(tmp_path, body, timeout=60.0):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(BEGIN) + textwrap.dedent(body))
    return CommandLoop([sys.executable, str(script), "{folder}", "{state}", "{round}"], timeout=timeout)


def a_round(tmp_path, number=4):
    folder = tmp_path / "state"
    folder.mkdir(exist_ok=True)
    return TrainingRound(number, folder)


def arrays():
    return {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "inner": {"n": np.array(2, np.float16)}}


def test_arrays_go_out_and_come_back(tmp_path):
    body = """
    assert model["inner.n"].dtype == np.float16
    model["w"] = model["w"] * 2 + round
    model["inner.n"] += np.float16(0.5)
    (state / "kept").write_text("yes")
    """
    model, round = arrays(), a_round(tmp_path)
    own = model["w"]
    (round.folder / ".command-killed").mkdir()  # of a client that was killed
    results = loop_of(tmp_path, textwrap.dedent(body) + RESULTS + END)(model, round)
    assert results == {"examples": 40, "steps": 3, "loss": 0.5}
    assert model["w"] is own
    np.testing.assert_array_equal(own, np.arange(6).reshape(2, 3) * 2 + 4)
    assert model["inner"]["n"].shape == ()
    assert model["inner"]["n"] == np.float16(2.5)
    assert [path.name for path in round.folder.iterdir()] == ["kept"]  # the round's folder is removed


def test_a_module_comes_back_in_its_types(tmp_path):
    """bfloat16, tied weights once, frozen ones not at all, a column-major one, a counter."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Module()
    module.first = torch.nn.Linear(3, 3, dtype=torch.bfloat16)
    module.second = torch.nn.Linear(3, 3, dtype=torch.bfloat16)
    module.second.weight = module.first.weight
    module.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    module.turned = torch.nn.Parameter(torch.arange(6.0).reshape(3, 2).T)
    module.register_buffer("count", torch.tensor(1))
    weight, turned = module.first.weight.detach().clone(), module.turned.detach().clone()
    body = """
    assert sorted(model) == ["count", "first.bias", "first.weight", "second.bias", "turned"]
    model["first.weight"] = model["first.weight"] * 2
    model["turned"] = model["turned"] + 1
    model["count"] = np.array(model["count"] + 5)
    """
    loop_of(tmp_path, textwrap.dedent(body) + RESULTS + END)(module, a_round(tmp_path))
    assert module.first.weight is module.second.weight
    torch.testing.assert_close(module.first.weight.detach(), weight * 2)
    torch.testing.assert_close(module.turned.detach(), turned + 1)
    assert module.turned.stride() == (1, 2)
    assert int(module.count) == 6


def test_clients_of_a_simulation(tmp_path):
    """The data of each client are an argument of the command; the mean of both models is what the server makes."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(BEGIN) + "model['w'] += float(sys.argv[4])\n" + RESULTS + END)
    words = [sys.executable, str(script), "{folder}", "{state}", "{round}", "{data}"]
    task = fs.tasks.from_training({"w": np.ones(2)}, CommandLoop(words, timeout=60.0), [1.0, 4.0])
    result = fs.run(fs.FedAvg(1.0), task, rounds=2, dtype="float64")
    np.testing.assert_allclose(result.params["w"], 1 + 2 * 2.5)


REFUSED = {
    "no results": ("save_file(model, folder / 'trained.safetensors')", "results.json cannot be used: No such file"),
    "no model": (RESULTS + "(folder / 'results.json').write_text(json.dumps(results))", "trained.safetensors cannot"),
    "no examples": ("results = {'steps': 3}" + END, "must return the number of examples"),
    "a list": ("results = [3]" + END, r"examples = \[3\] must be an integer"),
    "words": ("results = {'examples': 3, 'name': 'north'}" + END, "name = 'north' must be a number"),
    "truth": ("results = {'examples': True}" + END, "examples = True must be an integer"),
    "deep": ("results = {'examples': 3}" + END + "(folder / 'results.json').write_text('[' * 60000)", "64 deep"),
    "long": (RESULTS + END + "(folder / 'results.json').write_text(' ' * 70000)", "70,000 bytes"),
    "other name": (RESULTS + "model['v'] = model['w']" + END, r"float32\[2, 3\] as 'v', where it had nothing"),
    "missing": (RESULTS + "del model['w']" + END, "nothing as 'w', where"),
    "shape": (RESULTS + "model['w'] = model['w'].T.copy()" + END, r"float32\[3, 2\] as 'w', where it had float32\[2"),
    "type": (RESULTS + "model['w'] = model['w'].astype('float64')" + END, r"float64\[2, 3\] as 'w', where"),
    "not a number": (RESULTS + "model['w'][1, 1] = np.nan" + END, "'w' not finite"),
    "huge": (RESULTS + "model['w'] = np.zeros(10**7)" + END, "80,000,[0-9]{3} bytes, more than"),
    "damaged": (RESULTS + END + "(folder / 'trained.safetensors').write_bytes(b'x' * 99)", "trained.safetensors can"),
    "a link": (
        RESULTS + END + "p = folder / 'trained.safetensors'; p.rename(folder / 'o'); p.symlink_to(folder / 'o')",
        "symbolic link",
    ),
    "a pipe": (
        RESULTS + END + "import os; p = folder / 'results.json'; p.unlink(); os.mkfifo(p)", "no regular file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_comes_back_is_checked(tmp_path, case, monkeypatch):
    """The command's work is done in this process: only its files matter."""
    body, reason = REFUSED[case]
    model, round = arrays(), a_round(tmp_path)

    def in_this_process(words, seconds, log):
        with monkeypatch.context() as here:
            here.setattr(sys, "argv", words[1:])
            exec(textwrap.dedent(BEGIN) + body, {})
        return 0

    monkeypatch.setattr(command, "run_watched", in_this_process)
    with pytest.raises(fs.InvalidInput, match=reason) as caught:
        TrainingLoop(model, loop_of(tmp_path, body)).run(arrays(), round, 7)
    assert str(caught.value).startswith("the training loop of client 7 in round 4: ")
    assert "\n" not in str(caught.value)
    if "the command's" in str(caught.value):
        np.testing.assert_array_equal(model["w"], arrays()["w"])  # nothing of it is taken
    assert list(round.folder.iterdir()) == []


def test_the_last_lines_are_for_the_node_alone(tmp_path):
    body = "print('first\\n'); print('x = 3.7 is no label'); sys.exit(3)"
    with pytest.raises(ConfidentialError, match=r"exit code 3: first \| x = 3.7 is no label$") as caught:
        loop_of(tmp_path, body)(arrays(), a_round(tmp_path))
    assert "3.7" not in caught.value.without_value
    assert "ended with exit code 3" in caught.value.without_value


def test_a_federation_is_not_told_the_last_lines(tmp_path, monkeypatch, capfd):
    pytest.importorskip("flwr")
    from deploy_small import deploy

    script = tmp_path / "train.py"
    script.write_text("print('patient number 4711 is ill')\nraise SystemExit(3)\n")
    model = {"w": np.zeros(3)}
    loop = fs.flower.CommandLoop([sys.executable, str(script)], timeout=60.0)
    app = fs.flower.client_app(lambda node: fs.flower.TrainedClient(model, loop))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fs.FedsolveError, match="ended with exit code 3") as caught:
        deploy(fs.FedAvg(), tmp_path / "run", app=app, params=model)
    told = str(caught.value)
    assert "round 1" in told
    records = [p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert "number 4711" not in told
    assert not any(b"number 4711" in record for record in records)  # digits alone may be a time's
    assert "exit code 3: patient number 4711 is ill" in capfd.readouterr().out


def test_a_command_that_a_signal_ends(tmp_path):
    with pytest.raises(fs.InvalidInput, match=r"was ended by signal 9: it printed nothing$"):
        loop_of(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")(
            arrays(), a_round(tmp_path)
        )


def test_a_command_that_is_not_there(tmp_path):
    with pytest.raises(
        fs.InvalidInput, match=r"could not be run: cannot start ./no-such-command: .*No such file"
    ):
        CommandLoop(["./no-such-command"], timeout=60.0)(arrays(), a_round(tmp_path))


@pytest.mark.parametrize(
    ("words", "timeout", "reason"),
    [
        ("torchrun train.py", 60.0, "must be a list of texts"),
        ([], 60.0, "must be a list"),
        (["a", 3], 60.0, "must be a list"),
        (["a"], 0.0, "timeout"),
        (["a"], None, "timeout"),
    ],
)
def test_bad_arguments(words, timeout, reason):
    with pytest.raises(fs.InvalidInput, match=reason):
        CommandLoop(words, timeout)


# a process with a child in a session of its own, as torchrun's workers are; the child ignores SIGTERM
FAMILY = """
import os, subprocess
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print("epoch 1", flush=True)
(state / "new").write_text(f"{os.getpid()} {child.pid}")
(state / "new").rename(state / "pids")
time.sleep(600)
"""


def ended(path):
    """Whether the processes that are named in a file have ended; waits until they have, as no time is told."""
    pids = [int(word) for word in path.read_text().split()]
    assert len(pids) == 2
    while any(map(is_alive, pids)):
        time.sleep(0.05)
    return True


def wait_for(path, process=None):
    while not path.exists():
        assert process is None or process.poll() is None
        time.sleep(0.05)


@pytest.fixture
def impatient(monkeypatch, tmp_path):
    """The watcher with less time between its signals, and whose time is over at an event: once a file is there."""
    from fedsolve.deploy import processes

    def until(path):
        text = Path(processes.__file__).read_text()
        for old, new in {
            "_PATIENCE = 15.0": "_PATIENCE = 0.5",
            "code is None and time.monotonic() < end": f"code is None and not os.path.exists({str(path)!r})",
        }.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        (tmp_path / "watcher.py").write_text(text)
        monkeypatch.setattr(processes, "__file__", str(tmp_path / "watcher.py"))

    return until


def test_a_command_without_end_is_ended_with_its_children(tmp_path, impatient):
    round = a_round(tmp_path)
    pids = round.folder / "pids"
    impatient(pids)
    with pytest.raises(fs.InvalidInput, match=r"did not end in 600 s: epoch 1$"):
        loop_of(tmp_path, FAMILY, timeout=600.0)(arrays(), round)
    assert ended(pids)


def test_the_time_is_measured(tmp_path):
    with pytest.raises(fs.InvalidInput, match=r"did not end in 0.5 s"):
        loop_of(tmp_path, "time.sleep(600)", timeout=0.5)(arrays(), a_round(tmp_path))


@pytest.mark.full_rows("9")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_client_that_ends_takes_its_command_along(tmp_path, number):
    round = a_round(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(BEGIN) + FAMILY.replace("SIG_IGN", "SIG_DFL"))
    # workers of xdist ignore interrupts, and so would a process that one starts
    client = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {sys.path!r}
import numpy as np
from pathlib import Path
from fedsolve.deploy.oracles.command import CommandLoop
from fedsolve.tasks.training_loops import TrainingRound

words = [sys.executable, {str(tmp_path / "train.py")!r}, "{{folder}}", "{{state}}", "{{round}}"]
CommandLoop(words, 600.0)({{"w": np.zeros(3)}}, TrainingRound(1, Path({str(round.folder)!r})))
"""
    process = subprocess.Popen([sys.executable, "-c", client])
    wait_for(round.folder / "pids", process)
    os.kill(process.pid, number)
    process.wait()
    assert ended(round.folder / "pids")
