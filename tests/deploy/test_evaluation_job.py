"""A saved model measured by the clients: the numbers of its run, nothing changed anywhere, and what does not fit."""

import shutil

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from safetensors.numpy import save_file

import fedsolve as fs
from deploy_small import clients_of
from fake_grid import FakeGrid
from fedsolve.cli.main import main
from fedsolve.deploy.run_log import FAILED
from fedsolve.deploy.server.server import server_app
from fedsolve.results.clients import read_client_metrics
from fedsolve.results.record_files import MODEL, read_history, read_model, write_model
from harness import Softmax, cross_entropy, make_clients

START = Softmax.of(0.5 * np.random.default_rng(1).standard_normal(15))
TASK = fs.Task(
    "measured", lambda key: START, cross_entropy, fs.FederatedData.from_clients(make_clients((6,) * 4)),
    metrics={"weight": lambda model, batch: model.weight[0, 0]}, batch_size=4,
)  # fmt: skip
APP = clients_of(TASK)


def run(method, folder, out, params=START, tamper=None, app=APP, schema=None, **config):
    """One run of an app on a fake grid whose nodes lie in `folder`."""
    given = {"rounds": 1, "population": 4, "connect_seconds": 0.2, "round_seconds": 0.2, "schema": schema}
    server = server_app(method, params, client_metrics="loss, weight", **given)
    config = {"out": str(folder / out), **config}
    grid = FakeGrid(
        app, list(range(config.get("population", 4))), folder / "nodes", tamper, run_config=config
    )
    server(grid, Context(1, 1, {}, RecordDict(), config))
    return grid


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """The folder of a run of FedAvg, in `run`, and its nodes."""
    folder = tmp_path_factory.mktemp("once")
    run(fs.FedAvg(0.3), folder, "run")
    return folder


@pytest.fixture
def trained(once, tmp_path):
    return shutil.copytree(once, tmp_path / "trained")


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def evaluate(method, folder, model, out="measured", **more):
    return run(method, folder, out, job="evaluate", model=str(model), **more)


@pytest.mark.full_rows("FedAvg")
@pytest.mark.parametrize("method", [fs.FedAvg(0.3), fs.FedPer("bias", 0.3)], ids=lambda m: m.name)
def test_a_runs_model_has_the_numbers_of_its_run(method, trained, capsys):
    """Also clients' personal models; one question to each, and not one byte of the run or of the nodes changes."""
    if method.personal:
        shutil.rmtree(trained / "run")
        run(method, trained, "run")
    before = files(trained)
    grid = evaluate(method, trained, trained / "run")
    assert {path: content for path, content in files(trained).items() if path in before} == before
    assert set(files(trained)) - set(before) == set(files(trained / "measured"))
    assert [kind for _, kind in grid.asked] == ["query"] * 4 + ["evaluate"] * 4
    found, wanted = fs.load(trained / "measured").history, fs.load(trained / "run").history
    assert found.evaluations["round"].tolist() == [1]
    for name in set(wanted.evaluations) - {"seconds"}:
        np.testing.assert_array_equal(found.final(name), wanted.final(name), err_msg=name)
    mine, theirs = (read_client_metrics(trained / name)[1] for name in ("measured", "run"))
    assert mine.worst("loss", 2) == theirs.worst("loss", 2)
    np.testing.assert_array_equal(mine.deciles("weight"), theirs.deciles("weight"))
    models = [read_model(trained / name / MODEL)[0]["weight"] for name in ("measured", "run")]
    np.testing.assert_array_equal(*models)
    assert main(["show", str(trained / "measured")]) == 0
    assert "Final training loss" in capsys.readouterr().out


@pytest.mark.full
def test_under_secure_sums(tmp_path):
    """The metrics of all examples, those of the run; nothing of single clients is in either folder."""
    method = fs.Secure(fs.FedAvg(0.3), bound=4.0, max_clients=4, max_examples=6)
    run(method, tmp_path, "run")
    for model in (tmp_path / "run", tmp_path / "run" / MODEL):
        out = f"of-{model.name}"
        evaluate(method, tmp_path, model, out=out)
        there, here = (read_history(tmp_path / name).evaluations for name in ("run", out))
        for name in ("train_loss", "train_weight", "clients_measured"):
            assert there[name][-1] == here[name][-1]
        assert not [name for name in here if name.startswith("client_")]


