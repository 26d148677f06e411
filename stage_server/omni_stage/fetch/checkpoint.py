"""`python -m omni_stage fetch`: downloads a checkpoint's files from a source into a directory, resumably.

A source is a hub (hub.py), a bucket (buckets.py) or a registry (registry.py). Only the files that engines read are
fetched (configuration, tokenizer, safetensors, the speaker file). If a component is named, only the weight files
(shards) that hold tensors of that component are, and files of other formats that the component reads. A folder of a
repository is fetched like a whole one. The directory is complete once the marker file names the commit: the version of
a hub's repository, of an artifact, or of a list of objects. A later run for the same commit or revision then does
nothing and needs no network.

The commit file records the commit that a revision named when the first stage of a pipeline looked it up. Stages that
share a cache share this file. So they all use the same commit, even if they download at different times.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from huggingface_hub.utils.tqdm import disable_progress_bars

from omni_proto.pod_contract import ExitCode, TerminationReason
from omni_proto.runtime.logs import adopt_logger
from omni_stage.errors import ConfigurationError, OmniStageError
from omni_stage.fetch.download import (
    FULL,
    LARGER,
    FetchError,
    RemoteFile,
    Source,
    check_room,
    download_file,
    has_file,
)
from omni_stage.fetch.hub import HubSource
from omni_stage.fetch.registry import RegistrySource
from omni_stage.models.registry import weight_files, weight_prefixes
from omni_stage.process.termination import write_termination

_QUERY: Final = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")
INDEX: Final = "model.safetensors.index.json"
ALL_WEIGHTS: Final = "*.safetensors"
FULL_INDEX_FOLDER: Final = ".omni-index"
"""Folder in the checkpoint's directory that holds the index as it was downloaded."""
_SHARD = re.compile(r"[A-Za-z0-9][\w.-]*\.safetensors\Z")
COMMIT: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")
"""A commit's hash, or the sha256 of an artifact or a list of objects."""
MARKER: Final = ".omni-fetched.json"
PATTERNS: Final = ("*.json", "*.txt", "*.model", "*.jinja", "spk_dict.pt")
"""Files, other than weights, that engines read. Pickled weights are never fetched. The speaker file (spk_dict.pt) is a
pickle, but it is loaded with weights_only."""
DOWNLOADS_AT_ONCE: Final = 4

_log = logging.getLogger(__name__)


def tame_hub_logs() -> None:
    """Send the hub client's lines through the handlers of the root logger, and cut the query off every address.

    A signed address lets anybody download the file for about an hour, even from a private repository.
    """
    adopt_logger("huggingface_hub")
    for handler in logging.getLogger().handlers:
        handler.addFilter(_cut_queries)


def _cut_queries(record: logging.LogRecord) -> bool:
    record.msg, record.args = _QUERY.sub(r"\1?...", record.getMessage()), None
    return True


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What to fetch, and the directory to put it into."""

    uri: str
    """hf://ORG/NAME[/FOLDER], s3://, gs:// or az://BUCKET[/PATH], or oci://HOST/NAME[:TAG]"""
    revision: str
    """Branch, tag or commit of an hf:// repository; others have none."""
    dest: Path
    """Directory of the checkpoint. Each component has a directory of its own."""
    component: str = ""
    """Id of the component whose weights are fetched; empty means all weights."""
    commit_file: Path | None = None
    """File with the commit to which the first fetch resolved the revision. Later fetches take that commit."""


def open_source(request: FetchRequest, token: str | None) -> Source:
    """Returns where the checkpoint comes from. token: the content of the file of tokenSecretRef.

    Raises ConfigurationError if the uri or the token does not have the form that its source needs.
    """
    scheme = request.uri.partition("://")[0]
    if scheme in ("s3", "gs", "az"):
        from omni_stage.fetch.buckets import BucketSource

        return BucketSource(request.uri, token)
    if scheme == "oci":
        return RegistrySource(request.uri, token)
    return HubSource(request.uri, request.revision, token)


def read_token(file: Path | None) -> str | None:
    """Returns the text of a file, without surrounding whitespace; None without a file. Raises ConfigurationError."""
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
    if not token:
        raise ConfigurationError(f"the token file {file} is empty", field="model.tokenSecretRef")
    return token


