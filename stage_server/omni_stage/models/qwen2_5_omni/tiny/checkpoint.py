"""Writes the tiny checkpoint: configuration, tokenizer, processor, speakers and weights.

The published files were written by an older version of transformers than the one installed here. The tiny checkpoint
has the same format, so code that loads it also loads the published checkpoints:

- config.json has `rope_scaling` and `rope_theta` where transformers 5 has `rope_parameters`, and `torch_dtype` where
  transformers 5 has `dtype`. No library has the architectures that it names.
- generation_config.json names neither end tokens nor sampling values; the end of text is in `thinker_config`.
- preprocessor_config.json holds the settings for images and for audio at the same level. chat_template.json holds the
  template.
- Shards hold thinker and talker in bfloat16, token2wav in float32, the table of token2wav's rotary embedding, and no
  metadata. The index counts buffers that are in no shard. This is the form of the 7B model; the 3B model has metadata
  and a correct count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2_5OmniProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    WhisperFeatureExtractor,
)

from omni_stage.models.qwen2_5_omni.tiny.shapes import (
    CHAT_TEMPLATE,
    SHAPES,
    SPEAKER_BOS_TOKENS,
    SPECIAL_TOKENS,
    TinyShape,
    config_dict,
)
from omni_stage.models.shared.config_file import quiet_transformers
from omni_stage.models.shared.tiny.shards import old_rope, write_json, write_shards
from omni_stage.models.shared.tiny.sizes import check_shape, find_shape
from omni_stage.models.shared.tiny.tokenizer import END_OF_TEXT, PADDING, legible_token_ids, train_tokenizer
from omni_stage.models.shared.tiny.weights import PEAK, end_after_text, keep_rows, measure_peak

_UNSTORED_BYTES = 96
"""The index states so many bytes too many as its total size, as the published 7B index does. No code may rely on that
size."""


def write_tiny_checkpoint(
    directory: str | Path,
    seed: int = 0,
    shape: str | TinyShape = "small",
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
) -> Path:
    """Writes a complete tiny Qwen2.5-Omni checkpoint of a few MB into `directory`, in seconds. Returns `directory`.

    Creates the directory if needed. `dtype` is written to config.json: thinker and talker compute and send rows in this
    dtype, unless configured otherwise. It does not change the weights. The weights of thinker and talker are stored in
    bfloat16, which both dtypes represent exactly, and the weights of token2wav in float32. Equal seed and shape give
    equal weights. Needs transformers. Raises ConfigurationError for an unknown shape or sizes that do not fit together.
    """
    sizes = find_shape(shape, SHAPES)
    check_shape(sizes, len(SPECIAL_TOKENS))
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    values = config_dict(sizes)
    # The constructor draws from the global random generator, whose state must not change.
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig(**values)).float().eval()
    processor = make_processor(sizes.vocab_size)
    tokenizer = processor.tokenizer
    speakers = _make_speakers(tokenizer, model.config.token2wav_config.dit_config, seed)
    _fill_weights(model, seed)
    keep_rows(model.thinker.lm_head.weight, legible_token_ids(tokenizer))
    keep_rows(model.talker.codec_head.weight, [*range(sizes.audio_codes), model.talker.codec_eos_token])
    _end_after_text(model, sizes.vocab_size - len(SPECIAL_TOKENS))
    _make_audible(model.token2wav, speakers["Chelsie"], sizes.audio_codes, seed)
    write_shards(directory, release_weights(model), unstored_bytes=_UNSTORED_BYTES)
    write_json(directory / "config.json", release_config(values, dtype))
    write_generation_config(directory)
    with quiet_transformers():
        write_processor(directory, processor)
    torch.save(speakers, directory / "spk_dict.pt")
    return directory


def _make_speakers(tokenizer: Any, dit_config: Any, seed: int) -> dict[str, dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed + 1)
    return {
        name: _make_speaker(tokenizer.convert_tokens_to_ids(token), dit_config, generator)
        for name, token in SPEAKER_BOS_TOKENS.items()
    }


def make_processor(vocab_size: int) -> Any:
    """Returns the Qwen2_5OmniProcessor of the tiny checkpoint: tokenizer, image, video and audio preprocessing.

    Images are scaled to at most 64 tokens and audio is cut off after 30 seconds, so that prompts stay short.
    """
    return wrap_tokenizer(train_tokenizer(vocab_size, SPECIAL_TOKENS))


def wrap_tokenizer(core: Tokenizer) -> Any:
    """Returns a Qwen2_5OmniProcessor around a tokenizer that has the model's special tokens."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        clean_up_tokenization_spaces=False,
        extra_special_tokens={
            "image_token": "<|IMAGE|>",
            "audio_token": "<|AUDIO|>",
            "video_token": "<|VIDEO|>",
            "vision_bos_token": "<|vision_bos|>",
            "vision_eos_token": "<|vision_eos|>",
            "audio_bos_token": "<|audio_bos|>",
            "audio_eos_token": "<|audio_eos|>",
        },
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    pixels = {"shortest_edge": 4 * 28 * 28, "longest_edge": 64 * 28 * 28}
    return Qwen2_5OmniProcessor(
        image_processor=Qwen2VLImageProcessor(size=dict(pixels)),
        video_processor=Qwen2VLVideoProcessor(size=dict(pixels)),
        feature_extractor=WhisperFeatureExtractor(
            feature_size=128,
            sampling_rate=16000,
            n_fft=400,
            hop_length=160,
            chunk_length=30,
            return_attention_mask=True,
        ),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )


