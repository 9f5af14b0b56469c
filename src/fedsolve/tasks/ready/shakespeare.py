"""The next character of Shakespeare's plays, by speaking role (in the manner of Caldas et al. 2018)."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer, unknown
from fedsolve.data import sources
from fedsolve.data.federated import FederatedData
from fedsolve.data.partitions import Natural
from fedsolve.folders.untrusted import MALFORMED, loads, open_regular
from fedsolve.tasks.models.recurrent import GRU, LSTM
from fedsolve.tasks.shared import next_token, pick, sample_examples, windows
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
"""Models of the task by name."""


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
