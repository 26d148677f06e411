"""Chromium for tests of the gateway's page."""

from __future__ import annotations

import shutil

from playwright.sync_api import expect

from support.processes.polling import PATIENCE_S

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--autoplay-policy=no-user-gesture-required"),
    "--host-resolver-rules=MAP gateway.test 127.0.0.1",
)

PATIENCE_MS = 1000 * PATIENCE_S
expect.set_options(timeout=PATIENCE_MS)


def chromium() -> str:
    """Returns the path of Chromium. Raises RuntimeError if it is not installed."""
    found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if found is None:
        raise RuntimeError("these tests need Chromium. Debian, Ubuntu: apt-get install chromium")
    return found
