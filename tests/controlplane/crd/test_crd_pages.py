"""A real API server accepts every pipeline and volume of the docs and samples, applied by kubectl as users would."""

from __future__ import annotations

import pytest

from support.controlplane.server.api_server import ApiServer
from support.docs.doc_examples import EXAMPLES, ROOT, blocks_of, sample_pipelines

pytestmark = pytest.mark.controlplane
VOLUMES = [b.text for b in blocks_of(ROOT / "docs" / "pipelines.md") if "kind: PersistentVolume" in b.text]
SHOWN = {**EXAMPLES, **sample_pipelines(), **{f"volume {number}": text for number, text in enumerate(VOLUMES)}}


def test_kubectl_applies_what_the_pages_show(api_server: ApiServer, subtests: pytest.Subtests) -> None:
    for name, text in SHOWN.items():
        with subtests.test(name):
            done = api_server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
            assert "created (server dry run)" in done.stdout
