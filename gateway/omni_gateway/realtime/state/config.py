"""What holds in a session: the client's wishes, merged, and mapped to what the pipeline can do.

Clients send by habit what only OpenAI's models have, such as `tracing` or semantic_vad. It is accepted, and the session
that the client gets back shows what holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from omni_gateway.api.errors import describe_validation
from omni_gateway.entries.connections import EntryFacts
from omni_gateway.errors import InvalidRequestError
from omni_gateway.openai.audio_requests import read_language

RATES_HZ: Final = {"audio/pcm": 24_000, "audio/pcmu": 8000, "audio/pcma": 8000}
"""The formats of audio, with their sample rates. One channel. audio/pcm has 16 bits, little-endian; the others are
G.711, with 8."""
OPENAI_VOICES: Final = frozenset(
    ("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer", "verse")
)
"""Voices that clients name by habit. The pipeline's default stands in for one without an alias."""
SILENCE_MS: Final = {"low": 1200, "medium": 800, "auto": 800, "high": 500}
"""The silence that ends a turn, by the eagerness of semantic_vad, which is served as server_vad."""
REALTIME: Final = "realtime"
TRANSCRIPTION: Final = "transcription"
"""The types of a session: one with answers, and one that writes down the user's speech alone."""
_NULLABLE: Final = frozenset(("turn_detection", "transcription"))
"""Fields for which null is a value. Elsewhere it leaves a field as it was."""
_DEPTH: Final = 4
RETAINED: Final = 0.5
"""Share of a conversation that is kept with truncation "auto". A smaller one drops more than needed; a larger one does
so more often, and each time the cached prefix is lost."""
TOOL_CHOICES: Final = ("auto", "none", "required")


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class AudioFormat(_Part):
    """A format of RATES_HZ."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: int | None = None
    """What the client says. None in what holds, because it follows from the type."""

    @property
    def rate_hz(self) -> int:
        """Samples per second."""
        return RATES_HZ[self.type]

    @property
    def bytes_per_ms(self) -> int:
        """Bytes of a millisecond."""
        return self.rate_hz * (2 if self.type == "audio/pcm" else 1) // 1000

    def view(self) -> dict[str, Any]:
        """Returns the format as clients see it."""
        return {"type": self.type, "rate": self.rate_hz} if self.type == "audio/pcm" else {"type": self.type}


class TurnDetection(_Part):
    """When a turn of the user begins and ends."""

    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Probability of speech from which a frame counts as speech."""
    prefix_padding_ms: Annotated[int, Field(ge=0, le=5000)] = 300
    """Audio before the begin of the speech that belongs to the turn."""
    silence_duration_ms: Annotated[int, Field(ge=32, le=30_000)] = 500
    """Silence that ends a turn."""
    create_response: bool = True
    interrupt_response: bool = True
    eagerness: Literal["low", "medium", "high", "auto"] | None = None


class Transcription(_Part):
    """How the user's speech is written down."""

    model: str | None = None
    language: Annotated[Annotated[str, Field(max_length=32)] | None, BeforeValidator(read_language)] = None
    prompt: Annotated[str, Field(max_length=4096)] | None = None


class AudioInput(_Part):
    """The user's audio."""

    format: AudioFormat = AudioFormat()
    transcription: Transcription | None = None
    turn_detection: TurnDetection | None = TurnDetection()


class AudioOutput(_Part):
    """The answers' audio."""

    format: AudioFormat = AudioFormat()
    voice: str | dict[str, Any] = ""


class Audio(_Part):
    """Audio of both directions."""

    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class FunctionTool(_Part):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None

    def view(self) -> dict[str, Any]:
        """Returns the function as clients see it."""
        return {name: value for name, value in self if value is not None}


_OTHER: Final = FunctionTool(name="other")
"""Stands for a tool that only OpenAI's own models call, such as an MCP server, until the tools are read: errors number
them as the client does."""


def _mark_others(tools: Any) -> Any:
    if not isinstance(tools, list):
        return tools
    kinds = [one.get("type") or "function" if isinstance(one, dict) else "" for one in tools]
    return [
        {**one, "type": kind} if kind == "function" else _OTHER if kind else one
        for one, kind in zip(tools, kinds, strict=True)
    ]


def _drop_others(tools: list[FunctionTool]) -> list[FunctionTool]:
    return [one for one in tools if one is not _OTHER]


