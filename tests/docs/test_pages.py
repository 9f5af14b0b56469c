"""Pages do what they say: their programs run, and numbers, tables and logs are those that they name."""

import re
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as theirs

import fedsolve as fs
from fedsolve.config.catalogue import ALGORITHMS
from fedsolve.deploy.communication import Field, examples, payload
from fedsolve.engine.options import RunOptions
from fedsolve.engine.placement import plan, put_on_devices
from fedsolve.engine.resolve import resolve
from fedsolve.geometry import KSupportBall, L1Ball, L2Ball, LInfBall, NuclearBall
from fedsolve.methods.privacy.accounting import epsilon, noise_multiplier_for
from fedsolve.tasks import MLP, CrossEntropy, Examples

# What docs/communication.md says is right where it was worked out by hand.


def test_every_method_is_there():
    assert set(examples()) >= set(ALGORITHMS)


def test_scaffold_by_hand():
    """Twice the model each way; c_i+ - c_i counts all alike whatever the weights."""
    found = payload(fs.SCAFFOLD(weighting="examples"))
    assert found.down == (
        Field("inner.params", "d numbers"),
        Field("inner.round", "a whole number"),
        Field("control", "d numbers"),
    )
    assert found.up == (
        Field("inner.delta", "d numbers", "mean by examples"),
        Field("inner.loss", "one number", "mean by examples"),
        Field("control_delta", "d numbers", "mean 1/|S|"),
    )
    assert not found.not_a_sum


def test_what_prevents_sums():
    assert "robust" in payload(fs.robust.Robust(fs.FedAvg(), fs.robust.Median())).not_a_sum
    assert "maximum" in payload(fs.FedLiLS(server="max")).not_a_sum
    frank_wolfe = payload(fs.FedFW(L1Ball(10.0)))
    assert "changes each message" in frank_wolfe.not_a_sum
    assert frank_wolfe.up == (
        Field("vertex", "a code (1 integer)", "changed by the server, then mean 1/|S|"),
    )
    assert not payload(fs.FedDuAdam()).not_a_sum


# The programs of docs/own-data.md: from a CSV file with a rare class to a table with AUC over five seeds.

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own-data.md").read_text()
ARRAYS, CSV = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2]


@pytest.mark.full
def test_the_first_program_runs():
    names = {}
    exec(ARRAYS.replace("rounds=20", "rounds=1"), names)
    x, y = (np.concatenate(part) for part in zip(*names["clients"], strict=True))
    wanted = theirs.f1_score(y, x @ np.asarray(names["result"].params) > 0)
    assert names["result"].final("train_f1") == pytest.approx(wanted)


@pytest.mark.full
def test_a_table_of_auc_from_a_csv_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    age, bmi = draw.normal(60, 15, 300), draw.normal(27, 4, 300)
    ill = draw.random(300) < 1 / (1 + np.exp(3 - (age - 60) / 15))
    rows = np.stack([draw.integers(0, 4, 300), age, bmi, ill], axis=1)
    np.savetxt("patients.csv", rows, "%.6g", ",", header="hospital,age,bmi,ill", comments="")
    names = {}
    exec(CSV.replace("rounds=50", "rounds=3"), names)
    assert len([line for line in CSV.splitlines() if line and "import" not in line]) <= 10
    results, (x, y) = names["results"], names["task"].validation
    assert {len(values) for values in results.final("validation_auc").values()} == {5}
    params = results["FedAvg"][0].params
    exact = theirs.roc_auc_score(y, np.asarray(names["model"](params, x)))
    found = results["FedAvg"][0]
    assert abs(found.final("validation_auc") - exact) <= found.final("validation_auc_error") + 1e-5
    said = np.asarray(names["model"](params, x)) > 0
    assert found.final("validation_sensitivity") == pytest.approx(theirs.recall_score(y, said))
    table = names["results"].to_latex(metrics=["validation_auc", "validation_sensitivity"])
    assert table.count(r"\pm") >= 4
    assert "alidation" in table


