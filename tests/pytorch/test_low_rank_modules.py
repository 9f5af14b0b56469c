"""LoRA of PyTorch modules and of a Hugging Face text model: which leaves change, by how much, and what is sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedsolve as fs

RNG = np.random.default_rng(0)


def trained(module, clients, average, **options):
    """The module after some rounds, how far the parameters with factors are from where they began, and the run."""
    task = fs.tasks.from_torch(module, F.cross_entropy, clients, batch_size=4)
    result = fs.run(fs.LowRank(fs.FedAvg(0.5), 2, average, **options), task, rounds=2, clients_per_round=3)
    before, after = module.state_dict(), result.module().state_dict()
    return {name: (after[name] - before[name]).numpy() for name in before}, result


@pytest.mark.parametrize("average", [pytest.param("both", marks=pytest.mark.full), "stack"])
@pytest.mark.full
def test_a_module_with_a_convolution_and_frozen_parameters(average):
    """Averaged factors change a matrix by rank 2; stacked ones by up to 2 for each of three clients."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 20), nn.Linear(20, 3))
    module.get_parameter("3.bias").requires_grad = False
    clients = [(RNG.normal(size=(n, 3, 4, 4)).astype("float32"), RNG.integers(0, 3, n)) for n in (5, 8, 6)]
    changes, result = trained(module, clients, average, leaves=("0.weight", "3.weight"))
    ranks = {
        name: np.linalg.matrix_rank(change.reshape(len(change), -1), tol=1e-5)
        for name, change in changes.items()
    }
    most = 2 if average == "both" else 2 * 3 * 2
    assert 0 < ranks["0.weight"] <= most
    assert 0 < ranks["3.weight"] <= most
    assert (ranks["3.weight"] > 2) == (average == "stack")
    assert ranks["3.bias"] == 0 < ranks["4.weight"]
    factors, rest = 2 * (12 + 27) + 2 * (48 + 20), 12 + 3 * 20 + 3
    assert result.history.rounds["bytes_up"][0] == 3 * 4 * (factors + rest + 1)


class Classifier(nn.Module):
    """Logits of a Hugging Face model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(**x).logits


def test_a_hugging_face_text_model():
    """Queries and values of attention have factors, the classifier trains in full, all else is frozen."""
    from pytorch.modules import declare_torchvision

    declare_torchvision()  # which transformers imports
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=16, max_position_embeddings=8, num_labels=3)
    module = Classifier(transformers.BertForSequenceClassification(config))
    for name, parameter in module.named_parameters():
        parameter.requires_grad = any(part in name for part in ("query.weight", "value.weight", "classifier"))
    clients = [
        (
            {"input_ids": RNG.integers(3, 30, (n, 6)), "attention_mask": np.ones((n, 6), int)},
            RNG.integers(0, 3, n),
        )
        for n in (5, 8, 6)
    ]
    changes, result = trained(module, clients, "exact", leaves=("query.weight", "value.weight"))
    assert {name.split(".")[-2] for name, change in changes.items() if change.any()} == {
        "query",
        "value",
        "classifier",
    }
    assert result.history.rounds["bytes_up"][0] == 3 * 4 * (2 * 2 * (16 + 16) + 3 * 16 + 3 + 1)


@pytest.mark.full
def test_a_frozen_convolution_is_compared_in_the_type_of_the_others():
    """PyTorch's numbers are compared in float64."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    module.get_parameter("0.weight").requires_grad = False
    fs.tasks.from_torch(module, F.cross_entropy, [(np.ones((4, 3, 4, 4), "float32"), np.arange(4) % 3)])
