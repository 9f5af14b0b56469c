"""Modules of the usual kinds, in both modes, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from modules import Applied, agree, declare_torchvision  # noqa: E402
from torch import nn  # noqa: E402

IMAGES = (torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0)),)
BOTH = pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])


class Residual(nn.Module):
    """The block of a ResNet between a stem and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.MaxPool2d(3, 2, 1)
        )
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.GroupNorm(2, 4), nn.ReLU())
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(nn.functional.gelu(x + self.block(x)))


class Encoder(nn.Module):
    """Words through attention with padding masked out, and an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
        self.lstm = nn.LSTM(8, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(self.words(x), src_key_padding_mask=x == 0)
        return self.lstm(y)[0][:, -1]


class Spectrum(nn.Module):
    """Frequencies mixed by complex weights, as in Fourier neural operators and FNet."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(3, 2, 4, 3, 2, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.view_as_complex(self.mix)
        y = torch.fft.irfft2(torch.einsum("nihw,iohw->nohw", torch.fft.rfft2(x), weight), s=x.shape[-2:])
        z = torch.fft.fftn(y, dim=(-1, -2), norm="ortho")
        whole = torch.fft.ifft(torch.fft.fftshift(z, -1).conj(), dim=-1)
        return y.tanh() + z.real + whole.imag * whole.abs()


class Warped(nn.Module):
    """Images read at places that the module computes, by each rule; it takes whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor([0.31, -0.17]))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        (x,) = inputs
        places = 1.3 * torch.tanh(x[:, :2].permute(0, 2, 3, 1)) + self.shift
        pairs = [(m, p) for m in ("bilinear", "nearest") for p in ("zeros", "border")] + [
            ("bicubic", "reflection")
        ]
        read = [nn.functional.grid_sample(x, places, m, p, align_corners=False) for m, p in pairs]
        return sum(read[1:], read[0])


def words(low: int = 0, high: int = 11, length: int = 6) -> torch.Tensor:
    drawn = torch.randint(low, high, (3, length), generator=torch.Generator().manual_seed(0))
    drawn[:, 0] = 1  # some word is always there
    return drawn


def test_residual_network_in_training() -> None:
    agree(Residual(), (IMAGES[0][..., :12, :12],), training=True)


@pytest.mark.full
@pytest.mark.parametrize("kind", [Spectrum, Warped])
def test_spectra_and_places(kind: Any) -> None:
    agree(kind(), (IMAGES[0][..., :4, :4],), training=True)


@pytest.mark.full
def test_encoder_in_training() -> None:
    agree(Encoder(), (words(),), training=True)


@pytest.mark.full
@BOTH
@pytest.mark.parametrize(
    "name",
    ["resnet18", "mobilenet_v2", "mobilenet_v3_small", "convnext", "vit", "densenet", "swin"],
)
def test_torchvision(name: str, training: bool) -> None:
    declare_torchvision()
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    block = models.convnext.CNBlockConfig
    small: dict[str, Any] = {
        "resnet18": lambda: models.resnet18(num_classes=5),
        "mobilenet_v2": lambda: models.mobilenet_v2(num_classes=5, width_mult=0.1, dropout=0.0),
        "mobilenet_v3_small": lambda: models.mobilenet_v3_small(num_classes=5, dropout=0.0),
        "convnext": lambda: models.convnext.ConvNeXt([block(8, 16, 1), block(16, None, 1)], num_classes=5),
        "vit": lambda: models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5),
        "densenet": lambda: models.DenseNet(4, (1, 1, 1, 1), 8, num_classes=5),
        "swin": lambda: models.SwinTransformer(
            [4, 4], 16, [1, 1], [2, 2], [2, 2], stochastic_depth_prob=0.0, num_classes=5
        ),
    }
    # PyTorch's own gradient of hardsigmoid, which MobileNetV3 has, takes 1/6 in float32: it is off by 5e-9
    tolerance = 5e-8 if name == "mobilenet_v3_small" else 1e-8
    agree(small[name](), IMAGES, training, tolerance)


@pytest.mark.full
@BOTH
@pytest.mark.parametrize("name", ["bert", "bert eager", "minilm", "distilbert", "gpt2", "llama", "t5"])
def test_transformers(name: str, training: bool) -> None:
    declare_torchvision()  # which transformers imports
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 16}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    pdrop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    small: dict[str, Any] = {
        "bert": lambda: hf.BertModel(hf.BertConfig(**sizes, **off)),
        "bert eager": lambda: hf.BertModel(hf.BertConfig(**sizes, **off, attn_implementation="eager")),
        "minilm": lambda: hf.BertForSequenceClassification(hf.BertConfig(**sizes, **off, num_labels=3)),
        "distilbert": lambda: hf.DistilBertModel(
            hf.DistilBertConfig(vocab_size=11, n_layers=2, n_heads=2, dim=16, hidden_dim=32, **no_dropout)
        ),
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(
                vocab_size=11, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False, **pdrop
            )
        ),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, num_key_value_heads=1, use_cache=False)),
        "t5": lambda: hf.T5EncoderModel(
            hf.T5Config(
                vocab_size=11, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0
            )
        ),
    }
    tolerance = 1e-6 if name in ("llama", "t5") else 1e-10  # those norm in float32, whatever they are given
    mask = torch.ones(3, 6, dtype=torch.long)
    mask[1, 4:] = 0
    agree(Applied(small[name](), "input_ids", "attention_mask"), ((words(1), mask),), training, tolerance)


@pytest.mark.full
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent(kind: Any, bidirectional: bool) -> None:
    module = Applied(kind(3, 4, 2, batch_first=True, bidirectional=bidirectional))
    agree(module, ((torch.randn(3, 6, 3),),), training=True)


@pytest.mark.full
def test_losses() -> None:
    d = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 4, 5, generator=d)
    p, q = torch.rand(2, 4, 5, generator=d)
    label, sign = torch.tensor([0, 4, 2, 2]), y.sign()
    weight = torch.rand(5, generator=d)
    ignored = torch.tensor([0, -100, 2, 2])
    losses = [
        (nn.CrossEntropyLoss(), x, label),
        (nn.CrossEntropyLoss(weight, label_smoothing=0.1), x, ignored),
        (nn.CrossEntropyLoss(), x, p),
        (nn.NLLLoss(reduction="sum"), x, ignored),
        (nn.MSELoss(), x, y),
        (nn.L1Loss(), x, y),
        (nn.SmoothL1Loss(beta=0.5), x, y),
        (nn.HuberLoss(delta=0.5), x, y),
        (nn.BCELoss(), p, q),
        (nn.BCEWithLogitsLoss(pos_weight=weight), x, q),
        (nn.KLDivLoss(reduction="batchmean"), x, q),
        (nn.PoissonNLLLoss(), x, q),
        (nn.SoftMarginLoss(), x, sign),
        (nn.MultiLabelSoftMarginLoss(), x, (y > 0).float()),
        (nn.MultiMarginLoss(), x, label),
        (nn.HingeEmbeddingLoss(), x, sign),
        (nn.CosineEmbeddingLoss(), x, y, torch.ones(4)),
        (nn.MarginRankingLoss(), x, y, sign),
        (nn.TripletMarginLoss(), x, y, p),
    ]
    for loss, first, *rest in losses:
        agree(_Trained(loss), (first, tuple(rest)), training=True)


class _Trained(nn.Module):
    """A loss whose first argument is scaled by a parameter, so that its gradient is compared."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss, self.scale = loss, nn.Parameter(torch.ones(5))

    def forward(self, first: torch.Tensor, targets: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.loss(first * self.scale, *targets)
