"""Fine-tuning of a tiny BERT by `transformers.Trainer`; the lines that end in `# new` make it the work of three sites.

Run it: python examples/training_loop/hugging_face.py
"""

import os

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

import fedsolve as fs  # new

words = np.random.default_rng(0).dirichlet(np.full(200, 0.05), 3)  # a topic has words that are frequent in it


def texts(site):
    """Made texts of twelve words and their topics: of sites 0 to 2, each with most of one topic, or held out (3)."""
    rng = np.random.default_rng(site)
    topics = rng.integers(0, 3, 300) if site == 3 else rng.choice(3, 60, p=np.roll([0.8, 0.1, 0.1], site))
    return [{"input_ids": rng.choice(200, 12, p=words[topic]), "labels": int(topic)} for topic in topics]


def accuracy(predicted):
    """The share of texts whose topic is found."""
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


# random weights, so that nothing is downloaded; from_pretrained("...") has trained ones
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = BertForSequenceClassification(BertConfig(vocab_size=200, num_labels=3, **sizes))
arguments = TrainingArguments(
    "runs/bert", num_train_epochs=8, learning_rate=3e-3, warmup_steps=4, save_strategy="no",
    per_device_train_batch_size=16, disable_tqdm=True, report_to="none", use_cpu=True, logging_strategy="no",
)  # fmt: skip
mine = texts(int(os.environ.get("SITE", "0")))  # a node of Flower is started with its own SITE
trainer = Trainer(model, arguments, train_dataset=mine, eval_dataset=texts(3), compute_metrics=accuracy)
trainer.remove_callback(PrinterCallback)

# trainer.train() was here: of its eight epochs each round has one, along the same schedule of learning rates
loop = fs.flower.HuggingFaceLoop(trainer, epochs=1)  # new
client = fs.flower.client_app(lambda node: fs.flower.TrainedClient(model, loop))  # new
server = fs.flower.server_app(fs.FedAvg(), fs.flower.trained_parameters(model), rounds=8, population=3)  # new

if __name__ == "__main__":  # the same on one machine
    task = fs.tasks.from_training(
        model, loop, [texts(0), texts(1), texts(2)], evaluate=loop.evaluate, test=texts(3)
    )
    result = fs.run(fs.FedAvg(), task, rounds=8, eval_every=8)
    print(f"accuracy on unseen texts: {100 * result.metrics['test_accuracy'][-1]:.1f} %")
    result.module().save_pretrained("runs/bert")
