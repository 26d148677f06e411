"""The gateway's own certificate, renewed while it serves."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)
CHECK_S: Final = 5.0


class Certificate:
    """tls.crt and tls.key of a directory, e.g. of a mounted Secret, which kubelet replaces as a whole."""

    def __init__(self, directory: Path) -> None:
        self.certificate = directory / "tls.crt"
        self.key = directory / "tls.key"
        self._written = self._times()
        self._refused: tuple[int, ...] | None = None
        """Modification times of files that could not be used, so that each is reported once."""

    def renew(self, context: ssl.SSLContext) -> bool:
        """Give new connections the renewed files, if there are any. Returns whether it did.

        Files that cannot be used are reported once, and the earlier ones stay.
        """
        found = self._times()
        if found in (self._written, self._refused):
            return False
        try:
            # First into a context that nobody uses: a certificate without its key would stay half loaded.
            for target in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
                # An empty passphrase: without one, OpenSSL would ask at the terminal.
                target.load_cert_chain(self.certificate, self.key, password=b"")
        except (OSError, ssl.SSLError) as error:
            log.error("the renewed certificate cannot be used, the earlier one stays", extra={"error": str(error)})
            self._refused = found
            return False
        self._written, self._refused = found, None
        log.info("certificate renewed", extra={"file": str(self.certificate)})
        return True

    async def keep_renewed(self, context: ssl.SSLContext) -> None:
        """Looks every CHECK_S seconds, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await asyncio.to_thread(self.renew, context)

    def _times(self) -> tuple[int, ...]:
        """Returns when the files were written, in ns; empty while one is missing."""
        try:
            return tuple(file.stat().st_mtime_ns for file in (self.certificate, self.key))
        except OSError:
            return ()
