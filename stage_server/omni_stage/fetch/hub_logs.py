"""The log lines of the hub's client (huggingface_hub 2.4), without the signatures in the addresses of its storage."""

from __future__ import annotations

import logging
import re
from typing import Final

from omni_proto.runtime.logs import adopt_logger

_QUERY: Final = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")


def tame_hub_logs() -> None:
    """Send the hub client's lines through the handlers of the root logger, and cut the query off every address.

    A signed address lets anybody download the file for about an hour, even from a private repository.
    """
    adopt_logger("huggingface_hub")
    for handler in logging.getLogger().handlers:
        handler.addFilter(_cut_queries)


def _cut_queries(record: logging.LogRecord) -> bool:
    record.msg, record.args = _QUERY.sub(r"\1?...", record.getMessage()), None
    return True
