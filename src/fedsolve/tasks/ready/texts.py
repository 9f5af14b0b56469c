"""The next character of plays by role, and the next word of chat messages by sender (the package chitchat-dataset)."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer, unknown
from fedsolve.data import sources
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import Natural
from fedsolve.data.sources import read_bytes
from fedsolve.folders.untrusted import MALFORMED, loads, open_regular
from fedsolve.tasks.losses.losses import Model, Pooled
from fedsolve.tasks.models.recurrent import GRU, LSTM
from fedsolve.tasks.shared import PADDING, next_token, package_folder, pick, sample_examples, windows
from fedsolve.tasks.task import Examples, Task

FILE = "shakespeare_roles.jsonl.gz"
LEAF = "shakespeare_leaf.jsonl.gz"
"""What `fedsolve data shakespeare-leaf` makes; no check sum is known beforehand."""
SHA256 = "be31bb0e368380d96e20d9a218ae0d41c0988b80fe02b1cd994086513a683858"

CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
"""The 86 characters of TensorFlow's federated Shakespeare, as tokens 1 to 86."""
UNKNOWN, START, END = len(CHARACTERS) + 1, len(CHARACTERS) + 2, len(CHARACTERS) + 3
VOCABULARY = len(CHARACTERS) + 4
"""Tokens: padding (0), the characters, any other character, the start and the end of a speech."""
_MOST = 100_000_000

MODELS = {"lstm": LSTM(VOCABULARY, 8, 256, 2), "gru": GRU(VOCABULARY, 8, 256, 2)}


@by_name("shakespeare")
def shakespeare(
    data_dir: str | Path | None = None,
    model: Any = "lstm",
    num_clients: int | None = None,
    seed: int = 0,
    length: int = 80,
    min_characters: int = 1_000,
    test_examples: int | None = 2_000,
    dataset: str = "roles",
) -> Task:
    """Next-character prediction on Shakespeare's plays by speaking role, as in LEAF but from another edition.

    Not LEAF's data: the plays are Moby's edition with its roles, LEAF and TensorFlow (715 roles in Reddi et al.
    2021, 100 of 1,129 in Takakura et al. 2025) took Project Gutenberg's. A client is a role with at least
    `min_characters` of text in two speeches or more; its first speeches, up to 80 % of the characters, train, the
    others are its test set, later in the play. As in Reddi et al. a speech is a text of its own, with a start and
    an end token, cut into sequences of 80 and padded at its tail; 90 tokens. x and y are int32 of shape (n,
    length). Here an example's loss is the mean over its own characters, so that a short tail counts as much as a
    full sequence; `accuracy` and `bits_per_character` are means over all characters together. Batches of 4 and 1
    epoch are those of Reddi et al., who draw 10 clients a round.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        model: "lstm" (embedding of 8, two layers of 256), "gru", or any model of (n, length) tokens and (n, length, 90)
            logits.
        num_clients: that many roles, drawn at random; default all; at least 1.
        seed: of the drawn roles and the drawn test sequences, at least 0.
        length: characters of a sequence, at least 1.
        min_characters: of a role's text, at least 2.
        test_examples: test sequences, drawn at random from those of all such roles; None for all; at least 1.
        dataset: "roles", or "leaf" for LEAF's own, which `fedsolve data shakespeare-leaf` converted: its lines are
            the speeches, cut here as above.

    Returns:
        The task `shakespeare-roles` or `shakespeare-leaf`, with `accuracy` and `bits_per_character` as its metrics.

    Raises:
        InvalidInput: the file is missing, damaged or another version, or an argument that cannot be used.
    """
    chosen = pick("model", model, MODELS)
    check_integer("length", length, 1)
    check_integer("min_characters", min_characters, 2)
    check_integer("test_examples", test_examples, 1, none="all")
    files = {"roles": (FILE, SHA256), "leaf": (LEAF, "")}
    if dataset not in files:
        raise unknown("data set of shakespeare", dataset, files)
    file, sha256 = files[dataset]
    roles = [
        (name, speeches)
        for name, speeches in _roles(sources.data_dir(data_dir) / file, sha256)
        if len(speeches) > 1 and sum(map(len, speeches)) >= min_characters
    ]
    if not roles:
        raise InvalidInput(f"min_characters = {min_characters}: no role has that much text: give less")
    cuts = [_first_part([len(s) for s in speeches]) for _, speeches in roles]
    some = np.concatenate(Natural()(np.arange(len(roles)), num_clients, seed))
    data = FederatedData.from_clients(
        [_examples(roles[i][1][: cuts[i]], length) for i in some], tuple(roles[i][0] for i in some)
    )
    test = _examples(
        [s for (_, speeches), cut in zip(roles, cuts, strict=True) for s in speeches[cut:]], length
    )
    test = sample_examples(test, test_examples, seed)
    task = next_token(
        f"shakespeare-{dataset}", chosen, VOCABULARY, data, test, "caldas2018leaf", bits="bits_per_character"
    )
    return replace(task, batch_size=4, eval_examples=2_000)


