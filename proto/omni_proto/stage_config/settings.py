"""Settings of a stage that occur both in the OmniPipeline resource and in the stage file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

STAGE_NAME_PATTERN: Final = r"^[a-z][a-z0-9]*$"
COMPONENT_PATTERN: Final = r"^[a-z0-9_]+/[a-z0-9_]+$"
PARSER_PATTERN: Final = r"^[a-z0-9_-]+$"

StageName = Annotated[str, StringConstraints(min_length=1, max_length=20, pattern=STAGE_NAME_PATTERN)]
ParserName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=PARSER_PATTERN)]
SystemPrompt = Annotated[str, StringConstraints(min_length=1, max_length=8192)]
ComponentId = Annotated[str, StringConstraints(max_length=128, pattern=COMPONENT_PATTERN)]


class ConfigModel(BaseModel):
    """Base of every model of the stage file: camelCase keys, unknown keys refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class EdgeMode(StrEnum):
    """When a stage starts to process its input."""

    FULL = "Full"
    STREAM = "Stream"


class Modality(StrEnum):
    """A modality that a stage returns to the client."""

    TEXT = "Text"
    """The answer. If several stages return text, the last one's is the answer."""
    AUDIO = "Audio"
    TRANSCRIPT = "Transcript"
    """What the entry stage heard in the request's audio."""


class StructuredOutput(StrEnum):
    """What requests may prescribe about the form of the text."""

    NONE = "None"
    JSON = "Json"
    ALL = "All"


class ClientCertificates(StrEnum):
    """Whether clients must present a certificate."""

    IGNORED = "Ignored"
    REQUIRED = "Required"


class EngineArgs(ConfigModel):
    """Arguments of the engine: a closed list, so that no resource can name a class, a path or remote code."""

    max_model_len: Annotated[int, Field(ge=2, le=1_048_576)] | None = None
    """Longest sequence of prompt and output together, in tokens. Default: the model's maximum."""
    max_num_seqs: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Maximum number of requests that the engine runs in one step. Default: set by the component, else by vLLM."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Maximum number of tokens that the engine computes in one step. Default: set by the component, else by vLLM."""
    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    """Type of weights and activations. Default: set by the component, else by the checkpoint."""
    quantization: Literal["awq", "gptq", "fp8", "compressed-tensors"] | None = None
    """Quantization of the weights. Default: set by the checkpoint. fp8 also quantizes a checkpoint that is not
    quantized, while it loads. The others need a checkpoint of their format."""
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"] | None = None
    """Type of the KV cache. Default: auto, that of the activations."""
    kv_cache_memory_mib: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Memory of the KV cache in MiB. Default: the part of gpuMemoryUtilization that weights and activations do not
    need."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of each GPU's memory that the stage may use. This share must be free when the stage starts, even if
    kvCacheMemoryMib is set. Default: 0.92, as in vLLM. Stages that share a GPU need both fields
    (docs/gpu-sizing.md)."""
    enforce_eager: bool | None = None
    """Run without CUDA graphs and compilation. Default: set by the component, else true on a CPU and false on a GPU."""
    enable_prefix_caching: bool | None = None
    """Reuse the KV cache of equal prefixes. Default: as in vLLM, true if the model supports it. A stage whose hidden
    states are read also reuses their rows (rowsCacheMib); it refuses true if its component cannot do so."""
    rows_cache_mib: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Host memory in MiB for rows of cached prefixes that another stage reads. It comes on top of
    limits.maxInflightBytes. Without the rows, a prefix is computed again. Default: a quarter of that limit."""
    enable_prompt_embeds: bool | None = None
    """Accept embeddings instead of a prompt's tokens. Every request is then embedded outside CUDA graphs, which slows
    text requests down. Only for an entry stage whose rows no other stage reads. Default: false."""
    mm_processor_cache_mib: Annotated[int, Field(ge=0, le=1_048_576)] | None = None
    """Cache of processed media in MiB, and another as large of decoded media, so that repeated media are neither
    decoded nor processed again. This memory comes on top of limits.maxInflightBytes. Default: 0, no cache."""
    max_media_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Maximum share of the engine's time for encoding images, audio and video while requests without media to encode
    wait for tokens. Default: 0.5. 1 sets no limit, as in vLLM; the throughput of media is then highest."""
    load_format: Literal["auto", "safetensors", "dummy"] | None = None
    """How weights are loaded; dummy means random weights, for tests of size and speed. Default: safetensors."""
    tool_call_parser: ParserName | None = None
    """Name of vLLM's parser that finds tool calls in the text, e.g. hermes. Without one, requests offer no tools."""
    reasoning_parser: ParserName | None = None
    """Name of vLLM's parser that separates reasoning from text, e.g. qwen3. Without one, reasoning is text."""
    structured_output: StructuredOutput | None = None
    """What requests may prescribe about the form of the text: nothing (None); JSON, JSON Schemas, tool calls and lists
    of choices (Json); or also regular expressions and grammars (All), which are the easiest to make expensive. Default:
    Json."""
    block_size: Annotated[int, Field(ge=16, le=256, multiple_of=16)] | None = None
    """Tokens of one block of the KV cache: a multiple of 16, and of 32 on a CPU. Default: chosen by vLLM."""


