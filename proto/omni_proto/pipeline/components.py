"""Facts about components. A spec is checked with them before a GPU is used. Reading them imports no component.

Each model family states its facts once, in its manifest (omni_stage/models/FAMILY/manifest.py). `make schemas` compiles
the facts of the built-in families into components.json, which this module reads. So the operator and `omnipipe
validate` use the same facts as the stage server, without importing it.

    built_in_components()["FAMILY/NAME"].reads      the schema that this component reads
    refuse_engine_args(facts, args, is_read=True)   what the stage server would refuse, and why
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field
from pydantic.alias_generators import to_camel

from omni_proto.stage_config import ComponentId, ConfigModel, EngineArgs, Modality, SamplingDefaults, Timeouts

FILE: Final = "components.json"


class EngineKind(StrEnum):
    """How a stage's engine runs."""

    AUTOREGRESSIVE = "autoregressive"
    """Token by token."""
    DIFFUSION = "diffusion"
    """The complete output in one engine step, by several steps of a solver."""
    DECODER = "decoder"
    """The complete output in one engine step, by one pass of the model, e.g. a codec's decoder or a vocoder."""

    @property
    def is_one_shot(self) -> bool:
        """Whether a request takes a single engine step."""
        return self is not EngineKind.AUTOREGRESSIVE


class When(StrEnum):
    """When a value is refused."""

    ALWAYS = "always"
    READ = "read"
    """If another stage reads this one."""
    STREAMED = "streamed"
    """If the mode of the stage's input is Stream, so that the stage starts before its input is complete."""


class Refusal(ConfigModel):
    """A field that a component cannot support."""

    field: str
    """Name of the field, as Python spells it."""
    why: str
    """Why the component cannot support it; continues the text "FIELD: "."""
    remedy: str = "leave it out"
    """What the user should do."""
    when: When = When.ALWAYS
    """When the value is refused."""
    allows_empty: bool = False
    """Whether false, zero and an empty list are accepted."""
    minimum: float | None = None
    """If set, values below this are refused. Without minimum and maximum, every value is refused."""
    maximum: float | None = None
    """If set, values above this are refused."""

    def applies_to(self, value: Any) -> bool:
        """Returns whether this value of the field is refused."""
        if value is None or (self.allows_empty and not value):
            return False
        if self.minimum is None and self.maximum is None:
            return True
        return (self.minimum is not None and value < self.minimum) or (
            self.maximum is not None and value > self.maximum
        )


class ComponentFacts(ConfigModel):
    """Facts about a component that hold for every checkpoint that it serves."""

    id: ComponentId
    """FAMILY/NAME."""
    kind: EngineKind
    """How its engine runs."""
    outputs: tuple[Modality, ...] = ()
    """Modalities that it can return to a client."""
    reads: str | None = None
    """Id of the tensor schema that it reads from its upstream stage; None: it reads a prompt."""
    reads_prompt: bool = False
    """Whether it may be the entry stage although it has `reads`. As the entry, it reads the client's prompt."""
    publishes: str | None = None
    """Id of the tensor schema that it offers to other stages; None: no stage can read it."""
    rows_per_position: Annotated[int, Field(ge=1)] = 1
    """Maximum number of rows of a tensor that it publishes for each position: row of its input, or token that it
    generates. A component that has a closer bound has the method `max_rows` (BoundsRows), which takes precedence."""
    media: tuple[str, ...] = ()
    """Kinds of media that its prompts may hold: image, audio, video."""
    streams_input: bool = False
    """Whether it can start before its input is complete."""
    writes_text: bool = False
    """Whether its tokens are text of the checkpoint's tokenizer."""
    takes_reply: bool = False
    """Whether a request may give the reply, instead of the component sampling one."""
    structures_text: bool = False
    """Whether it can constrain its text to a format: a JSON Schema, a regular expression, a grammar."""
    times_words: bool = False
    """Whether it can state when the words of its transcript were spoken."""
    takes_system_prompt: bool = False
    """Whether a resource may give it a system prompt."""
    takes_tools: bool = False
    """Whether its prompts may offer tools, if engineArgs.toolCallParser names a parser. Text that it publishes is
    without the calls, so that a voice can read it."""
    voices: tuple[str, ...] = ()
    """Voices of the published checkpoints, the default first. At run time the checkpoint's own list is used instead."""
    sample_rate_hz: Annotated[int, Field(ge=0)] = 0
    """Sample rate of its audio; 0 if it generates none."""
    step_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Default of timeouts.step."""
    max_gpus: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of GPUs that one pod can use; None: as many as divide the model's heads."""
    queue_timeout_s: float | None = None
    """Default of timeouts.queue; None: requests wait as long as their deadline allows."""
    default_sampling: SamplingDefaults = SamplingDefaults()
    """Values of sampling parameters that neither the request nor the stage sets. A checkpoint may add to them."""
    refused_engine_args: tuple[Refusal, ...] = ()
    """Fields of engineArgs that it cannot support."""
    refused_sampling: tuple[Refusal, ...] = ()
    """Sampling parameters that it cannot support."""
    refused_timeouts: tuple[Refusal, ...] = ()
    """Fields of timeouts that it cannot support."""

    @property
    def is_entry(self) -> bool:
        """Whether it may be the entry stage; if not, it needs an input."""
        return self.reads is None or self.reads_prompt

    @property
    def transcribes(self) -> bool:
        """Whether its text is what it hears, whatever the prompt says."""
        return Modality.TRANSCRIPT in self.outputs


