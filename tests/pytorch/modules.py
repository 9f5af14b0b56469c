"""torchvision, where it does not fit the build of PyTorch that is installed."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch


@functools.cache
def declare_torchvision() -> None:
    """Where torchvision's wheel does not fit the build of PyTorch, declare the operators that it then lacks."""
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)  # it takes its definitions along when it goes


_KEPT: list[Any] = []
