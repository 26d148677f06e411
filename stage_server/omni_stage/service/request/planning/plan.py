"""Turns a Start into a plan of what the stage will do. Pure; runs before the request is admitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from omni_proto.model_names import find_voice
from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage.v1 import sampling_pb2, stage_service_pb2
from omni_proto.stage_config import DownstreamStage, EdgeMode, Modality, SamplingDefaults, StageConfig, StructuredOutput
from omni_proto.tensors import EdgeAssembler, TensorSpec
from omni_stage.engine.requests.sampling import check_stage_sampling, resolve_sampling
from omni_stage.errors import InvalidRequestError, PromptTooLongError
from omni_stage.models.component import BoundsRows, KnowsTokens, ServedComponent, TakesMedia
from omni_stage.service.media.slots import MediaRules
from omni_stage.service.request.planning.announced import EMBEDS_COPIES, check_edge, plan_embeds
from omni_stage.service.request.planning.prompt import PromptPlan, check_earlier, is_written, plan_context, plan_prompt
from omni_stage.service.request.planning.reply_form import bound_reply, check_reply_form, check_setting

_ENCODINGS = frozenset(
    (
        sampling_pb2.AUDIO_ENCODING_UNSPECIFIED,
        sampling_pb2.AUDIO_ENCODING_PCM_S16LE,
        sampling_pb2.AUDIO_ENCODING_PCM_F32LE,
    )
)
MAX_SEED = 2**63 - 1
MAX_PRIORITY = 1000
MAX_CACHE_SALT_BYTES = 128


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What a stage does for one request. It is validated, and `sampling` has every default applied."""

    start: stage_service_pb2.Start
    prompt: PromptPlan | None
    """The user's prompt; None if the input is an edge."""
    context: PromptPlan | None
    """What the client says to the stage that answers, beside the edge: messages, tools, a reply; None if nothing."""
    edge: EdgeAssembler | None
    """Receives the tensors of the input edge, or the embeddings of a prompt; None for every other prompt."""
    streamed: bool
    """Whether the engine starts before the edge is complete."""
    sampling: SamplingDefaults
    own: frozenset[Modality]
    calls: tuple[DownstreamStage, ...]
    voice: str
    """The requested voice by its full name; empty if none is requested, or if the stage does not speak."""
    input_bytes: int
    """Maximum number of bytes that the input can use: the tensors' sizes as declared in their headers (doubled for
    prompt embeddings, which are copied), plus media_bytes, text and token ids."""
    output_rows: int
    """Maximum number of rows of any tensor that the stage publishes."""
    output_bytes: int
    """Bytes that published rows may hold until downstream stages have taken them."""

    @property
    def media_bytes(self) -> int:
        """The part of input_bytes that media may hold."""
        return self.prompt.media_bytes if self.prompt else 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes that admission reserves."""
        return self.input_bytes + self.output_bytes


def plan_request(
    start: stage_service_pb2.Start,
    config: StageConfig,
    component: ServedComponent,
    max_model_len: int,
    prompt_embeds: TensorSpec | None = None,
) -> RequestPlan:
    """Validate Start and return the plan. `prompt_embeds`: see StageEngine.

    Raises OmniStageError with the path of the wrong field. Has no side effects.
    """
    plan = plan_modalities(config, start.modalities)
    check_reply_form(start, config, component.facts, speaks=bool(plan.edges))
    check_setting(start, config.engine_args.structured_output or StructuredOutput.JSON)
    handed = config.passes_on(component.facts.transcribes) and any(
        config.answering_stage in edge.stages for edge in plan.edges
    )
    if handed and config.input is None:
        check_earlier(start)
    elif not handed and config.passes_on(component.facts.transcribes):
        for what, field, is_asked in (
            ("the reply is", "start.reply", start.HasField("reply")),
            ("tools are", "start.chat.tools", bool(start.chat.tools)),
        ):
            if is_asked:
                raise InvalidRequestError(
                    f"{what} for stage {config.answering_stage!r}, which the requested modalities do not need; request "
                    "audio or text",
                    field=field,
                )
    prompt, edge = _plan_input(start, config, component, max_model_len, prompt_embeds)
    if handed and prompt is not None:
        prompt = replace(prompt, written=is_written(start))
    context = None if config.input is None else plan_context(start, config.limits, max_model_len)
    _check_queueing(start)
    check_sampling_names(start.sampling, config.stages)
    if start.HasField("seed") and start.seed > MAX_SEED:
        raise InvalidRequestError(f"seed must be at most {MAX_SEED}", field="start.seed", limit=MAX_SEED)
    sampling = _resolve(start, config, component)
    own = prompt or context
    if own is not None and own.reply is not None:
        # A given reply is not sampled: an upper bound of its length replaces max_tokens.
        sampling = sampling.model_copy(update={"max_tokens": bound_reply(own.reply, max_model_len)})
    if start.audio.encoding not in _ENCODINGS:
        raise InvalidRequestError("the audio encoding is not known", field="start.audio.encoding")
    prompt_rows = prompt.max_prompt_tokens if prompt else max((h.max_rows for h in start.tensors.tensors), default=0)
    rows = bound_rows(component, prompt_rows, sampling.max_tokens, max_model_len)
    schema = component.output_schema if plan.edges else None
    row_bytes = sum(spec.row_bytes for spec in schema.tensors) if schema else 0
    return RequestPlan(
        start=start,
        prompt=prompt,
        context=None if handed else context,
        edge=edge,
        streamed=reads_stream(config),
        sampling=sampling,
        own=plan.own,
        calls=plan.edges,
        voice=_check_voice(start.audio.voice, component.voices),
        input_bytes=_input_bytes(prompt, edge) + (0 if context is None else context.held_text_bytes),
        output_rows=rows,
        output_bytes=rows * row_bytes,
    )


def media_rules(config: StageConfig, component: ServedComponent, max_model_len: int) -> MediaRules | None:
    """Returns the rules for media; None if the model takes no media."""
    if not isinstance(component, TakesMedia):
        return None
    return MediaRules(
        config.limits, config.media, component, max_model_len, reads_video="video" in component.facts.media
    )


def reads_stream(config: StageConfig) -> bool:
    """Returns whether the stage starts before its upstream stage has finished."""
    return config.input is not None and config.input.mode is EdgeMode.STREAM


def bound_rows(component: ServedComponent, input_rows: int, max_tokens: int | None, max_model_len: int) -> int:
    """Returns the maximum number of rows of any tensor that a component publishes for a request.

    `input_rows`: maximum number of tokens of the prompt, or of rows of the input edge.
    """
    new_tokens = max_model_len if max_tokens is None else min(max_tokens, max_model_len)
    if isinstance(component, BoundsRows):
        return component.max_rows(input_rows, new_tokens)
    return component.facts.rows_per_position * min(max_model_len, input_rows + new_tokens)


def max_new_tokens(plan: RequestPlan, facts: ComponentFacts, max_model_len: int) -> int:
    """Returns an upper bound of the tokens that the stage will generate; 0 if its engine generates none."""
    if facts.kind.is_one_shot or (plan.context is not None and plan.context.reply is not None):
        return 0
    wanted = plan.sampling.max_tokens
    return max_model_len if wanted is None else min(wanted, max_model_len)


def downstream_start(
    start: stage_service_pb2.Start, edge: DownstreamStage, answering: str | None = None
) -> stage_service_pb2.Start:
    """Returns the Start for a downstream stage: all that it and the stages below it need, except its input.

    `answering`: the stage to which the conversation, its tools and a given reply are passed on; None: they are this
    stage's own.
    """
    message = stage_service_pb2.Start(
        # The requested modalities that the stage, or a stage below it, declares.
        modalities=[it for it in modality_numbers(edge.outputs) if not start.modalities or it in start.modalities],
        audio=start.audio,
        include=start.include,
        allow_partial=start.allow_partial,
        priority=start.priority,
        cache_salt=start.cache_salt,
    )
    if start.HasField("seed"):
        message.seed = start.seed
    if answering in edge.stages:
        # The entry stage hears the last message, and its words are the text on the edge; unless they were written.
        message.written = start.written or is_written(start)
        message.conversation.extend(
            start.conversation or (start.chat.messages if message.written else start.chat.messages[:-1])
        )
        offer = start if start.tools else start.chat
        message.tools.extend(offer.tools)
        if offer.HasField("tool_choice"):
            message.tool_choice.CopyFrom(offer.tool_choice)
        if start.HasField("reply"):
            message.reply.CopyFrom(start.reply)
    for name in edge.stages:
        if name in start.sampling:
            message.sampling[name].CopyFrom(start.sampling[name])
    return message


def _check_queueing(start: stage_service_pb2.Start) -> None:
    if abs(start.priority) > MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority must be from -{MAX_PRIORITY} to {MAX_PRIORITY}", field="start.priority", limit=MAX_PRIORITY
        )
    if len(start.cache_salt.encode()) > MAX_CACHE_SALT_BYTES:
        raise InvalidRequestError(
            f"cache_salt must have at most {MAX_CACHE_SALT_BYTES} bytes; send a hash of a longer value",
            field="start.cache_salt",
            limit=f"{MAX_CACHE_SALT_BYTES} bytes",
        )


def _input_bytes(prompt: PromptPlan | None, edge: EdgeAssembler | None) -> int:
    tensors = edge.max_bytes if edge else 0
    if prompt is None:
        return tensors
    return prompt.media_bytes + prompt.held_text_bytes + EMBEDS_COPIES * tensors


def _check_fits(prompt: PromptPlan, component: ServedComponent, max_model_len: int) -> None:
    """Refuse text that cannot fit the engine, whatever its tokens are. Raises PromptTooLongError."""
    max_chars = component.chars_per_token if isinstance(component, KnowsTokens) else None
    if max_chars is None:
        return
    reply = (prompt.reply.text or "") if prompt.reply is not None else ""
    field = "start.text" if prompt.text is not None else "start.chat"
    for path, chars in ((field, prompt.chars), ("start.reply", len(reply))):
        if chars > (max_model_len - 1) * max_chars:
            raise PromptTooLongError(
                f"{path}: {chars} characters are more than {max_model_len - 1} tokens, and at most "
                f"{max_model_len - 1} fit; shorten the prompt",
                field=path,
                limit=f"{max_model_len - 1} tokens",
            )


def _plan_input(
    start: stage_service_pb2.Start,
    config: StageConfig,
    component: ServedComponent,
    max_model_len: int,
    prompt_embeds: TensorSpec | None,
) -> tuple[PromptPlan | None, EdgeAssembler | None]:
    if config.input is None:
        if start.edge_schema_hash:
            raise InvalidRequestError("an entry stage reads no edge", field="start.edge_schema_hash")
        prompt = plan_prompt(start, config.limits, max_model_len, media_rules(config, component, max_model_len))
        _check_fits(prompt, component, max_model_len)
        if prompt.embeds:
            return prompt, plan_embeds(start.prompt_embeds, prompt_embeds, config, max_model_len)
        return prompt, None
    if start.WhichOneof("input") != "tensors":
        raise InvalidRequestError(
            f"stage {config.stage!r} reads the tensors of stage {config.input.source!r}; call the entry stage instead",
            field="start.input",
        )
    return None, check_edge(start, config.input.source, component.input_schema)


def _resolve(start: stage_service_pb2.Start, config: StageConfig, component: ServedComponent) -> SamplingDefaults:
    path = f"start.sampling[{config.stage}]"
    own = start.sampling.get(config.stage) if config.stage in start.sampling else None
    sampling = resolve_sampling(
        sampling_from_proto(own, path) if own is not None else None,
        seed=start.seed if start.HasField("seed") else None,
        config_default=config.default_sampling,
        component_default=component.default_sampling,
    )
    try:
        check_stage_sampling(sampling, component.facts, is_streamed=reads_stream(config))
    except InvalidRequestError as error:
        field = error.details.field
        prefixed = field if not field or field.startswith("start.") else f"{path}.{field}"
        raise type(error)(str(error), field=prefixed or path, limit=error.details.limit) from error
    return sampling


def _check_voice(voice: str, voices: Sequence[str]) -> str:
    if not voices:
        # A stage that does not speak passes the voice on; the stage that speaks checks it.
        return ""
    named = find_voice(voice, voices) if voice else ""
    if named is None:
        listed = ", ".join(voices)
        raise InvalidRequestError(
            f"the voice is not known; known voices: {listed}", field="start.audio.voice", limit=listed
        )
    return named


_FLOATS = frozenset(
    ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "guidance_scale")
)
_ALIASES = {info.alias or name: name for name, info in SamplingDefaults.model_fields.items()}


def sampling_from_proto(message: sampling_pb2.SamplingParams, field: str) -> SamplingDefaults:
    """Returns the sampling parameters that a request sets.

    Raises InvalidRequestError, whose field is the path of the wrong parameter: `field` plus the parameter's name.
    """
    data: dict[str, object] = {}
    for descriptor, value in message.ListFields():
        if descriptor.name in ("stop_token_ids", "stop"):
            data[descriptor.name] = list(value)
        elif descriptor.name in _FLOATS:
            # Of 32-bit floats, seven digits restore the number that the caller wrote (0.9, not 0.89999998).
            data[descriptor.name] = float(format(value, ".7g"))
        else:
            data[descriptor.name] = value
    try:
        return SamplingDefaults.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = _ALIASES.get(str(first["loc"][0]), str(first["loc"][0])) if first["loc"] else ""
        raise InvalidRequestError(f"{name}: {first['msg']}", field=f"{field}.{name}") from None


def check_sampling_names(sampling: Mapping[str, sampling_pb2.SamplingParams], stages: Sequence[str]) -> None:
    """Check every stage's parameters, so that a wrong one fails before any stage works. Raises InvalidRequestError."""
    for name in sorted(sampling):
        if name not in stages:
            listed = ", ".join(stages)
            # The name is the caller's text, so the message does not repeat it.
            raise InvalidRequestError(
                f"start.sampling names a stage that does not exist; known stages: {listed}",
                field="start.sampling",
                limit=listed,
            )
        sampling_from_proto(sampling[name], f"start.sampling[{name}]")


