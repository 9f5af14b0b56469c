"""LoRA of a Hugging Face text model: clients send factors of attention matrices, whose products average exactly.

Run it: python examples/hugging_face_lora.py
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification

import fedsolve as fs


class Classifier(nn.Module):
    """Tokens and their mask in, logits out."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        """Logits of texts."""
        return self.model(**x).logits


# random weights, so that nothing is downloaded; BertForSequenceClassification.from_pretrained(...) has trained ones
torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
module = Classifier(BertForSequenceClassification(BertConfig(vocab_size=300, num_labels=3, **sizes)))
for name, parameter in module.named_parameters():  # all others are neither trained nor sent
    parameter.requires_grad = any(part in name for part in ("query.weight", "value.weight", "classifier"))

# made texts: a topic has words that are more frequent in it; each client has a topic of which it has most
rng = np.random.default_rng(0)
words = rng.dirichlet(np.full(300, 0.05), 3)


def texts(topics):
    """A text of twelve words for each topic, and the topics."""
    tokens = np.stack([rng.choice(300, 12, p=words[topic]) for topic in topics])
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}, topics


clients = [texts(rng.choice(3, 40, p=np.roll([0.8, 0.1, 0.1], i))) for i in range(9)]
task = fs.tasks.from_torch(
    module, F.cross_entropy, clients, test=texts(rng.integers(0, 3, 300)), batch_size=10
)
for label, method in {
    "full matrices": fs.FedAvg(1.0),
    "LoRA": fs.LowRank(fs.FedAvg(1.0), 4, leaves=("query.weight", "value.weight")),
    "FedEx-LoRA": fs.LowRank(fs.FedAvg(1.0), 4, "exact", leaves=("query.weight", "value.weight")),
}.items():
    result = fs.run(method, task, rounds=30, eval_every=30, clients_per_round=6)
    sent = result.history.rounds["bytes_up"][-1] / 6e3
    print(
        f"{label}: accuracy {100 * result.metrics['test_accuracy'][-1]:.1f} %, {sent:.1f} kB up a round and client"
    )

Path("runs").mkdir(exist_ok=True)
torch.save(result.module().model.state_dict(), "runs/bert.pt")  # factors are multiplied out
