"""Folders that others wrote, that Python left, and of runs that go on."""

import dataclasses
import json
import re
import threading
import time
import zlib
from contextlib import ExitStack
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from runs_made_up import CONFIG, finish, write_run

import fedsolve as fs
from fedsolve.cli import show
from fedsolve.cli.configuration.config import load, read_toml
from fedsolve.cli.main import main
from fedsolve.engine import scheduler
from fedsolve.folders import files as interrupt
from fedsolve.folders.files import STOP, locked
from fedsolve.folders.sealed import write_arrays
from fedsolve.geometry import L1

# Folders that anybody may have written: what shows them refuses them in one line, and is not held up.

DEEP = 100_000
GOOD = {
    "label": "FedAvg", "task": "t", "settings": {}, "seconds": 1.0, "compile_seconds": 0.0, "notes": [],
    "evaluations": {"round": [0], "seconds": [0.0], "train_loss": [1.0]}, "rounds": {"round": []},
}  # fmt: skip
HOSTILE = {
    "lists": ("history.json", "[" * DEEP),
    "tables": ("history.json", '{"a":' * DEEP),
    "deep but whole": (
        "history.json",
        json.dumps(GOOD | {"settings": {"a": 0}}).replace("0}", "[" * 80 + "]" * 80 + "}"),
    ),
    "dotted key": ("config.toml", "a" + ".a" * 20_000 + " = 1"),
    "dotted table": ("config.toml", "[1" + ".1" * 20_000 + "]"),
    "quoted key": ("config.toml", '""' + '.""' * 20_000 + " = 1"),
    "nested list": ("config.toml", "a = " + "[" * DEEP),
    "nested whole list": ("config.toml", "task = 'digits'\nmethod = " + "[" * 80 + "]" * 80),
    "large number": ("history.json", json.dumps(GOOD | {"rounds": {"round": [10**400]}})),
    "label": ("history.json", json.dumps(GOOD | {"label": {"a": 1}})),
    "task": ("history.json", json.dumps(GOOD | {"task": ["a"]})),
    "notes": ("history.json", json.dumps(GOOD | {"notes": [1, {}]})),
    "seconds": ("history.json", json.dumps(GOOD | {"seconds": [1]})),
    "no table": ("history.json", "[1, 2]"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_shown_is_refused_in_one_line(call, tmp_path, kind):
    name, text = HOSTILE[kind]
    (tmp_path / name).write_text(text)
    began = time.process_time()
    ended = call("show", tmp_path)
    assert time.process_time() - began < 5
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert kind not in ("dotted key", "dotted table", "quoted key") or "100 dots" in ended.err


@pytest.mark.parametrize("kind", [kind for kind, (name, _) in HOSTILE.items() if name == "history.json"])
def test_what_is_loaded_is_refused_in_one_line(tmp_path, kind):
    (tmp_path / "history.json").write_text(HOSTILE[kind][1])
    with pytest.raises(fs.InvalidInput) as error:
        fs.load(tmp_path)
    assert "history.json" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 500


def test_a_checkpoint_with_a_strange_header_is_refused(call, tmp_path):
    """Sealed as it should be: a seal is no signature."""
    (tmp_path / "config.toml").write_text(CONFIG)
    deep: list = []
    for _ in range(300):
        deep = [deep]
    junk = b"no rows of a record"
    (tmp_path / "record.bin").write_bytes(junk)
    facts = {"bytes": len(junk), "checksum": zlib.crc32(junk), "evaluations": 1, "rounds": 1, "seconds": 1.0}
    no_rows = {"record": facts, "identity": {}}
    for manifest in ({"record": deep}, {"record": {"bytes": "x"}}, {}, deep, no_rows):
        write_arrays(tmp_path / "checkpoint.safetensors", {"x": np.zeros(1)}, manifest)
        ended = call("show", tmp_path)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "checkpoint.safetensors holds no record" in ended.err


def test_long_lines_that_are_no_keys_are_read(tmp_path):
    """Dots of numbers and of remarks are not counted."""
    path = tmp_path / "c.toml"
    path.write_text(f"# {'.' * 119}\ngrid = [{', '.join(['0.1'] * 300)}]\ntitle = 'a. b. c.'\n")
    assert len(read_toml(path)["grid"]) == 300


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("fedsolve-data.json", fs.data.open),
        ("state.json", lambda folder: fs.data.from_table(folder, x=["a"], y="b", client="c")),
    ],
)
def test_data_of_others_are_refused_in_one_line(tmp_path, name, read):
    """A folder of data, and one of Hugging Face's datasets."""
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_text('{"a":' * DEEP)
    with pytest.raises(fs.InvalidInput) as error:
        read(tmp_path)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


