"""The thinker's sampling values if neither request nor stage sets them: the same as in transformers.

The generation_config.json of the published checkpoints names neither sampling values nor an end-of-text token. In this
case transformers' Qwen2_5OmniForConditionalGeneration.generate (as of 4.52.4 and 5.19) decodes greedily, because
`do_sample` is false by default. It generates at most 1,024 tokens and stops at `thinker_config.eos_token_id`, because
it derives the thinker's generation settings only from that part of config.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_proto.stage_config import SamplingDefaults
from omni_stage.errors import ConfigurationError
from omni_stage.models.shared.config_file import read_if_there
from omni_stage.models.shared.thinker import MAX_TOKENS


def read_text_sampling(path: Path) -> SamplingDefaults:
    """Returns the thinker's default sampling: temperature 0, unless generation_config.json says `do_sample: true`.

    In that case the sampling values in that file apply, which vLLM reads by itself. Raises ConfigurationError.
    """
    if read_if_there(path / "generation_config.json").get("do_sample") is True:
        return SamplingDefaults(max_tokens=MAX_TOKENS)
    return SamplingDefaults(temperature=0.0, max_tokens=MAX_TOKENS)


def read_text_ends(path: Path, *, vocab_size: int, tokenizer_end: int | None) -> tuple[int, ...]:
    """Returns the token ids that end the thinker's text, ascending: 151645 in the published checkpoints.

    They are read from `thinker_config`, else from its text_config, else from generation_config.json. vLLM adds the ids
    of generation_config.json and of the tokenizer. An id of 0 does not mean "none": 0 is a token, "!" in the published
    vocabulary. Raises ConfigurationError if neither these files nor the tokenizer name an end, because every reply
    would then run to max_tokens.
    """
    thinker = read_if_there(path / "config.json").get("thinker_config") or {}
    settings = read_if_there(path / "generation_config.json")
    for source, part in (("thinker_config", thinker), ("thinker_config.text_config", thinker.get("text_config") or {})):
        ends = _read_ids(part, f"{path / 'config.json'}: {source}", vocab_size)
        if ends:
            return ends
    ends = _read_ids(settings, str(path / "generation_config.json"), vocab_size)
    if not ends and tokenizer_end is None:
        raise ConfigurationError(
            f"neither config.json, generation_config.json nor the tokenizer in model.path {path} names a token that "
            "ends the text; set thinker_config.eos_token_id",
            field="model.path",
        )
    return ends


def _read_ids(part: dict[str, Any], source: str, vocab_size: int) -> tuple[int, ...]:
    value = part.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise ConfigurationError(
                f"{source}.eos_token_id: {token_id!r} is not in the vocabulary, whose ids are 0 to {vocab_size - 1}",
                field="model.path",
                limit=vocab_size,
            )
    return tuple(sorted(set(ids)))