def test_a_models_file(tmp_path):
    """That of a run and of a simulation, under any method that is not personal; no server step changes it."""
    result = fs.run(fs.FedAvg(0.3), TASK, rounds=1, dtype="float64", out=tmp_path / "simulated")
    plain = {"weight": np.asarray(result.params.weight), "bias": np.asarray(result.params.bias)}
    save_file(plain, tmp_path / "plain.safetensors")  # as another program writes it
    save_file(plain, tmp_path / "noted.safetensors", {"format": "pt"})
    files = [tmp_path / f"{name}.safetensors" for name in ("plain", "noted")]
    for model in (tmp_path / "simulated", tmp_path / "simulated" / MODEL, *files):
        evaluate(fs.FedDuAdam(0.3), tmp_path, model, out=f"of-{model.name}")
        history = fs.load(tmp_path / f"of-{model.name}").history
        assert history.final("train_loss") == pytest.approx(result.metrics["train_loss"][-1], rel=1e-12)
        weight = np.asarray(result.params.weight)[0, 0]  # of which the metric is the mean over clients
        assert history.final("train_weight") == pytest.approx(weight, rel=1e-14)
    assert fs.load(tmp_path / "of-simulated").history.evaluations["round"].tolist() == [1]


WRONG = Softmax(np.zeros((4, 2)), np.zeros(2))
NOT_FINITE = Softmax(np.full((4, 3), np.nan), np.zeros(3))


@pytest.mark.parametrize(
    ("saved", "method", "words"),
    [
        (WRONG, fs.FedAvg(0.3), "weight has shape (4, 2) in "),
        ({"weight": START.weight}, fs.FedAvg(0.3), "has no bias: it is of another task or model"),
        (NOT_FINITE, fs.FedAvg(0.3), "has a number that is not finite: take a model of finite ones"),
        (START, fs.FedPer("bias", 0.3), "has personal models on the clients, and "),
        (
            START,
            fs.privacy.LocalDifferentialPrivacy(fs.FedExP(0.3), 0.5, noise_multiplier=1.0, delta=1e-5),
            "protects client updates, and metrics of each client would reveal information",
        ),
        (None, fs.FedAvg(0.3), "there is no such file or folder where the server app runs"),
    ],
)
def test_what_does_not_fit_is_refused_before_anybody_is_asked(saved, method, words, tmp_path, capsys):
    path = tmp_path / "saved.safetensors"
    if saved is not None:
        write_model(path, saved, {"task": "t", "method": "m"})
    before = files(tmp_path)
    with pytest.raises(fs.InvalidInput) as refused:
        evaluate(method, tmp_path, path)
    assert words in str(refused.value)
    assert f"fedsolve: error: {refused.value}" in capsys.readouterr().out
    assert {path.name for path in set(files(tmp_path)) - set(before)} <= {FAILED}


def test_runs_of_another_method_and_folders_that_are_taken(trained):
    for model in (
        trained / "run",
        trained / "run" / MODEL,
    ):  # of a private method, neither is measured by another's
        with pytest.raises(
            fs.InvalidInput, match=r"has algorithm = .*: repeat what that run's configuration changed"
        ):
            evaluate(fs.FedDuAdam(0.3), trained, model)
    with pytest.raises(fs.InvalidInput, match=r"run holds a run already: choose another folder \(out\)"):
        evaluate(fs.FedAvg(0.3), trained, trained / "run", out="run")
    assert not (trained / "run" / FAILED).exists()
    with pytest.raises(fs.InvalidInput, match='job = "evaluate" needs model'):
        run(fs.FedAvg(0.3), trained, "other", job="evaluate")
    with pytest.raises(fs.InvalidInput, match="unknown job 'evaluat': did you mean 'evaluate'"):
        run(fs.FedAvg(0.3), trained, "other", job="evaluat")
    whole = (trained / "run" / "checkpoint.safetensors").read_bytes()
    (trained / "run" / "checkpoint.safetensors").write_bytes(whole[:-9])
    with pytest.raises(fs.InvalidInput, match=r"cut short|corrupt"):
        evaluate(fs.FedAvg(0.3), trained, trained / "run")


