"""A table of cases as one test: for rows so cheap that a test of its own for each would cost more than its check."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_row(
    names: str, rows: Iterable[Any], ids: Callable[[Any], str | None] | Iterable[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that takes what pytest.mark.parametrize takes, and makes one test with a subtest per row.

    All rows run, and a failure names its row. Fixtures are shared by the rows.
    """
    keys = [name.strip() for name in names.split(",")]
    table = [dict(zip(keys, [row] if len(keys) == 1 else row, strict=True)) for row in rows]
    labels = [] if ids is None or callable(ids) else list(ids)

    def label(number: int, row: dict[str, Any]) -> str:
        if labels:
            return labels[number]
        return "-".join((callable(ids) and ids(value)) or str(value)[:60] for value in row.values())

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_all(*args: Any, subtests: pytest.Subtests, **fixtures: Any) -> None:
            for number, row in enumerate(table):
                with subtests.test(label(number, row)):
                    test(*args, **row, **fixtures, **({"subtests": subtests} if nested else {}))

        signature = inspect.signature(test)
        nested = "subtests" in signature.parameters
        kept = [one for one in signature.parameters.values() if one.name not in {*keys, "subtests"}]
        wanted = inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)
        run_all.__signature__ = signature.replace(parameters=[*kept, wanted])  # type: ignore[attr-defined]
        return run_all

    return decorate
