"""docs/errors.md lists exactly the protocol's error reasons, each with the gRPC code of its error class."""

from __future__ import annotations

import re
from pathlib import Path

from omni_proto.stage.v1 import errors_pb2
from omni_stage.errors import OmniStageError

PAGE = Path(__file__).parents[3] / "docs" / "errors.md"
PREFIX = "ERROR_REASON_"


def page_rows() -> dict[str, str]:
    """Returns the page's table: reason -> gRPC code."""
    return {m[1]: m[2] for m in re.finditer(r"^\| `([A-Z_]+)` \| ([A-Z_]+)", PAGE.read_text(), re.MULTILINE)}


def all_classes(root: type[OmniStageError]) -> set[type[OmniStageError]]:
    return {root}.union(*(all_classes(child) for child in root.__subclasses__()))


def test_page_lists_every_reason_once() -> None:
    reasons = {name.removeprefix(PREFIX) for name, _ in errors_pb2.ErrorReason.items()} - {"UNSPECIFIED"}
    assert set(page_rows()) == reasons


def test_page_gives_the_code_of_each_error_class() -> None:
    rows = page_rows()
    for error in all_classes(OmniStageError):
        if error.__module__ in ("omni_stage.errors", "omni_proto.errors") and error.__name__ != "ConfigurationError":
            assert rows[error.reason] == error.code, error.__name__