def encode(text: str) -> np.ndarray:
    """A speech as tokens: start, its characters, end.

    >>> encode("To")
    array([88, 12, 24, 89])
    """
    return np.array([START, *(_NUMBERS.get(c, UNKNOWN) for c in text), END])


_NUMBERS = {c: i + 1 for i, c in enumerate(CHARACTERS)}


def _first_part(sizes: Sequence[int]) -> int:
    # how many of the first speeches train: those that end within 80 % of the characters, at least 1
    ends = np.cumsum(sizes)
    return min(max(int(np.searchsorted(ends, 0.8 * ends[-1], side="right")), 1), len(sizes) - 1)


def _examples(speeches: Sequence[str], length: int) -> Examples:
    parts = [windows(encode(speech), length) for speech in speeches]
    return Examples(*(np.concatenate(field) for field in zip(*parts, strict=True)))


def _roles(path: Path, sha256: str) -> list[tuple[str, list[str]]]:
    # in the order of the file; speeches without text are left out
    sources.checksum(path, sha256)
    try:
        with open_regular(path) as zipped, gzip.open(zipped, "rt", encoding="utf-8") as file:
            text = file.read(_MOST)
        entries = [loads(line) for line in text.splitlines()]
        roles = [(f"{r['play']}: {r['role']}", [str(s) for s in r["speeches"] if s]) for r in entries]
    except (OSError, EOFError, zlib.error, *MALFORMED) as error:
        raise InvalidInput(
            f"{path} is not JSON of play, role and speeches a line ({type(error).__name__}): fetch it again"
        ) from None
    return roles


PACKAGE = "chitchat_dataset"
_MISSING = (
    "the task next-word needs the Python package chitchat-dataset: install it (pip install chitchat-dataset)"
)
_MARKS = frozenset(".,!?")
_WORD = re.compile(r"[a-z0-9']+|[.,!?]")


@dataclass(frozen=True)
class WordAccuracy(Pooled):
    """Word accuracy: the fraction of known words with the largest logit of all tokens.

    Only targets y in 1 .. words count.

    Attributes:
        model: (params, x of shape (n, time)) -> logits (n, time, tokens).
        words: how many words the vocabulary has.
    """

    model: Model
    words: int

    def of(self, outputs: Array, y: Array) -> Array:
        # 0 without a known word
        right = (jnp.argmax(outputs, axis=-1) == y) & self._known(y)
        counts = jnp.sum(self._known(y), axis=-1)
        return (jnp.sum(right, axis=-1) / jnp.maximum(counts, 1)).astype(outputs.dtype)

    def counts(self, batch: Examples) -> Array:
        return jnp.sum(self._known(batch[1]), axis=-1)

    def _known(self, y: Array) -> Array:
        return (y >= 1) & (y <= self.words)


