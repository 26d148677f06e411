"""Fewer kernel launches: CUDA graphs of a function of tensors, one for each set of shapes, whose replay costs one
launch instead of thousands; and what transformers' modules compute, in fewer kernels.

Kernel launches limit the speed of some models. A diffusion transformer launches a thousand or more small kernels to
evaluate a short window, and a code predictor launches as many to compute one frame. Graphs are captured only before the
stage is ready, not while it serves. A call with other shapes runs the function without a graph. A graph whose capture
fails, or whose replay differs from the function, is logged and discarded: the stage then serves without this graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


def add_linear(hidden: torch.Tensor, inputs: torch.Tensor, layer: torch.nn.Linear) -> torch.Tensor:
    """Add a linear layer's output to `hidden` [n, positions, H] in place, as one kernel unless the layer has a bias.

    Returns `hidden`. Not in place, the same would begin with a copy of it.
    """
    hidden.view(-1, hidden.shape[-1]).addmm_(inputs.flatten(0, 1), layer.weight.T)
    return hidden if layer.bias is None else hidden.add_(layer.bias)


def normalize(hidden: torch.Tensor, norm: Any) -> torch.Tensor:
    """Returns the output of transformers' Qwen3OmniMoeRMSNorm or one like it, as one kernel."""
    return F.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


logger = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""Largest accepted absolute difference between a replay and the function itself, in float32 on a GPU. A capture may
choose other kernels, so results may differ slightly. The error of a wrong graph is far larger."""

TensorFunction = Callable[..., torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured call: `replay` reads `inputs` and writes `output`, always at the same addresses."""

    inputs: tuple[torch.Tensor, ...]
    output: torch.Tensor
    replay: Callable[[], object]


Capture = Callable[[TensorFunction, tuple[torch.Tensor, ...]], Captured]


class GraphedFunction:
    """A function of tensors that replays the graph captured for its shapes. For use by one thread."""

    def __init__(self, function: TensorFunction, capture: Capture | None) -> None:
        """If `capture` is None, there are no graphs, and every call runs the function."""
        self._function = function
        self._capture = capture
        self._captured: dict[Shapes, Captured] = {}

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns the function's result, in newly allocated memory."""
        captured = self._captured.get(_shapes(inputs))
        if captured is None:
            return self._function(*inputs)
        for static, given in zip(captured.inputs, inputs, strict=True):
            static.copy_(given)
        captured.replay()
        return captured.output.clone()

    def warm_up(self, *inputs: torch.Tensor) -> bool:
        """Try to capture a graph for the shapes of these inputs. Returns whether that succeeded.

        Raises torch.AcceleratorError if the device failed.
        """
        if self._capture is None:
            return False
        shapes = _shapes(inputs)
        try:
            # The graph reads these clones at every replay, so nothing else may use their memory.
            captured = self._capture(self._function, tuple(tensor.clone() for tensor in inputs))
            captured.replay()
            difference = float((captured.output - self._function(*inputs)).abs().max())
        except torch.AcceleratorError:
            # The device failed, not the capture: the stage cannot serve.
            raise
        except RuntimeError:
            logger.exception("no CUDA graph for shapes %s: the stage serves these shapes without a graph", shapes)
            return False
        # Written this way, the comparison also rejects NaN.
        if not difference <= TOLERANCE:
            logger.error(
                "a CUDA graph for shapes %s differs from the function by %s: the stage serves these shapes without a "
                "graph",
                shapes,
                difference,
            )
            return False
        self._captured[shapes] = captured
        return True


class CudaCapture:
    """Captures graphs on a CUDA device. They share one memory pool, because they run one after another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: TensorFunction, inputs: tuple[torch.Tensor, ...]) -> Captured:
        """Returns the captured call. Runs the function once beforehand, on a side stream, to initialize libraries."""
        current = torch.cuda.current_stream(self._device)
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            function(*inputs)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = function(*inputs)
        return Captured(inputs, output, graph.replay)


def graph_sizes(maximum: int) -> tuple[int, ...]:
    """Returns the batch sizes to capture: powers of two up to 16, multiples of 8 below `maximum`, and `maximum`.

    A larger batch is computed for nearly as long as it is large, so it must not be padded much.
    """
    return (*(size for size in (1, 2, 4, 8, *range(16, maximum, 8)) if size < maximum), maximum)


def next_size(size: int, sizes: Sequence[int]) -> int:
    """Returns the smallest of ascending `sizes` that holds `size`; `size` itself if none does."""
    return next((candidate for candidate in sizes if candidate >= size), size)


def _shapes(inputs: Sequence[torch.Tensor]) -> Shapes:
    return tuple(tuple(tensor.shape) for tensor in inputs)
