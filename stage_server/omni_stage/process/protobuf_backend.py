"""Checks which implementation of protobuf decodes the messages that the stage server receives."""

from __future__ import annotations

import os

from google.protobuf.internal import api_implementation

from omni_stage.errors import ConfigurationError

VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
BOUNDED = "upb"
"""The implementation whose limits the tests cover: at most 100 levels of nesting, and memory in proportion to a
message's bytes."""


def require_upb(found: str | None = None) -> None:
    """Raises ConfigurationError unless protobuf is implemented by upb.

    `found` overrides the name of the loaded implementation. An environment variable or a wheel without binaries selects
    protobuf's pure Python implementation. That one is eighty times slower (it decodes a chat of eight messages in
    480 us), and decoding blocks the event loop.
    """
    found = api_implementation.Type() if found is None else found
    if found == BOUNDED:
        return
    given = os.environ.get(VARIABLE)
    remedy = f"unset {VARIABLE} (it is {given!r})" if given else "install protobuf from its binary wheel"
    raise ConfigurationError(
        f"protobuf's implementation is {found!r}, and a stage server accepts only {BOUNDED!r}; {remedy}", field=VARIABLE
    )