@by_name("next-word")
def next_word(
    model: Any = "lstm",
    num_clients: int | None = None,
    seed: int = 0,
    vocabulary: int = 10_000,
    length: int = 20,
    min_words: int = 100,
    max_examples: int = 1_000,
    test_examples: int | None = 2_000,
) -> Task:
    """Next-word prediction on chat messages: the ChitChat data set, 812 senders of at least 100 words.

    Not Stack Overflow, on which Reddi et al. 2021 train (342,477 users): messages of students and others who
    chatted in pairs, in 2018. They come with the Python package chitchat-dataset. A client is a sender with at
    least `min_words` words; of its messages, in the order of time, the first 80 % train (at most 1,000, as in the
    paper), the others test. A message is an example: a start token, its words in lower case, an end token, cut or
    padded to `length`. The vocabulary are the words that are most frequent in the training messages, and one token
    for all others. x and y are int32 of shape (n, length). Here an example's loss is the mean over its own tokens;
    metrics are means over all tokens together. As in the paper `accuracy` leaves out unknown words and the end;
    batches are of 16, epochs 1, and its cohort is 50.

    Args:
        model: "lstm" (the paper's: embedding of 96, one layer of 670, a dense layer of 96 before the output),
            "lstm-small" (128 in place of 670), or any model of (n, length) tokens and
            (n, length, vocabulary + 4) logits.
        num_clients: that many senders, drawn at random; default all; at least 1.
        seed: of the drawn senders and the drawn test messages, at least 0.
        vocabulary: words, at least 1.
        length: tokens of an example; longer messages are cut; at least 1.
        min_words: of a sender, at least 1.
        max_examples: training messages of a sender, at least 1.
        test_examples: test messages, drawn at random from those of all such senders; None for all; at least 1.

    Returns:
        The task `next-word-chitchat`, with `accuracy` and `bits_per_token` as its metrics.

    Raises:
        InvalidInput: the package is missing or holds something else, or an argument that cannot be used.
    """
    for name, size in (("vocabulary", vocabulary), ("length", length), ("max_examples", max_examples)):
        check_integer(name, size, 1)
    check_integer("min_words", min_words, 1)
    check_integer("test_examples", test_examples, 1, none="all")
    models = {
        "lstm": LSTM(vocabulary + 4, 96, 670, 1, 96),
        "lstm-small": LSTM(vocabulary + 4, 96, 128, 1, 96),
    }
    chosen = pick("model", model, models)
    senders = {
        name: words
        for name, words in _senders(package_folder(PACKAGE, _MISSING) / "dataset.json").items()
        if len(words) > 1 and sum(w not in _MARKS for message in words for w in message) >= min_words
    }
    if not senders:
        raise InvalidInput(f"min_words = {min_words}: no sender wrote that much: give less")
    cuts = {name: max(1, int(0.8 * len(messages))) for name, messages in senders.items()}
    train = {name: messages[: cuts[name]][:max_examples] for name, messages in senders.items()}
    numbers = _word_numbers(train, vocabulary)
    names = list(senders)
    some = [names[i] for i in np.concatenate(Natural()(np.arange(len(names)), num_clients, seed))]
    data = FederatedData.from_clients(
        [_messages(train[name], numbers, vocabulary, length) for name in some],
        tuple(f"sender {name[:8]}" for name in some),
    )
    rest = [message for name, messages in senders.items() for message in messages[cuts[name] :]]
    test = sample_examples(_messages(rest, numbers, vocabulary, length), test_examples, seed)
    accuracy = WordAccuracy(chosen, vocabulary)
    task = next_token(
        "next-word-chitchat", chosen, vocabulary + 4, data, test, "myers2020conversational", accuracy
    )
    return replace(task, batch_size=16, eval_examples=2_000)


def _senders(path: Path) -> dict[str, list[list[str]]]:
    # words of each message, in the order of time; messages without words are left out
    try:
        chats = loads(read_bytes(path))
        said = [u for chat in chats.values() for turn in chat["messages"] for u in turn]
        said = sorted(said, key=lambda u: str(u["timestamp"]))  # ISO 8601 in UTC: as text in order of time
        senders: dict[str, list[list[str]]] = {}
        for u in said:
            words = _WORD.findall(str(u["text"]).lower())
            if words:
                senders.setdefault(str(u["sender"]), []).append(words)
    except MALFORMED as error:
        raise InvalidInput(
            f"{path} is not the JSON of chitchat-dataset ({type(error).__name__}): install it again"
        ) from None
    return dict(sorted(senders.items()))


def _word_numbers(train: Mapping[str, Sequence[Sequence[str]]], vocabulary: int) -> dict[str, int]:
    # from 1, the most frequent words first; of equals the first in the alphabet
    counts = Counter(word for messages in train.values() for words in messages for word in words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: i + 1 for i, word in enumerate(ranked[:vocabulary])}


def _messages(
    messages: Sequence[Sequence[str]], numbers: Mapping[str, int], vocabulary: int, length: int
) -> Examples:
    # a row a message: start, words, end, of which the first length + 1 are kept
    unknown, start, end = vocabulary + 1, vocabulary + 2, vocabulary + 3
    rows = [[start, *(numbers.get(w, unknown) for w in words), end][: length + 1] for words in messages]
    tokens = np.array([row + [PADDING] * (length + 1 - len(row)) for row in rows], np.int32)
    x, y = tokens[:, :-1], tokens[:, 1:]
    return Examples(np.where(y == PADDING, PADDING, x), y.copy())
