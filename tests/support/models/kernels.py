"""What a computation would launch on a GPU, found without one: run it on fake CUDA tensors under `Launches`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

SHARED_KIB = {80: 163, 89: 99, 90: 227, 100: 227, 120: 99}
"""Compute capability -> KiB of shared memory that one block may use: CUDA C++ Programming Guide, technical
specifications per compute capability."""
_COPY_FIRST = ("masked_fill", "index_put", "index_copy", "index_fill", "index_add", "scatter", "constant_pad_nd")
"""Operators that copy their input, or fill their result, and then write into it, unless they work in place."""
_POINTERS = {torch.float32: "*fp32", torch.int64: "*i64"}


@dataclass(frozen=True)
class TritonLaunch:
    """A launch of one of our kernels."""

    function: Any
    args: tuple[Any, ...]
    constants: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for launches of the same compiled code."""
        return repr([self.function.__name__, [value is None for value in self.args], sorted(self.constants.items())])

    def source(self) -> ASTSource:
        """Returns what Triton would compile for it, with integers of any value."""
        signature: dict[str, str] = {}
        constants: dict[tuple[int], Any] = {}
        given = dict(zip(self.function.arg_names, self.args, strict=False)) | self.constants
        for index, name in enumerate(self.function.arg_names):
            value = given[name]
            if value is None or name.isupper():
                signature[name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = _POINTERS[value.dtype]
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
        return ASTSource(self.function, signature, constants)


class Launches(TorchDispatchMode):
    """Counts the kernels of operators and of Triton's functions, which do not run; and notes what no CUDA graph can
    hold.

    Copies between tensors count as kernels: they are nodes of a graph too. Libraries count as one kernel for a product
    and one for a convolution; they may launch another one to prepare their input or to add up parts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.refused: list[str] = []
        self.triton: list[TritonLaunch] = []

    @property
    def count(self) -> int:
        return self.kernels.total()

    def __enter__(self) -> Launches:
        def launch(function: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:
            self.kernels[function.__name__] += 1
            self.triton.append(TritonLaunch(function, args, constants))

        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(JITFunction, "run", launch)
        super().__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self._patch.undo()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = str(function)
        source = next((value for value in args if isinstance(value, torch.Tensor)), None)
        first = next(iter(result), None) if isinstance(result, tuple) else result
        moves = source is not None and isinstance(first, torch.Tensor) and first.device.type != source.device.type
        if moves or name in ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.masked_select.default"):
            self.refused.append(name)
        if isinstance(first, torch.Tensor) and not function.is_view:
            self.kernels[name] += count_kernels(name.split(".")[1], args)
        return result


def count_kernels(operator: str, args: tuple[Any, ...]) -> int:
    """Returns how many kernels an operator of ATen launches on a GPU. Source: torch 2.13, aten/src/ATen/native."""
    if operator.startswith(("empty", "new_empty", "_unsafe_view")):
        return 0
    if operator in _COPY_FIRST or operator == "topk":
        # topk sorts what it has selected.
        return 2
    if operator in ("addmm", "baddbmm"):
        # A bias of one dimension is added by the product itself.
        return 1 + (args[0].dim() > 1)
    if operator == "convolution":
        given, _, bias, *_, transposed, _, groups = args
        depthwise = groups > 1 and groups == given.shape[1] and not transposed
        return 1 + (bias is not None and not depthwise) + (not given.is_contiguous())
    return 1


def compile_for(capability: int, source: ASTSource, options: dict[str, int] | None = None) -> str:
    """Compile a kernel for a compute capability, with the assembler that Triton brings. Needs no GPU. Returns its PTX.

    Raises AssertionError if there is no code, or if a block needs more shared memory than a GPU has.
    """
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options or {})
    assert made.asm["cubin"], "the assembler made no code"
    needed = made.metadata.shared
    assert needed <= SHARED_KIB[capability] * 1024, f"{source.name} needs {needed} bytes of shared memory"
    return str(made.asm["ptx"])
