"""`fedsolve federate`: apps that work, and what is wrong in one line."""

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.cli.configuration.config import CONFIG, Config, MethodSection, to_toml
from fedsolve.cli.federation import node
from fedsolve.cli.federation.local import LocalFederation
from fedsolve.cli.federation.new import FRAMEWORKS
from fedsolve.cli.folders import FLOWER
from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.deploy.oracles.node_oracle import STATE_FOLDER
from fedsolve.deploy.run_log import FAILED
from fedsolve.deploy.status import STATUS, Cause, ClientStatuses, StatusFile
from fedsolve.folders.files import locked
from fedsolve.results.clients import read_client_metrics
from fedsolve.results.record_files import HISTORY


@pytest.fixture
def own_app(tmp_path, monkeypatch):
    """Import the modules of an app that was just written, as Flower would."""

    def load(name, *modules):
        monkeypatch.syspath_prepend(str(tmp_path / name))
        found = [importlib.import_module(f"{name}.{m}") for m in modules]
        for module in [m for m in sys.modules if m.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        return found

    return load


@pytest.mark.parametrize(
    "framework", [f if f == "torch" else pytest.param(f, marks=pytest.mark.full) for f in FRAMEWORKS]
)
def test_a_new_app_trains(framework, call, own_app, tmp_path):
    """Server and client of a fresh app, on the fake grid: two rounds of FedDuAdam make the digits' model better."""
    pytest.importorskip({"sklearn": "sklearn"}.get(framework, framework))
    from flwr.app import Context, RecordDict

    from fake_grid import FakeGrid

    ended = call("federate", "new", f"my{framework}", "--framework", framework)
    assert ended.code == 0
    assert "README.md" in ended.out
    name = f"my{framework}"
    server, client = own_app(name, "server_app", "client_app")
    config = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    given = config | {"rounds": 2, "out": str(tmp_path / "run")}
    grid = FakeGrid(client.app, [0, 1, 2], tmp_path)
    server.app(grid, Context(1, 1, {}, RecordDict(), given))
    from fedsolve.results.history import History

    history = History.from_json((tmp_path / "run" / "history.json").read_text())
    assert history.column("test_accuracy").tolist() == sorted(history.column("test_accuracy"))
    assert history.final("test_accuracy") > 0.5
    assert np.isfinite(history.column("test_loss")).all()
    shown = call("show", tmp_path / "run")
    assert shown.code == 0
    assert "FedDuAdam" in shown.out
    assert call("show", tmp_path / "run", "--json").document["methods"][0]["status"] == "finished"


HEADER = "id,smoker,age,pressure,ill\n"
AGES = np.random.default_rng(0).normal(50, 20, (3, 60)).round(1)


def table(site):
    """A site's rows: those older than 50 are ill; the columns are not in the schema's order, and one is not in it."""
    rows = [f"{i},{'no' if i % 2 else 'yes'},{age},,{int(age > 50)}" for i, age in enumerate(AGES[site])]
    return HEADER + "\n".join(rows) + "\n"


@pytest.mark.full
@pytest.mark.parametrize(
    "framework", ["sklearn", *(pytest.param(f, marks=pytest.mark.full) for f in ("jax", "torch"))]
)
def test_an_app_for_tables(framework, call, own_app, tmp_path, capsys):
    """Three sites with a CSV file each; the server has none, and a table that differs is refused in one line."""
    pytest.importorskip({"sklearn": "sklearn"}.get(framework, framework))
    from flwr.app import Context, RecordDict

    from fake_grid import FakeGrid

    name = f"tables{framework}"
    assert call("federate", "new", name, "--task", "csv", "--framework", framework).code == 0
    server, client, problem = own_app(name, "server_app", "client_app", "problem")
    config = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["client-metrics"] == "loss, accuracy"
    nodes = []
    for i, site in enumerate(("north", "south", "west")):
        (tmp_path / site).mkdir()
        (tmp_path / site / f"{site}.csv").write_text(table(i))
        nodes.append({"client-id": i, "data": str(tmp_path / site / f"{site}.csv")})

    def run(out):
        given = config | {"rounds": 3, "out": str(tmp_path / out), "connect-seconds": 0.2}
        server.app(FakeGrid(client.app, nodes, tmp_path), Context(1, 1, {}, RecordDict(), given))
        return fs.load(tmp_path / out)

    result = run("run")
    assert result.history.final("train_accuracy") > 0.7
    assert read_client_metrics(tmp_path / "run")[3].names == ("north", "south", "west")
    if framework == "sklearn":
        unlabelled = "\n".join(line.rpartition(",")[0] for line in table(0).splitlines())
        (tmp_path / "new.csv").write_text(unlabelled)
        inputs = problem.SCHEMA.read_inputs(tmp_path / "new.csv")
        np.testing.assert_array_equal(inputs, problem.SCHEMA.read_csv(nodes[0]["data"]).x)
        predicted = problem.fitted(result.params).predict(inputs)
        assert np.mean(predicted == (AGES[0] > 50)) > 0.7
    (tmp_path / "west" / "west.csv").write_text(table(2).replace(",no,", ",never,", 1))
    capsys.readouterr()
    with pytest.raises(
        Unavailable, match=r"west: .*line 3: column smoker has a value that is none of its categories"
    ):
        run("other")
    log = capsys.readouterr().out
    assert (
        "line 3: column smoker = 'never' is none of its categories no, yes: fix the cell" in log
    )  # at the node


CONFIG_BAD = [
    ({"quorum": 0}, "quorum = 0 must be an integer of at least 1 or None for all"),
    ({"quorum": 4}, "quorum = 4 but the federation has 3 clients"),
    ({"min-replies": "two"}, "min_replies = 'two' must be an integer of at least 1"),
    ({"shortfall": "stop"}, "shortfall = 'stop' must be 'repeat' or 'skip'"),
    ({"norm-bound": -1.0}, "norm_bound = -1.0 must be finite and > 0"),
    ({"max-share": 1.5}, "max_share = 1.5 must be finite and > 0 and <= 1"),
    ({"grace": -1}, "grace = -1 must be finite and >= 0"),
    ({"over-select": "more"}, "over_select = 'more' must be a number"),
    ({"takeover": "no"}, "takeover = 'no' must be true or false"),
    ({"clients-per-round": 4}, "clients_per_round = 4 but the task has 3 clients"),
    ({"rounds": "5"}, "rounds = '5' must be an integer of at least 1"),
    ({"method": "FedAvgg"}, "unknown algorithm 'FedAvgg': did you mean 'FedAvg'?"),
]


def test_what_a_run_may_change(call, own_app, tmp_path, capsys):
    """All of an app's configuration is known to the server's app; what does not fit is said in one line of its log."""
    from flwr.app import Context, RecordDict

    from fake_grid import FakeGrid
    from fedsolve.deploy.server.settings import Settings

    call("federate", "new", "bounds", "--framework", "jax")
    server, client = own_app("bounds", "server_app", "client_app")
    toml = tomllib.loads((tmp_path / "bounds" / "pyproject.toml").read_text())
    config = toml["tool"]["flwr"]["app"]["config"]
    known = {field.name.replace("_", "-") for field in dataclasses.fields(Settings)}
    jobs = {"job", "model", "columns", "analysis", "min-clients", "min-rows", "secure"}
    assert set(config) - known == {"method", "client-lr"} | jobs
    shown = ["min-replies", "quorum", "norm-bound", "max-share", "shortfall", "grace", "over-select"]
    shown += ["takeover"]
    assert set(shown) <= set(config)
    readme = (tmp_path / "bounds" / "README.md").read_text()
    for name in shown:
        assert name in readme
    capsys.readouterr()
    for given, said in CONFIG_BAD:
        grid = FakeGrid(client.app, [0, 1, 2], tmp_path)
        with pytest.raises(InvalidInput):
            server.app(grid, Context(1, 1, {}, RecordDict(), config | given | {"out": str(tmp_path / "run")}))
        told = capsys.readouterr().out
        assert f"fedsolve: error: {said}" in told
        assert not list((tmp_path / "run").glob("*.safetensors"))


def test_an_interrupted_demo_is_shown(call, tmp_path):
    """It is not resumed as if it were a simulation."""
    methods = [MethodSection(name=name, settings={"client_lr": 0.1}) for name in ("FedAvg", "SCAFFOLD")]
    (tmp_path / "demo" / FLOWER).mkdir(parents=True)
    (tmp_path / "demo" / CONFIG).write_text(to_toml(Config(task="digits", method=methods), ""))
    shown = call("show", "demo")
    assert shown.code == 0
    assert "a demo cannot be resumed: start a new one" in shown.out


def test_the_readme_of_an_app_names_its_files(call, tmp_path):
    call("federate", "new", "myapp", "--clients", "5")
    text = (tmp_path / "myapp" / "README.md").read_text()
    assert "for i in 0 1 2 3 4" in text
    assert "$" + "{" not in text
    # the wheel that `pip wheel .` makes of this version, with extras that it has
    assert f'pip install "./fedsolve-{fs.__version__}-py3-none-any.whl[flower,digits,torch]"' in text
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {"flower", "digits", "torch"} <= set(project["optional-dependencies"])
    for line in (
        "myapp/problem.py",
        "flower-superlink --insecure",
        "--ssl-certfile",
        "resume=true",
        "state-dir",
        "fedsolve federate status run",
        "metrics-address",
    ):
        assert line in text
    dashboard = json.loads((tmp_path / "myapp" / "grafana.json").read_text())
    assert dashboard["title"] == "fedsolve: a federation"


BAD = [
    (
        ("federate", "new", "a b"),
        "'a b' cannot name an app of Flower: letters, digits and '-', a letter first",
    ),
    (("federate", "new", "my_app"), "at most 32 characters, such as my-app"),
    (("federate", "new", "a" * 33), f"such as {'a' * 32}"),
    (("federate", "new", "1st"), "'1st' cannot name an app of Flower"),
    (("federate", "new", "caf\xe9"), "such as caf"),
    (("federate", "new", "app-"), "'app-' cannot name an app of Flower"),
    (("federate", "new", ".."), "such as my-app"),
    (("federate", "new", "class"), "'class' cannot name an app: Python has a module or word class already"),
    (("federate", "new", "numpy"), "take my-numpy"),
    (("federate", "new", "x", "--framework", "jaxx"), "unknown framework 'jaxx': did you mean 'jax'?"),
    (("federate", "new", "x", "--task", "digit"), "unknown task 'digit': did you mean 'digits'?"),
    (
        ("federate", "new", "x", "--task", "synthetic"),
        "the torch template knows csv and digits alone, not the task synthetic: take --task csv",
    ),
    (("federate", "new", "x", "--clients", "0"), "--clients 0 must be at least 1"),
    (("federate", "demo", "--rounds", "0"), "--rounds 0 must be at least 1"),
    (("federate", "check", "--ca", "none.crt"), "--ca none.crt: No such file or directory"),
    (("federate", "dmeo"), "No such command 'dmeo'"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
def test_bad_input(arguments, said, call, tmp_path):
    ended = call(*arguments)
    assert ended.code == 2
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.full_rows("my-app")
@pytest.mark.parametrize("name", ["my-app", "A", "x9-y-z", "a" * 32])
def test_flower_takes_the_app(name, call, tmp_path):
    """What is written passes Flower's own check of the folder's name and of the bundle that it sends to nodes."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.utils import validate_project_name
    from flwr.common.config import get_fab_config

    assert call("federate", "new", name).code == 0
    validate_project_name(name, "The folder")
    config = get_fab_config(build_fab_from_disk(tmp_path / name))
    assert config["project"]["name"] == name
    assert (tmp_path / name / name.replace("-", "_") / "server_app.py").exists()


def test_a_folder_that_exists(call, tmp_path):
    (tmp_path / "mine").mkdir()
    assert "mine exists: choose another name" in call("federate", "new", "mine").err


def test_a_port_in_use(call, tmp_path, monkeypatch):
    """Each of them: with one from 60000 on, which the system gives too, the node began."""
    pytest.importorskip("torch")
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("the node begins"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken_port = taken.getsockname()[1]
        ended = call("federate", "demo", "--port", port)
        node = call("federate", "node", "--insecure", "--port", port)
    assert (ended.code, node.code) == (2, 2)
    assert f"port {port} of 127.0.0.1 is in use: choose another with --port" in ended.err
    assert node.err == f"error: port {port} of this machine is in use: give the node another with --port\n"
    monkeypatch.setattr("fedsolve.cli.federation.node.is_taken", lambda port: True)
    for port in (1024, 9999, 10000, 59999, 60000, 65535):
        assert call("federate", "node", "--insecure", "--port", port).err == node.err.replace(
            str(taken_port), str(port)
        )


def test_without_flower(call, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    ended = call("federate", "demo")
    assert ended.code == 2
    assert 'Flower is not installed: pip install "fedsolve[flower]"' in ended.err


@pytest.mark.parametrize("version", ["1.27.0", "2.0.1"])
def test_another_flower(version, call, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    ended = call("federate", "demo")
    assert ended.code == 2
    assert f"Flower {version} is installed, fedsolve works with 1.41 up to, not including, 2.0" in ended.err


def test_without_torch(call, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else found(name, *a)
    )
    ended = call("federate", "demo")
    assert ended.code == 2
    assert (
        "the demo's clients need PyTorch, which is not installed: pip install 'fedsolve[torch]'" in ended.err
    )


@pytest.mark.parametrize("name", ["FORCE_COLOR", "CLICOLOR_FORCE"])
def test_no_colours_in_what_commands_of_flower_answer(name, tmp_path, monkeypatch):
    """As a notebook's kernel sets them; the answer to `flwr run --format json` is read."""
    monkeypatch.setenv(name, "1")
    assert name not in LocalFederation(tmp_path, 1).env


# `fedsolve federate status`: the clients of runs that go on, have ended, failed or were interrupted.

VERSIONS = {"fedsolve": fs.__version__, "flwr": "1.41.0", "python": "3.11.9", "framework": "torch 2.13.0+cpu"}


def write(folder, label="SCAFFOLD", done=2, rounds=3):
    """North has replied twice, client 1 has failed twice, client 2 was never there; a fourth node is refused."""
    statuses = ClientStatuses(3)
    for client in (0, 1):
        statuses.on_hello(client, VERSIONS)
    statuses.names.assign(0, "north")
    statuses.on_poll([0, 1], ["it has fedsolve 0.1.0, and the server 0.2.0: install fedsolve 0.2 there"])
    statuses.failed(1, Cause.NO_ANSWER, "no answer within 600 s")
    statuses.failed(1, Cause.FAILED, "no memory\x1b[2J")
    folder.mkdir(parents=True, exist_ok=True)
    StatusFile(folder, "one", label, rounds, True, print).save(statuses, done, np.array([1, -1, -1]))


def test_the_table(call, tmp_path):
    write(tmp_path / "run")
    ended = call("federate", "status", "run")
    assert (ended.code, ended.err) == (0, "")
    title, heads, north, failing, absent, *lines = ended.out.splitlines()
    assert title == "SCAFFOLD in run: interrupted, 2 of 3 rounds, 2 of 3 clients connected"
    assert heads.split()[:3] == ["client", "site", "connected"]
    assert north.split() == [
        *("0", "north", "yes", *north.split()[3:6], "0", "0", "2"),
        *(fs.__version__, "1.41.0", "3.11.9", "torch", "2.13.0+cpu"),
    ]
    assert north.split()[5] == "ago"
    assert failing.split()[-8:-5] == ["2", "2", "none"]
    assert absent.split() == ["2", "no", "never", "0", "0", "none"]
    assert lines == [
        r"last failure of client 1: no memory\x1b[2J",
        "refused: it has fedsolve 0.1.0, and the server 0.2.0: install fedsolve 0.2 there",
        "each client keeps a state: that after its last used round",
    ]


def test_the_document(call, tmp_path):
    """Of all runs of a demo's folder, each with how it stands."""
    for name in ("failed", "finished", "gone-on", "running", "stopped-early"):
        write(tmp_path / "demo" / name, done=3 if name == "finished" else 2)
    (tmp_path / "demo" / "flower").mkdir()
    (tmp_path / "demo" / "failed" / FAILED).write_text("round 3: 1 of 3 replies count\n")
    earlier = time.time() - 60
    for name in ("gone-on", "stopped-early"):  # before it went on; by a callback
        (tmp_path / "demo" / name / HISTORY).write_text("{}")
    os.utime(tmp_path / "demo" / "gone-on" / HISTORY, (earlier, earlier))
    with locked(tmp_path / "demo" / "running"):
        ended = call("federate", "status", "demo", "--json")
        assert call("federate", "status", "demo").out.count("SCAFFOLD in demo/") == 5
    runs = ended.document["runs"]
    assert [run["status"] for run in runs] == ["failed", "finished", "interrupted", "running", "finished"]
    assert [run["error"] for run in runs] == ["round 3: 1 of 3 replies count", None, None, None, None]
    assert (runs[0]["round"], runs[0]["rounds"], runs[0]["label"], runs[0]["keeps_states"]) == (
        2,
        3,
        "SCAFFOLD",
        True,
    )
    north, failing, absent = runs[0]["clients"]
    assert (north["site"], north["versions"], north["last_used_round"]) == ("north", VERSIONS, 2)
    assert (failing["failures"], failing["last_cause"]) == (2, "failed")
    assert absent["last_heard"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "run holds no run of a federation: no client-status.json is in it or in a folder of it"),
        ('{"experiment": ', "run/client-status.json is damaged (Invalid JSON: EOF while parsing"),
        ("\0" * 40, "run/client-status.json is damaged (Invalid JSON: "),
    ],
)
def test_bad_folders(text, said, call, tmp_path):
    (tmp_path / "run").mkdir()
    if text is not None:
        (tmp_path / "run" / STATUS).write_text(text)
    ended = call("federate", "status", "run")
    assert ended.code == 2
    assert ended.err.startswith(f"error: {said}")
    assert ended.err.count("\n") == 1
    assert json.loads(call("federate", "status", "run", "--json").out)["exit_code"] == 2


# `fedsolve federate node`: it becomes Flower's SuperNode, with a worker's program first on its PATH or without.

FLOWERS = [
    "--insecure",
    "--superlink",
    "127.0.0.1:8000",
    "--node-config",
    "client-id=0 state-dir='my states'",
    "--port=0",
]


class Became(BaseException):
    """What the process became: a program, its arguments, its environment."""


@pytest.fixture
def became(call, monkeypatch):
    def become(*given):
        raise Became(*given)

    monkeypatch.setattr(node.os, "execve", become)
    monkeypatch.setattr(node, "start_worker", lambda folder, environment: None)

    def run(*arguments):
        with pytest.raises(Became) as ended:
            call("federate", "node", *arguments)
        program, words, environment = ended.value.args
        assert program == words[0]
        assert Path(program).name == "flower-supernode"
        return words[1:], environment

    return run


@pytest.mark.full
def test_all_options_of_flower_are_passed_on(became, tmp_path, monkeypatch):
    monkeypatch.setenv(node.POLL, "0.5")
    words, environment = became("--worker-messages", "3", *FLOWERS, "--worker-megabytes=9")
    assert words == FLOWERS
    first = Path(environment["PATH"].split(os.pathsep)[0])
    assert first.parent.parent == tmp_path / "my states"
    assert environment[node.POLL] == "0.5"  # the owner's
    program = first / "flwr-clientapp"
    said = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    assert (
        "--runtime-api-address" in said.stdout
    )  # Flower's own program, for an argument that is not a message's
    assert "--help of flwr-clientapp is not known" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--fresh"], ""),
        (["--isolation", "process"], "with --isolation process"),
        (["--isolation=process"], "with --isolation process"),
        (["--allow-runtime-dependency-installation"], "an environment of its own"),
    ],
)
def test_where_each_message_has_its_own_process(became, arguments, why, capsys, tmp_path):
    words, environment = became(*FLOWERS, *arguments)
    assert words == [*FLOWERS, *(word for word in arguments if word != "--fresh")]
    assert environment == dict(os.environ)
    assert why in capsys.readouterr().err
    assert not (tmp_path / "my states").exists()


