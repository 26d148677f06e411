"""What transformers' modules compute, in fewer kernels: their number decides the time of a step with few rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F


def join(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the parameters one after another along the first dimension. They become views of the result."""
    joined = torch.cat([parameter.data for parameter in parameters])
    for parameter, view in zip(parameters, torch.split(joined, [len(part) for part in parameters]), strict=True):
        parameter.data = view
    return joined


def join_linear(layers: Sequence[torch.nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the weight and the bias, if they have one, of linear layers that read the same input, joined."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    return join([layer.weight for layer in layers]), join(biases) if biases else None


def normalize(hidden: torch.Tensor, norm: Any) -> torch.Tensor:
    """Returns the output of transformers' Qwen3OmniMoeRMSNorm or one like it, as one kernel."""
    return F.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)
