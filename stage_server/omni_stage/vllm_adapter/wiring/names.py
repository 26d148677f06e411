"""Names that the stage server and the engine's processes share: keys of additional_config and stop reasons."""

from __future__ import annotations

from typing import Final

DIFFUSION_SETTINGS: Final = "omni_diffusion"
"""Key of vllm_config.additional_config: fields of DiffusionSettings."""
MEDIA_SHARE: Final = "omni_media_share"
"""Key of vllm_config.additional_config: the largest share of the engine's time for media, above 0 and at most 1
(MediaShare)."""
PAYLOAD_LIMITS: Final = "omni_payload_limits"
"""Key of vllm_config.additional_config: fields of PayloadLimits, which every scheduler reads."""

ROW_POSITIONS: Final = "omni_row_positions"
"""Tensor from the worker to the scheduler: [n] int64, the positions of the rows beside it. Sent only if the model
chooses positions and the stage caches prefixes."""
ROWS_REUSED: Final = "omni_rows_reused"
"""Tensor from the scheduler to the front end: [2] int64, how many rows of an output come from a cached prefix, and
their bytes."""

QUEUE_TIMEOUT: Final = "queue_timeout"
"""Stop reason of a request that waited too long."""
FORM_COST: Final = "form_cost"
"""Start of the stop reason of a request whose form of structured output cost too much."""
INVALID_PAYLOAD: Final = "invalid_payload"
"""Start of the stop reason of a request whose payload could not be read."""
