"""A hub with one repository that requires a token."""

from __future__ import annotations

from collections.abc import Iterator

import huggingface_hub.constants
import pytest

from support.models.hub import FILES, TOKEN, Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(FILES, {"org/model": TOKEN}) as server:
        # huggingface_hub reads HF_ENDPOINT only when it is imported, so its constants are replaced.
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield server
