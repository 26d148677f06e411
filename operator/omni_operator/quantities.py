"""Quantities in the form in which the API server gives them back, so that a written 1000m is not seen as drift from 1.

After k8s.io/apimachinery/pkg/api/resource: largest suffix that leaves a whole number; decimal or binary as written.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|[kMGTP]|[KMGTP]i)?")
_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_NANO: Final = 10**9
_MOST_BINARY: Final = 2**63 - 1


def canonical_quantity(value: int | str) -> str:
    """The quantity as the API server writes it. Raises ValueError."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a quantity such as 2, 500m or 16Gi")
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix.endswith("i"):
        amount = min(number * 1024 ** _BINARY.index(suffix), Fraction(_MOST_BINARY))
        if amount >= 1024 and amount.denominator == 1:
            return _format(int(amount), 1024, _BINARY)
    else:
        amount = number * Fraction(1000) ** (_DECIMAL.index(suffix) - _DECIMAL.index(""))
    return _format(math.ceil(amount * _NANO), 1000, _DECIMAL)


def canonical_quantities(values: dict[str, int | str]) -> dict[str, str]:
    """Each quantity of a resource list in canonical form."""
    return {name: canonical_quantity(value) for name, value in values.items()}


def _format(amount: int, base: int, suffixes: tuple[str, ...]) -> str:
    if amount == 0:
        return "0"
    index = 0
    while amount % base == 0 and index + 1 < len(suffixes):
        amount //= base
        index += 1
    return f"{amount}{suffixes[index]}"
