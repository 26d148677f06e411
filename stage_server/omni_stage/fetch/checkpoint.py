"""`python -m omni_stage fetch`: downloads the checkpoint's files from a hub into a directory, resumably.

It fetches only the files that engines read (configuration, tokenizer, safetensors, the speaker file). If a component is
named, it fetches only the weight files (shards) that hold tensors of that component, and files of other formats that
the component reads. A folder of a repository is fetched like a whole one. The directory is complete once the marker
file names the commit. A later run for the same commit or revision then does nothing and needs no network.

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
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from omni_proto.pod_contract import ExitCode, TerminationReason
from omni_proto.runtime.logs import adopt_logger
from omni_stage.errors import ConfigurationError, OmniStageError
from omni_stage.fetch.download import (
    FULL,
    LARGER,
    FetchError,
    RemoteFile,
    check_room,
    download_file,
    find_file,
    has_file,
)
from omni_stage.models.registry import weight_files, weight_prefixes
from omni_stage.process.termination import write_termination

_QUERY: Final = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]*")
_URI = re.compile(r"hf://([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})((?:/\w[\w.-]*)*)\Z", re.ASCII)
INDEX: Final = "model.safetensors.index.json"
ALL_WEIGHTS: Final = "*.safetensors"
FULL_INDEX_FOLDER: Final = ".omni-index"
"""Folder in the checkpoint's directory that holds the index as it was downloaded."""
_SHARD = re.compile(r"[A-Za-z0-9][\w.-]*\.safetensors\Z")
COMMIT: Final = re.compile(r"[0-9a-f]{40}\Z")
"""A commit's hash."""
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
    """hf://ORG/NAME or hf://ORG/NAME/FOLDER"""
    revision: str
    """Branch, tag or commit."""
    dest: Path
    """Directory of the checkpoint. Each component has a directory of its own."""
    component: str = ""
    """Id of the component whose weights are fetched; empty means all weights."""
    commit_file: Path | None = None
    """File with the commit to which the first fetch resolved the revision. Later fetches take that commit."""


def parse_uri(uri: str) -> tuple[str, str]:
    """Returns ORG/NAME and FOLDER of hf://ORG/NAME/FOLDER; FOLDER may be empty. Raises ConfigurationError."""
    match = _URI.match(uri)
    if match is None:
        raise ConfigurationError("uri must be hf://ORG/NAME or hf://ORG/NAME/FOLDER", field="model.uri")
    return match[1], match[2].strip("/")


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