# docs/predict.md: programs of at most ten lines go from one's own table and from a PyTorch module to predictions.

PREDICT_PAGE = (Path(__file__).parents[2] / "docs" / "predict.md").read_text()
TABLE, LOADED, MODULE = re.findall(r"```python\n(.*?)```", PREDICT_PAGE, re.DOTALL)


def patients(rng, rows):
    """Ages and doses of a few sites, and who is ill: a line between them, with no noise."""
    table = pd.DataFrame(
        {"site": rng.integers(0, 4, rows), "age": rng.normal(size=rows), "dose": rng.normal(size=rows)}
    )
    return table.assign(ill=(table.age + 2 * table.dose > 0).astype(int))


def test_programs_and_the_page_are_short():
    for program in (TABLE, LOADED, MODULE):
        assert len([line for line in program.splitlines() if line]) <= 10
    assert len(PREDICT_PAGE.split()) <= 650


@pytest.mark.full
def test_from_a_table_of_ones_own_to_predictions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    new = patients(rng, 300)
    patients(rng, 400).to_csv("patients.csv", index=False)
    new.drop(columns="ill").to_csv("new.csv", index=False)
    names: dict = {}
    exec(TABLE + LOADED, names)
    assert np.mean(pd.read_csv("predicted.csv")["ill"] == new["ill"]) > 0.95
    weight, bias = names["later"].params
    by_hand = new[["age", "dose"]].to_numpy() @ np.asarray(weight) + float(bias) > 0
    np.testing.assert_array_equal(names["later"].predict(new[["age", "dose"]]), by_hand)


