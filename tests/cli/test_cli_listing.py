"""`fedsolve list`, `show` and `cite`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_small import SMALL

import printed
from fedsolve.config.catalogue import ALGORITHMS, BIBTEX, short, title
from fedsolve.data.partitions import PARTITIONS
from fedsolve.tasks.catalogue import TASKS

CATALOGUES = {"algorithms": ALGORITHMS, "tasks": TASKS, "partitions": PARTITIONS}


@pytest.mark.parametrize("kind", CATALOGUES)
def test_a_list_has_every_entry_with_its_paper(call, kind):
    ended = call("list", kind)
    assert ended.code == 0
    lines = ended.out.splitlines()[1:]
    for line, (name, entry) in zip(lines, CATALOGUES[kind].items(), strict=False):
        assert line.split()[0] == name
        assert entry.summary in line
        assert line.endswith(short(entry.citation))
    rows = call("list", kind, "--json").document
    assert {row["name"] for row in rows} >= set(CATALOGUES[kind])
    assert len(rows) == len(lines)
    assert all(row["title"] for row in rows)


def test_settings_and_options_are_listed_with_their_defaults(call):
    algorithms = {row["name"]: row for row in call("list", "algorithms", "--json").document}
    assert algorithms["FedDuAdam"]["settings"]["beta2"] == 0.99
    tasks = {row["name"]: row for row in call("list", "tasks", "--json").document}
    assert tasks["digits"]["options"]["partition"] == {"name": "dirichlet", "alpha": 0.3}


def test_schedules_are_listed_as_they_are_written(call):
    schedules = {row["name"]: row for row in call("list", "schedules", "--json").document}
    assert schedules["exponential"]["parameters"] == ["initial", "decay"]
    assert schedules["join"]["parameters"] == ["schedules", "boundaries"]
    assert schedules["cosine_decay"]["summary"].startswith("optax.cosine_decay_schedule: ")
    assert schedules["reduce_on_plateau"]["parameters"][:3] == ["initial", "metric", "patience"]


def test_short_names_of_papers():
    assert short("takakura2025feddua") == "Takakura et al. 2025"
    assert short("alpaydin1998digits") == "Alpaydin and Kaynak 1998"
    assert title("takakura2025feddua") == "FedDuA: Doubly Adaptive Federated Learning"
    assert all(short(key)[-4:].isdigit() and title(key) for key in BIBTEX)


def test_cite_gives_what_a_configuration_uses(call):
    Path("c.toml").write_text(
        'task = "digits"\ntask_options = {partition = "shards"}\n'
        '[[method]]\nname = "SCAFFOLD+FedDuAdam"\n[[method]]\nname = "FedAvg"\n'
    )
    ended = call("cite", "c.toml")
    assert ended.code == 0
    keys = [
        "karimireddy2020scaffold",
        "takakura2025feddua",
        "mcmahan2017fedavg",
        "alpaydin1998digits",
        "bradbury2018jax",
    ]
    assert ended.out == "\n\n".join(BIBTEX[key] for key in keys) + "\n"


def test_cite_names_the_partition_that_is_the_default(call, no_pictures):
    call("run", "digits", "FedAvg", *SMALL, "--out", "r")
    assert "yurochkin2019bayesian" in call("cite", "r").out


def test_show_of_a_finished_run(call, no_pictures):
    run = call("run", "digits", "FedAvg", *SMALL, "--out", "r")
    shown = call("show", "r")
    assert shown.code == 0
    row = next(line for line in run.out.splitlines() if "FedAvg" in line)
    assert row in shown.out
    assert "r/page.html" in shown.out
    document = call("show", "r", "--json").document
    assert document["status"] == "finished"
    assert document["methods"][0]["rounds"] == 3


def test_show_of_a_run_that_has_not_begun(call, no_pictures):
    call("run", "digits", "FedAvg", *SMALL, "--out", "r")
    for path in Path("r").iterdir():
        if path.name != "config.toml":
            path.unlink()
    shown = call("show", "r")
    assert shown.code == 0
    assert "FedAvg: waiting, 0 of 3 rounds" in shown.out
    assert "fedsolve run --resume r" in shown.out
    assert call("run", "--resume", "r").code == 0


def test_geometries_are_listed_with_their_faces(call):
    rows = {row["name"]: row for row in call("list", "geometries", "--json").document}
    assert rows["L1"]["operations"] == ["value", "subgradient", "prox"]
    assert "lmo" in rows["LpBall"]["operations"]
    assert "project" not in rows["LpBall"]["operations"]
    assert rows["ElasticNet"]["parameters"] == ["weight", "l2"]


def test_experiments_are_listed_with_their_paper(call):
    rows = {row["name"]: row for row in call("list", "experiments", "--json").document}
    assert rows["lasso-2"]["paper"] == "Yuan et al. 2021"
    assert rows["fw-convex"]["paper"] == "Dadras et al. 2024"
    assert all(row["minutes"] is None or row["minutes"] > 0 for row in rows.values())


def test_settings_of_the_stored_studies(call):
    """As a table and as JSON, of a task, of a study, of a method, of both; what there is none of has exit code 2."""
    ended = call("settings", "femnist", "FedAdam")
    assert ended.code == 0
    (row,) = (line for line in ended.out.splitlines() if line.startswith("femnist  "))
    assert "test_accuracy 0.6353 [0.6034, 0.6672]" in row
    (found,) = (s for s in call("settings", "femnist", "FedAdam", "--json").document if not s["task_options"])
    assert (found["study"], found["problem"], found["usable"]) == ("femnist", "as in FedOpt", True)
    assert found["settings"] == {"client_lr": 10**-1.5, "server_lr": 10**-2.5, "tau": 1e-4}
    assert found["grid"]["client_lr"] == [0.01, 0.03162, 0.1]
    assert found["score"] == [0.6353, 0.6034, 0.6672]
    assert found["made_with"] == ["fedsolve 0.1.0, commit 3e9fcef783, jax 0.10.2, cpu, 2 cores"]
    alone = call("settings", "FedAdam", "--json").document
    assert all("FedAdam" in (s["method"], s["label"]) for s in alone)
    assert len({s["task"] for s in alone}) > 5
    assert {s["study"] for s in call("settings", "lasso-1", "--json").document} == {"lasso-1"}
    for words, told in [
        (["femnst"], "did you mean 'femnist'"),
        (["femnist", "FedAdm"], "did you mean 'FedAdam'"),
        (["mnist", "FedMuon"], "FedMuon is known on digits"),
    ]:
        refused = call("settings", *words)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert told in refused.err


def test_every_command_with_json_has_a_schema():
    from typer.main import get_command

    from fedsolve.cli.main import app

    def commands(group, above=""):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, f"{above}{name} ")
            elif any("--json" in parameter.opts for parameter in command.params):
                yield f"{above}{name}"

    assert sorted(commands(get_command(app))) == sorted(printed.schemas()["commands"])
