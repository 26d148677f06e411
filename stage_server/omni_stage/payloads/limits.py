"""PayloadLimits: limits on a payload's size, shape and values. Checked in Python integers, so nothing overflows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from omni_stage.errors import ConfigurationError

NAME_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
"""Pattern of an entry's name. Names that match are safe in logs, metrics and error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadLimits:
    """Bounds of one request's payload. The defaults admit one sequence of 32768 rows of 3584 bfloat16 values."""

    max_dimensions: int = 4
    max_dimension_size: int = 1 << 20
    """Longest single dimension."""
    max_tensor_bytes: int = 256 << 20
    """Bytes of one tensor."""
    max_payload_bytes: int = 512 << 20
    """Bytes of the whole payload as it travels."""
    max_entries: int = 64
    """Named tensors and lists in one payload."""
    max_name_length: int = 64
    """Characters of a name."""
    max_list_length: int = 65536
    """Scalars in one list."""
    max_text_length: int = 4096
    """Characters of one string in a list."""
    allow_non_finite: bool = False
    """Whether NaN and infinity are allowed. It is true in the engine's process, which need not scan values again."""

    def __post_init__(self) -> None:
        """Refuse limits below 1 and wrong types. Raises ConfigurationError."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "allow_non_finite":
                if not isinstance(value, bool):
                    raise ConfigurationError("payload limit allow_non_finite must be true or false", field=item.name)
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"payload limit {item.name} must be an integer of at least 1", field=item.name)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> PayloadLimits:
        """Returns limits from configuration. Limits that `values` does not name keep their defaults.

        Raises ConfigurationError.
        """
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigurationError(
                f"unknown payload limits: {', '.join(unknown)}; known are {', '.join(sorted(known))}", field=unknown[0]
            )
        return cls(**values)  # type: ignore[arg-type]

    def already_checked(self) -> PayloadLimits:
        """Returns the same limits without the scan for NaN and infinity, for payloads that this stage has checked."""
        return replace(self, allow_non_finite=True)


DEFAULT_LIMITS: Final = PayloadLimits()