@pytest.mark.full
def test_a_module_trained_on_100_clients_predicts_after_loading(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(MODULE, names)
    x, y = (names["x"][1500:] / 16).astype(np.float32), names["y"][1500:]
    assert np.mean(names["labels"] == y) > 0.75
    with torch.no_grad():
        outputs = names["trained"](torch.tensor(x)).numpy()
    np.testing.assert_array_equal(names["labels"], outputs.argmax(1))
    np.testing.assert_allclose(names["result"].predict(x, scores=True), outputs, atol=1e-5)
    before = names["net"](torch.tensor(x)).detach().numpy()
    assert np.abs(before - outputs).max() > 0.1  # the module that was given stays as it was


# docs/privacy.md: its code runs and gives the numbers that it names.

PRIVACY_PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()


@pytest.mark.full
def test_code_and_numbers():
    pytest.importorskip("sklearn")
    block, sums, _ = re.findall(r"```python\n(.*?)```", PRIVACY_PAGE, re.DOTALL)
    *lines, logged, bound = block.strip().splitlines()
    names: dict = {}
    exec("\n".join(lines), names)
    for line, number in ((logged, "7.99"), (bound, "9.38")):
        expression, comment = line.split("#")
        assert number in comment
        assert f"{eval(expression, names):.2f}" == number
    exec(sums, names)
    assert names["result"].metrics["test_accuracy"][-1] > 0.8


@pytest.mark.full
def test_numbers_of_other_samplings():
    setting = {"cohort": 20, "population": 100, "delta": 1e-3}
    z = noise_multiplier_for(8.0, rounds=50, sampling="poisson", **setting)
    for sampling, number in (("fixed", "114"), ("none", "160")):
        assert f"{epsilon(z, 50, sampling=sampling, **setting):.3g}" == number
        assert f"| {number} |" in PRIVACY_PAGE


# The programs of docs/scale.md and docs/simulated-time.md run, and those of docs/own-data.md on tables.

DOCS = Path(__file__).parents[2] / "docs"
SCALE, TIME, OWN = ((DOCS / f"{name}.md").read_text() for name in ("scale", "simulated-time", "own-data"))


def parts(folder):
    """The tables that docs/own-data.md reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    columns = {
        "user": np.arange(100) % 7,
        "height": np.ones(100),
        "weight": np.ones(100),
        "y": np.arange(100) % 2,
    }
    pq.write_table(pa.table(columns | {"x": list(np.ones((100, 59)))}), folder / "part-0.parquet")


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def blocks(tmp_path, monkeypatch, chosen):
    for package in ("pyarrow", "scipy", "sklearn", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    parts(tmp_path / "parts")
    names: dict = {}
    tables = [block for block in blocks_of(OWN) if "from_table" in block]
    for block in blocks_of(SCALE) + tables + blocks_of(TIME):
        if chosen(block):
            exec(block, names)
    return names


def test_its_data(tmp_path, monkeypatch):
    names = blocks(tmp_path, monkeypatch, lambda block: "fs.run(" not in block)
    assert names["data"].num_clients == 1000
    assert names["people"].num_clients == names["stored"].num_clients == 7
    assert names["tagged"].data.examples.x.indices.shape == (300, 64)


@pytest.mark.full
def test_its_runs(tmp_path, monkeypatch):
    names = blocks(tmp_path, monkeypatch, lambda block: True)
    assert names["result"].metrics["energy"][-1] > 0
    assert names["late"].timeline.versions.shape == (20, 10)


# docs/tuning-free.md: its code runs, and a run logs what it says.

TUNING_FREE_PAGE = (Path(__file__).parents[2] / "docs" / "tuning-free.md").read_text()


def run(block):
    names: dict = {}
    exec(block, names)
    assert len(names["methods"]) == 7
    return names


def blocks_tuning_free():
    (block,) = re.findall(r"```python\n(.*?)```", TUNING_FREE_PAGE, re.DOTALL)
    return block, block[: block.index("result = ")]


def test_every_method_is_composed():
    run(blocks_tuning_free()[1])


@pytest.mark.full
def test_code_runs():
    """And a line search runs on the digits."""
    pytest.importorskip("sklearn")
    assert (run(blocks_tuning_free()[0])["result"].rounds["loss_evaluations"] >= 1).all()


# The table of bytes in docs/composite.md is what the engine counts, and what encoded messages are long.

WIRE_PAGE = (Path(__file__).parents[2] / "docs" / "composite.md").read_text()
MODEL = MLP((784, 900, 300, 62))
ROWS = {
    "`FedAvg` |": lambda: fs.FedAvg(0.1),
    r"`FedFW`, $\ell_1$ ball": lambda: fs.FedFW(L1Ball(1e6)),
    "`FedFW`, $k$-support": lambda: fs.FedFW(KSupportBall(1e6, 100)),
    "`FedFW`, nuclear": lambda: fs.FedFW(NuclearBall(1e6).on("weight") + L2Ball(1.0).on("bias")),
    r"`FedFW`, $\ell_\infty$": lambda: fs.FedFW(LInfBall(10.0)),
}


@pytest.fixture(scope="module")
def task():
    client = Examples(np.zeros((2, 784), np.float32), np.zeros(2, np.int32))
    data = fs.FederatedData.from_clients([client] * 3)
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), shapes)
    return fs.Task("bytes", lambda key: zeros, CrossEntropy(MODEL), data)


@pytest.mark.full_rows("`FedFW`, nuclear")
@pytest.mark.parametrize("row", ROWS)
def test_bytes_of_a_client(row, task):
    """The row's two numbers are the sizes of the message and of the broadcast."""
    (line,) = [line for line in WIRE_PAGE.splitlines() if line.startswith(f"| {row}")]
    up, down = (int(cell.replace(",", "")) for cell in re.findall(r"\| +([\d,]+) +(?=\|)", line)[-2:])
    requested = resolve(ROWS[row](), task, RunOptions(rounds=1, local_steps=1), None)
    sent = plan(requested, put_on_devices(requested)).traffic
    assert sent.up == (up,)
    assert sent.down == down
