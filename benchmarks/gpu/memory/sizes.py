"""Computes the GPU memory of the Omni models' stages from the published configuration and a pipeline's engineArgs.

Weights and KV cache are exact. Activations and CUDA graphs are upper estimates. The check sharing.starts of `make gpu`
tests on a real GPU that each stage stays within its share. A test checks that docs/gpu-sizing.md has these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_proto.gpu_memory import DEFAULT_SHARE, GIB, MIB, KvShape, PeakMemory, TransformerShape
from omni_proto.pipeline import OmniPipeline, Stage

DOCUMENTED = {
    "qwen25-omni-one-gpu": ("7b", 78),
    "qwen25-omni-3b": ("3b", 22),
    "qwen3-omni-30b-a3b-one-gpu": ("30b-a3b", 139),
}
"""Samples whose stages share a GPU -> the release, and the least usable GiB of a GPU sold with 80, 24 or 141 GB."""
PIXELS = 12_845_056
"""Pixels of the largest image (preprocessor_config.json, max_pixels). vLLM's profile run uses an image of that size."""
AUDIO_FRAMES = 30_000
"""Longest audio, in mel frames (preprocessor_config.json, chunk_length 300 s)."""
CODES = 4096
"""Longest reply of the talker, in codec tokens."""
WAVE_BYTES_PER_CODE = 680 << 10
"""Peak memory of token2wav's vocoder per codec token, in float32 with torch's default TF32. An H100 needed 650 KiB,
because cuDNN copies a convolution's input into another layout. The transformer needs less than half of that, and the
two never run at the same time."""
WAVE_TENSOR_BYTES_PER_CODE = 460 << 10
"""The part of WAVE_BYTES_PER_CODE that tensors take, measured on meta tensors (peak.py)."""
WAVE_BASE_BYTES = 512 * MIB
"""Allowance for cuDNN's workspaces and the allocator's rounding."""
CODEC_BYTES_PER_FRAME = 14 * MIB
"""Peak memory of code2wav's decoder per frame of a forward, in float32, measured on an H200."""
CODEC_STATE_BYTES = 5_189_888
"""Bytes that code2wav keeps for a stream between its chunks (code2wav/streams.py, with the published sizes)."""
CODEC_STATES = 2 + 256 + 64
"""Number of these states that code2wav allocates for its CUDA graphs (code2wav/steps.py)."""
CODEC_STEP_FRAMES = 256
"""Maximum number of frames that code2wav decodes in one forward (code2wav/steps.py, STEP_FRAMES)."""
GRAPH_BYTES_PER_SEQUENCE = 6 * MIB
"""Allowance for a stage's CUDA graphs, per request of maxNumSeqs. vLLM captures graphs for batches of up to twice
maxNumSeqs."""
BATCHED_TOKENS = 8192
SEQUENCES = 256
"""Assumed if a sample sets no maxNumBatchedTokens or maxNumSeqs. vLLM's defaults for a server on a GPU with at least 70
GiB are 8,192 and 1,024."""


@dataclass(frozen=True, slots=True)
class Release:
    """A published checkpoint: its config.json and the bytes of its modules' tensors."""

    config: Mapping[str, Any]
    module_bytes: Mapping[str, int]


def text_shape(config: Mapping[str, Any]) -> TransformerShape:
    """Returns the sizes that a decoder's part of config.json gives."""
    return TransformerShape(
        hidden=max(config["hidden_size"], config.get("embedding_size", 0)),
        intermediate=max(
            config["intermediate_size"], config.get("moe_intermediate_size", 0) * config.get("num_experts_per_tok", 0)
        ),
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_size=_head_size(config),
        vocabulary=config["vocab_size"],
    )


def kv_shape(config: Mapping[str, Any], element_bytes: int = 2) -> KvShape:
    """Returns the KV cache's sizes that a decoder's part of config.json gives."""
    return KvShape(
        config["num_hidden_layers"], config["num_key_value_heads"], _head_size(config), element_bytes=element_bytes
    )


