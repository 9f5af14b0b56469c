"""transformers' families of models, from tiny random configurations; nothing is downloaded."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import TRANSLATED, Draw, Drawn, Entry, Net, Verdict, noted

BERT = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}
BERT |= {"intermediate_size": 16, "max_position_embeddings": 16, "pad_token_id": 0}
LLAMA = BERT | {"num_key_value_heads": 1, "head_dim": 4}
VISION = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
VISION |= {"image_size": 8, "patch_size": 4, "num_channels": 2, "num_labels": 3}
BART = {"vocab_size": 11, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "num_labels": 3}
BART |= {
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
BART |= {"max_position_embeddings": 16, "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
BY_VALUES = noted("values of tensors")  # layers dropped, experts chosen
IN_FLOAT32 = 2e-5  # those norm in float32 inside, whatever they are given


def made(kind: str, settings: dict[str, Any]) -> nn.Module:
    """A model of `transformers` whose configuration says `settings` and no dropout."""
    import transformers

    model = getattr(transformers, kind)
    config = model.config_class(**settings)
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    config.use_cache = False
    return model(config)


def tokens(draw: Draw, n: int) -> Drawn:
    """Words with a mask of those that are there, and a class."""
    lengths = draw.integers(3, 7, n)[:, None]
    mask = np.arange(6) < lengths
    ids = np.where(mask, draw.integers(3, 11, (n, 6)), 0)
    return {"input_ids": ids, "attention_mask": mask.astype(int)}, draw.integers(0, 3, n)


def plain_tokens(draw: Draw, n: int) -> Drawn:
    return draw.integers(3, 11, (n, 6)), draw.integers(0, 3, n)


def texts(draw: Draw, n: int) -> Drawn:
    """Words, and the words that follow."""
    ids = draw.integers(3, 11, (n, 7))
    return ids[:, :-1], ids[:, 1:]


def pictures(draw: Draw, n: int, channels: int = 2, size: int = 8) -> Drawn:
    return draw.normal(size=(n, channels, size, size)), draw.integers(0, 3, n)


def of_logits(o: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(o.logits, y)


def of_following(o: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(o.flatten(0, 1), y.flatten())


def entry(name: str, kind: str, make: Any, data: Any, loss: Any, verdict: Verdict, tolerance: float) -> Entry:
    return Entry(
        f"transformers: {name} ({kind})", make, data, loss, verdict, False, tolerance, ("transformers",)
    )


def classifier(
    kind: str,
    settings: dict[str, Any],
    name: str = "classes",
    tolerance: float = 1e-8,
    verdict: Verdict = TRANSLATED,
) -> Entry:
    """A model that takes words and a mask and gives a class."""
    make = lambda: Net(lambda m, x: m.model(**x).logits, model=made(kind, settings))  # noqa: E731
    return entry(name, kind, make, tokens, F.cross_entropy, verdict, tolerance)


def language(
    kind: str, settings: dict[str, Any], tolerance: float = 1e-8, verdict: Verdict = TRANSLATED
) -> Entry:
    """A model of the next word, by its own arguments' defaults."""
    make = lambda: Net(lambda m, x: m.model(x).logits, model=made(kind, settings))  # noqa: E731
    return entry("next word", kind, make, texts, of_following, verdict, tolerance)


def vision(
    kind: str,
    settings: dict[str, Any],
    data: Any = pictures,
    tolerance: float = 1e-8,
    verdict: Verdict = TRANSLATED,
) -> Entry:
    make = lambda: Net(lambda m, x: m.model(x).logits, model=made(kind, settings))  # noqa: E731
    return entry("pictures", kind, make, data, F.cross_entropy, verdict, tolerance)


def whisper() -> nn.Module:
    """The encoder of Whisper, and classes of its mean."""
    import transformers

    sizes = {**BART, "num_mel_bins": 2, "max_source_positions": 4, "decoder_start_token_id": 1}
    model = transformers.WhisperModel(transformers.WhisperConfig(**sizes, dropout=0.0))
    encoder = model.get_encoder()
    return Net(lambda m, x: m.o(m.e(x.flatten(2)[:, :, :8])[0].mean(1)), e=encoder, o=nn.Linear(8, 3))


