"""`fedsolve compare`: one folder for all methods, resumed without running the finished ones again."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import tomli_w
from cli_small import SMALL

from fedsolve.cli.progress import Lines
from fedsolve.engine import scheduler
from fedsolve.engine.scheduler import MethodProgress
from fedsolve.folders.files import slug
from fedsolve.folders.sealed import unsealed

CONFIG = """
task = "digits"
how_tuned = "Not at all: {0.1} & <b>."
[task_options]
num_clients = 4
model = "softmax"
[run]
rounds = 3
clients_per_round = 2
[[method]]
name = "FedAvg"
[[method]]
name = "FedExP"
label = "FedExP / slow"
settings = {client_lr = 0.01}
"""


@pytest.fixture
def config():
    Path("c.toml").write_text(CONFIG)
    return "c.toml"


@pytest.mark.full
def test_a_comparison_leaves_a_folder_for_each_method_and_one_page(call, config, monkeypatch):
    ended = call("compare", "--config", config, "--out", "c")
    assert ended.code == 0
    files = {"config.toml", "checkpoint.safetensors", "metrics.jsonl", "history.json", "model.safetensors"}
    for name in ("FedAvg", "FedExP-slow"):
        assert files <= {p.name for p in Path("c", name).iterdir()}
    assert {"comparison.png", "clients.png", "page.html", "config.toml"} <= {
        p.name for p in Path("c").iterdir()
    }
    assert Path("c/comparison.png").read_bytes().startswith(b"\x89PNG")
    page = Path("c/page.html").read_text()
    assert "Not at all: {0.1} &amp; &lt;b&gt;." in page
    note = "at default settings, not tuned for digits: FedAvg; tune before comparing: fedsolve sweep digits FedAvg"
    assert f"note: {note} --grid client_lr=1e-3:10:9log" in ended.out.replace("\n", " ")
    assert note in page
    assert "FedExP / slow" in ended.out
    assert call("show", "c").out.count("FedExP / slow") == 1
    assert "Rounds to" not in ended.out
    chosen = call("show", "c", "--metrics", "loss,accuracy", "--target", "1.5").out
    heads = next(line for line in chosen.splitlines() if "Method" in line)
    assert re.split(" {2,}", heads.strip()) == [
        "Method",
        "Final test loss",
        "Final test accuracy (%)",
        "Rounds to 1.5",
    ]
    document = call("show", "c", "--metrics", "loss", "--target", "100", "--json").document
    assert [m["result"]["rounds_to_target"] for m in document["methods"]] == [0, 0]
    wrong = call("compare", "--config", config, "--metrics", "acuracy", "--out", "none")
    assert (wrong.code, Path("none").exists()) == (2, False)
    assert wrong.err.startswith("error: unknown metric 'acuracy': did you mean 'accuracy'?")
    monkeypatch.setattr("fedsolve.cli.folders.can_draw", lambda: False)
    alone = call("run", "--config", "c/FedExP-slow/config.toml", "--out", "alone")
    assert alone.code == 0
    assert (
        Path("alone/model.safetensors").read_bytes() == Path("c/FedExP-slow/model.safetensors").read_bytes()
    )


def test_an_interrupted_comparison_runs_only_what_is_left(call, config, no_pictures, monkeypatch):
    Path(config).write_text(CONFIG.replace("rounds = 3", "rounds = 8").replace('label = "FedExP / slow"', ""))
    assert call("compare", "--config", config, "--out", "whole").code == 0

    def interrupt_second(self, progress):
        if progress.label != "FedAvg" and not interrupted:
            interrupted.append(signal.getsignal(signal.SIGINT))
            last = time.monotonic() + 60
            os.kill(os.getpid(), signal.SIGINT)
            while signal.getsignal(signal.SIGINT) is interrupted[0] and time.monotonic() < last:
                time.sleep(0.001)

    interrupted = []
    turn, begin, run_rounds, shown = threading.Event(), MethodProgress.attach, scheduler.run_rounds, []

    def begun(self, shown_by):
        begin(self, shown_by)
        shown.append(self)
        if len(shown) == 2:  # what FedExP tells from now on is seen
            turn.set()

    def in_its_turn(prepared, *rest):
        assert prepared.label == "FedAvg" or turn.wait(60)
        return run_rounds(prepared, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Lines, "advance", interrupt_second)
        patch.setattr(MethodProgress, "attach", begun)
        patch.setattr(scheduler, "run_rounds", in_its_turn)
        ended = call("compare", "--config", config, "--out", "c")
    assert ended.code == 130
    last = ended.err.splitlines()[-1]
    assert last.startswith("error: FedExP interrupted after round ")
    assert last.endswith("1 of 2 methods ended; resume with: fedsolve compare --resume c")
    shown = call("show", "c", "--json").document
    assert [m["status"] for m in shown["methods"]] == ["finished", "unfinished"]
    labels = []
    prepare = scheduler.prepare
    monkeypatch.setattr(scheduler, "prepare", lambda *a: labels.append(a[-1]) or prepare(*a))
    assert call("compare", "--resume", "c").code == 0
    assert labels == ["FedExP"]
    for name in ("FedAvg", "FedExP"):
        one, other = (Path(folder, name, "model.safetensors").read_bytes() for folder in ("c", "whole"))
        assert one == other


def test_names_and_settings_on_the_command_line(call, no_pictures):
    names = ("FedAvg", "FedExP")
    settings = ("--set", "client_lr=0.05", "--set", "server_lr=0.5", "--set", "FedExP.eps_g=0.1")
    ended = call("compare", "digits", *names, *SMALL, *settings, "--json", "--out", "c")
    assert ended.code == 0
    assert [m["label"] for m in ended.document["methods"]] == list(names)
    text = {name: Path("c", name, "config.toml").read_text() for name in names}
    assert all("client_lr = 0.05" in t for t in text.values())
    assert "server_lr = 0.5" in text["FedAvg"]
    assert "server_lr" not in text["FedExP"]
    assert "eps_g = 0.1" in text["FedExP"]


def test_one_method_that_diverges_does_not_stop_the_others(call, no_pictures):
    settings = ("--set", "FedAvg.client_lr=3e38")
    ended = call("compare", "digits", "FedAvg", "FedExP", *SMALL, *settings, "--json", "--out", "c")
    assert ended.code == 3
    assert [m["status"] for m in ended.document["methods"]] == ["diverged", "finished"]
    assert "not finite" in ended.document["methods"][0]["error"]
    assert ended.err.splitlines()[-1] == "error: diverged: FedAvg"
    again = call("compare", "--resume", "c", "--json")
    assert (again.code, again.document) == (3, ended.document)


def test_labels_that_make_the_same_folder_are_kept_apart(call, no_pictures):
    Path("c.toml").write_text(
        CONFIG.replace('"FedExP / slow"', '"FedAvg!"').replace("rounds = 3", "rounds = 1")
    )
    assert call("compare", "--config", "c.toml", "--out", "c").code == 0
    assert Path("c/FedAvg/model.safetensors").exists()
    assert Path("c/FedAvg-2/model.safetensors").exists()


@pytest.mark.full
def test_methods_may_be_given_labels(call, no_pictures):
    """One method twice, each with its settings; a label of a file is replaced by the one that is typed."""
    names = ("slow=FedAvg", "fast=FedAvg", "FedExP")
    rates = ("--set", "slow.client_lr=0.01", "--set", "fast.client_lr=0.3")
    ended = call("compare", "digits", *names, *rates, *SMALL, "--json", "--out", "c")
    assert ended.code == 0
    assert [(m["label"], m["algorithm"]) for m in ended.document["methods"]] == [
        ("slow", "FedAvg"), ("fast", "FedAvg"), ("FedExP", "FedExP"),
    ]  # fmt: skip
    alone = call("run", "digits", "other=FedAvg", "--set", "other.client_lr=0.3", *SMALL, "--out", "r")
    assert alone.code == 0
    assert losses("r") == losses("c/fast") != losses("c/slow")
    assert json.loads(Path("r/history.json").read_text())["label"] == "other"
    again = call("compare", "digits", "quick=fast", "slow", "--config", "c", "--json", "--out", "d")
    assert [m["label"] for m in again.document["methods"]] == ["quick", "slow"]
    assert losses("d/quick") == losses("c/fast")


def losses(folder):
    return [json.loads(line)["train_loss"] for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            ("a=FedAvg", "a=FedExP"),
            "two methods are called 'a': give each a label of its own, such as slow=NAME",
        ),
        (("FedAvg=FedExP", "FedAvg"), "two methods are called 'FedAvg': give each a label of its own"),
        (("=FedAvg", "FedExP"), "'=FedAvg': the label before = is empty: give one, such as slow=FedAvg"),
        (("a=FedAvgg", "FedExP"), "unknown algorithm 'FedAvgg': did you mean 'FedAvg'?"),
        (("--config", "c.toml", "a=lr=0.1", "a=FedExP"), "two methods are called 'a'"),
        (("--config", "c.toml", "lr=0.1"), "only lr=0.1 to compare"),
    ],
)
def test_a_label_that_cannot_be_is_one_line(call, names, told):
    Path("c.toml").write_text(
        '[[method]]\nname = "FedAvg"\nlabel = "lr=0.1"\n[[method]]\nname = "FedExP"\nlabel = "b"\n'
    )
    ended = call("compare", "digits", *names, *SMALL)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert told in ended.err


def test_methods_that_minimise_different_objectives_are_told_apart():
    """The note names who weighs how; with one weighting for all there is none."""
    import fedsolve as fs
    from fedsolve.config.weighting import different_objectives

    (note,) = different_objectives({"FedAvg": fs.FedAvg(), "FedExP": fs.FedExP()}, "--weighting uniform")
    assert "FedExP minimises the mean loss over clients" in note
    assert "FedAvg over examples; one for all: --weighting uniform" in note
    (note,) = different_objectives({"FedAvg": fs.FedAvg(), "FedExP": fs.FedExP(), "a": fs.FedExP()}, "it")
    assert "FedExP, a minimise the mean loss over clients" in note
    same = {"FedAvg": fs.FedAvg(weighting="uniform"), "FedExP": fs.FedExP()}
    assert different_objectives(same, "--weighting uniform") == []


@pytest.mark.full
def test_one_weighting_for_all_is_kept_for_resuming_and_for_each_method(call, no_pictures):
    """`--weighting` reaches what has the setting, inside wrappers too; what weighs so by itself is left as it is."""
    names = ("FedAvg", "FedDyn", "FedProx+FedAvg")
    ended = call("compare", "digits", *names, *SMALL, "--weighting", "uniform", "--json", "--out", "c")
    assert ended.code == 0
    (note,) = ended.document["notes"]  # of defaults: a weighting tunes nothing, and objectives are one
    assert note.startswith(f"at default settings, not tuned for digits: {', '.join(names)};")
    assert 'weighting = "uniform"' in Path("c/config.toml").read_text().split("[", 1)[0]
    weighed = [json.loads(Path("c", slug(n), "history.json").read_text())["settings"] for n in names]
    assert [s.get("weighting") for s in weighed] == ["uniform", None, "uniform"]
    alone = call("run", "--config", "c/FedAvg", "--out", "alone")
    assert alone.code == 0
    assert Path("alone/model.safetensors").read_bytes() == Path("c/FedAvg/model.safetensors").read_bytes()
    grown = call("compare", "--resume", "c", "--rounds", "4", "--json").document
    assert (grown["rounds"], grown["notes"]) == (4, ended.document["notes"])


@pytest.mark.parametrize(
    ("names", "more", "told"),
    [
        (
            ["FedAvg", "FedExP"],
            ["--weighting", "equal"],
            "weighting = 'equal' must be 'uniform' or 'examples'",
        ),
        (
            ["FedAvg", "FedDyn"],
            ["--weighting", "examples"],
            "FedDyn cannot weigh clients by 'examples', it is 'uniform' alone: leave the method out or give "
            "--weighting uniform",
        ),
        (
            ["FedAvg", "FedExP"],
            ["--weighting", "uniform", "--set", "FedAvg.weighting=examples"],
            "FedAvg: weighting = 'examples' does not go with weighting = 'uniform' for all: give one of them",
        ),
    ],
)
def test_a_weighting_that_not_all_can_have_is_one_line(call, names, more, told):
    ended = call("compare", "digits", *names, *SMALL, *more)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.count("\n") == 1
    assert told in ended.err
    assert not Path("runs").exists()


def test_what_is_typed_replaces_the_weighting_of_a_file():
    from fedsolve.cli.configuration.command_options import CompareRequest
    from fedsolve.cli.configuration.overlay import from_options
    from fedsolve.cli.configuration.prepare import with_one_weighting

    weighed = {"weighting": "examples", "client_lr": 0.3}
    Path("c.toml").write_text(
        tomli_w.dumps({"task": "digits", "method": [{"name": "FedAvg", "settings": weighed}]})
    )
    config = from_options(CompareRequest(config=Path("c.toml"), weighting="uniform"))
    assert config.method[0].settings == {"client_lr": 0.3}
    assert with_one_weighting(config).method[0].settings == {"client_lr": 0.3, "weighting": "uniform"}


def test_a_former_spelling_in_a_configuration_is_the_method_of_now():
    from fedsolve.cli.configuration.config import parse

    names = ["FedLi-LS", "SCAFFOLD+FedFW+", "FedMiD-OSP"]
    config = parse({"task": "digits", "method": [{"name": name} for name in names]}, "here")
    assert [m.shown for m in config.method] == ["FedLiLS", "SCAFFOLD+FedFWPlus", "FedMiDOSP"]


@pytest.mark.full
def test_a_comparison_kept_under_a_former_spelling_is_resumed_where_it_is(call, no_pictures):
    assert call("compare", "digits", "FedLiLS", "FedAvg", *SMALL, "--out", "c").code == 0
    Path("c/FedLiLS").rename("c/FedLi-LS")
    for path in (*Path("c").rglob("config.toml"), *Path("c").rglob("history.json")):
        text, _ = unsealed(path, path.read_bytes())  # as it was left then
        path.write_text(text.replace("FedLiLS", "FedLi-LS"))
    former = Path("c/FedLi-LS/checkpoint.safetensors").read_bytes()
    methods = call("compare", "--resume", "c", "--json").document["methods"]
    assert [(m["label"], m["algorithm"], m["status"]) for m in methods] == [
        ("FedLi-LS", "FedLiLS", "finished"),
        ("FedAvg", "FedAvg", "finished"),
    ]
    assert sorted(p.name for p in Path("c").iterdir() if p.is_dir()) == ["FedAvg", "FedLi-LS"]
    assert Path("c/FedLi-LS/checkpoint.safetensors").read_bytes() == former
    grown = call("compare", "--resume", "c", "--rounds", "4", "--json").document
    assert [m["label"] for m in grown["methods"]] == ["FedLi-LS", "FedAvg"]
    assert Path("c/FedLi-LS/checkpoint.safetensors").read_bytes() != former


@pytest.mark.full
def test_a_comparison_of_seeds_has_a_row_for_each_method(call, no_pictures):
    """One seed of a method diverges alone only by chance: all of it do, the other method's seeds are compared."""
    words = ("digits", "FedAvg", "FedExP", *SMALL, "--set", "FedAvg.client_lr=3e38", "--seeds", "2")
    ended = call("compare", *words, "--json", "--out", "c")
    assert ended.code == 3
    methods = ended.document["methods"]
    assert [(m["label"], m["status"], m["result"]["seeds"]) for m in methods] == [
        ("FedAvg", "diverged", 2), ("FedExP", "finished", 2),
    ]  # fmt: skip
    assert [n[:16] for n in ended.document["notes"][:2]] == ["FedAvg, seed 0: ", "FedAvg, seed 1: "]
    again = call("compare", "--resume", "c", "--json")
    assert again.document["methods"] == methods
    assert "finished before" in again.err
    assert '"low":' in Path("c/page.html").read_text()
