"""A fixture for the certificate of an entry stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.peers.certificates import MountedSecret, tls_files
from support.peers.tls_entries import PAIR


@pytest.fixture
def secret(tmp_path: Path) -> MountedSecret:
    return MountedSecret(tmp_path / "secret", tls_files(PAIR))
