"""Texts as rows of tokens for language models: packed into sequences of one length, or one to a row and padded.

Inputs have the names of arguments of Hugging Face's models; targets are tokens, `labels` of the inputs too, or classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedsolve.core.errors import InvalidInput, of_type, shown
from fedsolve.data.columns import check_list
from fedsolve.tasks.task import Examples

IGNORED = -100
"""The label of a place without one, as in PyTorch's losses."""
COLUMNS = {
    "causal-lm": "text",
    "classification": "text label",
    "seq2seq": "source target",
    "masked-lm": "text",
}
"""Columns of a client's table by the kind of task."""
_MASKED, _BY_MASK, _BY_RANDOM = 0.15, 0.8, 0.1  # of the tokens, and what stands in their place, as in BERT


@dataclass(frozen=True)
class Reader:
    """How clients' texts become rows."""

    task: str
    columns: tuple[str, ...]
    length: int  # tokens of a row, at most
    model: Any  # its configuration: vocab_size, pad_token_id, num_labels
    tokenizer: Any  # (texts) -> {"input_ids": their tokens}; None where clients are tokens
    packs: bool  # several texts in a sequence, of a causal model
    decoder: Any  # a seq2seq model; None of others

    def rows(self, clients: Any, test: Any) -> tuple[list[Examples], Examples | None]:
        # of the clients and of the held-out examples, all of one width
        check_list("clients", clients, f"for each client its {' and '.join(self.columns)}")
        given = [(f"client {i}", client) for i, client in enumerate(clients)]
        read = [self._read(*pair) for pair in (*given, *([] if test is None else [("test", test)]))]
        longest = [max(map(np.size, itertools.chain(*column))) for column in zip(*read, strict=True)]
        widths = [min(self.length, n - (self.task == "causal-lm")) for n in longest]
        made = [self._made(number, parts, widths) for number, parts in enumerate(read)]
        return made[: len(clients)], None if test is None else made[-1]

    def _read(self, who: str, client: Any) -> list[Any]:
        # arrays of tokens, or classes, by column
        parts: Any = [client] if len(self.columns) == 1 else client
        try:
            if not isinstance(client, list | tuple | np.ndarray):
                parts = [client[column] for column in self.columns]
            parts = [list(part) for part in parts if not isinstance(part, str)]
        except (LookupError, TypeError, AttributeError):
            parts = ()
        if len(parts) != len(self.columns):
            raise InvalidInput(f"{who} is {of_type(client)}: give lists, or a table, of {self.columns}")
        read = [self._column(who, *pair) for pair in zip(COLUMNS[self.task].split(), parts, strict=True)]
        if len(sizes := set(map(len, read))) > 1:
            raise InvalidInput(f"{who} has columns of {max(sizes)} and {min(sizes)} rows: give as many")
        least = 1 + (self.task == "causal-lm")
        if max(map(len, read[0]), default=0) < least:
            raise InvalidInput(f"{who} has no text of at least {least} tokens: leave it out")
        return read

    def _column(self, who: str, kind: str, given: list[Any]) -> Any:
        if kind == "label":
            labels, classes = _as_array(given), self.model.num_labels
            if labels.ndim != 1 or not np.isin(labels, range(classes)).all():
                raise InvalidInput(f"{who} has a label that is no integer from 0 to {classes - 1}")
            return labels.astype(np.int32)
        if given and all(isinstance(text, str) for text in given):
            given = self._tokenized(who, given, kind)
        least, last = int(self.task != "causal-lm"), self.model.vocab_size - 1
        texts = [_as_array(text) for text in given]
        for row, text in enumerate(texts):
            where = f"text {row} of {who}"
            if text.ndim != 1 or text.size < least or (text.size and text.dtype.kind not in "iu"):
                what = shown(given[row]) if text.ndim == 1 else of_type(given[row])
                raise InvalidInput(f"{where} is {what}: give texts alone, or integers (tokens,) alone")
            if text.size and not 0 <= text.min() <= text.max() <= last:
                raise InvalidInput(f"{where} has a token outside 0 to {last}: take the model's own tokenizer")
        return [text[: self.length if least else None].astype(np.int32) for text in texts]

    def _tokenized(self, who: str, texts: list[str], kind: str) -> Any:
        if self.tokenizer is None:
            raise InvalidInput(f"{who} has texts: give tokenizer=, the model's own")
        if self.task != "causal-lm":
            given = {"text_target": texts} if kind == "target" else {"text": texts}
            return self.tokenizer(**given, truncation=True, max_length=self.length)["input_ids"]
        end = getattr(self.tokenizer, "eos_token_id", None)
        found = self.tokenizer(texts)["input_ids"]
        return [[*t, end] if end is not None and list(t[-1:]) != [end] else t for t in found]

    def _made(self, number: int, read: list[Any], widths: list[int]) -> Examples:
        texts, *other = read
        if self.task == "causal-lm":
            if self.packs:
                return packed(texts, self.length)
            rows = [packed([text], widths[0]) for text in texts if len(text) > 1]
            x, y = jax.tree.map(lambda *parts: np.concatenate(parts), *map(tuple, rows))
            return Examples({name: x[name] for name in ("input_ids", "labels")}, y)
        if self.task == "masked-lm":
            texts, *other = masked(texts, self.tokenizer, self.model.vocab_size, number)
        pad, there = self.model.pad_token_id or 0, [np.ones_like(text) for text in texts]
        x = {"input_ids": _padded(texts, widths[0], pad), "attention_mask": _padded(there, widths[0], 0)}
        if self.task == "classification":
            return Examples(x, other[0])
        x["labels"] = _padded(other[0], widths[-1], IGNORED)
        if self.decoder is not None:
            from fedsolve.pytorch.language_models import decoder_inputs

            x["decoder_input_ids"] = decoder_inputs(self.decoder, x["labels"])
        return Examples(x, x["labels"])


