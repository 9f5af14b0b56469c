"""Families of language models: all gradients are PyTorch's to 1e-10, and PEFT reads what training changed."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional as F  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from zoo.transformers_families import BERT, GPT2, LLAMA, T5, made  # noqa: E402

import fedsolve as fs  # noqa: E402

pytestmark = pytest.mark.full
RNG = np.random.default_rng(0)
TWO = {"num_hidden_layers": 2}
FAMILIES = {
    "LlamaForCausalLM": ("causal-lm", LLAMA | TWO),
    "GPT2LMHeadModel": ("causal-lm", GPT2 | {"n_layer": 2}),
    "Qwen2ForCausalLM": ("causal-lm", LLAMA | TWO),
    "Qwen3ForCausalLM": ("causal-lm", LLAMA | TWO),
    "GemmaForCausalLM": ("causal-lm", LLAMA | TWO),
    "Gemma3ForCausalLM": ("causal-lm", LLAMA | TWO | {"sliding_window": 3}),
    "BertForMaskedLM": ("masked-lm", BERT | TWO),
    "T5ForConditionalGeneration": ("seq2seq", T5 | {"num_layers": 2, "decoder_start_token_id": 0}),
}


class InFloat64(TorchFunctionMode):
    """What a module computes in float32, whatever its own type, in float64: as a run in float64 does."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args, kwargs = pytree.tree_map(
            lambda x: torch.float64 if x is torch.float32 else x, (args, kwargs or {})
        )
        return func(*args, **kwargs)


class Tokenizer:
    """What tasks of masked models ask for."""

    mask_token_id, all_special_ids, pad_token_id = 1, [0, 1], 0


def texts(*sizes):
    return [RNG.integers(3, 11, n) for n in sizes]


def clients(kind):
    if kind == "seq2seq":
        return [(texts(4, 6, 3), texts(5, 2, 6)), (texts(7, 2), texts(3, 4))]
    return [texts(4, 7, 3), texts(6, 2, 5, 5)]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_gradient(name):
    pytest.importorskip("transformers", reason="transformers is not installed")
    kind, settings = FAMILIES[name]
    torch.manual_seed(0)
    model = made(name, settings)
    task = fs.tasks.from_hugging_face(
        model, clients(kind), task=kind, length=8, tokenizer=Tokenizer(), translate=True
    )
    assert task.notes == ()
    examples = task.data.examples
    with jax.enable_x64(True):
        params = {name: np.asarray(value, np.float64) for name, value in task.init(None).items()}
        found, ours = jax.device_get(jax.jit(jax.value_and_grad(task.loss))(params, examples))
    x = {name: torch.tensor(a).long() for name, a in examples.x.items() if name != "labels"}
    model = model.double().train()
    with InFloat64():
        logits = model(**x).logits
        loss = F.cross_entropy(logits.flatten(0, 1), torch.tensor(examples.y).long().flatten())
        loss.backward()
    assert found == pytest.approx(loss.item(), rel=1e-10)
    for name, parameter in model.named_parameters():
        wanted = parameter.grad.numpy()
        assert np.abs(ours[f"model.{name}"] - wanted).max() <= 1e-10 * max(np.abs(wanted).max(), 1e-3), name


WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "red", "blue"]


