"""A task from a Hugging Face language model and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedsolve.core.errors import InvalidInput, check_choice, check_integer, check_known, require
from fedsolve.core.trees import as_patterns
from fedsolve.data.federated import FederatedData
from fedsolve.tasks.task import Task
from fedsolve.tasks.torch_modules.from_torch import from_torch
from fedsolve.tasks.torch_modules.token_rows import COLUMNS, Reader

_ALONE = "does not tell texts in one sequence apart by positions that begin again: each sequence has one text"


def from_hugging_face(
    model: Any,
    clients: Sequence[Any],
    *,
    task: str = "causal-lm",
    tokenizer: Any = None,
    lora: Any = None,
    trained: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    length: int = 128,
    test: Any = None,
    **options: Any,
) -> Task:
    """Make a task from a Hugging Face language model and each client's texts; `from_torch` translates the model.

    The loss is the mean over the tokens of a batch, `perplexity` is exp of that of a whole set, and `accuracy` the
    fraction of tokens with the largest logit; of a classification, the cross-entropy and the fraction of texts.

    Causal models: texts are packed into sequences of `length`. Each attends to itself alone and has its own positions;
    it ends in the tokenizer's end token, and is cut where a sequence ends. Where a model does not tell packed texts
    apart, each sequence has one text, as the notes say. Other kinds see the first `length` tokens of a text; for masked
    models 15 % of the tokens are masked as in BERT, drawn once.

    Args:
        model: a model of transformers or PEFT, not changed, or the folder of one of transformers, loaded in float32. A
            PEFT model's adapter trains on, and all else of it is frozen.
        clients: for each a list of texts or of integer arrays (tokens,), for "classification" a pair (texts, classes
            from 0), for "seq2seq" (sources, targets); or a table: a `datasets.Dataset`, a DataFrame, a dictionary.
        task: "causal-lm", "classification", "seq2seq" or "masked-lm".
        tokenizer: the model's own; None where clients are tokens, and for that of the folder.
        lora: a `peft.LoraConfig` or its arguments (r, target_modules, ...): PEFT's adapters, from one fixed seed, are
            what trains and is sent. None for none; see `fedsolve.LowRank`, too.
        trained: without `lora`, the modules or parameters that train, by the ends of their names, as in PEFT's
            target_modules; None for what requires gradients.
        columns: names of a table's columns; None for "text", ("text", "label") or ("source", "target").
        length: tokens of a sequence or, at most, of a text, at least 1.
        test: held-out texts, in the form of a client's.
        **options: of `from_torch`, such as batch_size and epochs. Its outputs are (losses, hits) of tokens, each (n,
            length), and in a classification logits.

    Returns:
        A task as from `from_torch`. `Result.module()` is a model of the given class; `Result.save_adapter` writes an
        adapter for PEFT.

    Raises:
        InvalidInput: a folder without a model, texts without a tokenizer, tokens that the model does not have, a name
            that no module has, or what PEFT or `from_torch` refuses.
    """
    require("torch", "from_hugging_face needs", "torch", "PyTorch")
    from torch.nn.functional import cross_entropy

    from fedsolve.pytorch import language_models as models

    check_choice("task", task, tuple(models.KINDS))
    check_integer("length", length, 1)
    for option in options:
        check_known("option of from_hugging_face", option, from_torch.__kwdefaults__ or {})
    own, tokenizer, notes = models.loaded(model, task, tokenizer)
    named = type(getattr(own, "get_base_model", lambda: own)()).__name__
    generates = task in ("causal-lm", "seq2seq")
    module = models.TextModule(models.prepared(own, task, lora, trained), generates)
    packs = task != "causal-lm" or models.tells_texts_apart(module, own.config.vocab_size)
    notes += () if packs else (f"{named} {_ALONE}",)
    rows, held_out = _reader(own, task, tokenizer, columns, length, packs).rows(clients, test)
    loss, metrics = cross_entropy, None
    if task != "classification":
        mean = models.mean_of_tokens
        loss, metrics = mean(0), {"perplexity": mean(0, exponent=True), "accuracy": mean(1)}
    data = FederatedData.from_clients(rows)
    made = from_torch(module, loss, data, test=held_out, **{"name": named, "metrics": metrics, **options})
    return replace(made, notes=made.notes + notes)


def _reader(model: Any, task: str, tokenizer: Any, columns: Any, length: int, packs: bool) -> Reader:
    most = getattr(model.config, "max_position_embeddings", None) or -1
    if 0 < most < length:
        raise InvalidInput(f"length = {length} is more than the {most} positions of {type(model).__name__}")
    usual = tuple(COLUMNS[task].split())
    columns = usual if columns is None else columns
    own = as_patterns("columns", columns, example=str(usual), at_least=len(usual))
    if task == "masked-lm" and getattr(tokenizer, "mask_token_id", None) is None:
        raise InvalidInput("task = 'masked-lm' needs a tokenizer with a mask token: give tokenizer=")
    if task == "classification" and model.config.num_labels < 2:
        raise InvalidInput("task = 'classification': the model has num_labels = 1: give one of two or more")
    if model.config.pad_token_id is None:  # which classifiers look for
        model.config.pad_token_id = getattr(tokenizer, "pad_token_id", None)
    return Reader(task, own, length, model.config, tokenizer, packs, model if task == "seq2seq" else None)
