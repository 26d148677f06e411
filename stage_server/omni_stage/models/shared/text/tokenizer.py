"""Loads a checkpoint's tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_stage.errors import ConfigurationError


def load_tokenizer(path: Path) -> Any:
    """Returns the tokenizer in the checkpoint directory. Reads only local files and runs no code from the checkpoint.

    Raises ConfigurationError.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigurationError(
            f"no tokenizer can be loaded from model.path {path} ({type(error).__name__}); "
            "the checkpoint must hold its tokenizer files",
            field="model.path",
        ) from error


def read_chat_template(path: Path) -> str | None:
    """Returns the template in chat_template.json, where older processors stored it; None if there is none."""
    try:
        template = json.loads((path / "chat_template.json").read_text(encoding="utf-8"))["chat_template"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return template if isinstance(template, str) else None
