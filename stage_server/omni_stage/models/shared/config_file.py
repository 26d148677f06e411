"""Reads a checkpoint's config.json, and files that it may lack."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PretrainedConfig
from transformers.utils import logging

from omni_stage.errors import ConfigurationError

_Config = TypeVar("_Config", bound=PretrainedConfig)
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


def read_if_there(file: Path) -> dict[str, Any]:
    """Returns the mapping in a JSON file; empty if there is no such file. Raises ConfigurationError."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read {file}: {type(error).__name__}", field="model.path") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} must hold a mapping", field="model.path")
    return content


def find_dtype(parts: Iterable[Mapping[str, Any]]) -> str:
    """Returns the dtype of the weights, from the first part of config.json that names one; bfloat16 if none does.

    Older transformers wrote `torch_dtype`. Some writers name the dtype only in nested parts.
    """
    for part in parts:
        dtype = part.get("dtype") or part.get("torch_dtype")
        if dtype in _DTYPES:
            return str(dtype)
    return "bfloat16"


def check_ids(directory: Path, ids: Iterable[int], vocab_size: int, *, whose: str = "thinker") -> None:
    """Refuse ids of config.json that are not in that part's vocabulary. Raises ConfigurationError."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise ConfigurationError(
                f"{directory / 'config.json'} names the token id {token_id}, which is not in the {whose}'s vocabulary, "
                f"whose ids are 0 to {vocab_size - 1}",
                field="model.path",
                limit=vocab_size,
            )


def torch_dtype(name: str) -> torch.dtype:
    """Returns the torch dtype of this name: bfloat16, float16 or float32."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def parse_config(
    directory: Path,
    raw: Mapping[str, Any],
    config_class: type[_Config],
    *,
    title: str,
    parts: Mapping[str, Iterable[str]],
) -> _Config:
    """Returns `raw` parsed with transformers, so that keys that the file lacks get their defaults.

    `title` is the family's name in messages. `parts` names the mappings that the file must hold, each with the mappings
    nested in it. For a missing mapping, transformers would fill in the sizes of another model. Raises
    ConfigurationError.
    """
    file = directory / "config.json"
    not_ours = f"{file} is not a {title} configuration"
    if raw.get("model_type") == f"{config_class.model_type}_thinker":
        raise ConfigurationError(
            f"{file} describes a thinker that was saved by itself; put it back into the {title} model that it was "
            "trained from, and save the complete model",
            field="model.path",
        )
    if raw.get("model_type") != config_class.model_type:
        raise ConfigurationError(f"{not_ours}: its model_type is not {config_class.model_type}", field="model.path")
    for part, inner in parts.items():
        for where, values in ((part, raw), *((f"{part}.{name}", raw.get(part)) for name in inner)):
            if not isinstance(values, dict) or not isinstance(values.get(where.rpartition(".")[2]), dict):
                raise ConfigurationError(f"{not_ours}: {where} is missing", field="model.path")
    try:
        # Hide transformers' warnings about token ids beyond the talker's vocabulary: such ids are correct.
        with quiet_transformers():
            config: _Config = config_class.from_dict(dict(raw))
    except Exception as error:  # its validation raises several classes, some of them huggingface_hub's
        raise ConfigurationError(f"{file}: {_one_line(error)}", field="model.path") from error
    return config


def _one_line(error: Exception) -> str:
    """Returns the error's message on one line of at most 300 characters; its type's name if it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide transformers' progress bars and warnings, such as those about token ids beyond the talker's vocabulary.

    Such ids are correct: the talker's configuration also names ids of the text vocabulary, even in the published model.
    """
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
