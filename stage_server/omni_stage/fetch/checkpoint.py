"""`python -m omni_stage fetch`: the checkpoint's files from a hub into a directory, resumable.

Fetches only what engines read (configuration, tokenizer, safetensors, the speaker file), and of the safetensors only
the shards that hold what the component reads. The directory is complete once the marker file names the commit; a later
run for the same commit does nothing and needs no network.

A commit file, shared by the stages of a pipeline, keeps the commit that a branch meant when the first of them asked:
so stages that share a cache never mix two commits, however far apart they are fetched.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from omni_stage.models.registry import weight_prefixes
from omni_stage.process.termination import write_termination

MARKER: Final = ".omni-fetched.json"
INDEX: Final = "model.safetensors.index.json"
PATTERNS: Final = ("*.json", "*.txt", "*.model", "*.jinja", "spk_dict.pt")
"""What engines read beside weights. Weights as pickles are never fetched; the speaker file is loaded weights_only."""
ALL_WEIGHTS: Final = "*.safetensors"
DOWNLOADS_AT_ONCE: Final = 4
_FULL_INDEX_FOLDER: Final = ".omni-index"
_URI = re.compile(r"hf://([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_SHARD = re.compile(r"[A-Za-z0-9][\w.-]*\.safetensors\Z")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What to fetch, and where to."""

    uri: str
    """hf://ORG/NAME"""
    revision: str
    """Branch, tag or commit."""
    dest: Path
    """Directory of the checkpoint; one for each component."""
    component: str = ""
    """Id of the component whose weights are fetched; empty means all weights."""
    commit_file: Path | None = None
    """Keeps the commit that the revision meant at first."""


def parse_uri(uri: str) -> str:
    """ORG/NAME of hf://ORG/NAME. Raises ConfigurationError."""
    match = _URI.match(uri)
    if match is None:
        raise ConfigurationError("uri must be hf://ORG/NAME", field="model.uri")
    return match[1]


def read_token(file: Path | None) -> str | None:
    """The token in a file, without blanks around it; None without a file. Raises ConfigurationError."""
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"there is no token file {file}; in a cluster: create the Secret, with the key, that tokenSecretRef names",
            field="model.tokenSecretRef",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the token file {file}", field="model.tokenSecretRef") from error
    if not token or any(character.isspace() for character in token):
        raise ConfigurationError(f"the token file {file} must hold one token", field="model.tokenSecretRef")
    return token