def packed(texts: Sequence[np.ndarray], length: int) -> Examples:
    # sequences in which texts follow one another, cut where a sequence ends; a text of n tokens has n - 1 places.
    # Positions begin again with each text and each sequence: by them transformers tells texts apart
    texts = [text for text in texts if len(text) > 1]
    sizes = np.array([len(text) - 1 for text in texts])
    total, end = int(sizes.sum()), -(-int(sizes.sum()) // length) * length
    ids, labels = np.zeros(end, np.int32), np.full(end, IGNORED, np.int32)
    ids[:total] = np.concatenate([text[:-1] for text in texts])
    labels[:total] = np.concatenate([text[1:] for text in texts])
    place = np.arange(end)
    first = np.concatenate([np.repeat(np.cumsum(sizes) - sizes, sizes), place[total:]])
    positions = (place - np.maximum(first, place // length * length)).astype(np.int32)
    ids, positions, labels = (a.reshape(-1, length) for a in (ids, positions, labels))
    return Examples({"input_ids": ids, "position_ids": positions, "labels": labels}, labels)


def masked(texts: Sequence[np.ndarray], tokenizer: Any, vocabulary: int, client: int) -> tuple[Any, Any]:
    # texts with masks, by draws of the client's number, and what stood there
    draw, changed, targets = np.random.default_rng((0, client)), [], []
    mask, special = tokenizer.mask_token_id, np.asarray(tokenizer.all_special_ids)
    for text in texts:
        may = np.flatnonzero(~np.isin(text, special))
        at = draw.permutation(may)[: max(1, round(_MASKED * len(may)))]
        kind = draw.random(len(at))
        instead = np.where(kind < _BY_MASK, mask, draw.integers(0, vocabulary, len(at)))
        own, target = text.copy(), np.full(len(text), IGNORED, np.int32)
        own[at], target[at] = np.where(kind < _BY_MASK + _BY_RANDOM, instead, text[at]), text[at]
        changed.append(own)
        targets.append(target)
    return changed, targets


def _as_array(given: Any) -> np.ndarray:
    # of no axis where it cannot be one
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError):
        return np.array(None)


def _padded(texts: Sequence[np.ndarray], width: int, value: int) -> np.ndarray:
    rows = np.full((len(texts), width), value, np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return rows