@dataclass(frozen=True, slots=True)
class Objection:
    """One field that a component refuses."""

    field: str
    """Name of the field, as Python spells it."""
    why: str
    remedy: str
    limit: float | None = None
    """The bound that the value violates, if there is one."""

    @property
    def alias(self) -> str:
        """The field as a resource spells it."""
        return to_camel(self.field)


def refuse_engine_args(facts: ComponentFacts, args: EngineArgs, *, is_read: bool) -> list[Objection]:
    """Returns the fields of a stage's engineArgs that the component refuses.

    is_read: whether another stage reads the stage.
    """
    return _refuse(facts.refused_engine_args, args, {When.READ} if is_read else set())


def refuse_sampling(facts: ComponentFacts, sampling: SamplingDefaults, *, is_streamed: bool) -> list[Objection]:
    """Returns the fields of a request's sampling or a stage's defaultSampling that the component refuses, and
    min_tokens if it is above max_tokens.

    is_streamed: whether the stage starts before its input is complete.
    """
    objections = _refuse(facts.refused_sampling, sampling, {When.STREAMED} if is_streamed else set())
    minimum, maximum = sampling.min_tokens, sampling.max_tokens
    if minimum is not None and maximum is not None and minimum > maximum:
        objections.append(Objection("min_tokens", f"must be at most max_tokens ({maximum})", "lower it", limit=maximum))
    return objections


def refuse_timeouts(facts: ComponentFacts, timeouts: Timeouts) -> list[Objection]:
    """Returns the fields of a stage's timeouts that the component refuses."""
    return _refuse(facts.refused_timeouts, timeouts, set())


def _refuse(refusals: tuple[Refusal, ...], values: ConfigModel, circumstances: set[When]) -> list[Objection]:
    applicable = circumstances | {When.ALWAYS}
    return [
        Objection(item.field, item.why, item.remedy, item.minimum if item.maximum is None else item.maximum)
        for item in refusals
        if item.when in applicable and item.applies_to(getattr(values, item.field))
    ]


@cache
def built_in_components() -> Mapping[str, ComponentFacts]:
    """Returns the facts of every built-in component by its id, sorted. An image may hold further components."""
    data = json.loads(files("omni_proto.pipeline").joinpath(FILE).read_text(encoding="utf-8"))
    facts = [ComponentFacts.model_validate(item) for item in data["components"]]
    return MappingProxyType({item.id: item for item in facts})


def describe_components(facts: Mapping[str, ComponentFacts]) -> dict[str, Any]:
    """Returns the content of components.json for these components."""
    described = [facts[name].model_dump(mode="json", by_alias=True, exclude_defaults=True) for name in sorted(facts)]
    return {"components": described}
