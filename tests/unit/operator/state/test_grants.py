"""A name's holder never changes while he claims it: over any sequence of events, with the operator's real index."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from omni_kube.api.wire import Seen
from omni_kube.objects import NamespacedName
from omni_operator.state.model_names import ModelNames
from omni_operator.state.observe import new_store
from omni_proto.model_names import NameClaims, read_claims, resolve_names
from support.tables import each_row

NAMES = ("b", "X/y", "one/b")
KEYS = [NamespacedName("one", "a"), NamespacedName("two", "a"), NamespacedName("two", "b")]
STEPS = [*["create", "reconcile"] * 4, *["add"] * 3, "drop", "drop", "delete", "terminate", "see", "decide", "write"]


def draw_event(random: Random) -> tuple[Any, ...]:
    step = random.choice([*STEPS, "tick", "restart"])
    if step in ("tick", "restart"):
        return (step,)
    key = random.choice(KEYS)
    return (step, key, random.choice(NAMES)) if step in ("add", "drop") else (step, key)


class World:
    """The API server's pipelines, and an operator that sees their changes late and writes its decisions late."""

    def __init__(self) -> None:
        self.live: dict[NamespacedName, dict[str, Any]] = {}
        self.version = 10
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.start()

    def start(self) -> None:
        """Starts the operator, which lists all pipelines."""
        self.store = new_store()
        self.woken: list[NamespacedName] = []
        self.names = ModelNames(self.store, self.woken.extend)
        self.pending: dict[NamespacedName, tuple[str, list[dict[str, str]]]] = {}
        for key in tuple(self.live):
            self.see(key)

    def touch(self, key: NamespacedName) -> None:
        self.version += 1
        self.live[key]["metadata"]["resourceVersion"] = str(self.version)

    def create(self, key: NamespacedName) -> None:
        if key not in self.live:
            created = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
            metadata = {"name": key.name, "namespace": key.namespace, "creationTimestamp": created, "uid": "u"}
            self.live[key] = {
                "apiVersion": "omnipipeline.io/v1alpha1",
                "kind": "OmniPipeline",
                "metadata": metadata | {"generation": 1},
                "spec": {"aliases": {"models": []}},
            }
            self.touch(key)

    def delete(self, key: NamespacedName) -> None:
        if self.live.pop(key, None) is not None:
            self.version += 1

    def terminate(self, key: NamespacedName) -> None:
        if key in self.live:
            self.live[key]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.touch(key)

    def add(self, key: NamespacedName, name: str) -> None:
        if key in self.live and name not in self.live[key]["spec"]["aliases"]["models"]:
            self.live[key]["spec"]["aliases"]["models"].append(name)
            self.live[key]["metadata"]["generation"] += 1
            self.touch(key)

    def drop(self, key: NamespacedName, name: str) -> None:
        if key in self.live and name in self.live[key]["spec"]["aliases"]["models"]:
            self.live[key]["spec"]["aliases"]["models"].remove(name)
            self.live[key]["metadata"]["generation"] += 1
            self.touch(key)

    def see(self, key: NamespacedName) -> None:
        """The operator's watch reports the newest state of a pipeline."""
        if key in self.live:
            self.store.put_seen(Seen.of(copy.deepcopy(self.live[key])))
        elif (stored := self.stored(key)) is not None:
            stored["metadata"]["resourceVersion"] = str(self.version)
            self.store.remove_seen(Seen.of(stored))
        self.names.update(key)

    def stored(self, key: NamespacedName) -> dict[str, Any] | None:
        return next((one for one in self.store.of_root(key)), None)

    def decide(self, key: NamespacedName) -> None:
        """A worker decides what to write to a pipeline's status."""
        stored = self.stored(key)
        if stored is not None and "deletionTimestamp" not in stored["metadata"]:
            self.pending[key] = (stored["metadata"]["resourceVersion"], self.names.grant(key, self.now))

    def write(self, key: NamespacedName) -> None:
        """The API server takes the write, unless the pipeline has changed since the decision."""
        version, record = self.pending.pop(key, ("", []))
        live = self.live.get(key)
        if live is not None and live["metadata"]["resourceVersion"] == version:
            if (live.get("status") or {}).get("names") != record:
                live["status"] = {"names": record}
                self.touch(key)
            self.see(key)

    def reconcile(self, key: NamespacedName) -> None:
        self.see(key)
        self.decide(key)
        self.write(key)

    def restart(self) -> None:
        self.start()

    def tick(self) -> None:
        self.now += timedelta(seconds=1)

    def holders(self) -> dict[str, NameClaims]:
        """Returns what a gateway resolves. It serves only pipelines whose status an operator has written."""
        claims = [found for one in self.live.values() if (found := read_claims(one)) is not None]
        return {name: one for name, one in resolve_names(claims).items() if one.granted is not None}

    def settle(self) -> None:
        """Reconcile until nothing changes, the pipelines that wait first."""
        for _ in range(2 * len(KEYS) + 2):
            for key in KEYS:
                self.reconcile(key)


def identity(claims: NameClaims) -> tuple[str, str, str]:
    return claims.namespace, claims.name, claims.created


@each_row("seed", range(60))
def test_a_holder_keeps_his_name_while_he_claims_it(seed: int) -> None:
    random, world = Random(seed), World()
    before: dict[str, NameClaims] = {}
    for _ in range(100):
        event = draw_event(random)
        getattr(world, event[0])(*event[1:])
        after = world.holders()
        for name, holder in before.items():
            live = world.live.get(NamespacedName(holder.namespace, holder.name))
            claims = read_claims(live) if live is not None else None
            recreated = event[0] == "create"
            if claims is not None and name in claims.names and not recreated:
                assert identity(after[name]) == identity(holder), (event, name)
        before = after
    world.settle()
    claims = [found for one in world.live.values() if (found := read_claims(one)) is not None]
    wanted = {name for one in claims for name in one.names if "/" not in name or name == "X/y"}
    assert set(world.holders()) == wanted  # no claimed name stays without an owner
    for one in claims:
        record = {
            entry["name"]: entry for entry in world.live[NamespacedName(one.namespace, one.name)]["status"]["names"]
        }
        for name in one.names:
            if name == one.qualified:
                continue
            has = identity(world.holders()[name]) == identity(one) if name in world.holders() else False
            assert ("since" in record[name]) is has
            assert ("message" in record[name]) is not has
    assert not world.names._by_name.keys() - wanted - {"one/b"}


def test_the_next_in_line_is_woken() -> None:
    """When a name is given up or its pipeline is deleted, those that wait for it are reconciled at once."""
    world = World()
    first, second, third = KEYS
    for key in (first, second, third):
        world.create(key)
        world.add(key, "X/y")
        world.tick()
    world.settle()
    assert identity(world.holders()["X/y"])[:2] == first
    world.woken.clear()
    world.drop(first, "X/y")
    world.see(first)
    assert not world.woken  # the status still records it
    world.decide(first)
    world.write(first)
    assert set(world.woken) == {second, third}
    world.settle()
    assert identity(world.holders()["X/y"])[:2] == second
    world.woken.clear()
    world.delete(second)
    world.see(second)
    assert third in world.woken
    world.settle()
    assert identity(world.holders()["X/y"])[:2] == third
