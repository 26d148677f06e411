"""Payloads: tensors and lists as checked bytes that travel between the stage server and its engine's process.

The stage server builds an AdditionalInformationPayload with `from_mapping`, and puts `to_bytes()` into the request's
parameters under OMNI_PAYLOAD_KEY. The scheduler reads it back with `from_bytes`, and the model runner turns its entries
into tensors. A PromptEmbedsPayload becomes vLLM's own prompt_embeds. For the cost in memory, see
docs/performance/transport-and-tokens.md.
"""

from omni_stage.payloads.additional_information import (
    OMNI_PAYLOAD_KEY as OMNI_PAYLOAD_KEY,
    OMNI_ROWS_KEY as OMNI_ROWS_KEY,
    AdditionalInformationEntry as AdditionalInformationEntry,
    AdditionalInformationPayload as AdditionalInformationPayload,
)
from omni_stage.payloads.checks import (
    DEFAULT_LIMITS as DEFAULT_LIMITS,
    PayloadLimits as PayloadLimits,
    Scalar as Scalar,
)
from omni_stage.payloads.prompt_embeds import PromptEmbedsPayload as PromptEmbedsPayload
