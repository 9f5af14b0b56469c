"""Convolutions, pools, blocks of networks for images, transforms of signals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import Draw, Drawn, Entry, Net, images, noted, weight


def mapped(*layers: nn.Module, channels: int = 4) -> nn.Module:
    """Layers from two channels to `channels`, whose means over the places give the classes."""
    return nn.Sequential(*layers, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3))


def read(run: Any, **parts: Any) -> nn.Module:
    """A function of a convolution's results, flattened into classes by their mean over the places."""
    return Net(
        lambda m, x: m.o(run(m, m.c(x)).tanh().mean((2, 3))), c=nn.Conv2d(2, 4, 3), o=nn.Linear(4, 3), **parts
    )


def lines(draw: Draw, n: int) -> Drawn:
    return draw.normal(size=(n, 2, 16)), draw.integers(0, 3, n)


def volumes(draw: Draw, n: int) -> Drawn:
    return draw.normal(size=(n, 2, 4, 5, 4)), draw.integers(0, 3, n)


def pictures_to_pictures(draw: Draw, n: int) -> Drawn:
    return draw.normal(size=(n, 2, 8, 8)), draw.integers(0, 3, (n, 8, 8))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.up(F.relu(self.down(scale))))


class Residual(nn.Module):
    """The block of a ResNet, with a stride and a projection."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.Conv2d(out, out, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.short = nn.Conv2d(into, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        y = self.norms[1](self.second(y))
        y += self.short(x)
        return F.relu(y)


class Inverted(nn.Module):
    """The block of a MobileNet."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 8, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(),
            nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(),
            nn.Conv2d(8, 4, 1, bias=False),
            nn.BatchNorm2d(4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Branches(nn.Module):
    """The block of an Inception network."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three, self.five = (nn.Conv2d(2, 2, k, padding=k // 2) for k in (1, 3, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(2, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


class Convnext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.deep, self.norm = nn.Conv2d(4, 4, 7, padding=3, groups=4), nn.LayerNorm(4)
        self.wide, self.narrow, self.scale = (
            nn.Linear(4, 8),
            nn.Linear(8, 4),
            nn.Parameter(torch.full((4,), 0.1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.narrow(F.gelu(self.wide(y)))).permute(0, 3, 1, 2)


class UNet(nn.Module):
    """Down, up and across, with scores for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.enter(x))
        return self.last(torch.cat([a, self.up(F.relu(self.down(a)))], 1))


class Spectrum(nn.Module):
    """Frequencies mixed by complex weights, as in Fourier neural operators."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.o = weight(2, 4, 8, 5, 2, scale=0.1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        mix = torch.view_as_complex(self.mix)
        y = torch.fft.irfft2(torch.einsum("nihw,iohw->nohw", torch.fft.rfft2(x), mix), s=x.shape[-2:])
        return self.o(y.tanh().mean((2, 3)))


class Warped(nn.Module):
    """Images read at places that the module computes."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.o = nn.Parameter(torch.tensor([0.31, -0.17])), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = 1.3 * torch.tanh(x.permute(0, 2, 3, 1)) + self.shift
        ways = [("bilinear", "zeros"), ("bilinear", "border"), ("nearest", "zeros"), ("nearest", "border")]
        ways += [("bicubic", "reflection")]
        read = [F.grid_sample(x, places, how, rim, align_corners=False) for how, rim in ways]
        return self.o(torch.cat(read, 1).mean((2, 3)))