def fetched_commit(request: FetchRequest) -> str | None:
    """Returns the requested commit if the marker shows that dest holds all files of the commit, else None.

    The hub is not asked: a branch means the commit that was fetched for the branch.
    """
    try:
        marker = json.loads((request.dest / MARKER).read_text(encoding="utf-8"))
        commit = str(marker["commit"])
        found = (marker["repository"], marker.get("folder", "")), marker.get("component", "")
        same = found == (parse_uri(request.uri), request.component)
        same = same and request.revision in (commit, marker["revision"])
        whole = all((request.dest / name).stat().st_size == size for name, size in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return commit if same and whole else None


def write_marker(request: FetchRequest, commit: str) -> None:
    """Mark request.dest as complete."""
    dest = request.dest
    repository, folder = parse_uri(request.uri)
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
    repository, _ = parse_uri(request.uri)
    pinned = read_pin(request.commit_file, repository, request.revision)
    known = fetched_commit(request)
    if known is not None and pinned is None and request.commit_file is not None:
        # The commit file was deleted. Without it, stages that fetch later would look the revision up again.
        pinned = write_pin(request.commit_file, repository, request.revision, known)
    if known is not None and pinned in (None, known):
        _log.info("the checkpoint is already complete", extra={"repository": repository, "commit": known})
        return known
    wanted = pinned or request.revision
    try:
        commit, sizes = _look_up(request, wanted, token)
        if request.commit_file is not None and pinned is None:
            commit = write_pin(request.commit_file, repository, request.revision, commit)
        _download(request, commit, sizes, token)
        write_marker(request, commit)
    except GatedRepoError as error:
        raise _refused(repository, "is gated; accept its licence and give a token that may read it") from error
    except RevisionNotFoundError as error:
        recorded = f", which {request.commit_file} records; to look the revision up again, delete that file's folder"
        raise ConfigurationError(
            f"{repository} has no revision {wanted!r}{recorded if pinned else ''}", field="model.revision"
        ) from error
    except RepositoryNotFoundError as error:
        raise _refused(repository, "does not exist, or the token may not read it") from error
    except HfHubHTTPError as error:
        code = error.response.status_code if error.response is not None else 0
        if code in (401, 403):
            raise _refused(repository, f"was refused ({code}): the token is wrong or may not read it") from error
        raise FetchError(f"the hub answered {code} for {repository}; try again", field="model.uri") from error
    except OmniStageError:
        raise
    except Exception as error:  # the hub's client lets errors of its HTTP library and of the disk through
        if isinstance(error, OSError) and error.errno in FULL:
            raise FetchError(
                f"{request.dest} is full ({error.strerror}); {LARGER}, and the next attempt resumes there",
                field="model.cache",
            ) from error
        raise FetchError(
            f"fetching {repository} failed ({type(error).__name__}: {_first_line(error)}); "
            "is the hub reachable, and does the volume have room?",
            field="model.uri",
        ) from error
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


def _look_up(request: FetchRequest, revision: str, token: str | None) -> tuple[str, dict[str, int | None]]:
    """Returns the commit of a revision, and the size in bytes of each file of the uri's folder (None if the hub states
    none).

    Raises ConfigurationError if the commit holds no checkpoint that engines read, and FetchError if the hub names no
    commit.
    """
    repository, folder = parse_uri(request.uri)
    # False: never use a token from the environment.
    info = HfApi(token=token or False).model_info(repository, revision=revision, files_metadata=True, timeout=60)
    commit = info.sha or ""
    if not COMMIT.match(commit):
        raise FetchError(f"the hub names no commit for revision {revision!r} of {repository}", field="model.revision")
    sizes = {item.rfilename: item.size for item in info.siblings or ()}
    if folder:
        sizes = {name.removeprefix(f"{folder}/"): size for name, size in sizes.items() if name.startswith(f"{folder}/")}
    others = weight_files(request.component)
    whole = "config.json" in sizes and any(fnmatch(name, ALL_WEIGHTS) for name in sizes)
    if not whole and not _match_top(sizes, others):
        place = f"the folder {folder} of {repository}" if folder else repository
        what = " or ".join(("config.json with safetensors weights", *others))
        hint = "" if sizes else ": there is no such folder"
        raise ConfigurationError(f"{place} holds no {what} at commit {commit}{hint}", field="model.uri")
    return commit, sizes


def _match_top(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """Returns the names outside folders that match a pattern."""
    return {name for name in names if "/" not in name and any(fnmatch(name, pattern) for pattern in patterns)}


def _download(request: FetchRequest, commit: str, sizes: Mapping[str, int | None], token: str | None) -> None:
    repository, folder = parse_uri(request.uri)

    def ask(name: str) -> RemoteFile:
        file = find_file(repository, commit, f"{folder}/{name}" if folder else name, sizes.get(name), token)
        return replace(file, name=name)

    prefixes = weight_prefixes(request.component)
    wanted = {name for name in sizes if any(fnmatch(name, pattern) for pattern in (*PATTERNS, ALL_WEIGHTS))}
    wanted |= _match_top(sizes, weight_files(request.component))
    if prefixes and INDEX in sizes:
        download_file(request.dest / FULL_INDEX_FOLDER, ask(INDEX), constants.ENDPOINT, token)
        selected = reduce_index(request.dest, repository, prefixes)
        wanted = {name for name in wanted if not fnmatch(name, ALL_WEIGHTS)} - {INDEX} | selected
    elif INDEX in sizes:
        download_file(request.dest, ask(INDEX), constants.ENDPOINT, token)
        wanted -= unlisted_weights(request.dest, repository, sizes)

    def get(file: RemoteFile) -> None:
        if not has_file(request.dest, file):
            # Look the file up again: its download may start hours after the first look-up, and signed addresses expire.
            download_file(request.dest, ask(file.name), constants.ENDPOINT, token)

    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        files = list(pool.map(ask, sorted(wanted)))
        check_room(request.dest, files)
        for _ in pool.map(get, files):
            pass


def _first_line(error: Exception) -> str:
    # The message comes from an HTTP library or the system. It may hold an address whose query carries a signature.
    return str(error).partition("\n")[0].partition("?")[0][:200]


def _refused(repository: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"{repository} {why}", field="model.tokenSecretRef")
