"""Tasks of language models: rows of tokens, what counts in the loss, what trains, and adapters for PEFT."""

from __future__ import annotations

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from safetensors.numpy import load_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import fedsolve as fs  # noqa: E402
from fedsolve.pytorch.language_models import TextModule, product, save_adapter, tells_texts_apart  # noqa: E402  # noqa: E402
from fedsolve.tasks.torch_modules.token_rows import IGNORED, Reader, masked, packed  # noqa: E402

VOCABULARY = 13


class Decoder(nn.Module):
    """As transformers' models of the next token: texts in one sequence are told apart by positions, unless `blind`;
    `ahead`: each token sees the one that it predicts."""

    def __init__(self, blind=False, ahead=0, classes=2):
        super().__init__()
        self.config = SimpleNamespace(
            vocab_size=VOCABULARY,
            max_position_embeddings=8,
            pad_token_id=None,
            is_encoder_decoder=False,
            num_labels=classes,
        )
        self.blind, self.ahead = blind, ahead
        self.tokens, self.places = nn.Embedding(VOCABULARY, 6), nn.Embedding(8, 6)
        self.q_proj, self.v_proj, self.head = (
            nn.Linear(6, 6),
            nn.Linear(6, 6),
            nn.Linear(6, VOCABULARY, bias=False),
        )

    def can_generate(self):
        return True

    def forward(self, input_ids, position_ids=None, use_cache=None):
        places = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        h = self.tokens(input_ids) + self.places(places)
        before = torch.ones(input_ids.shape[1], input_ids.shape[1], dtype=torch.bool).tril(self.ahead)
        if position_ids is not None and not self.blind:
            text = (places == 0).cumsum(1)
            before = before & (text[:, :, None] == text[:, None, :])
        scores = (self.q_proj(h) @ h.transpose(1, 2)).masked_fill(~before, -torch.inf)
        return SimpleNamespace(logits=self.head(h + scores.softmax(-1) @ self.v_proj(h)))


def texts(draw, *sizes):
    return [draw.integers(0, VOCABULARY, n) for n in sizes]


def made(**kind):
    torch.manual_seed(0)
    return Decoder(**kind)


def test_packed_sequences():
    """Places with their next token; positions begin again with each text and where a sequence ends."""
    rows = packed([np.array([5, 6, 7]), np.array([1]), np.array([2, 3, 4, 8, 9])], 4)
    assert rows.x["input_ids"].tolist() == [[5, 6, 2, 3], [4, 8, 0, 0]]
    assert rows.y.tolist() == [[6, 7, 3, 4], [8, 9, IGNORED, IGNORED]]
    assert rows.x["position_ids"].tolist() == [[0, 1, 0, 1], [0, 1, 0, 0]]
    assert rows.x["labels"] is rows.y


def test_masks_are_those_of_bert():
    """15 % of what is no special token, of these 80 % the mask and 10 % random ones; the same at every call."""
    tokenizer = SimpleNamespace(mask_token_id=4, all_special_ids=[0, 4])
    given = [np.full(4000, 7), np.array([0, 7]), np.array([0, 0])]
    (long, short, none), (target, one, nothing) = masked(given, tokenizer, 1000, 3)
    chosen = target != IGNORED
    assert chosen.sum() == 600
    assert set(target[chosen]) == {7}
    assert (long[~chosen] == 7).all()
    assert abs((long[chosen] == 4).mean() - 0.8) < 0.05
    assert abs((long[chosen] == 7).mean() - 0.1) < 0.05
    assert one.tolist() == [IGNORED, 7]
    assert short[0] == 0
    assert none.tolist() == [0, 0]
    assert (nothing == IGNORED).all()
    assert np.array_equal(masked(given, tokenizer, 1000, 3)[0][0], long)


def test_one_token_is_a_text_that_has_a_class():
    reader = Reader("classification", ("text", "label"), 6, made().config, None, True, None)
    (one,), none = reader.rows([([[3]], [1])], None)
    assert (one.x["input_ids"].tolist(), one.y.tolist(), none) == ([[3]], [1], None)


@pytest.fixture(scope="module")
def task():
    draw = np.random.default_rng(0)
    clients = [texts(draw, 4, 9, 2), texts(draw, 5, 5, 5, 7), texts(draw, 12)]
    return fs.tasks.from_hugging_face(
        made(),
        clients,
        test=texts(draw, 6, 3, 2, 7),
        length=6,
        batch_size=2,
        trained=("q_proj", "v_proj.weight"),
    )


