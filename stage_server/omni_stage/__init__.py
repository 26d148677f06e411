"""The data plane of omnipipeline: the stage server (`python -m omni_stage serve`) and offline use of a pipeline.

    from omni_stage import OmniLLM

    with OmniLLM("pipeline.yaml", model_dir="/models/tiny") as llm:
        result = llm.generate(["Hello"], {"thinker": {"max_tokens": 32}}, seed=1)[0]
        result.text, result.audio, result.sample_rate_hz, result.stages["talker"].token_ids

The names below are imported lazily, on first use. vLLM reads environment variables when it is imported, so
vllm_adapter/process/env.py sets these variables first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_stage.engine.arguments.engine_args import OmniEngineArgs, OmniModelConfig
    from omni_stage.engine.offline.omni_llm import AsyncOmniLLM, OmniLLM, OmniResult
    from omni_stage.engine.offline.stage_llm import StageLLM, StageResult
    from omni_stage.engine.requests.request import OmniEngineCoreRequest, OmniTokensPrompt

_EXPORTS = {
    "AsyncOmniLLM": "omni_stage.engine.offline.omni_llm",
    "OmniEngineArgs": "omni_stage.engine.arguments.engine_args",
    "OmniEngineCoreRequest": "omni_stage.engine.requests.request",
    "OmniLLM": "omni_stage.engine.offline.omni_llm",
    "OmniModelConfig": "omni_stage.engine.arguments.engine_args",
    "OmniResult": "omni_stage.engine.offline.omni_llm",
    "OmniTokensPrompt": "omni_stage.engine.requests.request",
    "StageLLM": "omni_stage.engine.offline.stage_llm",
    "StageResult": "omni_stage.engine.offline.stage_llm",
}

__all__ = [
    "AsyncOmniLLM",
    "OmniEngineArgs",
    "OmniEngineCoreRequest",
    "OmniLLM",
    "OmniModelConfig",
    "OmniResult",
    "OmniTokensPrompt",
    "StageLLM",
    "StageResult",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # torch and vLLM read the environment when they are imported, so set it first.
    from omni_stage.vllm_adapter.process.env import apply_environment

    apply_environment()
    return getattr(import_module(_EXPORTS[name]), name)
