"""API keys: hashes from a file, which is read again when it changes, and the use of each key's limits.

    signingSecret: 64 random digits     # for client secrets
    keys:
    - name: alice
      sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
      limits: {requestsPerMinute: 60, concurrentRequests: 4, audioSecondsPerMinute: 600}
      models: [chat, "team-a/*"]
      priority: {min: 0, max: 100}
      structuredOutput: Json

Each limit is divided evenly among the replicas: each grants limit / replicas, but at least one request. While the
number of replicas changes, all replicas together may exceed the limit or fall short of it by about one replica's share.

Keys are random and long (`omnipipe gateway-key` makes them), so a plain hash is enough. Only hashes are kept. Logs
contain the names of keys, never the keys.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import yaml
from pydantic import Field, ValidationError, model_validator

from omni_gateway.errors import AuthenticationError, RateLimitError
from omni_gateway.rights import ApiKey, FileModel
from omni_gateway.settings import GatewaySettingsError
from omni_proto.runtime.limits import TokenBucket

log = logging.getLogger(__name__)

CHECK_S: Final = 2.0
"""Minimum time between two checks of the file, in seconds."""
MAX_FILE_BYTES: Final = 1 << 20
"""Maximum size of the file: that of a Secret."""
PREFIX: Final = "sk-omni-"
BEARER: Final = "bearer"
"""Scheme of the header Authorization, in lower case."""


class KeyFileError(ValueError):
    """The key file is not YAML, or has a wrong field. The message names the field, but not its value."""


class KeyFile(FileModel):
    """Content of the key file."""

    keys: tuple[ApiKey, ...]
    signing_secret: Annotated[str, Field(min_length=32, max_length=1024)] | None = None
    """Random text that signs client secrets. None: there are none."""

    @model_validator(mode="after")
    def _check_names(self) -> KeyFile:
        names = [key.name for key in self.keys]
        if len(set(names)) != len(names):
            raise ValueError("keys: two keys have the same name")
        return self


def make_key() -> tuple[str, str]:
    """Returns a new key of 256 random bits, and its hash."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hash_key(key)


