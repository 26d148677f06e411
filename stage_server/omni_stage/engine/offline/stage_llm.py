"""StageLLM: one stage of a pipeline, offline, with the same StageEngine and component as in the stage server."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from omni_proto.brief import Brief
from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.engine.factory import build_stage_engine
from omni_stage.engine.requests.sampling import resolve_sampling
from omni_stage.errors import InvalidRequestError
from omni_stage.models.component import EdgeInput, FinishReason, StageRequest, UserPrompt

if TYPE_CHECKING:
    from omni_stage.engine.protocol import StageEngine


@dataclass(frozen=True, slots=True, repr=False)
class StageResult(Brief):
    """One stage's complete result for one request."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] = field(default_factory=list)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """Tensors that the stage publishes downstream, by name, each [rows, *row_shape] on the CPU. A thinker publishes
    none if no stage reads them."""
    audio: torch.Tensor | None = None
    """float32 [samples] in [-1, 1]."""
    sample_rate_hz: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str = ""


class StageLLM:
    """One stage. `await start()` before `generate`, `await shutdown()` at the end, all on one event loop."""

    def __init__(self, config: StageConfig, *, in_process: bool = True, alone: bool = True) -> None:
        """Check the configuration; `start` loads the model. See build_stage_engine. Raises ConfigurationError."""
        self.config = config
        self.engine: StageEngine = build_stage_engine(config, in_process=in_process, alone=alone)

    async def start(self) -> None:
        """Load the model. Raises ConfigurationError, EngineDeadStageError."""
        await self.engine.start()

    async def generate(
        self,
        source: UserPrompt | EdgeInput,
        sampling: SamplingDefaults | None = None,
        *,
        seed: int | None = None,
        voice: str = "",
        want_tensors: bool = False,
    ) -> StageResult:
        """Run one request to its end. Concurrent calls share the engine's batches. Raises OmniStageError."""
        component = self.engine.component
        check_source(source, self.config)
        request = StageRequest(
            request_id=uuid.uuid4().hex,
            source=source,
            sampling=resolve_sampling(
                sampling,
                seed=seed,
                config_default=self.config.default_sampling,
                component_default=component.default_sampling,
            ),
            voice=voice,
            want_tensors=want_tensors,
        )
        result = StageResult(sample_rate_hz=component.facts.sample_rate_hz)
        pieces: dict[str, list[torch.Tensor]] = {}
        audio: list[torch.Tensor] = []
        text: list[str] = []
        async with aclosing(self.engine.generate(request)) as steps:
            async for step in steps:
                text.append(step.text)
                result.token_ids.extend(step.token_ids)
                result.prompt_token_ids.extend(step.prompt_token_ids or ())
                for name, tensor in step.tensors.items():
                    pieces.setdefault(name, []).append(torch.as_tensor(tensor))
                if step.audio is not None:
                    audio.append(torch.as_tensor(step.audio))
                if step.finish_reason is not None:
                    result = replace(result, finish_reason=step.finish_reason, stop_reason=step.stop_reason)
        return replace(
            result,
            text="".join(text),
            tensors={name: torch.cat(group) for name, group in pieces.items()},
            audio=torch.cat(audio) if audio else None,
        )

    async def shutdown(self) -> None:
        """Free the model. Idempotent."""
        await self.engine.shutdown()


def check_source(source: UserPrompt | EdgeInput, config: StageConfig) -> None:
    """Raises InvalidRequestError if the source is not of the kind that the stage reads, or is empty."""
    if isinstance(source, EdgeInput) != (config.input is not None):
        wanted = "a prompt" if config.input is None else f"the tensors of stage {config.input.source}"
        raise InvalidRequestError(f"stage {config.stage} reads {wanted}", field="prompt")
    if isinstance(source, EdgeInput):
        _check_tensors(source.tensors, config)
        return
    given = [name for name in ("text", "messages", "token_ids", "prompt_embeds") if getattr(source, name) is not None]
    if len(given) != 1:
        raise InvalidRequestError(
            f"a prompt is exactly one of text, messages, token_ids and prompt_embeds; {len(given)} are set",
            field="prompt",
        )
    if not getattr(source, given[0]):
        raise InvalidRequestError(f"prompt.{given[0]} is empty", field=f"prompt.{given[0]}")


def _check_tensors(tensors: Mapping[str, torch.Tensor], config: StageConfig) -> None:
    if not tensors:
        raise InvalidRequestError(f"stage {config.stage} was given no tensors of its input stage", field="tensors")