class Affine(nn.Module):
    """A spatial transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.o = nn.Linear(2 * 64, 6), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.where(x.flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, [x.shape[0], 2, 5, 5], align_corners=True)
        return self.o(F.grid_sample(x, grid, align_corners=True).amax((2, 3)))


def windowed(m: Any, x: Tensor) -> Tensor:
    spectrum = torch.stft(x[:, 0], 8, 4, window=m.window, return_complex=True)
    return m.o(spectrum.abs().mean(2))


KERNELS = {"padding": 1, "bias": False}
ENTRIES = [
    Entry("convolution", lambda: mapped(nn.Conv2d(2, 4, 3)), images, gate=True),
    Entry(
        "convolution with stride and dilation",
        lambda: mapped(nn.Conv2d(2, 4, 3, stride=2, dilation=2, padding=2)),
        images,
    ),
    Entry("convolution in groups", lambda: mapped(nn.Conv2d(2, 4, 3, groups=2, **KERNELS)), images),
    Entry("separable convolution", lambda: mapped(nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 4, 1)), images),
    Entry(
        "convolution around a torus",
        lambda: mapped(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")),
        images,
    ),
    Entry(
        "convolution of reflected images",
        lambda: mapped(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect")),
        images,
    ),
    Entry(
        "convolution of replicated rims",
        lambda: mapped(nn.Conv2d(2, 4, 3, padding="same", padding_mode="replicate")),
        images,
    ),
    Entry(
        "transposed convolution", lambda: mapped(nn.ConvTranspose2d(2, 4, 3, 2, 1, output_padding=1)), images
    ),
    Entry(
        "transposed convolution in groups",
        lambda: mapped(nn.ConvTranspose2d(2, 4, 3, groups=2, dilation=2)),
        images,
    ),
    Entry(
        "convolution along a line",
        lambda: nn.Sequential(nn.Conv1d(2, 4, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)),
        lines,
    ),
    Entry(
        "convolution in a volume",
        lambda: nn.Sequential(
            nn.Conv3d(2, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool3d((1, 2, 1)), nn.Flatten(), nn.Linear(6, 3)
        ),
        volumes,
    ),
    Entry(
        "causal convolutions",
        lambda: Net(
            lambda m, x: m.o(m.b(F.pad(m.a(F.pad(x, (2, 0))).relu(), (4, 0)))[:, :, -1]),
            a=nn.Conv1d(2, 4, 3),
            b=nn.Conv1d(4, 4, 3, dilation=2),
            o=nn.Linear(4, 3),
        ),
        lines,
    ),
    Entry(
        "maximum pool with ties",
        lambda: Net(
            lambda m, x: m.o(
                F.max_pool2d(m.c(x).round() + 0.1 * m.c(x).sign(), 2, 1).mean((2, 3)) + m.c(x).mean((2, 3))
            ),
            c=nn.Conv2d(2, 4, 3),
            o=nn.Linear(4, 3),
        ),
        images,
    ),
    Entry(
        "pools",
        lambda: read(
            lambda m, y: (
                F.max_pool2d(y, 3, 2, 1)[:, :, :2, :2]
                + F.avg_pool2d(y, 3, 2, ceil_mode=True)[:, :, :2, :2]
                + F.lp_pool2d(y.abs(), 2, 3)
            )
        ),
        images,
    ),
    Entry(
        "adaptive pools of odd sizes",
        lambda: read(lambda m, y: F.adaptive_avg_pool2d(y, (5, 4)) * F.adaptive_max_pool2d(y, (5, 4))),
        images,
    ),
    Entry(
        "pool undone by its indices",
        lambda: Net(
            lambda m, x: m.o(F.max_unpool2d(*F.max_pool2d(m.c(x), 2, return_indices=True), 2).mean((2, 3))),
            c=nn.Conv2d(2, 4, 3),
            o=nn.Linear(4, 3),
        ),
        images,
    ),
    Entry(
        "resizing",
        lambda: read(
            lambda m, y: (
                F.interpolate(y, scale_factor=2, mode="bicubic")
                + F.interpolate(y, (12, 12), mode="bilinear", align_corners=True)
                + F.interpolate(y, scale_factor=2, mode="nearest")
            )
        ),
        images,
    ),
    Entry(
        "resizing without aliases",
        lambda: read(lambda m, y: F.interpolate(y, (3, 3), mode="bilinear", antialias=True)),
        images,
        verdict=noted("antialias|_aa"),
    ),
    Entry(
        "shuffled pixels",
        lambda: Net(
            lambda m, x: m.o(F.pixel_shuffle(m.c(x), 2).tanh().amax((2, 3))),
            c=nn.Conv2d(2, 8, 3),
            o=nn.Linear(2, 3),
        ),
        images,
    ),
    Entry(
        "unshuffled pixels and channels",
        lambda: mapped(nn.PixelUnshuffle(2), nn.ChannelShuffle(4), nn.Conv2d(8, 4, 1)),
        images,
    ),
    Entry(
        "patches",
        lambda: Net(
            lambda m, x: m.o(
                F.fold(
                    m.p(F.unfold(x, 4, stride=2).transpose(1, 2)).transpose(1, 2).tanh(), 8, 4, stride=2
                ).amax((2, 3))
            ),
            p=nn.Linear(32, 32),
            o=nn.Linear(2, 3),
        ),
        images,
    ),
    Entry("residual blocks", lambda: mapped(Residual(2, 4, 2), Residual(4, 4, 1)), images),
    Entry("inverted residual block", lambda: mapped(nn.Conv2d(2, 4, 1), Inverted()), images),
    Entry("squeeze and excite", lambda: mapped(nn.Conv2d(2, 4, 3), SqueezeExcite()), images),
    Entry("inception block", lambda: mapped(Branches(), channels=8), images),
    Entry("convnext block", lambda: mapped(nn.Conv2d(2, 4, 1), Convnext()), images),
    Entry(
        "dense block",
        lambda: Net(
            lambda m, x: m.o(torch.cat([y := torch.cat([x, m.a(x).relu()], 1), m.b(y)], 1).mean((2, 3))),
            a=nn.Conv2d(2, 3, 3, padding=1),
            b=nn.Conv2d(5, 3, 3, padding=1),
            o=nn.Linear(8, 3),
        ),
        images,
    ),
    Entry("u-net", UNet, pictures_to_pictures),
    Entry("fourier operator", Spectrum, images),
    Entry("images read elsewhere", Warped, images),
    Entry("spatial transformer", Affine, images),
    Entry("spectrogram", lambda: Net(windowed, window=torch.hann_window(8), o=nn.Linear(5, 3)), lines),
    Entry(
        "cosine transform",
        lambda: Net(
            lambda m, x: m.o((torch.fft.rfft(x[:, 0] * m.s).real.cumsum(1)).sin()),
            s=weight(16),
            o=nn.Linear(9, 3),
        ),
        lines,
    ),
]