def _head_size(config: Mapping[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def decoder_config(release: Release, component: str) -> Mapping[str, Any]:
    """Returns the part of config.json that describes the decoder of `component`, the thinker or the talker."""
    config = release.config
    found: Mapping[str, Any]
    found = config[f"{component}_config"]
    return found.get("text_config", found)


def encoder_bytes(thinker: Mapping[str, Any], element_bytes: int = 2) -> int:
    """Returns the bytes of the activations of the thinker's vision encoder for the largest image, or of its audio
    encoder for the longest audio, whichever is more.

    A layer has, per position: input, residual, normed input, queries, keys, values, output, and the feed-forward's
    tensors.
    """
    vision, audio = thinker["vision_config"], thinker["audio_config"]
    patches = PIXELS // vision["patch_size"] ** 2
    image = patches * (8 * vision["hidden_size"] + 3 * vision["intermediate_size"])
    # The first convolution runs at the full frame rate, everything else at half of it.
    audio_values = AUDIO_FRAMES * 2 * audio["d_model"] + AUDIO_FRAMES // 2 * (
        8 * audio["d_model"] + 2 * audio["encoder_ffn_dim"]
    )
    return max(image, audio_values) * element_bytes


def stage_memory(release: Release, stage: Stage, *, device_bytes: int, weights: int | None = None) -> PeakMemory:
    """Returns the GPU memory of a stage. `weights`: bytes of the weights, if not the published ones (quantized).

    Without kvCacheMemoryMib, the KV cache fills the rest of the stage's share.
    """
    component = stage.component.rsplit("/", 1)[-1]
    args = stage.engine_args
    share = DEFAULT_SHARE if args.gpu_memory_utilization is None else args.gpu_memory_utilization
    held = release.module_bytes[component] if weights is None else weights
    if component == "token2wav":
        return PeakMemory(stage.name, held, activations=WAVE_BASE_BYTES + CODES * WAVE_BYTES_PER_CODE, share=share)
    sequences = args.max_num_seqs or SEQUENCES
    if component == "code2wav":
        # Weights are stored in bfloat16 and loaded as float32.
        state = CODEC_STATES * CODEC_STATE_BYTES
        activations = CODEC_STEP_FRAMES * CODEC_BYTES_PER_FRAME + state
        return PeakMemory(stage.name, 2 * held, activations=activations, share=share)
    activations = text_shape(decoder_config(release, component)).activation_bytes(
        batched_tokens=args.max_num_batched_tokens or BATCHED_TOKENS, sequences=sequences
    )
    if component == "thinker":
        activations = max(activations, encoder_bytes(release.config["thinker_config"]))
    graphs = 0 if args.enforce_eager else sequences * GRAPH_BYTES_PER_SEQUENCE
    memory = PeakMemory(stage.name, held, activations=activations, graphs=graphs, share=share)
    if args.kv_cache_memory_mib is not None:
        cache = args.kv_cache_memory_mib * MIB
    else:
        cache = max(0, int(share * device_bytes) - memory.total)
    return PeakMemory(stage.name, held, cache, activations, graphs, share=share)


def pipeline_memory(release: Release, pipeline: OmniPipeline, *, device_bytes: int) -> list[PeakMemory]:
    """Returns the GPU memory of each stage, in the pipeline's order."""
    return [stage_memory(release, stage, device_bytes=device_bytes) for stage in pipeline.spec.stages]


def awq_bytes(release: Release) -> int:
    """Returns the bytes of the thinker's weights if AWQ stores the decoder's linear layers in 4 bits.

    Groups of 128 weights share a scale and a zero point. Embeddings, norms, the output layer and the encoders are not
    quantized.
    """
    text = decoder_config(release, "thinker")
    hidden, heads, groups = text["hidden_size"], text["num_attention_heads"], text["num_key_value_heads"]
    size = _head_size(text)
    linear = text["num_hidden_layers"] * (
        2 * hidden * heads * size + 2 * hidden * groups * size + 3 * hidden * text["intermediate_size"]
    )
    bits = 4 + (16 + 4) / 128
    return release.module_bytes["thinker"] - 2 * linear + int(linear * bits / 8)


def format_row(memory: PeakMemory, device_bytes: int) -> str:
    """Returns one line of a table: the stage's name; weights, KV cache, activations and graphs, CUDA context, and their
    sum, in GiB; and the stage's share as a fraction and in GiB."""
    parts = (memory.weights, memory.kv_cache, memory.activations + memory.graphs, memory.context, memory.total)
    cells = " | ".join(f"{part / GIB:.1f}" for part in parts)
    return f"| {memory.name} | {cells} | {memory.share:g} | {memory.share * device_bytes / GIB:.1f} |"
