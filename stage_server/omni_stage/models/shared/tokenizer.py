"""Loads a checkpoint's tokenizer, and renders conversations with its chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omni_stage.errors import ConfigurationError, InvalidRequestError


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


def render_chat(tokenizer: Any, messages: Sequence[dict[str, Any]], /, **settings: Any) -> Any:
    """Returns the conversation as the chat template renders it, with the beginning of the assistant's reply.

    `settings`: further arguments of transformers' apply_chat_template. Raises InvalidRequestError.
    """
    try:
        return tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, **settings)
    except Exception as error:
        # A template is a program. It may fail with any error on messages or tools that it does not expect.
        raise InvalidRequestError(
            "the checkpoint's chat template refused the messages (roles and their order) or the tools "
            f"({type(error).__name__}); most templates want user and assistant messages in turns, and tools with "
            "descriptions",
            field="start.chat",
        ) from error
