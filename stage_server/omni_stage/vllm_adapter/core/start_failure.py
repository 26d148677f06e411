"""Explains why an engine's process did not start, in the terms of the stage's configuration. Pure.

vLLM's own messages say what is wrong, but name vLLM's settings.
"""

from __future__ import annotations

import re

from omni_stage.errors import ConfigurationError, EngineDeadStageError, OmniStageError
from omni_stage.vllm_adapter.checks.gpu_driver import explain_cuda_failure
from omni_stage.vllm_adapter.process.start_errors import StartError

_OURS = (
    ("explicitly setting the `dtype` flag in CLI, for example: --dtype=half", "setting engineArgs.dtype to float16"),
    ("`max_model_len`", "engineArgs.maxModelLen"),
    ("`max_num_seqs`", "engineArgs.maxNumSeqs"),
    ("`gpu_memory_utilization`", "engineArgs.gpuMemoryUtilization"),
    ("No common block size for", "the attention backend does not support engineArgs.blockSize"),
)
"""vLLM 0.32's name of a setting -> our name. The first entry that a message contains gives the error's field."""
_LINK = re.compile(r"\s*See https?://\S+( for more details)?\.?")
_MOST_CHARACTERS = 600
_CACHE = " If engineArgs.kvCacheMemoryMib is set, the KV cache gets only that memory."
_MEMORY = (
    ". The model needs a larger GPU, or more GPUs (resources.limits), or quantized weights (engineArgs.quantization). "
    "If only its largest steps do not fit, lower engineArgs.maxNumSeqs and maxNumBatchedTokens"
)


def explain_start_error(error: StartError, torch_cuda: str | None) -> OmniStageError:
    """Returns the error that the stage ends with. `torch_cuda` is torch.version.cuda.

    It is a ConfigurationError if vLLM's message names a setting or the node's driver is at fault, else an
    EngineDeadStageError: starting again may help, for example when other processes have freed memory.
    """
    if error.kind == ConfigurationError.__name__:
        return ConfigurationError(error.message, field=error.field)
    if meaning := explain_cuda_failure(error.message, torch_cuda):
        return ConfigurationError(meaning, field="nvidia.com/gpu")
    text = _LINK.sub("", " ".join(error.message.split()))[:_MOST_CHARACTERS].rstrip(". ")
    named = [ours for theirs, ours in _OURS if theirs in text]
    for theirs, ours in _OURS:
        text = text.replace(theirs, ours)
    if named:
        field = re.search(r"engineArgs\.\w+", named[0])
        return ConfigurationError(
            f"the engine cannot start: {text}." + (_CACHE if "KV cache" in text else ""),
            field=field.group() if field else "engineArgs",
        )
    remedy = _MEMORY if "out of memory" in text else ""
    text = text.replace("Decrease GPU memory utilization", "Decrease engineArgs.gpuMemoryUtilization")
    return EngineDeadStageError(
        f"the engine's process ended while it loaded the model: {error.kind}: {text}{remedy}; the log above has the "
        "traceback"
    )
