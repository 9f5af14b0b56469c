"""torchvision's families of networks, as small as they come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn

from zoo.entry import TRANSLATED, Draw, Drawn, Entry, Verdict


def pictures(size: int, draw: Draw, n: int) -> Drawn:
    return draw.normal(size=(n, 3, size, size)), draw.integers(0, 3, n)


def _models() -> Any:
    from torchvision import models

    return models


def family(
    name: str,
    make: Callable[[Any], nn.Module],
    size: int = 32,
    *,
    verdict: Verdict = TRANSLATED,
    tolerance: float = 1e-8,
) -> Entry:
    """A network made from `torchvision.models`, without dropout."""

    def without_dropout() -> nn.Module:
        module = make(_models())
        for part in module.modules():
            if isinstance(part, nn.Dropout | nn.Dropout2d):
                part.p = 0.0
        return module

    data = partial(pictures, size)
    return Entry(
        f"torchvision: {name}",
        without_dropout,
        data,
        verdict=verdict,
        tolerance=tolerance,
        needs=("torchvision",),
    )


def _classes(*layers: nn.Module, channels: int) -> nn.Module:
    """Blocks of a family, and classes by the means of their channels."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3))


def _bottlenecks(m: Any, groups: int) -> nn.Module:
    """Two blocks of a ResNet or ResNeXt: four channels within, sixteen between."""
    block, within = m.resnet.Bottleneck, 64 // groups
    more = {"groups": groups, "base_width": within}
    enter = nn.Sequential(nn.Conv2d(3, 16, 1, 2, bias=False), nn.BatchNorm2d(16))
    return _classes(block(3, 4, 2, enter, **more), block(16, 4, **more), channels=16)


def _regnet(m: Any, ratio: float | None) -> nn.Module:
    sizes = m.regnet.BlockParams.from_init_params(2, 8, 8.0, 2.0, 8, se_ratio=ratio)
    return m.RegNet(sizes, num_classes=3, stem_width=8)


def _efficient(m: Any) -> nn.Module:
    e = m.efficientnet
    wide = [e.MBConvConfig(1, 3, 1, 8, 8, 1, 1.0, 1.0), e.FusedMBConvConfig(2, 3, 2, 8, 8, 1)]
    return m.EfficientNet(
        [*wide, e.MBConvConfig(2, 5, 2, 8, 8, 1, 1.0, 1.0)], 0.0, 0.0, num_classes=3, last_channel=16
    )


def _mobile(m: Any) -> nn.Module:
    row = partial(m.mobilenetv3.InvertedResidualConfig, dilation=1, width_mult=1.0)
    rows = [row(8, 3, 8, 8, True, "RE", stride=2), row(8, 5, 16, 8, True, "HS", stride=1)]
    return m.MobileNetV3(rows, 16, num_classes=3, dropout=0.0)


def _convnext(m: Any) -> nn.Module:
    block = m.convnext.CNBlockConfig
    return m.convnext.ConvNeXt([block(8, 16, 1), block(16, None, 1)], num_classes=3)


def _swin(m: Any, **more: Any) -> nn.Module:
    return m.SwinTransformer(
        [4, 4], 8, [1, 1], [2, 2], [2, 2], stochastic_depth_prob=0.0, num_classes=3, **more
    )


def _swin2(m: Any) -> nn.Module:
    transformer = m.swin_transformer
    return _swin(m, block=transformer.SwinTransformerBlockV2, downsample_layer=transformer.PatchMergingV2)


def _maxvit(m: Any) -> nn.Module:
    return m.MaxVit((32, 32), 8, 4, [8], [1], 4, 0.0, num_classes=3)


ENTRIES = [
    family("resnet", lambda m: m.ResNet(m.resnet.BasicBlock, [1, 1, 1, 1], num_classes=3), size=16),
    family("resnet with bottlenecks", lambda m: _bottlenecks(m, 1), size=8),
    family("resnext", lambda m: _bottlenecks(m, 2), size=8),
    family(
        "vgg",
        lambda m: nn.Sequential(
            m.vgg.make_layers([4, "M", 8, "M"], batch_norm=True),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 3),
        ),
    ),
    family(
        "squeezenet",
        lambda m: _classes(m.squeezenet.Fire(3, 4, 4, 4), m.squeezenet.Fire(8, 4, 4, 4), channels=8),
    ),
    family("densenet", lambda m: m.DenseNet(4, (1, 1, 1, 1), 8, num_classes=3)),
    family(
        "mobilenet v2",
        lambda m: m.mobilenet_v2(
            num_classes=3,
            width_mult=0.1,
            dropout=0.0,
            inverted_residual_setting=[[1, 16, 1, 1], [6, 24, 2, 2]],
        ),
    ),
    family("mobilenet v3", _mobile, tolerance=1e-6),
    family("mnasnet", lambda m: _classes(m.mnasnet._InvertedResidual(3, 3, 5, 1, 2), channels=3), size=8),
    family("shufflenet", lambda m: m.ShuffleNetV2([1, 1, 1], [8, 8, 16, 16, 16], num_classes=3)),
    family("efficientnet", _efficient),
    family("regnet", lambda m: _regnet(m, None)),
    family("regnet with squeeze and excite", lambda m: _regnet(m, 0.25)),
    family("convnext", _convnext),
    family("vision transformer", lambda m: m.VisionTransformer(32, 16, 1, 2, 8, 16, num_classes=3)),
    family("swin transformer", _swin),
    family("swin transformer v2", _swin2),
    family("maxvit", _maxvit),
    family(
        "googlenet",
        lambda m: _classes(
            import_module("torchvision.models.googlenet").Inception(3, 4, 3, 4, 3, 4, 4), channels=16
        ),
        size=8,
    ),
    family("inception", lambda m: _classes(m.inception.InceptionA(3, 4), channels=228), size=6),
    family(
        "head of segmentation",
        lambda m: _classes(m.segmentation.deeplabv3.ASPP(3, [2, 4], 8), channels=8),
        size=16,
    ),
    family(
        "video",
        lambda m: nn.Sequential(
            nn.Unflatten(2, (2, 8)),
            m.video.resnet.BasicBlock(3, 3, m.video.resnet.Conv3DSimple),
            nn.Flatten(),
            nn.Linear(768, 3),
        ),
        size=16,
    ),
]
