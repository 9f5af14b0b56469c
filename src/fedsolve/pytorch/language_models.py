"""Hugging Face's models as modules of one argument: how they load, what of them trains, how adapters are saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor, nn

from fedsolve.core.errors import InvalidInput, require, shown, unknown
from fedsolve.core.loss_checks import first_line
from fedsolve.core.trees import as_patterns
from fedsolve.folders.files import write_atomically
from fedsolve.pytorch.batch_losses import seed_torch
from fedsolve.pytorch.translation.arrays import copy_module, tensor_to_array, trainable

KINDS = {
    "causal-lm": ("AutoModelForCausalLM", "CAUSAL_LM"),
    "classification": ("AutoModelForSequenceClassification", "SEQ_CLS"),
    "seq2seq": ("AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM"),
    "masked-lm": ("AutoModelForMaskedLM", None),
}
"""By the kind of task the class of transformers that loads a folder, and PEFT's name of the task."""
_UNITS = 100  # rounding units of logits, relative to the largest, that are no difference


class TextModule(nn.Module):
    """A model called with a dictionary: its logits or, of labels, each token's loss and hit, which are far smaller."""

    def __init__(self, model: nn.Module, generates: bool) -> None:
        super().__init__()
        self.model, self._generates, self._trains = model, generates, model.training
        self.train()

    @property
    def unwrapped(self) -> nn.Module:
        # the model as it was given, in its own mode
        return self.model.train(self._trains)

    def forward(self, x: Mapping[str, Tensor]) -> Any:
        given: dict[str, Any] = {name: value for name, value in x.items() if name != "labels"}
        logits = self.model(**given, **({"use_cache": False} if self._generates else {})).logits
        if "labels" not in x:
            return logits
        labels = x["labels"]
        own = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return logits.logsumexp(-1) - own, (logits.argmax(-1) == labels).to(logits.dtype)


def mean_of_tokens(part: int, exponent: bool = False) -> Callable[[Any, Tensor], Tensor]:
    # (outputs, labels) -> the mean of one of the outputs over the places with a label, or exp of it

    def mean(outputs: Any, labels: Tensor) -> Tensor:
        value = torch.where(labels >= 0, outputs[part], 0).sum() / (labels >= 0).sum()
        return value.exp() if exponent else value

    return mean


def loaded(model: Any, kind: str, tokenizer: Any) -> tuple[Any, Any, tuple[str, ...]]:
    # a copy of a model, or what a folder holds, the tokenizer, and notes
    if hasattr(getattr(model, "config", None), "vocab_size"):
        return copy_module(model), tokenizer, ()
    if not isinstance(model, str | Path) or not (Path(model) / "config.json").is_file():
        why = "give a model of transformers or PEFT, or a folder with its config.json, as save_pretrained writes it"
        raise InvalidInput(f"model = {shown(model)}: {why}")
    try:
        import transformers  # pyright: ignore[reportMissingImports]

        given = {"local_files_only": True, "trust_remote_code": False}  # a folder's own code is never run
        if tokenizer is None and (Path(model) / "tokenizer_config.json").is_file():
            tokenizer = transformers.AutoTokenizer.from_pretrained(model, **given)
        load = getattr(transformers, KINDS[kind][0]).from_pretrained
        with seed_torch(0):  # of what the folder does not hold
            own, found = load(model, dtype=torch.float32, output_loading_info=True, **given)
    except Exception as error:  # whatever transformers says of a folder
        raise InvalidInput(f"model = {shown(model)} cannot be loaded: {first_line(error)}") from error
    drawn = f"{shown(sorted(found['missing_keys']))} is not in the model's folder: drawn from one fixed seed"
    return own, tokenizer, (drawn,) if found["missing_keys"] else ()


def decoder_inputs(model: Any, labels: np.ndarray) -> np.ndarray:
    try:
        found = model.prepare_decoder_input_ids_from_labels(labels=torch.tensor(labels).long())
    except Exception as error:  # whatever the model asks of its configuration
        why = f"task = 'seq2seq': {type(model).__name__} makes no inputs of its decoder ({first_line(error)})"
        raise InvalidInput(f"{why}: set decoder_start_token_id and pad_token_id in its config") from error
    return found.numpy().astype(np.int32)


def prepared(model: Any, kind: str, lora: Any, trained: Any) -> nn.Module:
    # with adapters, or with `requires_grad` of what trains
    adapts = hasattr(model, "peft_config")
    if sum((lora is not None, trained is not None, adapts)) > 1:
        raise InvalidInput("what trains is said twice: give lora, or trained, or a model with an adapter")
    if trained is not None:
        _choose(model, as_patterns("trained", trained, example="('q_proj', 'v_proj')"))
    if lora is not None:
        require("peft", "lora= needs", "hugging-face", "PEFT")
    try:
        if adapts and not any(p.requires_grad for p in model.parameters()):
            # one that was loaded is frozen; transformers' own models with adapters have no `active_adapter`
            model.set_adapter(getattr(model, "active_adapter", None) or model.active_adapters())
        if lora is None:
            return model
        import peft  # pyright: ignore[reportMissingImports]

        given = {"task_type": KINDS[kind][1], **lora} if isinstance(lora, Mapping) else None
        with seed_torch(0):
            return peft.get_peft_model(model, lora if given is None else peft.LoraConfig(**given))
    except Exception as error:  # whatever PEFT says of a configuration or an adapter
        what = "the model's adapter" if lora is None else f"lora = {shown(lora)}"
        raise InvalidInput(f"{what}: PEFT refuses it ({first_line(error)})") from error


def _choose(model: nn.Module, names: Sequence[str]) -> None:
    # as PEFT's `target_modules`: all modules, and parameters, whose names end in one of them
    parts = {**dict(model.named_modules(remove_duplicate=False)), **dict(model.named_parameters())}
    model.requires_grad_(False)
    for wanted in names:
        found = [part for name, part in parts.items() if f".{name}".endswith(f".{wanted}")]
        if not found:
            raise unknown("module in trained", wanted, {name.rpartition(".")[2] for name in parts} - {""})
        for part in found:
            part.requires_grad_(True)


def tells_texts_apart(module: TextModule, vocabulary: int) -> bool:
    # has a text behind another one the logits that it has alone? `InvalidInput` of a model of other than next tokens
    one, other = (torch.arange(k, k + 3)[None] % vocabulary for k in (vocabulary // 2, vocabulary // 3))
    both = {"input_ids": torch.cat([one, other], 1), "position_ids": torch.arange(3)[None].repeat(1, 2)}
    found = []
    module.eval()
    try:
        with torch.no_grad():
            found += (module(x) for x in ({"input_ids": other}, {"input_ids": other[:, :2]}, both))
    except Exception:  # it takes no positions; or no tokens, of which `from_torch` tells
        pass
    finally:
        module.train()
    if len(found) > 1 and not _alike(found[1], found[0][:, :2]):
        own = f"task = 'causal-lm': {type(module.model).__name__}"
        raise InvalidInput(f"{own} does not predict tokens from those before alone: see task=")
    return len(found) > 2 and _alike(found[0], found[2][:, 3:])


def _alike(wanted: Tensor, found: Tensor) -> bool:
    limit = min(_UNITS * torch.finfo(wanted.dtype).eps, 0.1) * wanted.abs().max()
    return wanted.shape == found.shape and not bool((wanted - found).abs().max() > limit)


# What training changed of a module as an adapter in PEFT's format: a configuration, and factors of matrices.

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