def fetched_commit(request: FetchRequest, repository: str) -> str | None:
    """The commit that dest holds whole, if it is what was asked for and needs no look at the hub."""
    try:
        marker = json.loads((request.dest / MARKER).read_text(encoding="utf-8"))
        commit = str(marker["commit"])
        same = (marker["repository"], marker.get("component", "")) == (repository, request.component)
        same = same and request.revision in (commit, marker["revision"])
        whole = all((request.dest / name).stat().st_size == size for name, size in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return commit if same and whole else None


def select_weights(index: Mapping[str, Any], prefixes: Sequence[str]) -> dict[str, str]:
    """Of an index's weight map, the tensors whose names begin with one of the prefixes.

    Raises ConfigurationError if there are none, or if a shard's name is not that of a safetensors file.
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
        raise ConfigurationError(f"the checkpoint's {INDEX} names a file that is no shard", field="model.uri")
    return selected


def fetch(request: FetchRequest, token: str | None) -> str:
    """Fetch a checkpoint into request.dest. The commit that dest then holds.

    Files that are complete are not fetched again. Raises ConfigurationError for what a retry cannot fix (address,
    revision, token), FetchError for the rest.
    """
    repository = parse_uri(request.uri)
    known = fetched_commit(request, repository)
    if known is not None:
        _log.info("the checkpoint is there", extra={"repository": repository, "commit": known})
        return known
    pinned = read_pin(request.commit_file, repository, request.revision)
    wanted = pinned or request.revision
    try:
        commit, files = _look_up(repository, wanted, token)
        if request.commit_file is not None and pinned is None:
            commit = write_pin(request.commit_file, repository, request.revision, commit)
        _download(request, repository, commit, files, token)
        _write_marker(request, repository, commit)
    except GatedRepoError as error:
        raise _refused(repository, "is gated; accept its licence and give a token that may read it") from error
    except RevisionNotFoundError as error:
        raise ConfigurationError(f"{repository} has no revision {wanted!r}", field="model.revision") from error
    except RepositoryNotFoundError as error:
        raise _refused(repository, "does not exist, or the token may not read it") from error
    except HfHubHTTPError as error:
        code = error.response.status_code if error.response is not None else 0
        if code in (401, 403):
            raise _refused(repository, f"was refused ({code}): the token is wrong or may not read it") from error
        raise FetchError(f"the hub answered {code} for {repository}; try again", field="model.uri") from error
    except OmniStageError:
        raise
    except Exception as error:  # the hub's client lets through what its HTTP library and the disk raise
        if isinstance(error, OSError) and error.errno in FULL:
            raise FetchError(
                f"{request.dest} is full ({error.strerror}); {LARGER}, and the next attempt resumes there",
                field="model.cache",
            ) from error
        raise FetchError(
            f"fetching {repository} failed ({type(error).__name__}: {_first_line(error)}); "
            "is the hub reachable, and is there room?",
            field="model.uri",
        ) from error
    return commit


def read_pin(file: Path | None, repository: str, revision: str) -> str | None:
    """The commit that a commit file keeps for this revision; None if it keeps none."""
    if file is None:
        return None
    try:
        pin = json.loads(file.read_text(encoding="utf-8"))
        same = (pin["repository"], pin["revision"]) == (repository, revision)
        return str(pin["commit"]) if same and _COMMIT.match(pin["commit"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_pin(file: Path, repository: str, revision: str, commit: str) -> str:
    """Keep the commit, unless another stage was first. The commit that is kept."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = _write_part(file, {"repository": repository, "revision": revision, "commit": commit})
    try:
        # Unlike a rename, a link fails if the file is there.
        os.link(part, file)
    except OSError:
        # There already, or links are not known here. What is no pin for this revision is replaced.
        if read_pin(file, repository, revision) is None:
            part.replace(file)
    part.unlink(missing_ok=True)
    return read_pin(file, repository, revision) or commit


def run_fetch(request: FetchRequest, token_file: Path | None) -> ExitCode:
    """The command: fetch, and say in the termination message why not."""
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


def _look_up(repository: str, revision: str, token: str | None) -> tuple[str, frozenset[str]]:
    """The commit of a revision, and the names of its files."""
    # False: never a token that happens to lie in the environment.
    info = HfApi(token=token or False).model_info(repository, revision=revision, timeout=60)
    commit = info.sha or ""
    if not _COMMIT.match(commit):
        raise FetchError(f"the hub names no commit for revision {revision!r} of {repository}", field="model.revision")
    return commit, frozenset(item.rfilename for item in info.siblings or ())


def _download(request: FetchRequest, repository: str, commit: str, names: Collection[str], token: str | None) -> None:
    prefixes = weight_prefixes(request.component)
    wanted = {name for name in names if any(fnmatch(name, pattern) for pattern in (*PATTERNS, ALL_WEIGHTS))}
    if prefixes and INDEX in names:
        index = find_file(repository, commit, INDEX, token)
        download_file(request.dest / _FULL_INDEX_FOLDER, index, constants.ENDPOINT, token)
        selected = _reduce_index(request.dest, repository, prefixes)
        wanted = {name for name in wanted if not fnmatch(name, ALL_WEIGHTS)} - {INDEX} | selected

    def ask(name: str) -> RemoteFile:
        return find_file(repository, commit, name, token)

    def get(file: RemoteFile) -> None:
        if not has_file(request.dest, file):
            # Asked for again: its turn may come hours later, and signed addresses expire.
            download_file(request.dest, ask(file.name), constants.ENDPOINT, token)

    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        files = list(pool.map(ask, sorted(wanted)))
        check_room(request.dest, files)
        for _ in pool.map(get, files):
            pass


def _reduce_index(dest: Path, repository: str, prefixes: Sequence[str]) -> set[str]:
    """Leave in dest an index that names only what will be there: engines refuse missing shards. The shards."""
    try:
        index = json.loads((dest / _FULL_INDEX_FOLDER / INDEX).read_text(encoding="utf-8"))
        selected = select_weights(index if isinstance(index, dict) else {}, prefixes)
    except ValueError as error:
        raise ConfigurationError(f"{INDEX} of {repository} is not JSON", field="model.uri") from error
    _write_part(dest / INDEX, {"metadata": {}, "weight_map": selected}).replace(dest / INDEX)
    return set(selected.values())


def _first_line(error: Exception) -> str:
    # Of an HTTP library's or the system's message; addresses in it may carry signatures as queries.
    return str(error).partition("\n")[0].partition("?")[0][:200]


def _refused(repository: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"{repository} {why}", field="model.tokenSecretRef")


def _write_marker(request: FetchRequest, repository: str, commit: str) -> None:
    dest = request.dest
    files = {
        str(path.relative_to(dest)): path.stat().st_size
        for path in sorted(dest.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(dest).parts)
    }
    if not any(name.endswith(".safetensors") for name in files) or "config.json" not in files:
        raise ConfigurationError(f"{repository} holds no config.json with safetensors weights", field="model.uri")
    marker = {
        "repository": repository,
        "revision": request.revision,
        "commit": commit,
        "component": request.component,
        "files": files,
    }
    _write_part(dest / MARKER, marker).replace(dest / MARKER)


def _write_part(target: Path, content: Mapping[str, Any]) -> Path:
    """The content as JSON in a file beside the target, under a name that no other process uses."""
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=f".{target.name}.", suffix=".part", delete=False, encoding="utf-8"
    ) as file:
        json.dump(content, file, indent=1)
    part = Path(file.name)
    # Temporary files are private; the group of a shared cache reads this one.
    part.chmod(0o664)
    return part