def saved(folder, dtype):
    """A folder with a Llama and a tokenizer of few words."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    vocabulary = {word: i for i, word in enumerate(("<pad>", "<unk>", "</s>", *WORDS))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )
    torch.manual_seed(0)
    made("LlamaForCausalLM", LLAMA | {"vocab_size": len(vocabulary)}).to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def said(*sizes):
    return [" ".join(RNG.choice(WORDS, n)) for n in sizes]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-3)])
def test_from_a_folder_to_an_adapter_in_peft(tmp_path, dtype, close):
    """Perplexity of the model with its adapter, and of the merged one, is the run's; a loaded adapter is where training
    goes on. Merged by result.module() or by PEFT."""
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    tokenizer = saved(tmp_path / "model", dtype)
    test = {"text": said(5, 9)}  # one sequence of 16 holds both
    task = fs.tasks.from_hugging_face(
        tmp_path / "model",
        [said(4, 7, 3), said(8, 8)],
        length=16,
        test=test,
        lora={"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]},
    )
    result = fs.run(fs.FedAvg(1.0), task, rounds=2, eval_every=2)
    result.save_adapter(tmp_path / "adapter")
    base = type(result.module().get_base_model()).from_pretrained(tmp_path / "model")
    assert base.dtype == dtype
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    again = fs.tasks.from_hugging_face(loaded, [said(4)], length=16, tokenizer=tokenizer, translate=False)
    assert sorted(again.init(None)) == sorted(task.init(None))
    for name, value in again.init(None).items():
        assert np.array_equal(value, result.params[name])

    def perplexity(model):
        losses = []
        with torch.no_grad():
            for text in test["text"]:
                ids = torch.tensor([*tokenizer(text)["input_ids"], tokenizer.eos_token_id])
                logits = model(ids[None, :-1]).logits[0].float()
                losses += F.cross_entropy(logits, ids[1:], reduction="none").tolist()
        return np.exp(np.mean(losses))

    result.module().merge_and_unload().save_pretrained(tmp_path / "merged")
    ours = type(base).from_pretrained(tmp_path / "merged")
    wanted = perplexity(loaded.eval())
    assert result.final("test_perplexity") == pytest.approx(wanted, rel=close)
    assert perplexity(ours.eval()) == pytest.approx(wanted, rel=close)
    assert perplexity(loaded.merge_and_unload().eval()) == pytest.approx(wanted, rel=close)


def test_what_a_folder_does_not_hold(tmp_path):
    """It begins at the same random values in every task, as a note says; the folder's own code is not run."""
    saved(tmp_path, torch.float32)
    (tmp_path / "tokenizer_config.json").unlink()
    state, made_so = torch.get_rng_state(), []
    for number in (1, 2):
        task = fs.tasks.from_hugging_face(
            tmp_path, [(texts(3, 4), [0, 1])], task="classification", length=4, translate=False
        )
        assert any("['score.weight'] is not in the model's folder" in note for note in task.notes)
        made_so.append(task.init(None)["model.score.weight"])
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(number)
        state = torch.get_rng_state()
    np.testing.assert_array_equal(*made_so)
    config = json.loads((tmp_path / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (tmp_path / "config.json").write_text(json.dumps(config | own))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    with pytest.raises(fs.InvalidInput, match="cannot be loaded"):
        fs.tasks.from_hugging_face(tmp_path, clients("causal-lm"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["transformers", "PEFT"])
def test_an_adapter_that_is_loaded_trains_on(tmp_path, method):
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    torch.manual_seed(0)
    model = made("LlamaForCausalLM", LLAMA)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"])
    if method == "PEFT":
        model = peft.get_peft_model(model, config)
    else:
        try:
            model.add_adapter(config)
        except ValueError as error:
            pytest.skip(str(error))  # of another version of PEFT
    task = fs.tasks.from_hugging_face(
        model.requires_grad_(False), clients("causal-lm"), length=8, translate=False
    )
    assert {name.split(".")[-3] for name in task.init(None)} == {"lora_A", "lora_B"}


def test_low_rank_results_in_peft(tmp_path):
    """Factors of GPT-2's transposed matrices, and what its biases gained."""
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    torch.manual_seed(0)
    model = made("GPT2LMHeadModel", GPT2)
    task = fs.tasks.from_hugging_face(model, clients("causal-lm"), length=8, trained="c_attn")
    result = fs.run(fs.LowRank(fs.FedAvg(1.0), 2, "both"), task, rounds=2)
    result.save_adapter(tmp_path)
    trained = result.module().eval()
    bias = "transformer.h.0.attn.c_attn.bias"
    assert (trained.get_parameter(bias) - model.get_parameter(bias)).abs().max() > 1e-3
    loaded = peft.PeftModel.from_pretrained(model.eval(), tmp_path)
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        wanted = trained(ids).logits
        assert torch.allclose(loaded(ids).logits, wanted, atol=1e-6)
        assert torch.allclose(loaded.merge_and_unload()(ids).logits, wanted, atol=1e-6)
