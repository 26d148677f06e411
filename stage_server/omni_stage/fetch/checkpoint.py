"""`python -m omni_stage fetch`: downloads the checkpoint's files from a hub into a directory, resumably.

It fetches only the files that engines read (configuration, tokenizer, safetensors, the speaker file). If a component is
named, it fetches only the weight files (shards) that hold tensors of that component. The directory is complete once the
marker file names the commit (marker.py). A later run for the same commit or revision then does nothing and needs no
network.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

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
from omni_stage.fetch.commit_file import COMMIT, read_pin, write_pin
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
from omni_stage.fetch.marker import fetched_commit, write_marker
from omni_stage.fetch.request import FetchRequest, parse_uri, read_token
from omni_stage.fetch.weights import ALL_WEIGHTS, FULL_INDEX_FOLDER, INDEX, reduce_index, unlisted_weights
from omni_stage.models.registry import weight_prefixes
from omni_stage.process.termination import write_termination

PATTERNS: Final = ("*.json", "*.txt", "*.model", "*.jinja", "spk_dict.pt")
"""Files, other than weights, that engines read. Pickled weights are never fetched. The speaker file (spk_dict.pt) is a
pickle, but it is loaded with weights_only."""
DOWNLOADS_AT_ONCE: Final = 4

_log = logging.getLogger(__name__)


def fetch(request: FetchRequest, token: str | None) -> str:
    """Fetch a checkpoint into request.dest. Returns the commit that dest then holds.

    Files that are complete are not fetched again. Raises ConfigurationError for errors that a retry cannot fix
    (address, revision, token), and FetchError for all others.
    """
    repository = parse_uri(request.uri)
    pinned = read_pin(request.commit_file, repository, request.revision)
    known = fetched_commit(request, repository)
    if known is not None and pinned is None and request.commit_file is not None:
        # The commit file was deleted. Without it, stages that fetch later would look the revision up again.
        pinned = write_pin(request.commit_file, repository, request.revision, known)
    if known is not None and pinned in (None, known):
        _log.info("the checkpoint is already complete", extra={"repository": repository, "commit": known})
        return known
    wanted = pinned or request.revision
    try:
        commit, sizes = _look_up(repository, wanted, token)
        if request.commit_file is not None and pinned is None:
            commit = write_pin(request.commit_file, repository, request.revision, commit)
        _download(request, repository, commit, sizes, token)
        write_marker(request, repository, commit)
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


def _look_up(repository: str, revision: str, token: str | None) -> tuple[str, dict[str, int | None]]:
    """Returns the commit of a revision, and the size in bytes of each file of the commit (None if the hub states none).

    Raises ConfigurationError if the commit holds no checkpoint that engines read, and FetchError if the hub names no
    commit.
    """
    # False: never use a token from the environment.
    info = HfApi(token=token or False).model_info(repository, revision=revision, files_metadata=True, timeout=60)
    commit = info.sha or ""
    if not COMMIT.match(commit):
        raise FetchError(f"the hub names no commit for revision {revision!r} of {repository}", field="model.revision")
    sizes = {item.rfilename: item.size for item in info.siblings or ()}
    if "config.json" not in sizes or not any(fnmatch(name, ALL_WEIGHTS) for name in sizes):
        raise ConfigurationError(
            f"{repository} holds no config.json with safetensors weights at commit {commit}", field="model.uri"
        )
    return commit, sizes


def _download(
    request: FetchRequest, repository: str, commit: str, sizes: Mapping[str, int | None], token: str | None
) -> None:
    def ask(name: str) -> RemoteFile:
        return find_file(repository, commit, name, sizes.get(name), token)

    prefixes = weight_prefixes(request.component)
    wanted = {name for name in sizes if any(fnmatch(name, pattern) for pattern in (*PATTERNS, ALL_WEIGHTS))}
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
