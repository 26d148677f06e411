"""Reading a checkpoint's config.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omni_stage.errors import ConfigurationError

_DTYPES = ("bfloat16", "float16", "float32")


def read_config(directory: Path) -> dict[str, Any]:
    """Returns the mapping in config.json. Raises ConfigurationError."""
    file = directory / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}", field="model.path") from error
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON", field="model.path") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{file} must hold a mapping", field="model.path")
    return config


def find_dtype(parts: Iterable[Mapping[str, Any]]) -> str:
    """Returns the dtype of the weights from the first part that names one; bfloat16 if none does.

    Older transformers wrote torch_dtype; some writers name it in the parts only.
    """
    for part in parts:
        dtype = part.get("dtype") or part.get("torch_dtype")
        if dtype in _DTYPES:
            return str(dtype)
    return "bfloat16"


def one_line(error: Exception) -> str:
    """Returns the error's message on one line of at most 300 characters; its type's name if it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__
