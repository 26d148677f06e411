"""Stands in for a CUDA graph on the CPU: a replay reads and writes fixed memory. All other code is the real one."""

from __future__ import annotations

import torch

from omni_stage.models.shared.graphs import Captured, TensorFunction


class GraphRecorder:
    """Captures a function like a CUDA graph, with fixed input and output tensors, and counts the replays."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, function: TensorFunction, inputs: tuple[torch.Tensor, ...]) -> Captured:
        output = function(*inputs).clone()

        def replay() -> None:
            self.replays += 1
            output.copy_(function(*inputs))

        return Captured(inputs, output, replay)
