"""`omnipipe tiny-model`: writes a model family's small checkpoint with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from omni_stage.errors import ConfigurationError
from omni_stage.models.manifest import RANDOM_WEIGHTS_MARKER, TinyCheckpoint
from omni_stage.models.registry import resolve, tiny_checkpoints

MARKER: Final = RANDOM_WEIGHTS_MARKER
"""Only a directory with this file may be overwritten."""


class TinyModelError(ValueError):
    """The family is missing or unknown, the shape is unknown, the family's checkpoint writer cannot be used, or the
    directory holds other files."""


def check_directory(directory: Path) -> None:
    """Raises TinyModelError if the directory holds files that `omnipipe tiny-model` did not write; OSError."""
    if directory.is_dir() and any(directory.iterdir()) and not (directory / MARKER).exists():
        raise TinyModelError(f"{directory} holds files that omnipipe tiny-model did not write; choose another folder")


def pick_tiny(known: Mapping[str, TinyCheckpoint], family: str | None, shape: str | None) -> tuple[TinyCheckpoint, str]:
    """Returns the tiny checkpoint of the named family, and its shape: the given shape, else the checkpoint's first
    shape.

    If family is None, the only family with a tiny checkpoint is used; several, or none, are an error. Raises
    TinyModelError.
    """
    if not known:
        raise TinyModelError("no installed model family has a tiny model; install omnipipeline[stage]")
    listed = ", ".join(sorted(known))
    if family is None and len(known) != 1:
        raise TinyModelError(f"several model families have a tiny model; name one with --family: {listed}")
    name = family or next(iter(known))
    if name not in known:
        raise TinyModelError(f"model family {name!r} has no tiny model; families with one: {listed}")
    tiny = known[name]
    if shape is not None and shape not in tiny.shapes:
        raise TinyModelError(f"shape {shape!r} is not known; known: {', '.join(tiny.shapes)}")
    return tiny, shape or tiny.shapes[0]


def write_tiny_model(directory: Path, *, family: str | None, seed: int, shape: str | None) -> None:
    """Write the checkpoint. Raises TinyModelError, OSError, and ImportError where no engine is installed."""
    check_directory(directory)
    tiny, chosen = pick_tiny(tiny_checkpoints(), family, shape)
    try:
        write = resolve(tiny.writer, what="the writer of the tiny model")
    except ConfigurationError as error:
        # A missing engine shows as an ImportError.
        if isinstance(error.__cause__, ImportError):
            raise error.__cause__ from error
        raise TinyModelError(str(error)) from error
    if not callable(write):
        raise TinyModelError(f"{tiny.writer} cannot be called")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).touch()
    write(directory, seed=seed, shape=chosen)
