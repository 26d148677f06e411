"""Metadata that a client of a pipeline may add to its calls, besides x-request-id and traceparent."""

from __future__ import annotations

from typing import Final

USER_KEY: Final = "x-omni-user"
"""Whom a client that serves many users calls for: 1 to 64 of A-Z, a-z, 0-9, - and _, best without meaning. The entry
stage counts refused calls for each user apart, so that one user's do not delay another's. It does nothing else with it,
and passes it to no other stage."""
