"""The tensors on the edges of a Qwen3-Omni pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_proto.stage_config import EdgeMode, StageConfig
from omni_proto.tensors import TensorSchema, TensorSpec
from omni_stage.models.qwen3_omni.checkpoint import OmniCheckpoint, SpeechFacts
from omni_stage.models.qwen3_omni.manifest import CODE2WAV, TALKER_TO_CODE2WAV, THINKER_TO_TALKER


def find_pace(speech: SpeechFacts | None, config: StageConfig) -> Mapping[str, Any]:
    """Returns how fast playback consumes the tokens of a thinker or talker: fields of scheduling.playback.Pace.

    The talker reads one token of the thinker for each frame of speech, so both have the same rate. code2wav decodes
    each frame as it arrives.
    """
    streams = any(edge.mode is EdgeMode.STREAM for edge in config.downstream)
    if speech is None:
        return {}
    return {
        "tokens_per_second": CODE2WAV.sample_rate_hz / speech.frame_samples,
        "first_tokens": speech.first_frames,
        "heard_early": streams,
    }


def thinker2talker_schema(checkpoint: OmniCheckpoint) -> TensorSchema:
    """Returns the schema of the edge from thinker to talker: ids for text, and rows for media."""
    return TensorSchema(
        id=THINKER_TO_TALKER,
        version=1,
        tensors=(
            TensorSpec("token_ids", "int64", (), "Prompt, then reply; the reply's last token is left out."),
            TensorSpec("prompt_tokens", "int64", (), "One row: how many of token_ids belong to the prompt."),
            TensorSpec(
                "media",
                checkpoint.dtype,
                (checkpoint.hidden_size,),
                "Hidden state of accept_hidden_layer for each token of users' messages that stands for a medium, in "
                "the order of the prompt.",
            ),
            TensorSpec(
                "media_positions", "int64", (3,), "Time, height and width positions of the token of each row of media."
            ),
        ),
    )


def talker2code2wav_schema(speech: SpeechFacts) -> TensorSchema:
    """Returns the schema of the edge from talker to code2wav."""
    return TensorSchema(
        id=TALKER_TO_CODE2WAV,
        version=1,
        tensors=(
            TensorSpec(
                "codes", "int64", (speech.groups,), "A frame: the talker's code and its code predictor's, in order."
            ),
        ),
    )
