"""Metadata that a client of a pipeline may add to its calls, besides x-request-id and traceparent."""

from __future__ import annotations

from typing import Final

USER_KEY: Final = "x-omni-user"
"""Metadata key with which a client that has many users names the user of a call. The value has 1 to 64 characters of
A-Z, a-z, 0-9, - and _, and is best a pseudonym. The entry stage counts refused calls separately for each user, so that
one user's refused calls do not delay another user's refusals. The stage uses the value for nothing else, and sends it
to no other stage."""
