"""A real API server accepts every pipeline and Job of the docs and samples, applied by kubectl as users would."""

from __future__ import annotations

import pytest

from support.controlplane.server.api_server import ApiServer
from support.docs.doc_examples import EXAMPLES, ROOT, blocks_of, sample_pipelines

pytestmark = pytest.mark.controlplane
JOBS = [block.text for block in blocks_of(ROOT / "docs" / "pipelines.md") if "kind: Job\n" in block.text]
SHOWN = {**EXAMPLES, **sample_pipelines(), **{f"job {number}": text for number, text in enumerate(JOBS)}}


def test_kubectl_applies_what_the_pages_show(api_server: ApiServer, subtests: pytest.Subtests) -> None:
    for name, text in SHOWN.items():
        with subtests.test(name):
            done = api_server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
            assert "created (server dry run)" in done.stdout
