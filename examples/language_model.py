"""A language model fine-tuned by 20 authors: LoRA averaged in four ways, with three servers.

Run it: python examples/language_model.py [FOLDER]
FOLDER holds a model and its tokenizer, such as SmolLM2-135M, as `save_pretrained` or a download leaves them, or is a
file .gguf, which transformers reads with the package gguf. Without it a Llama of two layers begins from random weights,
and reads characters. Texts are Shakespeare's roles where FEDSOLVE_DATA has them, else made ones.
"""

import gzip
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

import fedsolve as fs

AUTHORS, CHARACTERS = 20, 1_500  # of training, and the first fifth as many of test
AVERAGES = ("both", "A", "exact", "stack")


def texts() -> list[list[str]]:
    """Each author's texts."""
    roles = Path(os.environ.get("FEDSOLVE_DATA", "none")) / "shakespeare_roles.jsonl.gz"
    if roles.is_file():
        with gzip.open(roles, "rt", encoding="utf-8") as lines:
            found = [json.loads(line)["speeches"] for line in lines]
        return sorted(found, key=lambda speeches: -sum(map(len, speeches)))[:AUTHORS]
    draw, words = np.random.default_rng(0), ("sun", "sea", "wind", "rain", "storm", "tide", "star", "moon")
    own = draw.dirichlet(np.full(len(words), 0.3), AUTHORS)  # an author's favourite words
    line = "the {} follows the {} and the {}"
    return [[line.format(*draw.choice(words, 3, p=p)) for _ in range(100)] for p in own]


def cut(own: list[str]) -> tuple[list[str], list[str]]:
    """Texts to test on, and to train on."""
    ends = np.cumsum([len(text) for text in own])
    test, train = np.searchsorted(ends, (CHARACTERS / 5, CHARACTERS * 6 / 5)) + 1
    return own[:test], own[test:train]


def model_and_tokenizer(folder: str | None):
    """Those of a folder or a GGUF file; without one a small model, and None."""
    if folder is None:
        torch.manual_seed(0)
        sizes = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=128, **sizes)), None
    path, file = Path(folder), {}
    if not path.exists():
        sys.exit(f"FOLDER = {folder}: there is no such folder or file")
    if path.suffix == ".gguf":
        path, file = path.parent, {"gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **file)
    return model, transformers.AutoTokenizer.from_pretrained(path, **file)


def main() -> None:
    """Prepare the task, run all pairs and print their table."""
    model, tokenizer = model_and_tokenizer(sys.argv[1] if len(sys.argv) > 1 else None)
    pairs = [cut(own) for own in texts()]
    if tokenizer is None:  # characters are the tokens
        pairs = [[[np.minimum([*map(ord, t)], 127) for t in part] for part in pair] for pair in pairs]
    task = fs.tasks.from_hugging_face(
        model,
        [train for _, train in pairs],
        test=[text for test, _ in pairs for text in test],
        tokenizer=tokenizer,
        # random weights must train all in all: what has no factors trains in full
        trained=None if tokenizer is None else ("q_proj", "v_proj"),
        length=64,
        batch_size=4,
        name="language model",
    )
    rate, rounds = (0.3, 12) if tokenizer is None else (0.1, 4)
    servers = {
        "FedAvg": fs.FedAvg(rate, clip_norm=1.0),
        "FedAdam": fs.FedAdam(rate, server_lr=0.01, clip_norm=1.0),
        "FedDuAdam": fs.FedDuAdam(rate, clip_norm=1.0),
    }
    print(f"{'server':10} {'LoRA':6} {'perplexity':>10} {'MB':>7} {'seconds':>8}")
    for name, server in servers.items():
        for average in AVERAGES:
            method = fs.LowRank(server, 4, average, leaves="*_proj.weight")
            result = fs.run(method, task, rounds=rounds, eval_every=rounds, clients_per_round=5)
            at = result.final("test_perplexity"), result.history.megabytes()[-1], result.history.seconds
            print(f"{name:10} {average:6} {at[0]:10.2f} {at[1]:7.2f} {at[2]:8.1f}", flush=True)
            if (name, average) == ("FedAvg", "both"):
                result.save_adapter(
                    "runs/adapter"
                )  # for peft.PeftModel.from_pretrained(model, "runs/adapter")
    start = result.metrics["test_perplexity"][0]
    print(f"before training: perplexity {start:.2f}")


if __name__ == "__main__":
    main()
