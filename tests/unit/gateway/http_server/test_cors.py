"""CORS: only pages of the configured origins may call the API. They can also read errors and rate-limit headers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.guard.keys import hash_key
from omni_gateway.guard.reply import IGNORED_HEADER
from omni_gateway.http_server.app import create_app
from omni_gateway.openai.chat_events import NOTES_HEADER
from omni_gateway.settings import GatewaySettings

ORIGIN = "https://app.example.com"
ALLOWED = "access-control-allow-origin"
HEADERS = "authorization,content-type,x-stainless-arch,x-stainless-retry-count,x-stainless-timeout"
"""Some of the headers that OpenAI's client for JavaScript sends."""
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": HEADERS}


def client_of(settings: GatewaySettings) -> httpx.AsyncClient:
    app = create_app(StaticPipelines(()), settings)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ((ORIGIN,), ORIGIN, ORIGIN),
        ((ORIGIN,), "https://evil.example.com", None),
        (("*",), ORIGIN, "*"),
        ((), ORIGIN, None),
    ],
    ids=["named", "another", "any", "none by default"],
)
async def test_a_page_may_call_from_named_origins(
    tmp_path: Path, origins: tuple[str, ...], origin: str, allowed: str | None
) -> None:
    """A preflight request needs no API key. The 401 for a wrong key also has the CORS headers."""
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n- {{name: page, sha256: {hash_key('right')}, limits: {{requestsPerMinute: 9}}}}\n")
    async with client_of(GatewaySettings(cors_origins=origins, keys_file=keys)) as client:
        asked = await client.options("/v1/chat/completions", headers={"origin": origin, **PREFLIGHT})
        assert asked.headers.get(ALLOWED) == allowed
        assert (asked.status_code == 200) is (allowed is not None)
        for key, status in (("right", 200), ("wrong", 401)):
            answer = await client.get("/v1/models", headers={"origin": origin, "authorization": f"Bearer {key}"})
            assert (answer.status_code, answer.headers.get(ALLOWED)) == (status, allowed)
        exposed = answer.headers.get("access-control-expose-headers", "")
        for name in ("x-ratelimit-remaining-requests", IGNORED_HEADER, NOTES_HEADER):
            assert (name in exposed) is bool(origins)
        assert "access-control-allow-credentials" not in answer.headers
