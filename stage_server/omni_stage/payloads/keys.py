"""Keys under which a request's payload and settings travel to the engine's process.

vLLM passes SamplingParams.extra_args and PoolingParams.extra_kwargs unchanged to the scheduler and the worker. They may
hold only values that msgpack can encode, such as bytes, but not tensors.
"""

from __future__ import annotations

from typing import Final

OMNI_PAYLOAD_KEY: Final = "omni"
"""bytes: AdditionalInformationPayload.to_bytes()."""

OMNI_ROWS_KEY: Final = "omni_rows"
"""True: the runner returns the rows that it captures for this request."""

OMNI_LATE_KEY: Final = "omni_late"
"""float: seconds by which an autoregressive request stands later in the queue than its arrival, because its client has
other requests in the stage (service/guard/admission.py)."""

OMNI_DUE_KEY: Final = "omni_due"
"""float: the time at which the result of a diffusion request is due, in seconds of time.monotonic(), a clock that all
processes of a machine share. Among requests of equal priority, the request with the earliest due time is scheduled
first. A request without this key is due on arrival."""