# Folders of `fs.run` and `fs.compare` are shown; what cannot be run from them says so.

DRAW = np.random.default_rng(0)
CLIENTS = [fs.Examples(DRAW.normal(size=(8, 3)), DRAW.normal(size=8)) for _ in range(4)]
TASK = fs.Task.from_arrays(
    lambda w, b: jnp.mean((b.x @ w["w"] - b.y) ** 2), {"w": np.zeros(3)}, CLIENTS, batch_size=4
)
METHODS = {"plain": fs.FedAvg(0.1), "own": fs.FedOpt(fs.client.SGD(0.1), fs.server.Adaptive(0.01))}


def compare(folder, **options):
    return fs.compare(METHODS, TASK, out=folder, **({"rounds": 4} | options))


def shown(capsys, folder):
    assert main(["show", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.full
def test_a_comparison_is_shown(tmp_path, capsys):
    compare(tmp_path, seeds=2)
    document = shown(capsys, tmp_path)
    assert document["status"] == "finished"
    assert [m["label"] for m in document["methods"]] == [
        f"{label}, seed {seed}" for label in METHODS for seed in (0, 1)
    ]
    assert main(["show", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "method own: FedOpt(local=SGD(lr=0.1" in " ".join(text.split())
    assert "task: custom, 4 clients" in text
    assert "method plain" not in text


# Each way to write a folder, with methods and a task of the user's own and labels with spaces and Unicode.

OWN = fs.FedOpt(fs.client.SGD(0.1), fs.server.Adaptive(0.01))
LABELS = {"FedAvg": fs.FedAvg(0.1), "Ärzte µ": OWN, "a b": fs.FedAvg(0.2)}
NAMED = dataclasses.replace(TASK, name="thermo mètres")
WRITERS = {
    "run": lambda out, **more: fs.run(OWN, NAMED, rounds=2, out=out, **more),
    "seeds": lambda out, **more: fs.run(OWN, NAMED, rounds=2, seeds=2, out=out, **more),
    "comparison": lambda out, **more: fs.compare(LABELS, NAMED, rounds=2, out=out, **more),
    "sweep": lambda out, **more: fs.sweep(fs.FedAvg, NAMED, {"client_lr": [0.1, 0.2]}, rounds=2, out=out, **more),
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """`written(kind)`: the folder that Python leaves of a run and so on, or what `save` writes of it."""
    home = tmp_path_factory.mktemp("Ordner ö")

    def folder(kind):
        if not (home / kind).exists():
            if (base := kind.removeprefix("saved ")) == kind:
                WRITERS[kind](home / kind)
            else:
                fs.load(folder(base)).save(home / kind)
        return home / kind

    return folder


@pytest.mark.full_rows("sweep")
@pytest.mark.parametrize("kind", [saved + kind for kind in WRITERS for saved in ("", "saved ")])
def test_every_folder_is_read_by_every_command(call, written, no_pictures, kind):
    """A command prints what it can; where it can do nothing with a folder, one line says what the folder holds."""
    if "sweep" in kind:
        pytest.importorskip("pyarrow")
    folder = written(kind)
    loaded = fs.load(folder)
    assert (
        loaded.task == NAMED.name if "sweep" in kind else {h.task for h in loaded.histories} == {NAMED.name}
    )
    for more in ((), ("--json",)):
        shown = call("show", folder, *more)
        assert (shown.code, shown.err) == (0, "")
        assert "sweep" in kind or NAMED.name in shown.out

    cited = call("cite", folder)
    own = {"sweep": 0, "comparison": 1}.get(kind.removeprefix("saved "), 1)
    assert cited.code == 0
    assert "bradbury2018jax" in cited.out
    assert ("mcmahan2017fedavg" in cited.out) == ("comparison" in kind or "sweep" in kind)
    assert f"the task {NAMED.name}" in cited.err
    assert ("the method" in cited.err) == bool(own)
    assert cited.err.count("\n") == 1

    one, several = "run" in kind, "holds several runs: give the folder of one"
    why = "a sweep, which stores no models" if "sweep" in kind else several
    exported = call("export", folder, "--to", "safetensors", "--out", "m.safetensors")
    assert (exported.code == 0) if one else (exported.code == 2 and why in exported.err)
    predicted = call("predict", folder, "--input", "x.csv", "--out", "y.csv")
    assert predicted.code == 2
    assert ("names no task that a command can build" if one else why) in predicted.err
    resumed = call("run", "--resume", folder)
    assert resumed.code == 2
    assert ("run the script again, with resume=True" in resumed.err) == (
        kind in ("run", "seeds", "comparison")
    )
    assert resumed.err.count("\n") == 1


def test_the_folder_of_runs_that_have_nothing_in_common(call, tmp_path, written):
    result = fs.load(written("run"))
    for name in ("a", "b"):
        result.save(tmp_path / name)
    for command in ("show", "cite"):
        ended = call(command, tmp_path)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert "several runs, not of one comparison: give the folder of one" in ended.err


def test_the_papers_of_a_study(call, tmp_path):
    methods = (
        '[[method]]\nname = "FedAvg"\ngrid = { client_lr = [0.1, 1.0] }\n[[method]]\nname = "SCAFFOLD"\n'
    )
    (tmp_path / "mine.toml").write_text(f'task = "digits"\n[study]\nseeds = 2\n{methods}')
    cited = call("cite", tmp_path / "mine.toml")
    assert (cited.code, cited.err) == (0, "")
    assert cited.out.count("@") == 5  # two methods, the digits, their partition, JAX
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "results.json").write_text("{}")
    refused = call("cite", tmp_path / "runs")
    assert refused.code == 2
    assert refused.err.endswith("has the results of a study: give the study's TOML file\n")


def test_a_federation_has_no_task_to_cite(call, tmp_path, written):
    result = fs.load(written("run"))
    history = dataclasses.replace(result.history, task="federation", label="FedAvg")
    dataclasses.replace(result, history=history).save(tmp_path)
    cited = call("cite", tmp_path)
    assert (cited.code, cited.err) == (0, "")
    assert "mcmahan2017fedavg" in cited.out


def test_a_sweep_goes_on_beside_its_record(written, no_pictures):
    pytest.importorskip("pyarrow")
    first = fs.load(folder := written("sweep"))
    again = WRITERS["sweep"](folder, resume=True)
    np.testing.assert_array_equal(again.metrics["train_loss"], first.metrics["train_loss"])


@pytest.mark.full
def test_what_a_run_had_is_in_its_configuration(tmp_path):
    fs.run(
        fs.FedAvg(0.1),
        TASK,
        rounds=3,
        sampling=fs.sampling.Bernoulli(0.5),
        dtype="float64",
        out=tmp_path / "a",
    )
    config = load(tmp_path / "a")
    assert (config.run.rounds, config.run.participation, config.run.dtype) == (3, 0.5, "float64")
    assert [m.name for m in config.method] == ["FedAvg"]
    weights = fs.sampling.Weighted(np.ones(4), 2)
    fs.run(fs.FedAvg(0.1), TASK, rounds=2, sampling=weights, out=tmp_path / "b")
    assert set(load(tmp_path / "b").unnamed) == {"task", "sampling"}


@pytest.mark.full
def test_an_interrupted_comparison_says_how_it_goes_on(tmp_path, capsys, monkeypatch):
    """The second method, which may run meanwhile, begins no round before the first is asked to stop."""
    asked, run_rounds = threading.Event(), scheduler.run_rounds

    def callbacks(label):
        def stop(at):
            if at.round == 2:
                (tmp_path / "plain" / STOP).touch()
                asked.set()

        return [stop] if label == "plain" else []

    def own_waits(prepared, *rest):
        if prepared.label == "own":
            assert asked.wait(60)
            raise fs.Interrupted("before its first round")
        return run_rounds(prepared, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "run_rounds", own_waits)
        with pytest.raises(fs.Interrupted):
            compare(tmp_path, callbacks=callbacks, eval_every=1)
    assert main(["show", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())

    assert re.search(r"plain: unfinished, [23] of 4 rounds", text)
    assert "own: waiting" in text
    assert "resume=True" in text
    compare(tmp_path, resume=True, eval_every=1)
    assert shown(capsys, tmp_path)["status"] == "finished"


def test_it_is_not_run_from_its_configuration(tmp_path, capsys):
    compare(tmp_path)
    for words in (["compare", "--config", str(tmp_path)], ["compare", "--resume", str(tmp_path)]):
        assert main(words) == 2
        assert (
            "was written by a Python script, and a configuration cannot name its task, method own: run"
            in capsys.readouterr().err
        )


@pytest.mark.full
def test_what_the_catalogues_name_is_run_again_and_gone_on_with(tmp_path, capsys, no_pictures):
    """One of each: a held-out share, a partition, an option that is no default, a penalty, a rate by round."""
    task = fs.tasks.digits(20, partition=fs.data.Dirichlet(0.5), model="softmax").hold_out(0.1)
    method = fs.FedMiD(L1(1e-4).on("weight"), fs.schedules.Exponential(0.1, 0.9))
    options = {"rounds": 2, "sampling": fs.sampling.Bernoulli(0.5), "dtype": "float64"}
    fs.run(method, task, out=tmp_path / "one", seed=3, **options)
    assert main(["run", "--config", str(tmp_path / "one"), "--out", str(tmp_path / "two")]) == 0
    one, two = fs.load(tmp_path / "one"), fs.load(tmp_path / "two")
    for name in ("weight", "bias"):
        np.testing.assert_array_equal(one.params[name], two.params[name])
    assert one.history.final("validation_loss") == two.history.final("validation_loss")
    assert main(["run", "--resume", str(tmp_path / "one")]) == 0
    fs.compare({"a": method, "b": method}, task, out=tmp_path / "both", **options)
    assert main(["compare", "--resume", str(tmp_path / "both")]) == 0
    assert "finished before" in capsys.readouterr().err


def test_a_task_that_was_changed_afterwards_has_no_name(tmp_path):
    """`replace` may change anything; an option may be a model of the user's own."""
    task = fs.tasks.digits(20, model=fs.tasks.Softmax(64, 10))
    assert task.made_by.options.keys() == {"num_clients", "model"}
    fs.run(fs.FedAvg(), task, rounds=1, out=tmp_path / "own")
    assert set(load(tmp_path / "own").unnamed) == {"task option model"}
    assert dataclasses.replace(task, batch_size=3).made_by is None
    assert task.hold_out(0.1, by="client").made_by is task.hold_out(0.1, seed=1).made_by is None


def test_a_refused_run_leaves_the_folder_of_another_as_it_was(tmp_path):
    compare(tmp_path)
    before = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(fs.InvalidInput, match="holds a comparison already"):
        compare(tmp_path, rounds=9)
    assert (tmp_path / "config.toml").read_bytes() == before


# `fedsolve show --follow` until a run has ended, and `fedsolve stop`.


def at_each_wait(monkeypatch, module, *steps):
    """What happens while a module waits: one step after another."""
    left = iter(steps)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: next(left)())


def test_a_run_is_followed_until_it_ends(call, tmp_path, monkeypatch):
    run, hold = tmp_path / "a", ExitStack()
    write_run(run, 40, [0.9, 0.5])
    hold.enter_context(locked(run))

    def end():
        finish(run, "FedAvg", [0.9, 0.5, 0.2, 0.1])
        hold.close()

    steps = (lambda: None, lambda: write_run(run, 80, [0.9, 0.5, 0.2]), lambda: None, end)
    at_each_wait(monkeypatch, show, *steps)
    ended = call("show", run, "--follow")
    assert ended.code == 0
    heads = [line for line in ended.out.splitlines() if line.startswith(("digits,", "FedAvg:"))]
    at = "digits, 100 rounds"  # each state once, and none of another run that was there before
    assert heads == [at, "FedAvg: running, 40 of 100 rounds", at, "FedAvg: running, 80 of 100 rounds", at]


def test_ctrl_c_ends_following_alone(call, tmp_path, monkeypatch):
    write_run(tmp_path / "a", 40, [0.9, 0.5])

    def press():
        raise KeyboardInterrupt

    at_each_wait(monkeypatch, show, press)
    with locked(tmp_path / "a"):
        ended = call("show", tmp_path / "a", "--follow")
    assert (ended.code, ended.err) == (130, "error: no longer followed; what runs goes on\n")
    assert not (tmp_path / "a" / STOP).exists()


def test_a_killed_run_is_not_followed_for_ever(call, tmp_path, monkeypatch):
    write_run(tmp_path / "a", 40, [0.9, 0.5])
    monkeypatch.setattr(show, "_IDLE_SECONDS", 0.0)
    ended = call("show", tmp_path / "a", "--follow")
    assert ended.code == 0
    assert "FedAvg: unfinished, 40 of 100 rounds\nresume with: fedsolve run --resume" in ended.out


def test_a_run_is_asked_to_stop_and_resumed(tmp_path):
    """The same bits as of a run that nobody stopped."""
    task, options = fs.tasks.build("regression", num_clients=4), {"rounds": 60, "eval_every": 2}
    codes: list[int] = []
    asking = threading.Thread(target=lambda: codes.append(main(["stop", str(tmp_path)])))

    def ask(progress):
        if progress.round == 10:
            asking.start()
            while not (tmp_path / "a" / STOP).exists():
                asking.join(0.01)

    with pytest.raises(fs.Interrupted, match="resume"):
        fs.run(fs.FedAvg(client_lr=0.1), task, out=tmp_path / "a", progress=ask, **options)
    asking.join(60)
    assert codes == [0]
    assert not (tmp_path / "a" / STOP).exists()
    resumed = fs.run(fs.FedAvg(client_lr=0.1), task, out=tmp_path / "a", resume=True, **options)
    whole = fs.run(fs.FedAvg(client_lr=0.1), task, **options)
    losses = [run.history.evaluations["train_loss"] for run in (resumed, whole)]
    assert losses[0].tobytes() == losses[1].tobytes()


def test_a_comparison_that_prepares_is_asked_again(call, tmp_path, monkeypatch):
    """It holds its folder before its first method does, and reads what is in the method's folder alone."""
    both, method = locked(tmp_path), ExitStack()
    seen: list[list[Path]] = []

    def look():
        seen.append(sorted(path.parent for path in tmp_path.rglob(STOP)))

    def begin():
        look()
        method.enter_context(locked(tmp_path / "FedAvg"))

    def end():
        look()
        method.close()
        both.__exit__(None, None, None)

    both.__enter__()
    at_each_wait(monkeypatch, interrupt, begin, end)
    assert call("stop", tmp_path).code == 0
    assert seen == [[tmp_path], [tmp_path, tmp_path / "FedAvg"]]
    look()
    assert seen[-1] == []


def test_where_nothing_runs_nothing_is_asked(call, tmp_path):
    write_run(tmp_path / "a", 40, [0.9, 0.5])
    for folder in (tmp_path, tmp_path / "none"):
        ended = call("stop", folder)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert f"nothing runs in {folder}" in ended.err
    assert not [*tmp_path.rglob(STOP)]