MAX_MODALITIES: Final = 16
"""Maximum number of modalities that a request may name, repetitions included."""
_TO_PROTO = {
    Modality.TEXT: sampling_pb2.MODALITY_TEXT,
    Modality.AUDIO: sampling_pb2.MODALITY_AUDIO,
    Modality.TRANSCRIPT: sampling_pb2.MODALITY_TRANSCRIPT,
}
_FROM_PROTO: dict[int, Modality] = {number: modality for modality, number in _TO_PROTO.items()}


@dataclass(frozen=True, slots=True)
class ModalityPlan:
    """What a request wants from this stage and from its downstream stages."""

    own: frozenset[Modality]
    """Modalities that this stage itself sends."""
    edges: tuple[DownstreamStage, ...]
    """Stages to call."""
    requested: frozenset[Modality]
    """All requested modalities, with defaults applied."""


def modality_numbers(modalities: Iterable[Modality]) -> list[sampling_pb2.Modality]:
    """Returns the protocol's numbers of modalities, sorted."""
    return sorted(_TO_PROTO[modality] for modality in modalities)


def declared_modalities(config: StageConfig) -> frozenset[Modality]:
    """Returns the modalities that this stage and its downstream stages declare."""
    return frozenset(config.outputs).union(*(edge.outputs for edge in config.downstream))


