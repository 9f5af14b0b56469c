"""20 Newsgroups by date as bags of words with their authors."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.sources import read_bytes
from fedsolve.tasks.datasets.originals import members, write_npz
from fedsolve.tasks.text.news import FILE, SHA256

ARCHIVE = "20news-bydate.tar.gz"
WORDS = 10_000
_MOST = 100_000_000
_WORD = re.compile(r"[a-z]{2,}")
_ADDRESS = re.compile(r"[\w.+%-]+@[\w.-]+")
_QUOTED = re.compile(r"\s*[>|:}]|\s*In article\b|.*\b(writes|wrote|says|said)\s*:\s*$")


def convert(folder: Path, to: Path) -> list[Path]:
    """The posts of the archive, or of the two folders it unpacks to, as the sparse table that the task reads."""
    posts = _posts(folder)
    groups = sorted({group for _, group, _ in posts})
    bags, senders = [], []
    for _, _, content in posts:
        head, _, body = content.decode("latin-1").replace("\r\n", "\n").partition("\n\n")
        text = "\n".join(line for line in body.splitlines() if not _QUOTED.match(line))
        bags.append(Counter(_WORD.findall(_ADDRESS.sub(" ", text).lower())))
        senders.append(_sender(head))
    is_test = np.array([test for test, _, _ in posts])
    spread = Counter(word for bag, test in zip(bags, is_test, strict=True) if not test for word in bag)
    vocab = sorted(sorted(spread, key=lambda word: (-spread[word], word))[:WORDS])
    number = {word: i for i, word in enumerate(vocab)}
    ranks = {
        s: i
        for i, (s, _) in enumerate(sorted(Counter(senders).items(), key=lambda pair: (-pair[1], pair[0])))
    }
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


def _sender(head: str) -> str:
    """The address in the From line, the whole line where it has none."""
    line = next((line for line in head.split("\n") if line.lower().startswith("from:")), "")
    match = _ADDRESS.search(line)
    return (match.group() if match else line).lower()


def _posts(folder: Path) -> list[tuple[bool, str, bytes]]:
    """Whether it is a test post, its newsgroup and its text, of all posts in the order of their names."""
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
