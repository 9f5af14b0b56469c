"""docs/training-loops.md: its programs run, and its tables are what the package does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.config.build import loop_support
from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS
from fedsolve.deploy.oracles import command

PAGE = (Path(__file__).parents[2] / "docs" / "training-loops.md").read_text()
BEFORE, AFTER, SIMULATE, DEPLOY, HUGGING_FACE, LIGHTNING, COMMAND = re.findall(
    r"```python\n(.*?)```", PAGE, re.DOTALL
)


def test_five_lines_are_added():
    assert len([line for line in AFTER.splitlines() if line.strip()]) == 5


def test_methods_are_listed_by_what_the_loop_returns():
    """All of the catalogue that run with loops, and no other; wrappers in the text below."""
    pytest.importorskip("dp_accounting")
    rows = re.findall(r"^\| `(\w+)`(?:, too)? \| ([\w, ]+) \|$", PAGE, re.MULTILINE)
    listed = {
        name: () if what == "examples" else (what,) for what, names in rows for name in names.split(", ")
    }
    wrappers = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("The wrappers `") :].partition(" apply to")[0]))
    named = dict.fromkeys(ALGORITHMS, "") | {name: "+FedAvg" for name in WRAPPERS if name not in ALGORITHMS}
    found = {name: loop_support(name + around) for name, around in named.items()}
    works = {name: answer.needs for name, answer in found.items() if not answer.refused}
    assert listed | dict.fromkeys(wrappers, ()) == works


def test_files_are_named_as_they_are():
    files = re.findall(r"^\| `([\w.]+)` \| (?:fedsolve|the command) \|", PAGE, re.MULTILINE)
    assert files == [command.RECEIVED, command.TRAINED, command.RESULTS]


@pytest.mark.full
def test_the_loop_is_simulated_and_deployed(tmp_path, monkeypatch):
    for package in ("torch", "sklearn", "flwr"):
        pytest.importorskip(package)
    from flwr.app import Context, RecordDict

    from fake_grid import FakeGrid

    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in (BEFORE, AFTER, SIMULATE, DEPLOY, COMMAND.partition("client =")[0]):
        exec(block, names)
    finals = names["found"].final("test_accuracy")
    assert finals.keys() == {"FedAvg", "FedAdam"}
    assert finals["FedAvg"] > 0.5
    grid = FakeGrid(names["client"], list(range(5)), tmp_path / "nodes")
    names["server"](grid, Context(1, 1, {}, RecordDict(), {"rounds": 2, "out": str(tmp_path / "run")}))
    params = fs.load(tmp_path / "run").params
    fs.flower.trained_assign(names["model"], params)
    weight = names["model"][0].weight.detach().numpy()
    np.testing.assert_array_equal(weight, np.asarray(params["0.weight"]))


def a_node(names):
    """One round of the client of a block, as its server would ask for it."""
    from flwr.app import Context, RecordDict

    from fake_grid import FakeGrid

    model = names["trainer"].model if "trainer" in names else names["module"]
    server = fs.flower.server_app(
        fs.FedAvg(), fs.flower.trained_parameters(model), rounds=1, population=1, out="run"
    )
    server(FakeGrid(names["client"], [0], Path("nodes")), Context(1, 1, {}, RecordDict(), {}))
    assert fs.load("run").params


@pytest.mark.full
def test_the_trainer_of_the_page(tmp_path, monkeypatch):
    for package in ("torch", "transformers", "accelerate", "flwr"):
        pytest.importorskip(package)
    import transformers.trainer
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    # tests/datasets is no package that the Trainer could use
    monkeypatch.setattr(transformers.trainer, "is_datasets_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=9, num_labels=2, **sizes))
    arguments = TrainingArguments("out", use_cpu=True, report_to="none", save_strategy="no")
    texts = [{"input_ids": [1, 2, i % 9], "labels": i % 2} for i in range(8)]
    names = {"fs": fs, "trainer": Trainer(model, arguments, train_dataset=texts, eval_dataset=texts)}
    exec(HUGGING_FACE, names)
    a_node(names)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_the_lightning_module_of_the_page(tmp_path, monkeypatch):
    for package in ("torch", "flwr"):
        pytest.importorskip(package)
    lightning = pytest.importorskip("lightning")
    import torch

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, index):
            return (self.layer(batch) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    monkeypatch.chdir(tmp_path)
    batches = torch.utils.data.DataLoader(torch.ones(4, 3), batch_size=2)
    names = {"fs": fs, "L": lightning, "batches": batches, "module": Module()}
    exec(LIGHTNING, names)
    a_node(names)