class SamplingDefaults(ConfigModel):
    """Sampling parameters with vLLM's names. A value that is not set comes from the component, else from the model."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Randomness of the choice of tokens; 0 always takes the most likely one."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sample only from the smallest set of most likely tokens whose probabilities add up to this."""
    top_k: Annotated[int, Field(ge=-1, le=1_048_576)] | None = None
    """Number of most likely tokens to sample from; -1 or 0 means all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Minimum probability of a token, relative to the most likely one."""
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """Above 1 discourages tokens of the prompt and the output."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Above 0 discourages tokens that are in the output."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Above 0 discourages tokens in proportion to how often they are in the output."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    """Seed of the random numbers: equal requests then get equal answers. Default: random."""
    max_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Maximum number of tokens to generate."""
    min_tokens: Annotated[int, Field(ge=0, le=1_048_576)] | None = None
    """Minimum number of tokens to generate before a stop token counts."""
    ignore_eos: bool | None = None
    """Whether to continue after the end-of-sequence token."""
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=64)] | None = None
    """Additional token ids that end the output."""
    stop: (
        Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(max_length=16)] | None
    ) = None
    """Stop strings: they end the output. Only for stages that return text."""
    num_inference_steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Number of time points of a diffusion stage's solver, which makes one step fewer."""
    guidance_scale: Annotated[float, Field(ge=0, le=100)] | None = None
    """Strength of the guidance of a diffusion stage."""


class Limits(ConfigModel):
    """Limits of one stage pod."""

    max_concurrent_requests: Annotated[int, Field(ge=1, le=4096)] = 64
    """Maximum number of concurrent requests in the stage; further ones get RESOURCE_EXHAUSTED with RetryInfo."""
    max_inflight_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 40)] | None = None
    """Bytes of tensors and media that all requests together may hold. Default: 25 % of the memory limit."""
    max_media_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 32 << 20
    """Maximum bytes of one encoded image, audio or video file."""
    max_media_per_request: Annotated[int, Field(ge=0, le=64)] = 8
    """Maximum number of images, audio and video files of one request."""
    max_prompt_chars: Annotated[int, Field(ge=1, le=1 << 24)] = 1 << 20
    """Maximum number of characters of a request's text."""
    max_message_bytes: Annotated[int, Field(ge=2 << 20, le=8 << 20)] = 8 << 20
    """Maximum bytes of one gRPC message. Chunks of tensors have about 1 MiB, and no channel accepts more than 8 MiB."""
    refusals_per_second: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Refusals per second that the entry stage sends to one client without delay; in a burst, five times this number.
    Further refusals are delayed by up to maxRefusalWait. Default: 10."""
    max_refusal_wait: Annotated[float, Field(ge=0, le=10)] | None = None
    """Maximum delay in seconds of refusals beyond refusalsPerSecond. 0: no refusal is delayed. Accepted calls are never
    delayed. Default: 1."""


class MediaLimits(ConfigModel):
    """Limits for a request's images, audio and videos, checked against their headers before anything is decoded."""

    max_image_pixels: Annotated[int, Field(ge=1024, le=1 << 28)] = 16 << 20
    """Maximum number of pixels of an image, width times height."""
    max_image_scans: Annotated[int, Field(ge=1, le=1000)] = 50
    """Maximum number of scans of a progressive JPEG. Programs write about ten; each costs a pass over the picture."""
    max_audio_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Longest audio file, in seconds. The model may accept less."""
    max_audio_rate_hz: Annotated[int, Field(ge=4000, le=768_000)] = 192_000
    """Highest sample rate of audio; the lowest is 4,000."""
    max_audio_channels: Annotated[int, Field(ge=1, le=64)] = 8
    """Maximum number of channels of audio."""
    max_video_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """Longest video, in seconds. The model sees two frames per second, and may accept less."""
    max_video_frames: Annotated[int, Field(ge=2, le=1 << 20)] = 7200
    """Maximum number of encoded frames of a video. All are decoded, to find the frames that the model sees."""
    max_video_pixels: Annotated[int, Field(ge=1024, le=1 << 26)] = 9 << 20
    """Maximum number of pixels of a video frame, width times height. The default is a little more than 4096 x 2160."""
    max_decoded_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 36)] = 256 << 20
    """Maximum bytes of a request's media once decoded: 3 per pixel, 4 per sample of each channel. Videos count with the
    size and number of the frames that the model sees."""
