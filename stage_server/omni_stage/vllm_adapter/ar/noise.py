"""Measures how far rounding alone moves a model's results: the limit for the check of compiled code (compiled_check).

Each layer of a model rounds its results, and the error grows with the number of layers: two correct runs in bfloat16
differ by 1.7 % after 20 layers, and by 2.6 % after 64 (random weights, on a CPU). So a limit that suits one model
refuses a deeper one that is correct. Here the model's own code runs once more, and the input of every layer is changed
by as much as one rounding can. The results then differ about twice as much as two correct runs do, at any depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def shaken(model: nn.Module) -> Iterator[None]:
    """Within this context, round each value of the layers' inputs up or down by one rounding error of its dtype.

    Layers are the modules of the model's lists of modules. Steps must run uncompiled. Each block does the same.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def shake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        device = value.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(0)
        signs = torch.randint(0, 2, value.shape, generator=generators[device], device=device) * 2 - 1
        error = torch.finfo(value.dtype).eps / 2
        return (value.double() * (1 + signs * error)).to(value.dtype)

    def before(layer: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(map(shake, args)), {name: shake(value) for name, value in kwargs.items()}

    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 1]
    handles = [layer.register_forward_pre_hook(before, with_kwargs=True) for layers in lists for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
