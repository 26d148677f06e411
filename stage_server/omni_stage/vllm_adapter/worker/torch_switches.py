"""torch's global switches that change results or choose kernels, as every stage and every check on a GPU sets them.

torch's own defaults differ from vLLM's, and both from what our comparisons with transformers assume. So the workers of
all stages, and `make gpu`, apply this one table before they load a model. vLLM's variable
VLLM_FLOAT32_MATMUL_PRECISION decides about TF32: unset, convolutions use it and matrix products do not; with "highest"
neither does, and with "high" or "medium" both do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from omni_stage.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def check_runner_version(vllm_config: VllmConfig) -> None:
    """Refuse vLLM's V2 runner, because our hooks are for the V1 runner. Raises ConfigurationError.

    Private interface of vLLM 0.32: `VllmConfig.use_v2_model_runner` says which runner the engine would use.
    """
    if vllm_config.use_v2_model_runner:
        raise ConfigurationError(
            "vLLM would use its V2 model runner, but stages need the V1 runner; set VLLM_USE_V2_MODEL_RUNNER=0",
            field="VLLM_USE_V2_MODEL_RUNNER",
        )


_ASKED: Final = os.environ.get("VLLM_FLOAT32_MATMUL_PRECISION")
PRECISION: Final = _ASKED or "highest"
_matmul, _cudnn, _sdp = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.cuda


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch: the value that we chose, how it is read and set, and why it has this value."""

    value: Any
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    why: str


def _attribute(module: Any, name: str, value: Any, why: str) -> Switch:
    return Switch(value, lambda: getattr(module, name), lambda new: setattr(module, name, new), why)


SWITCHES: Final[dict[str, Switch]] = {
    "float32_matmul_precision": Switch(
        PRECISION,
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        "float32 means float32: code2wav, token2wav and the comparisons with transformers. vLLM's default too.",
    ),
    "cudnn.allow_tf32": _attribute(
        _cudnn,
        "allow_tf32",
        _ASKED != "highest",
        "torch's default, which transformers runs with too: without it, convolutions of code2wav and of token2wav's "
        "vocoder take several times as long. Comparisons of samples turn it off for both sides.",
    ),
    "cudnn.benchmark": _attribute(
        _cudnn, "benchmark", False, "With it, the first step of every new size would time all kernels."
    ),
    "cudnn.deterministic": _attribute(
        _cudnn,
        "deterministic",
        False,
        "token2wav's vocoder turns it on for itself: a seed must repeat its audio.",
    ),
    "deterministic_algorithms": Switch(
        False,
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        "vLLM's kernels have no such variants.",
    ),
    "matmul.allow_bf16_reduced_precision_reduction": _attribute(
        _matmul,
        "allow_bf16_reduced_precision_reduction",
        True,
        "torch's and vLLM's default. transformers runs with it too, so comparisons in bfloat16 have it on both sides.",
    ),
    "matmul.allow_fp16_reduced_precision_reduction": _attribute(
        _matmul, "allow_fp16_reduced_precision_reduction", True, "The same for float16."
    ),
    "sdp.flash": Switch(
        True, _sdp.flash_sdp_enabled, _sdp.enable_flash_sdp, "The fastest attention in bfloat16 without a mask."
    ),
    "sdp.mem_efficient": Switch(
        True, _sdp.mem_efficient_sdp_enabled, _sdp.enable_mem_efficient_sdp, "Attention in float32, and with a mask."
    ),
    "sdp.math": Switch(True, _sdp.math_sdp_enabled, _sdp.enable_math_sdp, "Shapes that no other kernel takes."),
    "sdp.cudnn": Switch(
        False,
        _sdp.cudnn_sdp_enabled,
        _sdp.enable_cudnn_sdp,
        "cuDNN builds a plan for each shape, 0.4 s each, while it serves. vLLM turns it off too, if it runs on CUDA.",
    ),
}


def apply_switches() -> None:
    """Set every switch of this process to the value in SWITCHES."""
    for switch in SWITCHES.values():
        switch.write(switch.value)


def read_switches() -> dict[str, Any]:
    """Returns the value that every switch has in this process."""
    return {name: switch.read() for name, switch in SWITCHES.items()}


def chosen_switches() -> dict[str, Any]:
    """Returns the value that every switch should have."""
    return {name: switch.value for name, switch in SWITCHES.items()}