def test_another_version_of_flower(became, monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.42.0")
    assert became(*FLOWERS)[1] == dict(os.environ)
    assert capsys.readouterr().err == (
        "each message runs in a process of its own: the persistent worker was tried with Flower 1.41, 1.42.0 is "
        "installed\n"
    )


def test_where_states_are(tmp_path):
    (tmp_path / "node.toml").write_text('client-id = 0\nstate-dir = "/far"\n')
    assert node.state_folder(["--node-config", str(tmp_path / "node.toml")]) == Path("/far")
    assert node.state_folder(['--node-config=client-id=0 state-dir="here"']) == Path("here")
    assert node.state_folder(["--node-config", "client-id="]) == Path(STATE_FOLDER)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--root-certificates", "no.crt"], "--root-certificates no.crt: No such file or directory"),
        (["--auth-supernode-private-key=gone"], "--auth-supernode-private-key gone: No such file"),
        (["--node-config", "client-id"], "--node-config has client-id: give NAME=VALUE"),
        (["--node-config", 'client-id=0 data= "x"'], "--node-config has data=: give NAME=VALUE"),
        (["--node-config", "no.toml"], "--node-config no.toml: No such file"),
    ],
)
def test_what_flower_would_not_say_in_a_line(call, arguments, said):
    ended = call("federate", "node", *FLOWERS, *arguments)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {said}")
    assert ended.err.count("\n") == 1


def test_a_state_folder_that_cannot_be_made(call, tmp_path):
    (tmp_path / "my states").write_text("a file")
    ended = call("federate", "node", *FLOWERS)
    assert ended.code == 2
    assert "cannot make the worker's folder in my states" in ended.err
