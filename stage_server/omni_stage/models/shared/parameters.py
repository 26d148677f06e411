"""Joins parameters of a model, so that one kernel computes with all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def join(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """Returns the parameters one after another along the first dimension. They become views of the result."""
    joined = torch.cat([parameter.data for parameter in parameters])
    for parameter, view in zip(parameters, torch.split(joined, [len(part) for part in parameters]), strict=True):
        parameter.data = view
    return joined
