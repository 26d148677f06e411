"""Selects the shards of a checkpoint that hold a component's tensors, from the checkpoint's index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from omni_stage.errors import ConfigurationError
from omni_stage.fetch.json_files import write_part

INDEX: Final = "model.safetensors.index.json"
ALL_WEIGHTS: Final = "*.safetensors"
FULL_INDEX_FOLDER: Final = ".omni-index"
"""Folder in the checkpoint's directory that holds the index as it was downloaded."""
_SHARD = re.compile(r"[A-Za-z0-9][\w.-]*\.safetensors\Z")


def select_weights(index: Mapping[str, Any], prefixes: Sequence[str]) -> dict[str, str]:
    """Returns tensor name -> file name of its shard, for each tensor whose name begins with one of the prefixes.

    Raises ConfigurationError if there is no such tensor, or if a shard is not named like a safetensors file.
    """
    weight_map = index.get("weight_map")
    entries = weight_map.items() if isinstance(weight_map, dict) else ()
    selected = {str(name): str(file) for name, file in entries if str(name).startswith(tuple(prefixes))}
    if not selected:
        raise ConfigurationError(
            f"the checkpoint's {INDEX} has no weights named {', '.join(f'{prefix}*' for prefix in prefixes)}; "
            "is it a checkpoint of this component's family?",
            field="model.uri",
        )
    if not all(_SHARD.match(file) for file in selected.values()):
        raise ConfigurationError(f"the checkpoint's {INDEX} names a file that is not a shard", field="model.uri")
    return selected


def reduce_index(dest: Path, repository: str, prefixes: Sequence[str]) -> set[str]:
    """Write an index to dest that names only the component's tensors. Returns the names of the shards to fetch.

    Engines refuse an index that names missing shards. Raises ConfigurationError.
    """
    selected = select_weights(_read_index(dest / FULL_INDEX_FOLDER, repository), prefixes)
    write_part(dest / INDEX, {"metadata": {}, "weight_map": selected}).replace(dest / INDEX)
    return set(selected.values())


def unlisted_weights(dest: Path, repository: str, names: Iterable[str]) -> set[str]:
    """Returns which weight files among a repository's files (`names`) the index in dest does not name.

    Engines read only the files that the index names. Mistral's repositories, for example, hold all weights a second
    time in consolidated.safetensors. Returns an empty set if the index names a file that the repository does not have.
    Raises ConfigurationError.
    """
    beside = {name for name in names if "/" not in name and fnmatch(name, ALL_WEIGHTS)}
    weight_map = _read_index(dest, repository).get("weight_map")
    listed = set(map(str, weight_map.values())) if isinstance(weight_map, dict) else set()
    return beside - listed if listed and listed <= beside else set()


def _read_index(folder: Path, repository: str) -> Mapping[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{INDEX} of {repository} is not JSON", field="model.uri") from error
    return index if isinstance(index, dict) else {}
