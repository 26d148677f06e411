"""The files of the gateway's web page have a strict Content-Security-Policy and load nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import pytest
from starlette.testclient import TestClient

from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.http_server.app import create_app
from omni_gateway.pages.document import FOLDER
from support.tables import each_row

FILES = sorted(path.name for path in FOLDER.iterdir())
SCRIPTS = [name for name in FILES if name.endswith(".js")]


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_app(StaticPipelines(())))


class Tags(HTMLParser):
    """Collects the URLs that a page loads, and its inline scripts and styles, which the policy would block."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.inline: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inline += [name for name in given if name.startswith("on") or name == "style"]
        if tag in ("script", "img"):
            self.loads.append(given.get("src") or "")
        elif tag == "link":
            self.loads.append(given.get("href") or "")
        self._script = tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.inline.append(data)
        self._script = False


@each_row("path", ["/", *(f"/{name}" for name in FILES)])
def test_each_file_comes_with_the_policy(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert (policy["script-src"], policy["style-src"], policy["connect-src"]) == ("'self'",) * 3
    assert answer.headers["x-content-type-options"] == "nosniff"
    expected = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}.get(
        Path(path).suffix, "text/html"
    )
    assert answer.headers["content-type"].startswith(expected)
    again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304
    assert "content-security-policy" in again.headers


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/chat/completions", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 400, "invalid_json"),
        ("GET", "/chat/completions", 404, "not_found"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
    ],
)
def test_the_page_answers_for_no_route_of_the_api(
    client: TestClient, method: str, path: str, status: int, code: str
) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_the_page_loads_its_own_files_and_has_nothing_inline(client: TestClient) -> None:
    tags = Tags()
    tags.feed((FOLDER / "index.html").read_text())
    assert tags.inline == []
    assert tags.loads
    assert {name for name in tags.loads if name not in FILES} == set()


@pytest.mark.parametrize("name", SCRIPTS)
def test_modules_import_existing_files(name: str) -> None:
    text = (FOLDER / name).read_text()
    asked = re.findall(r'from "([^"]+)"|new URL\("([^"]+)"', text)
    for path in ("".join(pair) for pair in asked):
        assert urljoin(f"/{name}", path).removeprefix("/") in FILES
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)


@pytest.mark.parametrize("name", FILES)
def test_nothing_names_another_origin(name: str) -> None:
    found = set(re.findall(r"https?://[\w.${}-]+", (FOLDER / name).read_text()))
    assert found <= {"http://localhost", "http://www.w3.org"}


def test_ids_that_scripts_use_are_on_the_page() -> None:
    page = (FOLDER / "index.html").read_text()
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    parts = set(re.findall(r'data-part="([^"]+)"', page))
    assert set(re.findall(r'\$\("([^"]+)"\)', (FOLDER / "main.js").read_text())) <= ids
    assert set(re.findall(r'this\.part\("([^"]+)"\)', (FOLDER / "turn.js").read_text())) <= parts
