"""What a model family declares, as data: one FamilyManifest in FAMILY/manifest.py.

The registry, vLLM's plugin hook, the download of checkpoints and the command line read only the manifest of a family. A
manifest names code as "module:attribute". That module is imported when the code is needed. Such a name never comes from
a user. This module imports neither torch nor vLLM, and a manifest must not import them either.

    LLM = describe(ComponentFacts(id="my_family/llm", kind=EngineKind.AUTOREGRESSIVE, ...))
    FAMILY = FamilyManifest(
        name="my_family",
        components=(ComponentEntry(facts=LLM, factory="my_package.llm:build_component"),),
    )

A separate package provides its manifest through the entry point group `omnipipeline.families` (registry.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from omni_proto.pipeline.components import ComponentFacts, EngineKind, Refusal, When
from omni_proto.stage_config import SamplingDefaults
from omni_stage.errors import ConfigurationError

_NAME = re.compile(r"[a-z0-9_]+")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SOLVER_FIELDS = ("guidance_scale", "num_inference_steps")
_NOT_STREAMED = ("frequency_penalty", "min_tokens", "presence_penalty", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentEntry:
    """One component of a family."""

    facts: ComponentFacts
    factory: str = ""
    """"module:function", which names a ComponentFactory. vLLM runs the component that the factory makes."""
    engine: str = ""
    """"module:function", in place of a factory. The function makes the component's own StageEngine from a StageConfig.
    The stage server of such a component imports neither torch nor vLLM."""
    weight_prefixes: tuple[str, ...] = ()
    """Name prefixes of the tensors that the component reads, so that its pod downloads only the shards that it needs;
    empty means all shards."""
    weight_files: tuple[str, ...] = ()
    """Patterns of files that hold weights in another format than safetensors. They are downloaded only from the top of
    a checkpoint, because folders of repositories often hold the same weights for other engines."""


RANDOM_WEIGHTS_MARKER: Final = ".omnipipe-tiny-model"
"""Empty file in a directory that `omnipipe tiny-model` wrote: its weights are random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyCheckpoint:
    """A small checkpoint with random weights, for experiments and tests."""

    writer: str
    """"module:function", called as writer(directory, seed=..., shape=...)."""
    shapes: tuple[str, ...]
    """Names of the available shapes, the default first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyManifest:
    """One model family. Construction refuses malformed values."""

    name: str
    """The family's name: the part of its components' ids before the slash."""
    components: tuple[ComponentEntry, ...]
    model_classes: Mapping[str, str] = field(default_factory=dict)
    """vLLM model classes, "module:Class", by the architecture names that the components' configurations carry."""
    prepared_architectures: tuple[str, ...] = ()
    """vLLM's own architectures that are common among the family's checkpoints. Container images hold the facts about
    them that vLLM caches (vllm_adapter/checks/model_infos.py)."""
    tiny_checkpoint: TinyCheckpoint | None = None

    def __post_init__(self) -> None:
        """Check names, references and ids. Raises ConfigurationError.

        Ids must be unique and belong to the family. Each component needs exactly one of factory and engine.
        """
        if not _NAME.fullmatch(self.name):
            raise _malformed(self.name, "its name may contain only lower-case letters, digits and underscores")
        ids = [entry.facts.id for entry in self.components]
        for component_id in ids:
            if component_id.split("/")[0] != self.name:
                raise _malformed(self.name, f"component {component_id!r} must be named {self.name}/NAME")
        if len(set(ids)) != len(ids):
            raise _malformed(self.name, "two of its components have the same id")
        tiny = [] if self.tiny_checkpoint is None else [self.tiny_checkpoint.writer]
        for entry in self.components:
            if bool(entry.factory) == bool(entry.engine):
                raise _malformed(self.name, f"component {entry.facts.id!r} needs a factory, or an engine of its own")
            if entry.facts.transcribes and "audio" not in entry.facts.media:
                raise _malformed(self.name, f"component {entry.facts.id!r} returns a Transcript, so it must take audio")
        code = [entry.factory or entry.engine for entry in self.components]
        for reference in (*code, *self.model_classes.values(), *tiny):
            if not _REFERENCE.fullmatch(reference):
                raise _malformed(self.name, f"{reference!r} must be written module:attribute")
        object.__setattr__(self, "model_classes", MappingProxyType(dict(self.model_classes)))

    def component(self, component_id: str) -> ComponentEntry:
        """Returns the component with exactly this id. Raises ConfigurationError."""
        for entry in self.components:
            if entry.facts.id == component_id:
                return entry
        known = ", ".join(entry.facts.id for entry in self.components)
        raise ConfigurationError(
            f"component {component_id!r} is not known; known components: {known}", field="component"
        )


