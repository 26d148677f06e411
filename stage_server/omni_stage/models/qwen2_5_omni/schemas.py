"""What travels on the edges of a Qwen2.5-Omni pipeline."""

from __future__ import annotations

from omni_proto.tensors import TensorSchema, TensorSpec
from omni_stage.models.qwen2_5_omni.checkpoint import OmniCheckpoint
from omni_stage.models.qwen2_5_omni.manifest import TALKER_TO_TOKEN2WAV, THINKER_TO_TALKER


def thinker2talker_schema(checkpoint: OmniCheckpoint) -> TensorSchema:
    """Thinker to talker. The rows have the checkpoint's dtype: both ends agree whatever dtype they compute in."""
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
            TensorSpec("mrope_positions", "int64", (3,), "Time, height and width positions; one row a prompt token."),
            TensorSpec("mrope_delta", "int64", (), "One row: position of the first reply token minus prompt tokens."),
        ),
    )


def talker2token2wav_schema() -> TensorSchema:
    """Talker to token2wav."""
    return TensorSchema(
        id=TALKER_TO_TOKEN2WAV,
        version=1,
        tensors=(TensorSpec("codes", "int64", (), "Codec token; the tokens that end the stream are left out."),),
    )
