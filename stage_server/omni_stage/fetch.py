"""`python -m omni_stage fetch`: the checkpoint's files from a hub into a directory, resumable.

Fetches only what engines read (configuration, tokenizer, safetensors, the speaker file). The directory is complete
once the marker file names the commit; a later run with the same commit does nothing and needs no network.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from omni_stage.errors import ConfigurationError, OmniStageError
from omni_stage.service.termination import ExitCode, write_termination

MARKER: Final = ".omni-fetched.json"
PATTERNS: Final = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "spk_dict.pt")
"""What engines read. Weights as pickles are never fetched; the speaker file is loaded with weights_only."""
_URI = re.compile(r"hf://([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")

_log = logging.getLogger(__name__)


class FetchError(OmniStageError):
    """The checkpoint could not be fetched; another try may work."""


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
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the token file {file}", field="model.tokenSecretRef") from error
    if not token or any(character.isspace() for character in token):
        raise ConfigurationError(f"the token file {file} must hold one token", field="model.tokenSecretRef")
    return token


def fetched_commit(dest: Path, repository: str, revision: str) -> str | None:
    """The commit that dest holds whole, if it is what was asked for and needs no look at the hub."""
    try:
        marker = json.loads((dest / MARKER).read_text(encoding="utf-8"))
        commit = str(marker["commit"])
        same = marker["repository"] == repository and revision in (commit, marker["revision"])
        whole = all((dest / name).stat().st_size == size for name, size in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return commit if same and whole else None


def fetch(uri: str, revision: str, dest: Path, token: str | None) -> str:
    """Fetch a checkpoint into dest. The commit that dest then holds.

    Files that are complete are not fetched again. Raises ConfigurationError for what a retry cannot mend (address,
    revision, token), FetchError for the rest.
    """
    repository = parse_uri(uri)
    known = fetched_commit(dest, repository, revision)
    if known is not None:
        _log.info("the checkpoint is there", extra={"repository": repository, "commit": known})
        return known
    try:
        # False: never a token that happens to lie in the environment.
        commit = HfApi(token=token or False).model_info(repository, revision=revision, timeout=60).sha or ""
        if not _COMMIT.match(commit):
            raise FetchError(
                f"the hub names no commit for revision {revision!r} of {repository}", field="model.revision"
            )
        snapshot_download(
            repository,
            revision=commit,
            local_dir=dest,
            token=token or False,
            allow_patterns=list(PATTERNS),
            max_workers=4,
        )
    except GatedRepoError as error:
        raise _refused(repository, "is gated; accept its licence and give a token that may read it") from error
    except RevisionNotFoundError as error:
        raise ConfigurationError(f"{repository} has no revision {revision!r}", field="model.revision") from error
    except RepositoryNotFoundError as error:
        raise _refused(repository, "does not exist, or the token may not read it") from error
    except HfHubHTTPError as error:
        code = error.response.status_code if error.response is not None else 0
        if code in (401, 403):
            raise _refused(repository, f"was refused ({code}): the token is wrong or may not read it") from error
        raise FetchError(f"the hub answered {code} for {repository}; try again", field="model.uri") from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise FetchError(
            f"fetching {repository} failed ({type(error).__name__}); try again", field="model.uri"
        ) from error
    _write_marker(dest, repository, revision, commit)
    return commit


def run_fetch(uri: str, revision: str, dest: Path, token_file: Path | None) -> ExitCode:
    """The command: fetch, and say in the termination message why not."""
    try:
        commit = fetch(uri, revision, dest, read_token(token_file))
    except OmniStageError as error:
        _log.critical("cannot fetch: %s", error, extra={"field": error.details.field})
        wrong = isinstance(error, ConfigurationError)
        write_termination("InvalidConfiguration" if wrong else "FetchFailed", str(error), error.details.field)
        return ExitCode.BAD_CONFIGURATION if wrong else ExitCode.FAILED
    _log.info("fetched", extra={"commit": commit, "dest": str(dest)})
    return ExitCode.DRAINED


def _refused(repository: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"{repository} {why}", field="model.tokenSecretRef")


def _write_marker(dest: Path, repository: str, revision: str, commit: str) -> None:
    files = {
        str(path.relative_to(dest)): path.stat().st_size
        for path in sorted(dest.rglob("*"))
        if path.is_file() and path.name != MARKER and ".cache" not in path.relative_to(dest).parts
    }
    if not any(name.endswith(".safetensors") for name in files) or "config.json" not in files:
        raise ConfigurationError(f"{repository} holds no config.json with safetensors weights", field="model.uri")
    marker = {"repository": repository, "revision": revision, "commit": commit, "files": files}
    temporary = dest / f"{MARKER}.part"
    temporary.write_text(json.dumps(marker, indent=1), encoding="utf-8")
    temporary.replace(dest / MARKER)
