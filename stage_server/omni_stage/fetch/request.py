"""The request of `fetch`: a repository of a hub and a revision; and the token of the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from omni_stage.errors import ConfigurationError

_URI = re.compile(r"hf://([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})\Z")


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What to fetch, and the directory to put it into."""

    uri: str
    """hf://ORG/NAME"""
    revision: str
    """Branch, tag or commit."""
    dest: Path
    """Directory of the checkpoint. Each component has a directory of its own."""
    component: str = ""
    """Id of the component whose weights are fetched; empty means all weights."""
    commit_file: Path | None = None
    """File with the commit to which the first fetch resolved the revision. Later fetches take that commit."""


def parse_uri(uri: str) -> str:
    """Returns ORG/NAME of hf://ORG/NAME. Raises ConfigurationError."""
    match = _URI.match(uri)
    if match is None:
        raise ConfigurationError("uri must be hf://ORG/NAME", field="model.uri")
    return match[1]


def read_token(file: Path | None) -> str | None:
    """Returns the token in a file, without surrounding whitespace; None without a file. Raises ConfigurationError."""
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"there is no token file {file}; in a cluster, create the Secret and key that tokenSecretRef names",
            field="model.tokenSecretRef",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the token file {file}", field="model.tokenSecretRef") from error
    if not token or any(character.isspace() for character in token):
        raise ConfigurationError(f"the token file {file} must hold one token", field="model.tokenSecretRef")
    return token