TRANSFORMERS_VERSION: Final = "4.50.0.dev0"
"""The value in the published files."""
ROTARY_TABLE: Final = "token2wav.code2wav_dit_model.rotary_embed.inv_freq"
"""A buffer that the published shards contain, and that transformers 5 computes."""
_AUDIO_SETTINGS = (
    *("chunk_length", "dither", "feature_size", "hop_length", "n_fft", "n_samples", "nb_max_frames", "padding_side"),
    *("padding_value", "return_attention_mask", "sampling_rate"),
)
_IMAGE_SETTINGS = ("image_mean", "image_std", "merge_size", "patch_size", "temporal_patch_size")


def release_config(values: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Returns config.json in the published format, from the arguments of Qwen2_5OmniConfig, with `dtype`."""
    thinker, talker = dict(values["thinker_config"]), dict(values["talker_config"])
    token2wav = dict(values["token2wav_config"])
    dit = token2wav["dit_config"]
    thinker |= {
        "architectures": ["Qwen2OmniNaViTThinkerForConditionalGeneration"],
        "model_type": "qwen2_5_omni_thinker",
        "torch_dtype": dtype,
        "text_config": {"model_type": "qwen2_5_omni_text", **old_rope(thinker["text_config"])},
        "audio_config": {"model_type": "qwen2_5_omni_audio_encoder", **thinker["audio_config"]},
        "vision_config": {"model_type": "qwen2_5_omni_vision_encoder", **thinker["vision_config"]},
    }
    talker = old_rope(talker) | {
        "architectures": ["Qwen2OmniTalkerForConditionalGeneration"],
        "model_type": "qwen2_5_omni_talker",
        "torch_dtype": dtype,
    }
    token2wav |= {
        "model_type": "qwen2_5_omni_token2wav",
        # Each size has both the published name (depth, dim, heads) and the name that transformers reads. The published
        # file has only the former, because its sizes are transformers' defaults.
        "dit_config": {
            "model_type": "qwen2_5_omni_dit",
            "torch_dtype": "float32",
            "depth": dit["num_hidden_layers"],
            "dim": dit["hidden_size"],
            "heads": dit["num_attention_heads"],
            **dit,
        },
        "bigvgan_config": {"model_type": "qwen2_5_omni_bigvgan", **token2wav["bigvgan_config"]},
    }
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "enable_audio_output": True,
        "enable_talker": True,
        "model_type": "qwen2_5_omni",
        "talker_config": talker,
        "thinker_config": thinker,
        "token2wav_config": token2wav,
        "torch_dtype": dtype,
        "transformers_version": TRANSFORMERS_VERSION,
    }


def write_generation_config(directory: Path) -> None:
    """Write generation_config.json, equal to the published one."""
    write_json(
        directory / "generation_config.json",
        {"_from_model_config": True, "transformers_version": TRANSFORMERS_VERSION},
    )


def write_processor(directory: Path, processor: Any) -> None:
    """Write the files of a Qwen2_5OmniProcessor: settings for images and audio, chat template, and tokenizer."""
    processor.tokenizer.chat_template = None
    processor.tokenizer.save_pretrained(directory)
    audio, images = processor.feature_extractor, processor.image_processor
    settings = {name: getattr(audio, name) for name in _AUDIO_SETTINGS}
    settings |= {name: getattr(images, name) for name in _IMAGE_SETTINGS}
    settings |= {
        "feature_extractor_type": type(audio).__name__,
        "image_processor_type": type(images).__name__,
        "max_pixels": images.size["longest_edge"],
        "min_pixels": images.size["shortest_edge"],
        "processor_class": type(processor).__name__,
    }
    write_json(directory / "preprocessor_config.json", dict(sorted(settings.items())))
    write_json(directory / "chat_template.json", {"chat_template": processor.chat_template})


def release_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields names and tensors as the shards hold them, in the published order: thinker, talker, token2wav."""
    state = model.state_dict()
    for part, dtype in (("thinker", torch.bfloat16), ("talker", torch.bfloat16), ("token2wav", torch.float32)):
        for name, tensor in state.items():
            if name.startswith(f"{part}."):
                yield name, tensor.to(dtype).contiguous()
    yield ROTARY_TABLE, model.token2wav.code2wav_dit_model.rotary_embed.inv_freq.float().contiguous()


def _fill_weights(model: Any, seed: int) -> None:
    """Draw the weights of a Qwen2_5OmniForConditionalGeneration from one generator, in place.

    Matrices roughly keep the variance of their input, norms stay at one, and biases are small. Filters and other
    buffers keep the values that the model's constructor computed.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in sorted(model.named_modules()):
            if isinstance(module, nn.Embedding):
                _draw(module.weight, 0.7, generator)
            elif isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d)):
                _draw(module.weight, _gain(name) / math.sqrt(_fan_in(module)), generator)
                if module.bias is not None:
                    _draw(module.bias, 0.05, generator)


def _end_after_text(model: Any, text_ids: int) -> None:
    """Make the talker end its speech soon after the text. text_ids: number of ids that are not special tokens."""
    talker, embed = model.talker, model.thinker.get_input_embeddings()
    config = talker.config

    def run(text: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        codes = torch.randint(config.tts_codec_pad_token_id - 1, text.shape, generator=generator)
        inputs = talker.thinker_to_talker_proj(talker.model.embed_tokens(codes) + embed(text))[None]
        positions = torch.arange(len(text)).expand(3, 1, -1)
        states: torch.Tensor = talker.model(inputs_embeds=inputs, position_ids=positions).last_hidden_state[0]
        return states

    head = talker.codec_head.weight
    end_after_text(head, talker.codec_eos_token, run, text_ids, config.tts_text_pad_token_id)


def _make_audible(token2wav: Any, speaker: dict[str, Any], audio_codes: int, seed: int) -> None:
    """Scale the vocoder's last layer so that a trial utterance of random codes peaks at PEAK."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(audio_codes, (1, 64), generator=generator)
    last = token2wav.code2wav_bigvgan_model.conv_post
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        last.weight.sub_(last.weight.mean(dim=-1, keepdim=True))  # so that the audio has no constant offset
        spoken = partial(token2wav, codes, conditioning=speaker["cond"], reference_mel=speaker["ref_mel"])
        last.weight.mul_(PEAK / measure_peak(last, spoken))


def _make_speaker(bos_token_id: int, dit_config: Any, generator: torch.Generator) -> dict[str, Any]:
    """Returns an entry of spk_dict.pt: start token, speaker [1, enc_emb_dim], reference mel [1, frames, mel_dim]."""
    return {
        "bos_token": bos_token_id,
        "cond": torch.randn(1, dit_config.enc_emb_dim, generator=generator),
        "ref_mel": torch.randn(1, 40, dit_config.mel_dim, generator=generator),
    }


def _draw(tensor: torch.Tensor, std: float, generator: torch.Generator) -> None:
    tensor.copy_(torch.randn(tensor.shape, generator=generator) * std)


def _gain(name: str) -> float:
    if name.endswith(("lm_head", "codec_head")):
        return 3.0  # clear maxima: greedy decoding must not depend on rounding
    if ".layers." in name and name.endswith(("q_proj", "k_proj")):
        return 1.6  # attention that selects positions
    if "bigvgan" in name and ".resblocks." in name:
        return 0.4  # the outputs of eighteen such residual branches add up
    return 1.2


def _fan_in(module: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d) -> int:
    weight = module.weight
    if isinstance(module, nn.ConvTranspose1d):
        # Each output sample depends on kernel/stride taps of every input channel.
        return max(1, weight.shape[0] * weight.shape[2] // module.stride[0])
    return max(1, math.prod(weight.shape[1:]))
