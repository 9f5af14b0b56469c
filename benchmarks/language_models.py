"""Decoders of 10 and 27 million parameters as Hugging Face has them, beside the same PyTorch and PEFT loop.

    python benchmarks/bench.py language            four steps of AdamW, in turns: full, and LoRA on all linear layers
    python benchmarks/language_models.py           the peak memory of each, in processes of their own

L10 and L27 are Llamas with tied embeddings and a vocabulary of 8,000 (6 x 320 and 10 x 448), of random weights: one
client, four steps of four sequences of 128 tokens. LoRA is that of PEFT, rank 8. Needs transformers and PEFT.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import fedsolve as fs
from measure import Setting, compare, library
from stored import table

VOCABULARY, LENGTH, BATCH, STEPS, RATE = 8_000, 128, 4, 4, 1e-4
SIZES = {"L10": (6, 320), "L27": (10, 448)}
TINY = {"L0": (1, 64)}
LORA = {"r": 8, "lora_alpha": 8, "target_modules": "all-linear"}
KINDS = ("full", "LoRA")


def model(name: str) -> LlamaForCausalLM:
    layers, width = (SIZES | TINY)[name]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def texts() -> np.ndarray:
    """Sequences of one token more than are predicted."""
    return np.random.default_rng(0).integers(0, VOCABULARY, (BATCH * STEPS, LENGTH + 1))


def translated(name: str, kind: str) -> Callable[[], None]:
    """A round of the engine."""
    options: dict[str, Any] = {"lora": LORA} if kind == "LoRA" else {}
    work = fs.tasks.from_hugging_face(
        model(name), [list(texts())], length=LENGTH, batch_size=BATCH, **options
    )
    adamw = fs.client.Optax(optax.adamw, learning_rate=RATE, weight_decay=0.01)
    return library(fs.FedOpt(adamw, fs.server.ServerSGD(1.0)), work, None, 1)


def loop(name: str, kind: str, checkpoint: bool = False) -> Callable[[], None]:
    """The same steps in PyTorch, from the same start each time."""
    own: Any = model(name)
    if kind == "LoRA":
        own = get_peft_model(own, LoraConfig(task_type="CAUSAL_LM", **LORA))
    if checkpoint:
        own.gradient_checkpointing_enable({"use_reentrant": False})
    trained = [p for p in own.parameters() if p.requires_grad]
    start, rows = [p.detach().clone() for p in trained], torch.from_numpy(texts())

    def one_round() -> None:
        with torch.no_grad():
            for p, first in zip(trained, start, strict=True):
                p.copy_(first)
        optimiser = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.01)
        for batch in rows.split(BATCH):
            optimiser.zero_grad()
            logits = own(input_ids=batch[:, :-1], use_cache=False).logits
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimiser.step()

    one_round()
    return one_round


def language(setting: Setting) -> None:
    for name in setting.pick(SIZES, TINY):
        size = sum(p.numel() for p in model(name).parameters()) / 1e6
        for kind in KINDS:
            programs = {"translated": translated(name, kind), "PyTorch": loop(name, kind)}
            about = f"{size:.1f} million parameters, {STEPS} steps of {BATCH} x {LENGTH} tokens"
            compare(f"language {name} {kind}", about, programs, 1, setting.pick(7, 2), base="translated")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def memory(names: list[str]) -> None:
    """Print the most memory of each side, in GB, each in a process of its own."""
    rows = []
    for name in names or SIZES:
        for kind in KINDS:
            for side in ("translated", "PyTorch"):
                command = [sys.executable, __file__, "--one", name, kind, side]
                found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                rows.append((name, kind, side, found.strip().splitlines()[-1]))
    table("peak memory", ("work", "kind", "side", "peak, GB"), rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        ((translated if sys.argv[4] == "translated" else loop)(*sys.argv[2:4]))()
        jax.effects_barrier()
        print(f"{_peak():.2f}")
    else:
        memory(sys.argv[1:])