def plan_modalities(config: StageConfig, requested: Sequence[int]) -> ModalityPlan:
    """Decide which modalities this stage sends and which stages it calls. An empty list requests all declared ones.

    Raises InvalidRequestError for a modality that is unknown, or that neither this nor a downstream stage declares, and
    for more than MAX_MODALITIES.
    """
    if len(requested) > MAX_MODALITIES:
        raise InvalidRequestError(
            f"a request names at most {MAX_MODALITIES} modalities, got {len(requested)}",
            field="start.modalities",
            limit=MAX_MODALITIES,
        )
    known = declared_modalities(config)
    wanted: set[Modality] = set()
    for index, number in enumerate(requested):
        modality = _FROM_PROTO.get(number)
        if modality is None or modality not in known:
            name = str(modality) if modality else f"number {number}"
            listed = ", ".join(sorted(known)) or "none"
            raise InvalidRequestError(
                f"modality {name} is not declared from stage {config.stage!r} on; declared: {listed}",
                field=f"start.modalities[{index}]",
                limit=listed,
            )
        wanted.add(modality)
    wanted = wanted or set(known)
    edges = tuple(edge for edge in config.downstream if wanted.intersection(edge.outputs))
    return ModalityPlan(frozenset(wanted.intersection(config.outputs)), edges, frozenset(wanted))