GPT2 = {"vocab_size": 11, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2, "pad_token_id": 0}
T5 = {"vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "num_labels": 3}
DISTIL = {"vocab_size": 11, "n_layers": 1, "n_heads": 2, "dim": 8, "hidden_dim": 16, "num_labels": 3}
DISTIL |= {"max_position_embeddings": 16}
ENTRIES = [
    classifier("BertForSequenceClassification", BERT),
    classifier("BertForSequenceClassification", BERT | {"attn_implementation": "eager"}, "eager attention"),
    entry(
        "called directly",
        "BertForSequenceClassification",
        partial(made, "BertForSequenceClassification", BERT),
        plain_tokens,
        of_logits,
        TRANSLATED,
        1e-8,
    ),
    classifier("RobertaForSequenceClassification", BERT | {"max_position_embeddings": 20}),
    classifier("DistilBertForSequenceClassification", DISTIL),
    classifier("AlbertForSequenceClassification", BERT | {"embedding_size": 4}),
    classifier("ElectraForSequenceClassification", BERT | {"embedding_size": 4}),
    classifier("MPNetForSequenceClassification", BERT | {"max_position_embeddings": 20}),
    classifier(
        "DebertaV2ForSequenceClassification",
        BERT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
    classifier(
        "SqueezeBertForSequenceClassification", BERT | {"embedding_size": 8, "q_groups": 2, "k_groups": 2}
    ),
    classifier(
        "ModernBertForSequenceClassification",
        BERT
        | {
            "attn_implementation": "sdpa",
            "cls_token_id": 3,
            "sep_token_id": 4,
            "bos_token_id": 3,
            "eos_token_id": 4,
        },
    ),
    language("GPT2LMHeadModel", GPT2),
    language(
        "GPTNeoForCausalLM",
        {
            "vocab_size": 11,
            "hidden_size": 8,
            "num_layers": 2,
            "num_heads": 2,
            "max_position_embeddings": 16,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
    ),
    language("GPTNeoXForCausalLM", BERT),
    language(
        "OPTForCausalLM",
        {
            "vocab_size": 11,
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "ffn_dim": 16,
            "max_position_embeddings": 16,
            "word_embed_proj_dim": 8,
        },
    ),
    language(
        "BloomForCausalLM",
        {"vocab_size": 11, "hidden_size": 8, "n_layer": 1, "n_head": 2},
        verdict=noted("backward of torch.autograd.Function GeLUFunction"),
    ),
    language("LlamaForCausalLM", LLAMA, IN_FLOAT32),
    language("MistralForCausalLM", LLAMA | {"sliding_window": 4}, IN_FLOAT32),
    language("Qwen2ForCausalLM", LLAMA, IN_FLOAT32),
    language("GemmaForCausalLM", LLAMA, IN_FLOAT32),
    language("PhiForCausalLM", BERT),
    language(
        "FalconForCausalLM",
        {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
    ),
    language(
        "MambaForCausalLM",
        {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4},
        IN_FLOAT32,
    ),
    language(
        "MixtralForCausalLM",
        LLAMA | {"num_local_experts": 3, "num_experts_per_tok": 2, "experts_implementation": "eager"},
        IN_FLOAT32,
        verdict=BY_VALUES,
    ),
    entry(
        "words' classes",
        "T5ForTokenClassification",
        lambda: Net(lambda m, x: m.model(**x).logits.mean(1), model=made("T5ForTokenClassification", T5)),
        tokens,
        F.cross_entropy,
        TRANSLATED,
        IN_FLOAT32,
    ),
    entry(
        "encoder",
        "T5EncoderModel",
        lambda: Net(
            lambda m, x: m.o(m.model(**x)[0].mean(1)), model=made("T5EncoderModel", T5), o=nn.Linear(8, 3)
        ),
        tokens,
        F.cross_entropy,
        TRANSLATED,
        IN_FLOAT32,
    ),
    language("BartForConditionalGeneration", BART),
    vision("ViTForImageClassification", VISION),
    vision("DeiTForImageClassification", VISION),
    vision("BeitForImageClassification", VISION),
    vision(
        "ConvNextForImageClassification",
        {
            "num_channels": 2,
            "patch_size": 2,
            "hidden_sizes": [4, 8],
            "depths": [1, 1],
            "num_stages": 2,
            "num_labels": 3,
        },
    ),
    vision(
        "SwinForImageClassification",
        {
            "image_size": 8,
            "num_channels": 2,
            "patch_size": 2,
            "embed_dim": 4,
            "depths": [1, 1],
            "num_heads": [1, 2],
            "window_size": 2,
            "num_labels": 3,
        },
    ),
    vision(
        "ResNetForImageClassification",
        {
            "num_channels": 2,
            "embedding_size": 4,
            "hidden_sizes": [4, 8],
            "depths": [1, 1],
            "layer_type": "basic",
            "num_labels": 3,
        },
    ),
    entry("encoder of sound", "Whisper", whisper, pictures, F.cross_entropy, TRANSLATED, 1e-8),
]
