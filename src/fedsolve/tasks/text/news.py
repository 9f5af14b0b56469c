"""Tags of newsgroup posts from their words, by author: 20 Newsgroups (Lang 1995) in the manner of Stack Overflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedsolve.core.building import by_name
from fedsolve.core.errors import InvalidInput, check_integer
from fedsolve.data.federated import FederatedData
from fedsolve.data.sources import read_checked
from fedsolve.tasks.losses.accuracies import LikeliestSet, RecallAt
from fedsolve.tasks.losses.losses import BinaryCrossEntropy
from fedsolve.tasks.models.models import Softmax
from fedsolve.tasks.shared import by_owner
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
        return Examples(
            shares(z["indptr"], z["indices"], z["counts"], rows, words), of_group[z["label"][rows]]
        )

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
    """The authors with enough training posts; `examples` makes those of posts.

    Raises:
        InvalidInput: no author has so many.
    """
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
    """The numbers of the `size` words in the most training posts, ascending; of equal words the first."""
    in_training = np.repeat(~is_test, np.diff(indptr))
    posts = np.bincount(indices[in_training], minlength=known)
    return np.sort(np.argsort(-posts, kind="stable")[:size])


def shares(
    indptr: np.ndarray, indices: np.ndarray, counts: np.ndarray, rows: np.ndarray, words: np.ndarray
) -> np.ndarray:
    """Share of each of the words in all words of some rows of a sparse table, shape (rows, words); 0 of none.

    Args:
        indptr: first entry of each row, and the end, shape (all rows + 1,).
        indices: the word of each entry.
        counts: how often it occurs there.
        rows: rows to give.
        words: words to give.
    """
    column = np.full(int(max(indices.max(initial=0), words.max())) + 1, -1)
    column[words] = np.arange(len(words))
    table = np.zeros((len(rows), len(words)), np.float32)
    for i, row in enumerate(rows):
        entries = slice(indptr[row], indptr[row + 1])
        at, numbers = column[indices[entries]], counts[entries].astype(np.float32)
        table[i, at[at >= 0]] = numbers[at >= 0] / max(numbers.sum(), 1)
    return table
