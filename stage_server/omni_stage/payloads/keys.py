"""Keys under which a request's payload travels to the engine's process.

vLLM carries SamplingParams.extra_args and PoolingParams.extra_kwargs to the scheduler and to the worker unchanged. Only
values that msgpack can encode pass between processes, such as bytes, but not tensors.
"""

from __future__ import annotations

from typing import Final

OMNI_PAYLOAD_KEY: Final = "omni"
"""bytes: AdditionalInformationPayload.to_bytes()."""

OMNI_ROWS_KEY: Final = "omni_rows"
"""True: the frontend wants the rows that the runner captures for this request."""

OMNI_DUE_KEY: Final = "omni_due"
"""float: the time by which a diffusion request should be done, in seconds of time.monotonic(), a clock that all
processes of a machine share. Among requests of equal priority, the one with the earliest due time is scheduled first. A
request without this key is due on arrival."""