class Retention(_Part):
    """How much of a conversation is kept that has become too long."""

    type: Literal["retention_ratio"] = "retention_ratio"
    retention_ratio: Annotated[float, Field(ge=0, le=1)]


class Config(_Part):
    """What holds in a session, or in one response."""

    instructions: str = ""
    output_modalities: Annotated[list[Literal["text", "audio"]], Field(min_length=1, max_length=2)] = ["audio"]
    audio: Audio = Audio()
    tools: Annotated[
        list[FunctionTool], BeforeValidator(_mark_others), Field(max_length=128), AfterValidator(_drop_others)
    ] = []
    tool_choice: str | dict[str, Any] = "auto"
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | Literal["inf"] = "inf"
    truncation: Literal["auto", "disabled"] | Retention = "auto"
    """What happens to a conversation that has become too long for the model."""

    @property
    def speaks(self) -> bool:
        """Whether answers are spoken."""
        return "audio" in self.output_modalities

    @property
    def retained(self) -> float | None:
        """Share of a conversation that has become too long which is kept; None keeps all of it."""
        if isinstance(self.truncation, Retention):
            return self.truncation.retention_ratio
        return RETAINED if self.truncation == "auto" else None


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the pipeline can do."""

    model: str
    facts: EntryFacts
    aliases: Mapping[str, str]
    """Names of voices in other APIs; see pick_voice."""
    writers: dict[str, str] = field(default_factory=dict)
    """Ids of other pipelines that write down what they hear, by the names that the session has used for them."""

    @property
    def transcribes(self) -> bool:
        """Whether the pipeline writes down what it hears."""
        return self.facts.hears and (self.facts.has_transcript or self.facts.answering == self.facts.stage)


def first_config(abilities: Abilities, wishes: Mapping[str, Any]) -> Config:
    """Returns what holds when a session begins. wishes: those that it was opened with. Raises InvalidRequestError."""
    config = Config()
    if read_kind(wishes) == TRANSCRIPTION:
        config = Config(audio=Audio(input=AudioInput(transcription=Transcription())))
    config = merge(config, wishes, abilities, "session")
    if read_kind(wishes) == TRANSCRIPTION and config.audio.input.transcription is None:
        raise InvalidRequestError(
            f"The model {abilities.model!r} does not write down what it hears; name one that does as 'model' in the "
            "URL, or as session.audio.input.transcription.model.",
            param="model",
        )
    return config


def read_kind(session: Mapping[str, Any]) -> str:
    """Returns the type of a session: REALTIME or TRANSCRIPTION. Raises InvalidRequestError."""
    kind = session.get("type") or REALTIME
    if kind not in (REALTIME, TRANSCRIPTION):
        raise InvalidRequestError("session.type is 'realtime' or 'transcription'.", param="session.type")
    return str(kind)


def read_writer(session: Mapping[str, Any]) -> str | None:
    """Returns the model that shall write down the user's speech; None if the client's wishes name none."""
    found: Any = session
    for name in ("audio", "input", "transcription", "model"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else None


def merge(config: Config, wishes: Mapping[str, Any], abilities: Abilities, param: str) -> Config:
    """Returns what holds after the client's wishes. param: the field that holds them, for errors.

    Objects are merged, everything else is replaced. Raises InvalidRequestError.
    """
    try:
        merged = Config.model_validate(_merge(config.model_dump(), wishes, _DEPTH))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        located = [{**one, "loc": ("body", param, *one["loc"])} for one in found]
        raise describe_validation(RequestValidationError(located, body={param: dict(wishes)})) from None
    return _map(merged, abilities, wishes, param)


def _merge(old: dict[str, Any], new: Mapping[str, Any], depth: int) -> dict[str, Any]:
    found = dict(old)
    for name, value in new.items():
        if value is None and name not in _NULLABLE:
            continue
        before = found.get(name)
        is_whole = not depth or name in ("tool_choice", "voice")
        both = not is_whole and isinstance(value, Mapping) and isinstance(before, dict)
        found[name] = _merge(before or {}, value, depth - 1) if both else value
    return found


def _map(config: Config, abilities: Abilities, wishes: Mapping[str, Any], param: str) -> Config:
    facts, audio = abilities.facts, config.audio
    for side, wanted in (("input", audio.input.format), ("output", audio.output.format)):
        if wanted.rate not in (None, wanted.rate_hz):
            raise InvalidRequestError(
                f"{wanted.type} has {wanted.rate_hz} samples per second here, not {wanted.rate}.",
                param=f"{param}.audio.{side}.format.rate",
            )
    detection = audio.input.turn_detection if facts.hears else None
    if detection is not None and detection.type == "semantic_vad":
        silence = SILENCE_MS[detection.eagerness or "auto"]
        detection = detection.model_copy(update={"type": "server_vad", "silence_duration_ms": silence})
    transcription = audio.input.transcription
    if transcription is not None:
        own = abilities.model if abilities.transcribes else None
        writer = abilities.writers.get(transcription.model or "", own)
        transcription = transcription.model_copy(update={"model": writer}) if writer else None
    taken, given = (AudioFormat(type=one.format.type) for one in (audio.input, audio.output))
    voice = _pick_voice(audio.output.voice, abilities, param)
    can_speak = "audio" in facts.modalities or not facts.modalities
    speaks = can_speak and (config.speaks or "text" not in facts.modalities)
    return config.model_copy(
        update={
            "output_modalities": ["audio"] if speaks else ["text"],
            "audio": Audio(
                input=AudioInput(format=taken, transcription=transcription, turn_detection=detection),
                output=AudioOutput(format=given, voice=voice),
            ),
            "tools": config.tools if facts.calls_tools else [],
            "tool_choice": _pick_tool_choice(config, wishes, param) if facts.calls_tools else "auto",
        }
    )


def _pick_voice(wanted: str | dict[str, Any], abilities: Abilities, param: str) -> str:
    """Returns the pipeline's name of a voice; empty if the pipeline has none, or does not name them."""
    name = str(wanted.get("id") or "") if isinstance(wanted, dict) else wanted
    default = abilities.facts.voices[0] if abilities.facts.voices else ""
    if not name:
        return default
    try:
        return abilities.facts.pick_voice(name, abilities.aliases, param=f"{param}.audio.output.voice")
    except InvalidRequestError:
        if name.lower() in OPENAI_VOICES:
            return default
        raise


