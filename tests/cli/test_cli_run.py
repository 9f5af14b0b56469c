"""`fedsolve run`: what it writes, that it is the library's run, and that it can be repeated and continued."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tomllib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cli_small import SMALL
from safetensors.numpy import load_file

import fedsolve as fs
from fedsolve.cli.configuration.command_options import RunRequest
from fedsolve.cli.configuration.overlay import from_options
from fedsolve.cli.progress import Lines
from fedsolve.core.errors import InvalidInput
from fedsolve.results.history import History

RUN = ("run", "digits", "FedAvg", *SMALL)


def model(folder):
    return Path(folder, "model.safetensors").read_bytes()


def test_a_run_leaves_its_record_model_pictures_and_page(call):
    ended = call(*RUN, "--out", "r")
    assert ended.code == 0
    assert {p.name for p in Path("r").iterdir()} == {
        ".lock", "config.toml", "checkpoint.safetensors", "record.bin", "metrics.jsonl", "history.json",
        "model.safetensors", "curves.png", "clients.png", "page.html",
    }  # fmt: skip
    assert "FedAvg" in ended.out
    assert "page.html" in ended.out
    assert "\x1b" not in ended.out + ended.err  # no terminal here: no control characters in logs
    assert "FedAvg: compiling" in ended.err
    assert "round 1 of 3, test accuracy" in ended.err
    lines = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    history = History.from_json(Path("r/history.json").read_text())
    assert history.settings["clients_per_round"] == 2
    assert history.settings["client_lr"] == 0.1
    assert history.settings["task.partition"] == "{name = dirichlet, alpha = 0.3}"


@pytest.mark.full
def test_the_model_is_the_one_of_the_library(call, no_pictures):
    first = "{schedule='exponential', initial=0.2, decay=0.5}"
    rate = f"client_lr={{schedule='join', boundaries=[2], schedules=[{first}, 0.07]}}"
    settings = ("--set", rate, "--set", "mu=0.3")
    work = ("--batch-size", "16", "--local-steps", "4", "--seed", "7", "--eval-every", "2", "--chunk", "1")
    args = ("run", "digits", "FedProx+FedExP", *SMALL, *settings, *work, "--dtype", "float64")
    assert call(*args, "--task-set", "partition=shards", "--out", "r").code == 0
    joined = optax.join_schedules([fs.schedules.Exponential(0.2, 0.5), lambda round: jnp.asarray(0.07)], [2])
    inner = fs.FedExP(client_lr=joined)
    task = fs.tasks.digits(num_clients=4, model="softmax", partition="shards")
    expected = fs.run(
        fs.Proximal(inner, 0.3), task, rounds=3, clients_per_round=2, batch_size=16, local_steps=4, seed=7,
        eval_every=2, chunk=1, dtype="float64",
    )  # fmt: skip
    saved = load_file("r/model.safetensors")
    assert set(saved) == {"weight", "bias"}
    for name, array in saved.items():
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, getattr(expected.params, name))
    assert call("run", "--config", "r/config.toml", "--out", "again").code == 0
    assert model("again") == model("r")


@pytest.mark.full
def test_the_saved_configuration_runs_again_with_the_same_bits(call, no_pictures):
    plateau = "client_lr={schedule='reduce_on_plateau', initial=2.0, metric='train_loss', patience=1}"
    args = (
        "run",
        "digits",
        "SCAFFOLD+FedDuAdam",
        "--set",
        plateau,
        "--rounds",
        "3",
        "--participation",
        "0.6",
    )
    sizes = ("--task-set", "num_clients=5", "--task-set", "model=softmax")
    assert call(*args, *sizes, "--dtype", "float64", "--seed", "3").code == 0
    assert call("run", "--config", "runs/digits-SCAFFOLD+FedDuAdam-1/config.toml").code == 0
    first, second = (Path(f"runs/digits-SCAFFOLD+FedDuAdam-{n}") for n in (1, 2))
    assert model(first) == model(second)
    assert (first / "config.toml").read_text() == (second / "config.toml").read_text()
    assert call("run", "--config", second, "--seed", "4", "--out", "other").code == 0  # a folder will do
    assert model("other") != model(first)


def test_the_saved_configuration_has_every_default(finished):
    finished(*RUN)
    text = Path("r/config.toml").read_text()
    assert re.match(rf"# fedsolve {re.escape(fs.__version__)}, (commit \w+( with changes)?, )?jax ", text)
    table = tomllib.loads(text)
    assert table["run"] == {
        "rounds": 3, "clients_per_round": 2, "seed": 0, "batch_size": 32, "epochs": 1, "eval_every": 1,
        "dtype": "float32", "chunk": 2, "devices": 1, "microbatches": 1,
    }  # fmt: skip
    assert table["task_options"] == {
        "num_clients": 4, "partition": {"name": "dirichlet", "alpha": 0.3}, "model": "softmax", "seed": 0,
    }  # fmt: skip
    settings = {"client_lr": 0.1, "server_lr": 1.0, "weighting": "examples"}
    assert table["method"] == [{"name": "FedAvg", "label": "FedAvg", "settings": settings}]


def test_options_go_over_the_file(call, no_pictures):
    Path("c.toml").write_text(
        'task = "digits"\ntask_options = {num_clients = 5, model = "softmax"}\n[run]\nrounds = 9\n'
        "local_steps = 2\nparticipation = 0.5\n"
        '[[method]]\nname = "FedAvg"\nsettings = {client_lr = 0.5, server_lr = 2.0}\n'
    )
    typed = ("--rounds", "2", "--epochs", "1", "--clients-per-round", "2", "--set", "client_lr=0.25")
    ended = call("run", "--config", "c.toml", *typed, "--task-set", "num_clients=4", "--out", "r")
    assert ended.code == 0
    table = tomllib.loads(Path("r/config.toml").read_text())
    assert table["run"].items() >= {"rounds": 2, "epochs": 1, "clients_per_round": 2}.items()
    assert not {"local_steps", "participation"} & table["run"].keys()
    assert table["task_options"]["num_clients"] == 4
    assert table["method"][0]["settings"].items() >= {"client_lr": 0.25, "server_lr": 2.0}.items()


def test_json_is_one_document(call, no_pictures):
    ended = call(*RUN, "--json", "--out", "r")
    assert ended.code == 0
    document = ended.document
    assert document["status"] == "finished"
    assert document["folder"] == "r"
    history = History.from_json(Path("r/history.json").read_text())
    assert document["result"]["final_test_accuracy"] == history.final("test_accuracy")
    assert Path(document["files"]["page"]).is_file()


def test_more_rounds_continue_with_the_same_bits(call, finished):
    whole = ("--eval-every", "1")
    call(*RUN, *whole, "--rounds", "5", "--out", "whole")
    finished(*RUN)
    assert call("run", "--resume", "r", "--rounds", "5").code == 0
    assert model("r") == model("whole")
    assert tomllib.loads(Path("r/config.toml").read_text())["run"]["rounds"] == 5


def test_a_run_begins_with_a_former_one_and_outlives_it(call, finished, no_pictures):
    """The configuration names it, `show` says so, and the run is resumed when the former one is gone."""
    finished(*RUN)
    begun = ("--from", "r", "--eval-every", "1")
    call(*RUN, *begun, "--rounds", "2", "--out", "whole")
    assert call(*RUN, *begun, "--rounds", "1", "--out", "b").code == 0
    assert tomllib.loads(Path("b/config.toml").read_text())["run"]["start"] == "r"
    shutil.rmtree("r")
    assert call("run", "--resume", "b", "--rounds", "2").code == 0
    assert model("b") == model("whole")
    assert "began with the model of r (FedAvg on digits, 3 rounds)" in call("show", "b").out
    refused = call(*RUN, "--from", "r", "--out", "c")
    assert (refused.code, Path("c").exists()) == (2, False)
    assert "start = 'r': there is no such folder" in refused.err
    assert "--from does not go with --resume" in call("run", "--resume", "b", "--from", "r").err


def test_resuming_a_finished_run_changes_nothing(call, finished):
    finished(*RUN)
    before = {p.name: p.read_bytes() for p in Path("r").iterdir() if p.name != "page.html"}
    assert call("run", "--resume", "r").code == 0
    after = {p.name: p.read_bytes() for p in Path("r").iterdir() if p.name in before}
    del before["history.json"], after["history.json"]  # it holds the seconds of compilation
    assert after == before


def test_an_interrupted_run_says_how_to_resume_and_ends_with_the_same_bits(call, no_pictures, monkeypatch):
    call(*RUN, "--rounds", "6", "--out", "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Lines, "advance", lambda self, progress: os.kill(os.getpid(), signal.SIGINT))
        ended = call(*RUN, "--rounds", "6", "--out", "a folder")
    assert ended.code == 130
    assert ended.err.splitlines()[-1].endswith("of 6; resume with: fedsolve run --resume 'a folder'")
    assert not Path("a folder/model.safetensors").exists()
    shown = call("show", "a folder")
    assert "FedAvg: unfinished, 2 of 6 rounds" in shown.out
    assert "fedsolve run --resume 'a folder'" in shown.out
    assert call("run", "--resume", "a folder").code == 0
    assert model("a folder") == model("whole")


def test_divergence_is_told_and_kept(call, no_pictures):
    ended = call(*RUN, "--set", "client_lr=3e38", "--out", "r")
    assert ended.code == 3
    assert ended.err.splitlines()[-1].startswith("error: round ")
    assert "client_lr 3e+38" in ended.err
    shown = call("show", "r", "--json")
    assert shown.document["methods"][0]["status"] == "diverged"
    assert shown.document["methods"][0]["result"]["final_train_loss"] == "NaN"


def test_a_full_disk_loses_nothing(call, finished, monkeypatch):
    finished(*RUN)
    before = Path("r/checkpoint.safetensors").read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        ended = call("run", "--resume", "r", "--rounds", "4")
    assert ended.code == 2
    assert "No space left on device" in ended.err.splitlines()[-1]
    assert Path("r/checkpoint.safetensors").read_bytes() == before
    assert not [p for p in Path("r").iterdir() if p.name.startswith(".") and p.name != ".lock"]
    assert call("run", "--resume", "r", "--rounds", "4").code == 0


def test_a_bug_keeps_its_traceback(call, monkeypatch):
    def broken(path):
        raise RuntimeError("a bug")

    monkeypatch.setattr("fedsolve.cli.configuration.config.read_toml", broken)
    Path("c.toml").write_text("")
    with pytest.raises(RuntimeError, match="a bug"):
        call("cite", "c.toml")
    assert not issubclass(RuntimeError, InvalidInput)


def test_ctrl_c_before_the_run_is_one_line(call, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsolve.cli.runs.prepare", interrupted)
    ended = call(*RUN)
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.splitlines()[-1] == "error: interrupted before the run began"
    assert not list(Path().iterdir())


@pytest.mark.full
def test_several_seeds_are_one_row_and_go_on(call, no_pictures):
    """Each seed has the model of its run alone; a longer run goes on with all of them."""
    ended = call("run", "digits", "FedAvg", *SMALL, "--seeds", "1,4", "--out", "r", "--json")
    assert ended.code == 0
    result = ended.document["result"]
    assert (result["seed"], result["seeds"]) == ("1, 4", 2)
    assert result["deviations"]["final_test_accuracy"] > 0
    assert "seeds = [\n    1,\n    4,\n]" in Path("r/config.toml").read_text()
    assert call("run", "digits", "FedAvg", *SMALL, "--seed", "4", "--out", "one").code == 0
    one, other = (Path(f, "model.safetensors").read_bytes() for f in ("one", "r/seed-4"))
    assert one == other
    assert [m["label"] for m in call("show", "r", "--json").document["methods"]] == [
        "FedAvg, seed 1", "FedAvg, seed 4",
    ]  # fmt: skip
    assert "±" in call("run", "--resume", "r", "--rounds", "4").out
    assert fs.load("r/seed-1").metrics["round"][-1] == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--seeds", "2", "--seed", "1"), "give --seed or --seeds, not both"),
        (("--seeds", "0"), "--seeds 0 must be at least 1"),
        (("--seeds", "1,1"), "seeds = [1, 1] must be how many, at least 1, or different integers"),
    ],
)
def test_seeds_that_cannot_be(call, words, told):
    ended = call("run", "digits", "FedAvg", *SMALL, *words, "--out", "r")
    assert ended.code == 2
    assert told in ended.err
    assert not Path("r").exists()


@pytest.mark.full
def test_examples_are_held_out_and_the_configuration_says_so(call, no_pictures):
    assert call(*RUN, "--validation", "0.2", "--out", "r").code == 0
    assert "validation = 0.2" in Path("r/config.toml").read_text()
    assert "validation_accuracy" in fs.load("r").metrics
    again = call("run", "--config", "r", "--out", "again")
    assert again.code == 0
    assert model("again") == model("r")
    assert call(*RUN, "--validation", "1.5").code == 2


@pytest.mark.full
def test_an_edited_configuration_is_resumed_as_it_was_where_it_decides_a_bit(call, no_pictures):
    """Rounds between evaluations: refused under a rate that reacts to them, else told."""
    rate = 'client_lr={schedule="reduce_on_plateau", initial=0.1, metric="train_loss", patience=1}'
    for words, code, says in (
        (
            ("--set", rate),
            2,
            "has eval_every = 2, this run 1, and its rate reacts to evaluations: give eval_every = 2",
        ),
        ((), 0, "evaluated every 2 rounds up to round 2, from there on every 1"),
    ):
        folder = Path(f"r{code}")
        assert (
            call(
                "run", "digits", "FedAvg", *SMALL, "--rounds", 2, "--eval-every", 2, *words, "--out", folder
            ).code
            == 0
        )
        config = folder / "config.toml"
        config.write_text(config.read_text().replace("eval_every = 2", "eval_every = 1"))
        ended = call("run", "--resume", folder, "--rounds", 4)
        assert ended.code == code
        assert says in ended.out + ended.err


def test_a_tuned_setting_lies_below_ones_own(call, capsys):
    """It is in the configuration as if it had been typed; standard error says where it is from and what differs."""
    typed = RunRequest(task="femnist", name="FedAdam", tuned=True, settings=["tau=0.01"], run={"rounds": 60})
    config = from_options(typed)
    assert config.method[0].settings == {"client_lr": 10**-1.5, "server_lr": 10**-2.5, "tau": 0.01}
    assert config.run.rounds == 60
    told = capsys.readouterr().err
    assert "the study femnist (as in FedOpt): test_accuracy 0.6353" in told
    assert "clients_per_round 10 there, default here" in told
    assert "rounds 60 there" not in told
    assert "in place of it, as you say: tau 0.01" in told
    # not another model's in silence, and nothing is begun
    refused = call("run", "digits", "FedAdam", "--tuned", *SMALL)
    assert (refused.code, refused.err.count("\n"), os.path.exists("runs")) == (2, 1, False)
    assert "there, 4 here" in refused.err
    unknown = call("run", "digits", "FedBuff", "--tuned")
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert call("compare", "digits", "FedAvg", "FedAdam", "--tuned").code == 2
