"""Newsgroup posts by a frozen encoder of text, of which the head alone trains: what it sees is computed once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedsolve as fs
from fedsolve.studies import Problem
from fedsolve.studies.public import classification
from fedsolve.tasks import Encoder, Softmax, newsgroups_minilm

TESTED = 1_500
_ROWS = 64
"""Posts at a time."""


def seen(model: Encoder, params: Any, x: np.ndarray) -> np.ndarray:
    """The mean of an encoder's outputs over each sequence, (n, width): what its head reads."""
    mean = jax.jit(lambda params, x: model(params._replace(head=_identity(model.width)), x))
    params = jax.tree.map(jnp.asarray, params)
    parts = [np.asarray(mean(params, x[i : i + _ROWS])) for i in range(0, len(x), _ROWS)]
    return np.concatenate(parts)


def _identity(width: int) -> Any:
    """A head whose logits are what it reads."""
    head = Softmax(width, width).init(jax.random.key(0))
    return head._replace(weight=jnp.eye(width))


@cache
def posts(data_dir: Path | None) -> fs.Task:
    """Posts by 390 authors as MiniLM sees them, and a head from zero."""
    whole = newsgroups_minilm(data_dir, length=32, min_posts=5, test_examples=TESTED)
    model, params = Encoder(), whole.init(jax.random.key(0))

    def features(examples: Any) -> fs.Examples:
        return fs.Examples(seen(model, params, examples.x), examples.y)

    data = fs.FederatedData(features(whole.data.examples), whole.data.counts, whole.data.names)
    head = Softmax(model.width, model.classes)
    return classification("posts", head, model.classes, data, features(whole.test), "wang2020minilm")


PROBLEM = Problem(
    "Newsgroup posts, the head of a frozen MiniLM",
    "390 authors of 10 posts in the mean, 20 a round, 5 local steps on batches of 8, 150 rounds; 7,700 weights train",
    posts,
    {"rounds": 150, "clients_per_round": 20, "batch_size": 8, "local_steps": 5, "eval_every": 3},
    last=15,
    select="train_loss:15",
    tested=TESTED,
)
