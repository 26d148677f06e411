"""Loads a checkpoint's tokenizer."""

from __future__ import annotations

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