def test_loss_of_packed_texts(task):
    """That of each text by itself: the mean over all tokens that are predicted, and metrics of whole sets."""
    assert task.notes == ()
    model = made()
    losses, hits = [], []
    draw = np.random.default_rng(0)
    for n in (4, 9, 2, 5, 5, 5, 7, 12):  # of the clients
        draw.integers(0, VOCABULARY, n)
    place = 0  # in a sequence, which cuts a text
    with torch.no_grad():
        for text in texts(draw, 6, 3, 2, 7):
            begin = 0
            while begin < len(text) - 1:
                end = min(begin + 6 - place % 6, len(text) - 1)
                logits = model(torch.tensor(text[begin:end])[None]).logits[0]
                target = torch.tensor(text[begin + 1 : end + 1])
                losses += F.cross_entropy(logits, target, reduction="none").tolist()
                hits += (logits.argmax(1) == target).tolist()
                place, begin = place + end - begin, end
    functions = {"loss": task.loss, **task.metrics}
    found = jax.jit(lambda p: {name: f(p, task.test) for name, f in functions.items()})(task.init(None))
    loss = np.mean(losses)
    assert found == pytest.approx(
        {"loss": loss, "perplexity": np.exp(loss), "accuracy": np.mean(hits)}, rel=1e-5
    )


def test_what_trains_and_what_comes_back(task):
    """Names as PEFT's `target_modules`; the model that was given, in its mode, trained."""
    assert sorted(task.init(None)) == ["model.q_proj.bias", "model.q_proj.weight", "model.v_proj.weight"]
    trained = {name: value + 1 for name, value in task.assemble(task.init(None)).items()}
    model = task.inference.module(trained)
    assert type(model) is Decoder
    assert torch.allclose(model.q_proj.bias, made().q_proj.bias + 1)
    assert model.training


@pytest.mark.parametrize("blind", [False, True])
def test_which_models_tell_texts_apart(blind):
    module = TextModule(made(blind=blind), generates=True)
    assert tells_texts_apart(module, VOCABULARY) is not blind
    assert module.training


@pytest.mark.full
def test_a_model_that_sees_across_texts():
    """Each text has a sequence of its own, and a note says so."""
    draw = np.random.default_rng(0)
    task = fs.tasks.from_hugging_face(made(blind=True), [texts(draw, 4, 9, 2)], length=6)
    assert task.data.examples.y.shape == (4, 6)
    assert any("Decoder does not tell texts in one sequence apart" in note for note in task.notes)


def without_start():
    """As a model whose configuration says nothing of its decoder's first token."""
    model = made()
    model.prepare_decoder_input_ids_from_labels = lambda labels: labels + model.config.decoder_start_token_id
    return model


PAIRS = {"task": "seq2seq", "clients": [([[1]], [[2]])]}
WORDS = [
    ({"model": "nowhere"}, r"model = 'nowhere': give a model .* or a folder with its config.json"),
    ({"model": 3}, r"model = 3: give a model"),
    ({"model": nn.Linear(2, 2)}, r"model = Linear.*: give a model"),
    ({"model": made(ahead=1)}, r"Decoder does not predict tokens from those before alone"),
    ({"task": "chat"}, r"task = 'chat' must be 'causal-lm', .* or 'masked-lm'"),
    ({"length": 9}, r"length = 9 is more than the 8 positions of Decoder"),
    ({"clients": [["a text"]]}, r"client 0 has texts: give tokenizer="),
    ({"clients": [[np.array([1, 99])]]}, r"text 0 of client 0 has a token outside 0 to 12"),
    ({"clients": [[np.array([1])]]}, r"client 0 has no text of at least 2 tokens"),
    ({"clients": [[]]}, r"client 0 has no text of at least 2 tokens"),
    (
        {"clients": [{"txt": ["a"]}]},
        r"client 0 is a dict: give lists, or a table, of \('text',\)",
    ),
    ({"clients": ["a text"]}, r"client 0 is a str: give lists"),
    ({"clients": [{"text": "a text"}]}, r"client 0 is a dict: give lists"),
    ({"clients": [[np.array([0.5])]]}, r"text 0 of client 0 is <ndarray.*: give texts alone, or integers"),
    ({"clients": [[3, 4]]}, r"text 0 of client 0 is an int: give texts alone"),
    ({"clients": [["a text", None]]}, r"text 0 of client 0 is a str: give texts alone"),
    ({"clients": [[[[1], [1, 2]]]]}, r"text 0 of client 0 is a list: give texts alone"),
    ({"trained": "k_proj"}, r"unknown module in trained 'k_proj': did you mean '[qv]_proj'"),
    ({"trained": "q_proj", "lora": {"r": 2}}, r"what trains is said twice"),
    ({"batchsize": 3}, r"unknown option of from_hugging_face 'batchsize': did you mean 'batch_size'"),
    ({"columns": 3}, r"columns = .* must be patterns of paths, such as \('text',\)"),
    (PAIRS, r"Decoder makes no inputs of its decoder"),
    (PAIRS | {"model": without_start()}, r"set decoder_start_token_id and pad_token_id"),
    ({"task": "masked-lm"}, r"'masked-lm' needs a tokenizer with a mask token"),
    ({"task": "classification"}, r"client 0 is a list: give lists, .* \('text', 'label'\)"),
    ({"task": "classification", "clients": [([[1]], 1)]}, r"client 0 is a tuple: give lists"),
    (
        {"task": "classification", "clients": [([[1]], [[1], [1, 0]])]},
        r"client 0 has a label that is no integer",
    ),
    ({"task": "classification", "model": made(classes=1)}, r"the model has num_labels = 1: give one of two"),
    ({"task": "classification", "clients": [([[1], []], [1, 0])]}, r"text 1 of client 0 is \[\]: give texts"),
]


