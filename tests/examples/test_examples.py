"""The examples are complete programs: each runs by itself, in an empty folder, and comes out well."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
NEEDS = {
    "own_table": "pandas",
    "pytorch_module": "torch",
    "hugging_face_dataset": "datasets",
    "hugging_face_lora": "transformers",
    "language_model": "transformers",
    "torchvision_model": "torchvision",
    "batch_normalisation": "flax, equinox",
    "optuna_search": "optuna",
    "training_loop/torch_loop": "flwr, sklearn, torch",
    "training_loop/hugging_face": "accelerate, flwr, transformers",
    "training_loop/lightning_module": "flwr, lightning, sklearn",
    "training_loop/torchrun": "flwr, sklearn, torch",
}
FILES = [*FOLDER.glob("*.py"), *FOLDER.glob("training_loop/*.py")]
NAMES = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FILES)


def own_table(out, folder):
    losses = [float(x) for x in re.findall(r"^\w+ & (\S+) \$\\pm\$", out, re.MULTILINE)]
    assert len(losses) == 3
    assert max(losses) < 0.2
    assert (folder / "runs" / "heat-pumps" / "page.html").is_file()


def pytorch_module(out, folder):
    assert "test_accuracy was no better than" in out
    assert float(re.search(r"unseen digits: (\S+) %", out)[1]) > 85
    assert (folder / "runs" / "digits.pt").is_file()


def hugging_face_dataset(out, folder):
    assert float(re.search(r"60 phones, accuracy (\S+) %", out)[1]) > 90
    assert (folder / "runs" / "phones-run" / "page.html").is_file()


def hugging_face_lora(out, folder):
    full, lora, exact = (tuple(map(float, pair)) for pair in re.findall(r"(\S+) %, (\S+) kB", out))
    assert min(lora[0], exact[0]) > 50
    assert full[1] > 7 * lora[1] == 7 * exact[1]
    assert (folder / "runs" / "bert.pt").is_file()


def language_model(out, folder):
    rows = re.findall(r"^Fed\w+ +(\w+) +(\S+) +(\S+) +\S+$", out, re.MULTILINE)
    assert [average for average, _, _ in rows] == 3 * ["both", "A", "exact", "stack"]
    start = float(re.search(r"before training: perplexity (\S+)", out)[1])
    assert max(float(perplexity) for _, perplexity, _ in rows) < start / 2
    assert (folder / "runs" / "adapter" / "adapter_config.json").is_file()


def torchvision_model(out, folder):
    assert float(re.search(r"unseen digits: (\S+) %", out)[1]) > 75
    assert (folder / "runs" / "resnet.pt").is_file()


def optuna_search(out, folder):
    best = [float(x) for x in re.findall(r"best training loss (\S+)", out)]
    assert len(best) == 4
    assert best == sorted(best, reverse=True)
    assert float(re.search(r"with other seeds: training loss (\S+)", out)[1]) < 0.2


def own_method(out, folder):
    shares = [float(x) for x in re.findall(r"(\S+) ± \S+ %", out)]
    assert len(shares) == 3
    assert min(shares) > 85


def personal_models(out, folder):
    loss = {name: float(x) for name, x in re.findall(r"(\w+) +(\S+) ± \S+, fine", out.partition("linear")[2])}
    assert set(loss) == {"FedAvg", "FedPer", "FedRep", "Ditto"}
    assert 5 * max(loss["FedPer"], loss["FedRep"]) < loss["FedAvg"]


def own_study(out, folder):
    verdicts = [line.split(",")[0].split(":")[0] for line in out.splitlines()[:3]]
    assert verdicts == ["underpowered", "confirmed", "confirmed"]
    assert (folder / "runs" / "own-study" / "page.html").is_file()


def batch_normalisation(out, folder):
    losses = [float(x) for x in re.findall(r"training loss (\S+)", out)]
    assert len(losses) == 2
    assert max(losses) < 0.6  # 1.1 at random


def sparse_model(out, folder):
    large = [int(x) for x in re.findall(r"(\d+) weights above", out)]
    sent = [float(x.replace(",", "")) for x in re.findall(r"sent up (\S+) kB", out)]
    assert 3 * large[1] < large[0]
    assert 100 * sent[2] < sent[0]


def torch_loop(out, folder):
    assert float(re.search(r"unseen digits: (\S+) %", out)[1]) > 65
    assert (folder / "runs" / "digits.pt").is_file()


def hugging_face(out, folder):
    assert float(re.search(r"unseen texts: (\S+) %", out)[1]) > 80
    assert (folder / "runs" / "bert" / "model.safetensors").is_file()


def lightning_module(out, folder):
    assert float(re.search(r"unseen digits: (\S+) %", out)[1]) > 80
    assert (folder / "runs" / "digits.pt").is_file()


def torchrun(out, folder):
    assert float(re.search(r"unseen digits: (\S+) %", out)[1]) > 70


def check_of(name):
    return globals()[name.rpartition("/")[2]]


def test_every_example_is_listed_and_checked():
    listed = re.findall(r"^\| `([\w/]+)\.py`", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == NAMES
    assert all(map(check_of, NAMES))


def test_five_lines_make_a_fine_tuning_script_a_federation():
    lines = (FOLDER / "training_loop" / "hugging_face.py").read_text().splitlines()
    new = [line for line in lines if line.endswith("  # new")]
    assert len(new) <= 5
    script = [line for line in lines[: lines.index('if __name__ == "__main__":  # the same on one machine')]]
    assert not [
        line for line in script if "fs." in line and line not in new
    ]  # all the others are as they were


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(name, tmp_path):
    if name in NEEDS:  # asked as the example will: here folders of tests have names of packages
        command = [sys.executable, "-c", f"import {NEEDS[name]}"]
        needed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        if needed.returncode != 0:
            pytest.skip(f"{NEEDS[name]} cannot be imported: {needed.stderr.splitlines()[-1]}")
    command = [sys.executable, str(FOLDER / f"{name}.py")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    check_of(name)(ended.stdout, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("training_loop/")])
def test_its_apps_are_a_federation(name, tmp_path):
    """The same file's `client` and `server` train a round on the fake grid."""
    for package in NEEDS[name].split(", "):
        pytest.importorskip(package)
    # the folder of the tests is not on the path: `datasets` there is no package that a Trainer could use
    code = f"""
import importlib.util, runpy, sys
from pathlib import Path
from flwr.app import Context, RecordDict

found = importlib.util.spec_from_file_location("fake_grid", {str(FOLDER.parent / "tests" / "fake_grid.py")!r})
fake_grid = importlib.util.module_from_spec(found)
found.loader.exec_module(fake_grid)
apps = runpy.run_path({str(FOLDER / f"{name}.py")!r})
grid = fake_grid.FakeGrid(apps["client"], list(range(apps.get("SITES", 3))), Path("nodes"))
apps["server"](grid, Context(1, 1, {{}}, RecordDict(), {{"rounds": 1, "out": "run"}}))
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "run" / "model.safetensors").is_file()
