"""A plan is carried out one write at a time, in its order, and no write follows a failed one.

The tests use the real client over a real connection. `Server` implements only the part of the API that the client uses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from omni_kube.api.client import ApiClient
from omni_kube.api.timing import RateLimiter
from omni_kube.api.transport import ApiConnection, Transport
from omni_kube.errors import ConflictError, ForbiddenError, NotLeaderError
from omni_kube.objects import Manifest
from omni_operator.kinds import FIELD_MANAGER, KIND_BY_NAME, ChildKey, key_of
from omni_operator.process.metrics import Metrics
from omni_operator.rollout.apply import Applier, Outcome
from omni_operator.rollout.plan import Plan, Verified, compute_plan
from omni_operator.state.observe import new_store
from omni_operator.state.observed import Observed
from support.operator.operator_pipelines import OWNER, build_all, make_pipeline, make_stages

PIPELINE = {"metadata": {"name": OWNER.name, "namespace": OWNER.namespace, "uid": OWNER.uid, "generation": 1}}
DESIRED = build_all(make_pipeline([{**stage, "replicas": 2} for stage in make_stages()]))
PLURALS = {kind.plural: kind.kind for kind in KIND_BY_NAME.values()}


class Server:
    """Accepts an apply, unless `refusals` gives a status for its key. Records the order of all applies."""

    def __init__(self, refusals: Mapping[ChildKey, int] | None = None) -> None:
        self.refusals = refusals or {}
        self.writes: list[ChildKey] = []
        self.children: dict[ChildKey, Manifest] = {}
        self._version = 100

    async def handle(self, request: web.Request) -> web.Response:
        *_, plural, name = request.path.split("/")
        key = ChildKey(PLURALS[plural], name)
        self.writes.append(key)
        if key in self.refusals:
            code = self.refusals[key]
            return web.json_response({"kind": "Status", "code": code, "message": "refused"}, status=code)
        body = await request.json()
        self._version += 1
        body["metadata"] |= {"uid": f"u-{key.kind}-{name}", "resourceVersion": str(self._version)}
        self.children[key] = body
        return web.json_response(body, status=201)


@asynccontextmanager
async def serving(server: Server, leads: bool = True) -> AsyncIterator[ApiClient]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    transport = Transport(ApiConnection(configuration, FIELD_MANAGER), Metrics())

    def may_write() -> float:
        if not leads:
            raise NotLeaderError("another process leads")
        return 10.0

    yield ApiClient(transport, RateLimiter(1000.0, 100.0), may_write)
    await transport.close()
    await runner.cleanup()


async def carry_out(
    server: Server, plan: Plan, verified: Verified | None = None, *, leads: bool = True, **more: Any
) -> Outcome:
    async with serving(server, leads) as client:
        applier = Applier(client, new_store(), lambda namespace: "", verified or Verified(), Metrics())
        observed = Observed(pipeline=PIPELINE, children=more.get("seen", {}))
        return await applier.execute(plan, observed, more.get("unknown", {}))


def plan_of(desired: list[Manifest], live: Mapping[ChildKey, Manifest] | None = None) -> Plan:
    return compute_plan(desired, Observed(pipeline=PIPELINE, children=live or {}))


async def test_everything_is_written_in_the_order_of_the_plan() -> None:
    server, verified = Server(), Verified()
    plan = plan_of(DESIRED)
    outcome = await carry_out(server, plan, verified)
    assert outcome == Outcome(applied=len(DESIRED))
    assert server.writes == [key_of(child) for child in plan.apply]
    assert all(verified.holds(child) for child in server.children.values())


@pytest.mark.parametrize("position", [0, 4, 12])
async def test_after_a_refusal_nothing_more_is_written(position: int) -> None:
    plan = plan_of(DESIRED)
    keys = [key_of(child) for child in plan.apply]
    server = Server({keys[position]: 403})
    outcome = await carry_out(server, plan)
    assert isinstance(outcome.error, ForbiddenError)
    assert outcome.failed == f"{keys[position].kind} {keys[position].name}"
    assert not outcome.taken
    assert server.writes == keys[: position + 1]
    assert outcome.writes == position


async def test_a_name_that_is_taken() -> None:
    """A 409 means that another object has the child's name, and ends the plan."""
    plan = plan_of(DESIRED)
    taken = next(key_of(child) for child in plan.apply if child["kind"] == "NetworkPolicy")
    outcome = await carry_out(Server({taken: 409}), plan)
    assert isinstance(outcome.error, ConflictError)
    assert outcome.taken
    assert outcome.failed == f"NetworkPolicy {taken.name}"


async def test_what_could_not_be_looked_up_is_not_written() -> None:
    """A child is not written if its live object could not be read."""
    plan = plan_of(DESIRED)
    lost = next(key_of(child) for child in plan.apply if child["kind"] == "Deployment")
    server = Server()
    outcome = await carry_out(server, plan, unknown={lost: ForbiddenError("no")})
    assert lost not in server.writes
    assert outcome.failed == f"Deployment {lost.name}"
    assert not outcome.taken


async def test_without_leadership_nothing_is_written() -> None:
    server = Server()
    with pytest.raises(NotLeaderError):
        await carry_out(server, plan_of(DESIRED), leads=False)
    assert not server.writes