@pytest.mark.parametrize(("given", "words"), WORDS, ids=[words[:30] for _, words in WORDS])
def test_one_line_for_what_cannot_be(given, words):
    options = {"model": made(), "clients": [[np.arange(5)]], "length": 6} | given
    with pytest.raises(fs.InvalidInput, match=words) as caught:
        fs.tasks.from_hugging_face(options.pop("model"), options.pop("clients"), **options)
    assert "\n" not in str(caught.value)


# Adapters.


@pytest.mark.parametrize(
    ("rank", "shape"), [(0, (9, 7)), (3, (9, 7)), (20, (60, 90)), (4, (9, 7)), (60, (60, 90))]
)
def test_factors_of_least_rank(rank, shape):
    """Their product is the matrix to the error; none where they are no smaller than the matrix."""
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(shape[0], rank)) @ draw.normal(size=(rank, shape[1]))
    noise = draw.normal(size=shape)
    found = product(matrix + 1e-7 * noise / np.linalg.norm(noise), 1e-6)
    if rank * sum(shape) >= shape[0] * shape[1]:
        assert found is None
    else:
        b, a = found
        assert b.shape == (shape[0], rank)
        assert np.linalg.norm(b @ a - matrix) < 1e-6


def changed(*names, rank=1):
    """The decoder, and it with products of a rank added to matrices and ones to all else."""
    before, after, draw = made(), made(), torch.Generator().manual_seed(0)
    after.requires_grad_(False)
    with torch.no_grad():
        for name in names:
            p = after.get_parameter(name)
            p.requires_grad = True
            more = [torch.randn(n, rank, generator=draw) for n in p.shape]
            p += more[0] @ more[1].T if p.ndim > 1 else 1
    return before, after


def test_an_adapter_in_peft_s_format(tmp_path):
    """B A, with what a bias gained beside it; a configuration that names the modules."""
    before, after = changed("q_proj.weight", "q_proj.bias", "v_proj.weight", "tokens.weight")
    save_adapter(tmp_path, *changed("q_proj.weight", "q_proj.bias", "v_proj.weight"))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj", "v_proj"]
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (1, 1, "CAUSAL_LM")
    assert config["lora_bias"] is True
    held = load_file(tmp_path / "adapter_model.safetensors")
    for name in ("q_proj", "v_proj"):
        b, a = (held[f"base_model.model.{name}.lora_{which}.weight"] for which in "BA")
        change = (
            (after.get_parameter(f"{name}.weight") - before.get_parameter(f"{name}.weight")).detach().numpy()
        )
        assert np.allclose(b @ a, change, atol=1e-6)
    assert np.allclose(held["base_model.model.q_proj.lora_B.bias"], 1)
    assert not held["base_model.model.v_proj.lora_B.bias"].any()
    # an embedding is kept whole
    save_adapter(tmp_path, before, after)
    held = load_file(tmp_path / "adapter_model.safetensors")
    assert np.array_equal(held["base_model.model.tokens.weight"], after.tokens.weight.detach())
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["tokens"]


def test_what_no_adapter_holds(tmp_path):
    with pytest.raises(
        fs.InvalidInput, match=r"no matrix changed by a product .*result.module\(\).save_pretrained"
    ):
        save_adapter(tmp_path, *changed("q_proj.weight", rank=5))
    before, after = changed("tokens.weight")
    after.head.weight = after.tokens.weight
    with pytest.raises(fs.InvalidInput, match=r"'tokens.weight' is 'head.weight' too"):
        save_adapter(tmp_path, before, after)
    assert not list(tmp_path.iterdir())
