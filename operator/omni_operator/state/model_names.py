"""Grants pipelines their names as models of a gateway; the rule is in omni_proto.model_names.

The record of all grants is in the pipelines' status. Here it is only indexed by name, so that a reconcile need not read
every pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from omni_kube.objects import NamespacedName, ObjectKey
from omni_kube.store import Store
from omni_operator.kinds import PIPELINE_KIND
from omni_operator.state.slim import SPEC_BYTES
from omni_proto.model_names import NameClaims, grant_names, read_claims


class ModelNames:
    """The claims of all stored pipelines. Use from one event loop."""

    def __init__(self, store: Store, wake: Callable[[Iterable[NamespacedName]], None]) -> None:
        """wake is called with the pipelines that may now get a name."""
        self._store = store
        self._wake = wake
        self._claims: dict[NamespacedName, NameClaims] = {}
        self._versions: dict[NamespacedName, int] = {}
        self._by_name: dict[str, set[NamespacedName]] = defaultdict(set)

    def update(self, key: NamespacedName) -> None:
        """Take in the stored state of a pipeline, or that it is no longer stored."""
        stored = ObjectKey(PIPELINE_KIND, *key)
        version = self._store.version(stored)
        if version == self._versions.get(key):
            return
        manifest = self._store.get(stored)
        claims = None if manifest is None else read_claims(manifest)
        if claims is not None and manifest is not None and SPEC_BYTES in manifest["spec"]:
            # A spec that is too large is not stored: the pipeline keeps what it has, and gets nothing new.
            claims = replace(claims, aliases=tuple(claims.granted or ()))
        self._put(key, version, claims)

    def grant(self, key: NamespacedName, now: datetime) -> list[dict[str, str]]:
        """Returns the record of names for a pipeline's status; see grant_names."""
        self.update(key)
        claims = self._claims.get(key)
        if claims is None:
            return []
        holders = {name: [self._claims[other] for other in self._by_name[name]] for name in claims.names}
        record = grant_names(claims, holders, now.strftime("%Y-%m-%dT%H:%M:%SZ"))
        # Counts at once: another pipeline may be reconciled before the status is written. A name that was given up
        # counts until then, in case it is claimed again.
        granted = {one["name"]: one["since"] for one in record if "since" in one}
        self._claims[key] = replace(claims, granted={**(claims.granted or {}), **granted})
        return record

    def _put(self, key: NamespacedName, version: int | None, claims: NameClaims | None) -> None:
        before = self._claims.pop(key, None)
        self._versions.pop(key, None)
        old, new = (one.held if one else frozenset() for one in (before, claims))
        for name in old - new:
            self._by_name[name].discard(key)
            if not self._by_name[name]:
                del self._by_name[name]
        if claims is not None:
            self._claims[key] = claims
        if version is not None:
            self._versions[key] = version
        for name in new:
            self._by_name[name].add(key)
        self._wake({other for name in old - new for other in self._by_name.get(name, ())})
