"""Names of voices, and which pipeline has which name as a model of a gateway that several namespaces share. Pure.

A pipeline claims its own name and its aliases (`spec.aliases.models`). The operator grants a claimed name to one
pipeline and records this in its status, which only the operator may write. As long as a pipeline claims a name that it
was granted, nobody else gets it, however old or new the other pipeline or its claim is. A free name goes to the oldest
pipeline that claims it; a name is free once no status records it. The gateway serves only names that were granted, so
each of its replicas gives the same answer, also after a restart.

`NAMESPACE/NAME` always means the pipeline of that name, because an alias of this form is never granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final


def find_voice(wanted: str, names: Iterable[str]) -> str | None:
    """Returns the one of `names` that is meant by a name in any case; None if there is none.

    If several differ only in case, the one that is spelled exactly so is meant, otherwise the first.
    """
    others: list[str] = []
    for name in names:
        if name == wanted:
            return name
        if name.lower() == wanted.lower():
            others.append(name)
    return others[0] if others else None


_QUALIFIED: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
"""NAMESPACE/NAME as the API server and the CRD allow them; neither part can contain a slash."""


@dataclass(frozen=True, slots=True)
class NameClaims:
    """The names that one pipeline claims."""

    namespace: str
    name: str
    created: str
    """metadata.creationTimestamp: UTC in whole seconds, so texts compare as times do."""
    aliases: tuple[str, ...] = ()
    edited: bool = False
    """Whether the spec was edited since it was created, so that an alias may be younger than the pipeline."""
    granted: Mapping[str, str] | None = None
    """Time of the grant by name, in the form of `created`. None if the status has no record of names: the operator has
    not seen the pipeline yet, or is older than this record."""

    @property
    def qualified(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """The claimed names, without duplicates: the pipeline's own, then its aliases."""
        return tuple(dict.fromkeys((self.name, *self.aliases)))

    @property
    def held(self) -> frozenset[str]:
        """The names that nobody else can get: those that it claims, and those that its status still records."""
        return frozenset(self.names) | frozenset(self.granted or ())

    @property
    def age(self) -> tuple[str, str, str]:
        """Orders pipelines, the oldest first."""
        return self.created, self.namespace, self.name


def read_claims(manifest: Mapping[str, Any]) -> NameClaims | None:
    """Returns the claims of an OmniPipeline in the API server's form; None if it is being deleted and claims nothing.

    manifest needs metadata, spec.aliases and status.names only.
    """
    metadata = manifest["metadata"]
    if "deletionTimestamp" in metadata:
        return None
    aliases = ((manifest.get("spec") or {}).get("aliases") or {}).get("models") or ()
    record = (manifest.get("status") or {}).get("names")
    return NameClaims(
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        aliases=tuple(aliases),
        edited=metadata.get("generation", 1) > 1,
        granted=None if record is None else {one["name"]: one["since"] for one in record if one.get("since")},
    )


def is_qualified(name: str) -> bool:
    """Returns whether a name reads as NAMESPACE/NAME."""
    return _QUALIFIED.fullmatch(name) is not None


def find_granted(name: str, pipelines: Iterable[NameClaims]) -> NameClaims | None:
    """Returns the pipeline whose status records a name; None if there is none.

    Two operators that watch different namespaces may both have granted it: the earlier grant counts.
    """
    granted = [(one.granted[name], one.age, one) for one in pipelines if one.granted and name in one.granted]
    return min(granted, default=(None, None, None))[2]


def grant_names(claims: NameClaims, holders: Mapping[str, Iterable[NameClaims]], now: str) -> list[dict[str, str]]:
    """Returns the record for a pipeline's status: for each claimed name when it was granted, or why it was not.

    holders: by name, the pipelines that hold it (`NameClaims.held`), this one included. now: the API server's time, in
    the form of `NameClaims.created`.
    """
    return [_grant(name, claims, tuple(holders[name]), now) for name in claims.names if name != claims.qualified]


def _grant(name: str, claims: NameClaims, holders: tuple[NameClaims, ...], now: str) -> dict[str, str]:
    if is_qualified(name):
        namespace, _, other = name.partition("/")
        message = f"means the pipeline {other} of namespace {namespace} and is not served as an alias; choose another"
        return {"name": name, "message": message}
    holder = find_granted(name, holders) or min((one for one in holders if name in one.names), key=lambda one: one.age)
    if holder.age == claims.age:
        return {"name": name, "since": (claims.granted or {}).get(name, now)}
    message = (
        f"belongs to pipeline {holder.qualified}, which had it first; until that pipeline gives it up, requests for "
        f"this one must name {claims.qualified}"
    )
    return {"name": name, "message": message}


def resolve_names(pipelines: Iterable[NameClaims]) -> dict[str, NameClaims]:
    """Returns the pipeline that serves each name, as a gateway resolves it. Names that nobody serves are missing."""
    claimants: dict[str, list[NameClaims]] = {}
    for one in pipelines:
        for name in one.names:
            claimants.setdefault(name, []).append(one)
    found = {name: _resolve(name, rivals) for name, rivals in claimants.items() if not is_qualified(name)}
    return {name: one for name, one in found.items() if one is not None}


def _resolve(name: str, claimants: list[NameClaims]) -> NameClaims | None:
    if (holder := find_granted(name, claimants)) is not None:
        return holder
    # Without any record, the oldest pipeline has the name, unless its claim may be younger than another's. Then nobody
    # has it, because a request must not reach a pipeline that its sender does not mean.
    unrecorded = sorted((one for one in claimants if one.granted is None), key=lambda one: one.age)
    if not unrecorded or (unrecorded[0].name != name and unrecorded[0].edited and len(unrecorded) > 1):
        return None
    return unrecorded[0]
