"""The tensors on the edges of a Qwen2.5-Omni pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_proto.stage_config import EdgeMode, StageConfig
from omni_proto.tensors import TensorSchema, TensorSpec
from omni_stage.models.qwen2_5_omni.checkpoint import OmniCheckpoint, first_codes
from omni_stage.models.qwen2_5_omni.manifest import TALKER_TO_TOKEN2WAV, THINKER_TO_TALKER, TOKEN2WAV


def find_pace(checkpoint: OmniCheckpoint, config: StageConfig, *, held: int = 0) -> Mapping[str, Any]:
    """Returns how fast playback consumes the tokens of a thinker or talker: fields of scheduling.playback.Pace.

    `held`: how many of its newest tokens the stage has no row for yet; 1 for a thinker. The talker reads one row of the
    thinker for each codec token, so both have the same rate.
    """
    return {
        "tokens_per_second": TOKEN2WAV.sample_rate_hz / checkpoint.audio.code,
        "first_tokens": first_codes(checkpoint.blocks) + held,
        "heard_early": any(edge.mode is EdgeMode.STREAM for edge in config.downstream),
    }


def thinker2talker_schema(checkpoint: OmniCheckpoint) -> TensorSchema:
    """Returns the schema of the edge from thinker to talker. Rows have the checkpoint's dtype, not the dtype of a
    stage."""
    return TensorSchema(
        id=THINKER_TO_TALKER,
        version=1,
        tensors=(
            TensorSpec(
                "x",
                checkpoint.dtype,
                (checkpoint.hidden_size,),
                "Last hidden state, normed, plus the input embedding of the token at the same position; hidden state "
                "only where the prompt holds audio, image or video. Prompt rows, then reply rows; the reply's last "
                "token has none.",
            ),
            TensorSpec("token_ids", "int64", (), "Token at the same position as the row of x."),
            TensorSpec("mrope_positions", "int64", (3,), "Time, height and width positions; one row per prompt token."),
            TensorSpec(
                "mrope_delta", "int64", (), "One row: position of the first reply token minus number of prompt tokens."
            ),
        ),
    )


def talker2token2wav_schema() -> TensorSchema:
    """Returns the schema of the edge from talker to token2wav."""
    return TensorSchema(
        id=TALKER_TO_TOKEN2WAV,
        version=1,
        tensors=(TensorSpec("codes", "int64", (), "Codec token; the tokens that end the stream are left out."),),
    )
