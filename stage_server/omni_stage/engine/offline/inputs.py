"""Checks the inputs of offline use (pipelines, prompts, sampling) and converts them to typed values. All functions are
pure except `read_pipeline`, which reads the pipeline's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from pydantic import ValidationError

from omni_proto.pipeline import (
    ModelPathError,
    OmniPipeline,
    PipelineError,
    compile_stages,
    load_pipeline,
    resolve_model_paths,
)
from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import schema_hash
from omni_stage.errors import ConfigurationError, EdgeSchemaMismatchError, InvalidRequestError
from omni_stage.models.component import ChatMessage, ServedComponent, UserPrompt
from omni_stage.payloads import PromptEmbedsPayload

Prompt: TypeAlias = str | UserPrompt | Sequence[int] | Sequence[ChatMessage] | torch.Tensor
"""Text, token ids, the messages of a chat, embeddings [rows, hidden size], or a UserPrompt."""
StageSampling: TypeAlias = Mapping[str, SamplingDefaults | Mapping[str, Any]]
"""Sampling parameters by stage name."""
ModelDir: TypeAlias = str | Path | Mapping[str, str | Path]
"""The checkpoint's directory, in place of spec.model; or directories by stage name, in place of the models of those
stages."""


def read_pipeline(pipeline: OmniPipeline | str | Path) -> OmniPipeline:
    """Returns the typed pipeline, read from its file if a path is given. Raises ConfigurationError."""
    if isinstance(pipeline, OmniPipeline):
        return pipeline
    try:
        return load_pipeline(Path(pipeline))
    except PipelineError as error:
        raise ConfigurationError(str(error), field="pipeline") from error


def compile_offline(pipeline: OmniPipeline, model_dir: ModelDir | None) -> list[StageConfig]:
    """Returns the stages' configurations, in the order of the graph. Raises ConfigurationError."""
    by_stage = {name: str(path) for name, path in model_dir.items()} if isinstance(model_dir, Mapping) else {}
    shared = None if model_dir is None or isinstance(model_dir, Mapping) else str(model_dir)
    try:
        paths = resolve_model_paths(pipeline, shared, by_stage)
    except ModelPathError as error:
        raise ConfigurationError(str(error), field="model.uri") from error
    try:
        return compile_stages(
            pipeline,
            target_for=lambda stage: f"in-process:///{stage.name}",
            model_path_for=lambda stage: paths[stage.name],
            model_key_for=lambda stage: paths[stage.name],
        )
    except PipelineError as error:
        raise ConfigurationError(str(error), field="pipeline") from error


def check_edges(configs: Sequence[StageConfig], components: Mapping[str, ServedComponent]) -> None:
    """Raises EdgeSchemaMismatchError where a stage cannot read what its input stage publishes."""
    for config in configs:
        if config.input is None:
            continue
        published = components[config.input.source].output_schema
        read = components[config.stage].input_schema
        if published is None or read is None or schema_hash(published) != schema_hash(read):
            raise EdgeSchemaMismatchError(
                f"stage {config.stage} ({config.component}) cannot read what stage {config.input.source} publishes; "
                "use components of one family and version",
                field="inputs",
            )


def parse_prompt(prompt: Prompt) -> UserPrompt:
    """Convert any form of prompt to a UserPrompt. Raises InvalidRequestError or, for embeddings, a subclass of it."""
    if isinstance(prompt, UserPrompt):
        return prompt
    if isinstance(prompt, str):
        return UserPrompt(text=prompt)
    if isinstance(prompt, torch.Tensor):
        return UserPrompt(prompt_embeds=PromptEmbedsPayload.from_tensor(prompt))
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        if all(isinstance(item, ChatMessage) for item in prompt):
            return UserPrompt(messages=[item for item in prompt if isinstance(item, ChatMessage)])
        if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
            return UserPrompt(token_ids=[item for item in prompt if isinstance(item, int)])
    raise InvalidRequestError(
        f"a prompt is text, token ids, chat messages, embeddings or a UserPrompt, not {type(prompt).__name__}",
        field="prompts",
    )


def parse_sampling(sampling: StageSampling | None, stages: Sequence[str]) -> dict[str, SamplingDefaults]:
    """Returns typed sampling by stage. Raises InvalidRequestError, which names the unknown stage or the wrong field."""
    parsed: dict[str, SamplingDefaults] = {}
    if sampling is not None and not isinstance(sampling, Mapping):
        raise InvalidRequestError(
            f"sampling is a mapping from stage names, not {type(sampling).__name__}", field="sampling"
        )
    for name, value in (sampling or {}).items():
        if name not in stages:
            raise InvalidRequestError(
                f"sampling names stage {name!r}; the stages are {', '.join(stages)}", field=f"sampling[{name}]"
            )
        try:
            parsed[name] = value if isinstance(value, SamplingDefaults) else SamplingDefaults(**value)
        except (ValidationError, TypeError) as error:
            raise InvalidRequestError(_explain(name, error), field=f"sampling[{name}]") from error
    return parsed


def pair_sampling(
    prompts: Sequence[Prompt], sampling: StageSampling | Sequence[StageSampling | None] | None
) -> list[StageSampling | None]:
    """Returns one sampling for each prompt.

    Raises InvalidRequestError for a wrong type, an empty batch or lists of unequal length.
    """
    if not prompts:
        raise InvalidRequestError("prompts is empty; give at least one prompt", field="prompts")
    if sampling is None or isinstance(sampling, Mapping):
        return [sampling] * len(prompts)
    if isinstance(sampling, str) or not isinstance(sampling, Sequence):
        raise InvalidRequestError(
            f"sampling is a mapping from stage names, or a list with one per prompt, not {type(sampling).__name__}",
            field="sampling",
        )
    if len(sampling) != len(prompts):
        raise InvalidRequestError(
            f"sampling has {len(sampling)} entries for {len(prompts)} prompts; give one per prompt, or one for all",
            field="sampling",
        )
    return list(sampling)


def _explain(stage: str, error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return f"sampling[{stage}] must be SamplingDefaults or a mapping"
    problems = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_input=False))
    return f"sampling[{stage}]: {'; '.join(problems)}"
