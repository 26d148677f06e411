"""Refuses text that UTF-8 cannot encode. JSON can contain half of a surrogate pair, and protobuf cannot."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import model_validator

from omni_gateway.errors import InvalidRequestError
from omni_gateway.openai.body import Body

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Utf8Body(Body):
    """Base of whole request bodies."""

    @model_validator(mode="before")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        """Raises InvalidRequestError, which pydantic passes on unchanged."""
        path = find_surrogate(value)
        if path is not None:
            raise InvalidRequestError(
                f"{path or 'body'}: the text contains half of a surrogate pair, which is not a character; cut texts "
                "between characters.",
                param=path or None,
            )
        return value


def find_surrogate(value: Any) -> str | None:
    """Returns the path of a text with a surrogate in a JSON value, or of an object with a surrogate in a key.

    The path of the value itself is "". None: the value contains no surrogate.
    """
    rest: list[tuple[str, Any]] = [("", value)]
    while rest:
        path, item = rest.pop()
        if isinstance(item, str):
            if not item.isascii() and _SURROGATE.search(item):
                return path
        elif isinstance(item, list):
            rest += [(f"{path}[{place}]", one) for place, one in enumerate(item)]
        elif isinstance(item, dict):
            if any(_SURROGATE.search(name) for name in item if not name.isascii()):
                return path
            rest += [(f"{path}.{name}" if path else name, one) for name, one in item.items()]
    return None
