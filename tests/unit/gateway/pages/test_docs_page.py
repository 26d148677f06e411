"""The page at /docs names every route, type and field of the OpenAPI document, and loads nothing from elsewhere."""

from __future__ import annotations

import re
from html import escape

import pytest
from starlette.testclient import TestClient

from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.http_server.app import create_app
from omni_gateway.pages.document import render_docs


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_app(StaticPipelines(())))


def test_the_docs_page_shows_the_document_with_the_page_policy(client: TestClient) -> None:
    """The page covers the whole OpenAPI document, and has the same security policy as the gateway's web page."""
    answer = client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    document, page = client.get("/openapi.json").json(), answer.text
    operations = [(method, path) for path, found in document["paths"].items() for method in found]
    assert len(operations) >= 8
    for method, path in operations:
        assert f"<code>{method.upper()} {path}</code>" in page
    for name, schema in document["components"]["schemas"].items():
        assert f'<h3 id="{name}">' in page
        assert all(f"<code>{field}</code>" in page for field in schema.get("properties", {}))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= document["components"]["schemas"].keys()
    loaded = re.findall(r'<(?:link|script|img)[^>]*(?:href|src)="([^"]+)"', page)
    assert loaded == ["/docs.css"]
    assert client.get("/docs.css").headers["content-type"].startswith("text/css")
    assert "<script" not in page
    assert "style=" not in page


def test_text_of_the_document_is_escaped() -> None:
    attack = "<script>alert(1)</script>"
    document = {
        "info": {"title": attack, "description": attack},
        "paths": {
            f"/{attack}": {
                "get": {
                    "description": attack,
                    "parameters": [{"name": attack, "schema": {"enum": [attack]}, "description": attack}],
                    "responses": {"200": {"description": attack, "content": {attack: {}}}},
                }
            }
        },
        "components": {"schemas": {'"x': {"description": attack, "type": attack}}},
    }
    page = render_docs(document)
    assert "<script" not in page
    assert page.count(escape(attack)) == 12
    assert '<h3 id="&quot;x">' in page