def hash_key(key: str) -> str:
    """Returns the sha256 of a key, lower-case hex."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def parse_keys(text: str | bytes) -> KeyFile:
    """Returns a file's content. Raises KeyFileError."""
    if len(text) > MAX_FILE_BYTES:
        raise KeyFileError(f"the file of keys has more than {MAX_FILE_BYTES} bytes")
    try:
        document = yaml.safe_load(text)
        repeated = find_repeated(yaml.compose(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # PyYAML raises ValueError for a date such as 2024-99-99.
        raise KeyFileError("the file of keys is not YAML") from error
    if repeated:
        raise KeyFileError(f"a part of the file of keys has two fields {repeated}")
    try:
        return KeyFile.model_validate(document)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise KeyFileError(wrong) from None  # pydantic's own message quotes values


def find_repeated(root: yaml.Node | None) -> str:
    """Returns the name of a field that a mapping has twice, empty if there is none. YAML would use the last one."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        names: set[str] = set()
        for item in node.value:
            if isinstance(node, yaml.MappingNode) and isinstance(item[0], yaml.ScalarNode):
                if item[0].value in names:
                    return str(item[0].value[:64])
                names.add(item[0].value)
            waiting += item if isinstance(item, tuple) else [item]
    return ""


def find_key(keys: Sequence[ApiKey], presented: str) -> ApiKey | None:
    """Returns the key whose hash matches, None if there is none.

    Compares with every key in constant time, so that timing reveals nothing about the keys.
    """
    digest = hash_key(presented)
    found = None
    for key in keys:
        if hmac.compare_digest(key.sha256, digest):
            found = key
    return found


def open_keys(path: Path) -> KeyRing:
    """Returns the keys of a file. Raises GatewaySettingsError: a gateway does not start without its keys."""
    try:
        return KeyRing(path)
    except (KeyFileError, OSError) as error:
        raise GatewaySettingsError(f"keysFile {path}: {error}") from error


class KeyRing:
    """The keys of a file, which is read again when it changes. Use from one thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file. Raises KeyFileError, OSError."""
        self._path = path
        self._clock = clock
        self._checked = clock()
        self._seen = self._stamp()
        self._file = self._read()

    @property
    def signing_secret(self) -> str | None:
        """The secret that signs client secrets; None if there is none."""
        self._reload()
        return self._file.signing_secret

    def find(self, name: str) -> ApiKey | None:
        """Returns the key with a name."""
        self._reload()
        return next((key for key in self._file.keys if key.name == name), None)

    def authenticate(self, authorization: str | None) -> ApiKey:
        """Returns the key of a header `Authorization: Bearer KEY`. Raises AuthenticationError."""
        self._reload()
        scheme, _, presented = (authorization or "").partition(" ")
        if scheme.lower() != BEARER or not presented.strip():
            raise AuthenticationError("No API key: send it as Authorization: Bearer KEY.", code="missing_api_key")
        key = find_key(self._file.keys, presented.strip())
        if key is None:
            raise AuthenticationError("The API key is not valid.")
        return key

    def _reload(self) -> None:
        now = self._clock()
        if now - self._checked < CHECK_S:
            return
        self._checked = now
        try:
            seen = self._stamp()
            if seen == self._seen:
                return
            self._seen = seen
            self._file = self._read()
        except (KeyFileError, OSError) as error:
            log.error("the file of keys cannot be read; the earlier keys stay", extra={"reason": str(error)})
            return
        log.info("read the keys again", extra={"keys": len(self._file.keys)})

    def _read(self) -> KeyFile:
        with self._path.open("rb") as file:
            return parse_keys(file.read(MAX_FILE_BYTES + 1))

    def _stamp(self) -> tuple[int, int, int]:
        # stat() follows links: kubelet updates a mounted Secret by changing a link.
        found = self._path.stat()
        return (found.st_ino, found.st_mtime_ns, found.st_size)


@dataclass(slots=True)
class _Use:
    requests: TokenBucket | None = None
    audio: TokenBucket | None = None
    running: int = 0
    headers: dict[str, str] = field(default_factory=dict)


class KeyLimiter:
    """Counts what each key uses in this replica. Use from one thread."""

    def __init__(self, replicas: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """replicas: returns the number of the gateway's ready replicas."""
        self._replicas = replicas
        self._clock = clock
        self._uses: dict[str, _Use] = {}

    def enter(self, key: ApiKey) -> dict[str, str]:
        """Count a request that begins. Returns its x-ratelimit-* headers; call `leave` once when it has ended.

        Raises RateLimitError with these headers, and then does not count the request.
        """
        use = self._uses.setdefault(key.name, _Use())
        now, replicas = self._clock(), max(1, self._replicas())
        limits = key.limits
        headers: dict[str, str] = {}
        if limits.requests_per_minute is not None:
            requests_share = max(1.0, limits.requests_per_minute / replicas)
            use.requests = use.requests or TokenBucket(requests_share, now)
            use.requests.refill(requests_share / 60, requests_share, now)
            headers |= _headers("requests", requests_share, use.requests)
        if limits.audio_seconds_per_minute is not None:
            audio_share = limits.audio_seconds_per_minute / replicas
            use.audio = use.audio or TokenBucket(audio_share, now)
            use.audio.refill(audio_share / 60, audio_share, now)
            headers |= _headers("audio-seconds", audio_share, use.audio)
            if use.audio.level <= 0:
                raise RateLimitError(
                    f"The key {key.name!r} has used its {limits.audio_seconds_per_minute} s of audio a minute.",
                    retry_after_s=use.audio.wait_s(min(1.0, audio_share), audio_share / 60),
                    headers=headers,
                )
        if limits.concurrent_requests is not None:
            at_once = max(1, limits.concurrent_requests // replicas)
            if use.running >= at_once:
                raise RateLimitError(
                    f"The key {key.name!r} has {use.running} requests at once, its limit in this replica.",
                    retry_after_s=1,
                    headers=headers,
                )
        if limits.requests_per_minute is not None and use.requests is not None:
            if not use.requests.take():
                raise RateLimitError(
                    f"The key {key.name!r} has used its {limits.requests_per_minute} requests a minute.",
                    retry_after_s=use.requests.wait_s(1, requests_share / 60),
                    headers=headers,
                )
            headers |= _headers("requests", requests_share, use.requests)
        use.running += 1
        return headers

    def leave(self, key: ApiKey, audio_seconds: float) -> None:
        """Count the end of a request, with the seconds of audio that it returned."""
        use = self._uses[key.name]
        use.running -= 1
        if use.audio is not None:
            use.audio.level -= audio_seconds


def _headers(what: str, share: float, bucket: TokenBucket) -> dict[str, str]:
    """Returns the x-ratelimit-* headers, with OpenAI's names. Reset is the time until the bucket is full again."""
    return {
        f"x-ratelimit-limit-{what}": str(math.floor(share)),
        f"x-ratelimit-remaining-{what}": str(max(0, math.floor(bucket.level))),
        f"x-ratelimit-reset-{what}": f"{bucket.wait_s(share, share / 60):.3f}s",
    }