def _pick_tool_choice(config: Config, wishes: Mapping[str, Any], param: str) -> str | dict[str, Any]:
    wanted = config.tool_choice
    if wanted in TOOL_CHOICES:
        return wanted
    name = wanted.get("name") if isinstance(wanted, dict) else None
    if name not in [one.name for one in config.tools]:
        if wishes.get("tool_choice") is None or (isinstance(wanted, dict) and wanted.get("type") == "mcp"):
            return "auto"  # what it named went with the earlier tools, or was never there
        raise InvalidRequestError(
            "tool_choice is 'auto', 'none', 'required' or {type: function, name} of one of the tools.",
            param=f"{param}.tool_choice",
        )
    return {"type": "function", "name": name}


def view_session(config: Config, kind: str, id: str, model: str, expires_at: int) -> dict[str, Any]:
    """Returns the session as clients see it. kind: its type. expires_at: seconds since the epoch."""
    given, detection = config.audio.input.transcription, config.audio.input.turn_detection
    heard = {
        "format": config.audio.input.format.view(),
        "transcription": None if given is None else given.model_dump(exclude_none=True),
        "noise_reduction": None,
        "turn_detection": None if detection is None else view_detection(detection, kind),
    }
    if kind == TRANSCRIPTION:
        head = {"type": kind, "object": "realtime.transcription_session", "id": id, "expires_at": expires_at}
        return {**head, "audio": {"input": heard}, "include": None}
    return {
        "type": kind,
        "object": "realtime.session",
        "id": id,
        "model": model,
        "output_modalities": list(config.output_modalities),
        "instructions": config.instructions,
        "tools": [one.view() for one in config.tools],
        "tool_choice": config.tool_choice,
        "max_output_tokens": config.max_output_tokens,
        "tracing": None,
        "truncation": config.truncation if isinstance(config.truncation, str) else config.truncation.model_dump(),
        "prompt": None,
        "expires_at": expires_at,
        "audio": {"input": heard, "output": view_output(config)},
        "include": None,
    }


def view_output(config: Config) -> dict[str, Any]:
    """Returns the format and the voice of answers as clients see them."""
    return {"format": config.audio.output.format.view(), "voice": config.audio.output.voice, "speed": 1.0}


def view_detection(detection: TurnDetection, kind: str) -> dict[str, Any]:
    """Returns the turn detection as clients see it."""
    if kind == TRANSCRIPTION:
        return detection.model_dump(include={"type", "threshold", "prefix_padding_ms", "silence_duration_ms"})
    return {**detection.model_dump(exclude={"eagerness"}), "idle_timeout_ms": None}