def write_part(target: Path, content: Mapping[str, Any]) -> Path:
    """Writes content as JSON into a file in target's folder, under a name that no other process uses. Returns its path.

    The caller renames it to target.
    """
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=f".{target.name}.", suffix=".part", delete=False, encoding="utf-8"
    ) as file:
        json.dump(content, file, indent=1)
    part = Path(file.name)
    # Temporary files are readable by their owner only, but the group of a shared cache must read this one.
    part.chmod(0o664)
    return part


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


def read_pin(file: Path | None, repository: str, revision: str) -> str | None:
    """Returns the commit that a commit file records for this revision; None if it records none."""
    if file is None:
        return None
    try:
        pin = json.loads(file.read_text(encoding="utf-8"))
        same = (pin["repository"], pin["revision"]) == (repository, revision)
        return str(pin["commit"]) if same and COMMIT.match(pin["commit"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_pin(file: Path, repository: str, revision: str, commit: str) -> str:
    """Record the commit, unless another stage was first. Returns the recorded commit."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = write_part(file, {"repository": repository, "revision": revision, "commit": commit})
    try:
        # Unlike a rename, a link fails if the file exists.
        os.link(part, file)
    except OSError:
        # The file exists, or the volume has no hard links. Replace a file that records no commit for this revision.
        if read_pin(file, repository, revision) is None:
            part.replace(file)
    part.unlink(missing_ok=True)
    return read_pin(file, repository, revision) or commit


def fetched_commit(request: FetchRequest, source: Source) -> str | None:
    """Returns the requested commit if the marker shows that dest holds all files of the commit, else None.

    The source is not asked: a branch means the commit that was fetched for the branch.
    """
    try:
        marker = json.loads((request.dest / MARKER).read_text(encoding="utf-8"))
        commit = str(marker["commit"])
        found = (marker["repository"], marker.get("folder", "")), marker.get("component", "")
        same = found == (source.identity, request.component)
        same = same and request.revision in (commit, marker["revision"])
        whole = all((request.dest / name).stat().st_size == size for name, size in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return commit if same and whole else None


def write_marker(request: FetchRequest, source: Source, commit: str) -> None:
    """Mark request.dest as complete."""
    dest = request.dest
    repository, folder = source.identity
    files = {
        str(path.relative_to(dest)): path.stat().st_size
        for path in sorted(dest.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(dest).parts)
    }
    marker = {
        "repository": repository,
        "folder": folder,
        "revision": request.revision,
        "commit": commit,
        "component": request.component,
        "files": files,
    }
    write_part(dest / MARKER, marker).replace(dest / MARKER)


def fetch(request: FetchRequest, token: str | None) -> str:
    """Fetch a checkpoint into request.dest. Returns the commit that dest then holds.

    Files that are complete are not fetched again. Raises ConfigurationError for errors that a retry cannot fix
    (address, revision, token), and FetchError for all others.
    """
    source = open_source(request, token)
    repository, _ = source.identity
    pinned = read_pin(request.commit_file, repository, request.revision)
    known = fetched_commit(request, source)
    if known is not None and pinned is None and request.commit_file is not None:
        # The commit file was deleted. Without it, stages that fetch later would look the revision up again.
        pinned = write_pin(request.commit_file, repository, request.revision, known)
    if known is not None and pinned in (None, known):
        _log.info("the checkpoint is already complete", extra={"repository": repository, "commit": known})
        return known
    try:
        return _fetch_missing(request, source, pinned)
    except OmniStageError:
        raise
    except Exception as error:  # the clients of sources let errors of their HTTP libraries and of the disk through
        if isinstance(error, OSError) and error.errno in FULL:
            raise FetchError(
                f"{request.dest} is full ({error.strerror}); {LARGER}, and the next attempt resumes there",
                field="model.cache",
            ) from error
        raise source.explain(error, pinned) or FetchError(
            f"fetching {repository} failed ({type(error).__name__}: {_first_line(error)}); "
            "can the pod reach it, and does the volume have room?",
            field="model.uri",
        ) from error


def _fetch_missing(request: FetchRequest, source: Source, pinned: str | None) -> str:
    commit, sizes = _look_up(source, pinned)
    repository, folder = source.identity
    place = f"the folder {folder} of {repository}" if folder else repository
    _check_listed(place, commit, sizes, request.component)
    if request.commit_file is not None and pinned is None:
        recorded = write_pin(request.commit_file, repository, request.revision, commit)
        if recorded != commit:
            # Another stage was first.
            pinned = recorded
            commit, sizes = _look_up(source, pinned)
    if pinned is not None and commit != pinned:
        raise ConfigurationError(
            f"{repository} was changed after another stage fetched it, and stages must not mix two versions; publish "
            f"each version under a path of its own, or delete the folder of {request.commit_file}",
            field="model.uri",
        )
    _download(request, source, commit, sizes)
    write_marker(request, source, commit)
    return commit


def run_fetch(request: FetchRequest, token_file: Path | None) -> ExitCode:
    """Run the command. Returns its exit code. If the command fails, the termination message states the reason."""
    disable_progress_bars()
    try:
        commit = fetch(request, read_token(token_file))
    except OmniStageError as error:
        wrong = isinstance(error, ConfigurationError)
        _log.critical("cannot fetch: %s", error, extra={"field": error.details.field}, exc_info=not wrong)
        reason = TerminationReason.INVALID_CONFIGURATION if wrong else TerminationReason.FETCH_FAILED
        write_termination(reason, str(error), error.details.field)
        return ExitCode.BAD_CONFIGURATION if wrong else ExitCode.FAILED
    _log.info("fetched", extra={"commit": commit, "dest": str(request.dest)})
    return ExitCode.DRAINED


def _look_up(source: Source, pinned: str | None) -> tuple[str, dict[str, int | None]]:
    """Returns the commit and its files, without hidden ones: a copy of a cache has this command's own files."""
    commit, sizes = source.look_up(pinned)
    return commit, {name: size for name, size in sizes.items() if not any(p.startswith(".") for p in name.split("/"))}


def _check_listed(place: str, commit: str, sizes: Mapping[str, int | None], component: str) -> None:
    """Raises ConfigurationError if the files are no checkpoint that engines read."""
    others = weight_files(component)
    whole = "config.json" in sizes and any(fnmatch(name, ALL_WEIGHTS) for name in sizes)
    if not whole and not _match_top(sizes, others):
        what = " or ".join(("config.json with safetensors weights", *others))
        hint = "" if sizes else ": there is no such folder"
        raise ConfigurationError(f"{place} holds no {what} at commit {commit}{hint}", field="model.uri")


def _match_top(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """Returns the names outside folders that match a pattern."""
    return {name for name in names if "/" not in name and any(fnmatch(name, pattern) for pattern in patterns)}


def _download(request: FetchRequest, source: Source, commit: str, sizes: Mapping[str, int | None]) -> None:
    repository, _ = source.identity

    def ask(name: str) -> RemoteFile:
        return source.find(commit, name, sizes.get(name))

    prefixes = weight_prefixes(request.component)
    wanted = {name for name in sizes if any(fnmatch(name, pattern) for pattern in (*PATTERNS, ALL_WEIGHTS))}
    wanted |= _match_top(sizes, weight_files(request.component))
    if prefixes and INDEX in sizes:
        download_file(request.dest / FULL_INDEX_FOLDER, ask(INDEX), source)
        selected = reduce_index(request.dest, repository, prefixes)
        wanted = {name for name in wanted if not fnmatch(name, ALL_WEIGHTS)} - {INDEX} | selected
    elif INDEX in sizes:
        download_file(request.dest, ask(INDEX), source)
        wanted -= unlisted_weights(request.dest, repository, sizes)

    def get(file: RemoteFile) -> None:
        if not has_file(request.dest, file):
            # Look the file up again: its download may start hours after the first look-up, and signed addresses expire.
            download_file(request.dest, ask(file.name), source)

    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        files = list(pool.map(ask, sorted(wanted)))
        check_room(request.dest, files)
        for _ in pool.map(get, files):
            pass


def _first_line(error: Exception) -> str:
    # The message comes from an HTTP library or the system. It may hold an address whose query carries a signature.
    return str(error).partition("\n")[0].partition("?")[0][:200]
