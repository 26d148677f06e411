"""The tensors on the edges of a paced pipeline, modelled on the edges of the published models."""

from __future__ import annotations

from omni_proto.tensors import TensorSchema, TensorSpec
from omni_stage.models.sim.manifest import TALKER_TO_DECODER, THINKER_TO_TALKER
from omni_stage.models.sim.tables import Table


def thinker2talker_schema(table: Table) -> TensorSchema:
    """Returns the schema of the edge from thinker to talker.

    A row takes 7 KiB if it has 3,584 values, or 8 bytes if only token ids are sent.
    """
    values = table.thinker.row_values
    described = "Prompt rows, then reply rows; the reply's last token has none."
    rows = (TensorSpec("x", "bfloat16", (values,), described),) if values else ()
    return TensorSchema(
        id=THINKER_TO_TALKER,
        version=1,
        tensors=(
            *rows,
            TensorSpec("token_ids", "int64", (), "Prompt, then reply; the reply's last token is left out."),
            TensorSpec("mrope_positions", "int64", (3,), "Time, height and width positions; one row per prompt token."),
            TensorSpec(
                "mrope_delta", "int64", (), "One row: position of the first reply token minus number of prompt tokens."
            ),
        ),
    )


def talker2decoder_schema(table: Table) -> TensorSchema:
    """Returns the schema of the edge from talker to decoder: one row for each frame."""
    shape = () if table.talker.frame_codes == 1 else (table.talker.frame_codes,)
    return TensorSchema(
        id=TALKER_TO_DECODER,
        version=1,
        tensors=(TensorSpec("codes", "int64", shape, "Codes of a frame; the end of the stream is left out."),),
    )
