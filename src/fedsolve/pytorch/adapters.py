"""What training changed of a module as an adapter in PEFT's format: a configuration, and factors of matrices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save
from torch import nn

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.files import write_atomically
from fedsolve.pytorch.translation.arrays import tensor_to_array, trainable

_MERGED = "save the whole model: result.module().save_pretrained(folder)"
Product = tuple[np.ndarray, np.ndarray]  # a matrix B A: B, shape (rows, rank), and A, (rank, columns)


def save_adapter(folder: Path, before: nn.Module, after: nn.Module) -> None:
    # what differs between two models of the same layers; an adapter of PEFT's own as PEFT saves it
    if hasattr(after, "peft_config"):
        folder.mkdir(parents=True, exist_ok=True)
        after.save_pretrained(str(folder))  # pyright: ignore[reportCallIssue]
        return
    products, biases, whole = _changes(before, after)
    if not products:
        raise InvalidInput(
            f"no matrix changed by a product smaller than itself, as adapters hold it: {_MERGED}"
        )
    arrays, ranks = {}, {home: len(a) for home, (_, a) in products.items()}
    for home, (b, a) in products.items():
        b, a = (a.T, b.T) if _is_transposed(after.get_submodule(home)) else (b, a)
        arrays |= {f"{home}.lora_A.weight": a, f"{home}.lora_B.weight": b}
        if biases:
            arrays[f"{home}.lora_B.bias"] = biases.get(home, np.zeros(len(b)))
    for home in whole:
        state = after.get_submodule(home).state_dict()
        arrays |= {f"{home}.{name}": tensor_to_array(t) for name, t in state.items()}
    config, most = getattr(after, "config", None), max(ranks.values())
    kind = "SEQ_2_SEQ_LM" if getattr(config, "is_encoder_decoder", False) else "CAUSAL_LM"
    lower = {home: rank for home, rank in ranks.items() if rank < most}
    written = {
        "peft_type": "LORA",
        "task_type": kind if getattr(after, "can_generate", bool)() else None,
        "base_model_name_or_path": getattr(config, "_name_or_path", None) or None,
        "r": most,
        "lora_alpha": most,  # factors are multiplied by alpha / r
        "rank_pattern": lower,
        "alpha_pattern": lower,
        "target_modules": sorted(ranks),
        "modules_to_save": sorted(whole) or None,
        "fan_in_fan_out": any(_is_transposed(after.get_submodule(home)) for home in ranks),
        "lora_bias": bool(biases),
    }
    in_float32 = {f"base_model.model.{name}": a.astype(np.float32, order="C") for name, a in arrays.items()}
    write_atomically(folder / "adapter_model.safetensors", save(in_float32, {"format": "pt"}))
    write_atomically(folder / "adapter_config.json", json.dumps(written, indent=2) + "\n")


def _changes(
    before: nn.Module, after: nn.Module
) -> tuple[dict[str, Product], dict[str, np.ndarray], set[str]]:
    # by the names of modules: products, what was added to biases beside them, and modules of which more changed
    start, own = dict(before.named_parameters()), trainable(after)
    every = after.named_parameters(remove_duplicate=False)
    twins = {id(parameter): name for name, parameter in every if name not in own}
    products, biases, whole = dict[str, Product](), dict[str, np.ndarray](), set[str]()
    for name, parameter in own.items():
        value, first = (tensor_to_array(t).astype(np.float64) for t in (parameter, start[name]))
        if np.array_equal(value, first):
            continue
        if twin := twins.get(id(parameter)):
            raise InvalidInput(f"'{name}' is '{twin}' too, of which an adapter would change one: {_MERGED}")
        home, _, last = name.rpartition(".")
        layer, found = after.get_submodule(home), None
        if last == "weight" and (isinstance(layer, nn.Linear) or _is_transposed(layer)):
            # twice the bound of what was rounded when a product was added
            found = product(value - first, 2 * torch.finfo(parameter.dtype).eps * np.linalg.norm(value))
        if found is not None:
            products[home] = found
        elif last == "bias":
            biases[home] = value - first
        else:
            whole.add(home)
    # PEFT gives a bias to all factors or to none
    all_have = all(getattr(after.get_submodule(home), "bias", None) is not None for home in products)
    whole |= biases.keys() - products.keys() if all_have else biases.keys()
    products = {home: found for home, found in products.items() if home not in whole and len(found[1])}
    return products, {home: change for home, change in biases.items() if home in products}, whole


def product(matrix: np.ndarray, error: np.floating) -> Product | None:
    # of least rank, the matrix to an error in the Frobenius norm; None where it is no smaller than the matrix
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    rest = np.sqrt(np.append(np.cumsum(s[::-1] ** 2)[::-1], 0.0))  # of each rank
    rank = int(np.argmax(rest <= error))
    if rank * sum(matrix.shape) >= matrix.size:
        return None
    root = np.sqrt(s[:rank])
    return u[:, :rank] * root, root[:, None] * v[:rank]


def _is_transposed(layer: nn.Module) -> bool:
    # GPT-2's linear layers, whose weight is (inputs, outputs)
    return type(layer).__name__ == "Conv1D" and hasattr(layer, "nf")