def test_a_silent_client_and_none_at_all(trained):
    """Who is silent is left out; where all are, the run ends with a reason, which the folder keeps."""
    evaluate(
        fs.FedAvg(0.3), trained, trained / "run",
        tamper=lambda node, kind, content: None if (node, kind) == (102, "evaluate") else content,
    )  # fmt: skip
    assert fs.load(trained / "measured").history.final("clients_measured") == 3
    with pytest.raises(fs.InvalidInput, match="no client evaluates client_metrics"):
        evaluate(
            fs.FedAvg(0.3), trained, trained / "run", out="nobody",
            tamper=lambda node, kind, content: None if kind == "evaluate" else content,
        )  # fmt: skip
    assert "no client evaluates" in (trained / "nobody" / FAILED).read_text()


# A new run that begins with a saved model, which is then evaluated where no rounds are.


@pytest.mark.full_rows("file", "simulation")
@pytest.mark.parametrize("of", ["folder", "file", "simulation"])
def test_a_run_begins_with_a_saved_model(of, trained):
    """With the bits of an app whose model it is; it is resumed when the former folder is gone."""
    if of == "simulation":
        shutil.rmtree(trained / "run")
        fs.run(fs.FedAvg(0.3), TASK, rounds=1, dtype="float64", out=trained / "run")
    model = trained / "run" / MODEL if of == "file" else trained / "run"
    saved = fs.load(trained / "run", TASK).params
    run(fs.FedAvg(0.3), trained, "wanted", params=saved, rounds=2)
    run(fs.FedAvg(0.3), trained, "new", initial=str(model), rounds=1)
    shutil.rmtree(trained / "run")
    run(fs.FedAvg(0.3), trained, "new", initial=str(model), rounds=2, resume=True)
    new, wanted = (fs.load(trained / name) for name in ("new", "wanted"))
    np.testing.assert_array_equal(new.params["weight"], wanted.params["weight"])
    assert f"began with the model of {model.name}" in new.notes
    assert "initial" not in new.history.settings
    assert main(["show", str(trained / "new")]) == 0


def test_a_site_more(trained):
    """The model of three sites is measured at four, and by a run of its own trained there."""
    run(fs.FedAvg(0.3), trained, "small", population=3)
    evaluate(fs.FedAvg(0.3), trained, trained / "small", out="four")
    assert fs.load(trained / "four").final("clients_measured") == 4
    with pytest.raises(fs.InvalidInput, match="population = 4, this run 3, of FedAvg: it may only grow"):
        evaluate(fs.FedAvg(0.3), trained, trained / "run", population=3)


SCHEMA = """target = "ill"\nclasses = [0, 1, 2]\n[columns.age]\nmean = {}\n[columns.sex]\ncategories = ["f", "m"]"""


def test_a_model_of_another_schema_is_refused(tmp_path):
    def schema(mean):
        (tmp_path / "schema.toml").write_text(SCHEMA.format(mean))
        return fs.data.Schema.read(tmp_path / "schema.toml")

    run(fs.FedAvg(0.3), tmp_path, "run", schema=schema(50.0))
    run(fs.FedAvg(0.3), tmp_path, "same", schema=schema(50.0), initial=str(tmp_path / "run"))
    words = (
        r"run was trained with another schema: its column age was .*mean=50.0.*, and is .*mean=51.0.* here"
    )
    with pytest.raises(fs.InvalidInput, match=words):
        run(fs.FedAvg(0.3), tmp_path, "other", schema=schema(51.0), initial=str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("saved", "words"), [(WRONG, "weight has shape"), (NOT_FINITE, "not finite"), (None, "does not exist")]
)
def test_a_run_does_not_begin_with_what_does_not_fit(saved, words, tmp_path):
    path = tmp_path / "saved.safetensors"
    if saved is not None:
        write_model(path, saved, {"task": "t", "method": "m"})
    with pytest.raises(fs.InvalidInput, match=words):
        run(fs.FedAvg(0.3), tmp_path, "new", initial=str(path))
    assert not (tmp_path / "new").exists()
