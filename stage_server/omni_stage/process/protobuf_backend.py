"""Which implementation of protobuf reads what peers send."""

from __future__ import annotations

import os

from google.protobuf.internal import api_implementation

from omni_stage.errors import ConfigurationError

VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
BOUNDED = "upb"
"""The one whose bounds our tests and fuzzing know: 100 levels of nesting, memory in proportion to the bytes."""


def require_upb(found: str | None = None) -> None:
    """Raises ConfigurationError unless protobuf is implemented by upb. found: what to judge instead of what is loaded.

    Its pure Python form, which any process falls into by an environment variable or a wheel without binaries, decodes
    eighty times slower (a chat of eight messages: 480 us), on the event loop.
    """
    found = api_implementation.Type() if found is None else found
    if found == BOUNDED:
        return
    given = os.environ.get(VARIABLE)
    remedy = f"unset {VARIABLE} (it is {given!r})" if given else "install protobuf from its binary wheel"
    raise ConfigurationError(
        f"protobuf's implementation is {found!r}, and a stage server takes {BOUNDED!r} alone; {remedy}", field=VARIABLE
    )