def describe(
    facts: ComponentFacts,
    *,
    publishes_rows: bool = False,
    reuses_rows: bool = False,
    takes_prompt_embeds: bool = False,
) -> ComponentFacts:
    """Returns the facts, with the refusals that follow from them and from the other arguments before their own.

    `publishes_rows`: whether the component makes its published tensors from the model's hidden states or embeddings,
    with one row for each position. `reuses_rows`: whether these rows depend only on the tokens and media up to their
    position, so that those of a cached prefix can be reused; the engine arguments then set `rows_cache_bytes`.
    """
    kind = facts.kind
    return facts.model_copy(
        update={
            "refused_engine_args": (
                *_engine_args_of_kind(kind),
                *_prompt_embeds(facts.is_entry, takes_prompt_embeds, publishes_rows),
                *_parsers(facts.takes_tools),
                *(() if facts.structures_text else _OF_STRUCTURED_TEXT),
                *(() if facts.media else _OF_MEDIA),
                *(_OF_PUBLISHED_ROWS if publishes_rows and not reuses_rows else ()),
                *(() if reuses_rows else (_ROWS_CACHE,)),
                *facts.refused_engine_args,
            ),
            "refused_sampling": (
                *_sampling_of_kind(kind, facts.writes_text),
                *(_SAMPLING_OF_STREAMS if facts.streams_input and kind is EngineKind.AUTOREGRESSIVE else ()),
                *facts.refused_sampling,
            ),
            "refused_timeouts": () if kind.is_one_shot else (_QUEUE_TIMEOUT,),
        }
    )


_QUEUE_TIMEOUT = Refusal(field="queue", why="only a stage that generates in one step limits the wait in its queue")
_OF_STRUCTURED_TEXT = (Refusal(field="structured_output", why="this component writes no text in a given form"),)
_OF_MEDIA = tuple(
    Refusal(field=name, why="this component reads no media", allows_empty=name != "max_media_share")
    for name in ("max_media_share", "mm_processor_cache_mib")
)
_OF_PUBLISHED_ROWS = (
    Refusal(
        field="enable_prefix_caching",
        why="another stage reads this stage's rows, which a cached prefix does not compute",
        when=When.READ,
        allows_empty=True,
    ),
)
_ROWS_CACHE = Refusal(field="rows_cache_mib", why="this component keeps no rows of cached prefixes")
# In a stage with streamed input, vLLM counts the output of earlier parts as prompt. So output penalties and min_tokens
# would apply only to the last part. vLLM also accepts no stop strings for such requests.
_SAMPLING_OF_STREAMS = tuple(
    Refusal(
        field=name,
        why="cannot be honoured by a stage that starts before its input is complete",
        remedy="leave it out, or set the stage's input mode to Full",
        when=When.STREAMED,
        allows_empty=True,
    )
    for name in _NOT_STREAMED
)


def _engine_args_of_kind(kind: EngineKind) -> tuple[Refusal, ...]:
    if not kind.is_one_shot:
        return ()
    why, remedy = f"a {kind.value} stage has no KV cache", "leave it out; gpuMemoryUtilization bounds its memory"
    return (
        *(
            Refusal(field=name, why=why, remedy=remedy)
            for name in ("kv_cache_dtype", "kv_cache_memory_mib", "block_size")
        ),
        Refusal(field="enable_prefix_caching", why=why, allows_empty=True),
    )


def _prompt_embeds(is_entry: bool, takes: bool, publishes_rows: bool) -> tuple[Refusal, ...]:
    name = "enable_prompt_embeds"
    if not is_entry:
        return (Refusal(field=name, why="this stage reads the tensors of another stage", allows_empty=True),)
    if not takes:
        return (Refusal(field=name, why="this component takes no prompt embeddings", allows_empty=True),)
    if not publishes_rows:
        return ()
    return (
        Refusal(
            field=name,
            why="another stage reads this stage's rows, which are made of token ids",
            remedy="leave it out, or serve the stage in a pipeline of its own",
            when=When.READ,
            allows_empty=True,
        ),
    )


def _parsers(takes_tools: bool) -> tuple[Refusal, ...]:
    if takes_tools:
        return ()
    return tuple(
        Refusal(field=name, why="this component does not look for tool calls or reasoning in what it writes")
        for name in ("reasoning_parser", "tool_call_parser")
    )


def _sampling_of_kind(kind: EngineKind, writes_text: bool) -> tuple[Refusal, ...]:
    if kind.is_one_shot:
        taken = {"seed", *(_SOLVER_FIELDS if kind is EngineKind.DIFFUSION else ())}
        refused = [name for name in sorted(SamplingDefaults.model_fields) if name not in taken]
        return tuple(_meaningless(name, f"a {kind.value} stage") for name in refused)
    described = "it writes text token by token" if writes_text else "its tokens are not text"
    names = [*_SOLVER_FIELDS, *(() if writes_text else ("stop",))]
    return tuple(_meaningless(name, described) for name in sorted(names))


def _meaningless(name: str, described: str) -> Refusal:
    return Refusal(field=name, why=f"has no meaning for this stage ({described})")


def _malformed(name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"the manifest of model family {name!r} is malformed: {problem}", field="component")
