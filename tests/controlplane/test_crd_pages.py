"""A real API server accepts every pipeline of the docs and samples, applied by kubectl as users would."""

from __future__ import annotations

import pytest

from support.controlplane.api_server import ApiServer
from support.doc_examples import EXAMPLES, sample_pipelines

pytestmark = pytest.mark.controlplane
SHOWN = {**EXAMPLES, **sample_pipelines()}


@pytest.mark.parametrize("name", SHOWN)
def test_kubectl_applies_what_the_pages_show(api_server: ApiServer, name: str) -> None:
    output = api_server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=SHOWN[name]).stdout
    assert "created (server dry run)" in output
