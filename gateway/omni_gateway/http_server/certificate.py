"""The gateway's own certificate, renewed while it serves."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from omni_gateway.settings import SettingsError

log = logging.getLogger(__name__)
CHECK_S: Final = 5.0


class Certificate:
    """tls.crt and tls.key of a directory, e.g. of a mounted Secret, whose files kubelet replaces together."""

    def __init__(self, directory: Path) -> None:
        self.certificate = directory / "tls.crt"
        self.key = directory / "tls.key"
        self._written = self._times()
        self._refused: tuple[int, ...] | None = None
        """Modification times of the files that could not be used, so that the problem is reported only once."""

    def check(self) -> None:
        """Raises SettingsError if the files cannot be used."""
        try:
            # An empty passphrase: without one, OpenSSL would ask at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password=b"")
        except (OSError, ssl.SSLError) as error:
            files = f"{self.certificate} and {self.key.name}"
            raise SettingsError(f"{files} cannot be used as certificate and key: {error}") from error

    def renew(self, context: ssl.SSLContext) -> bool:
        """Use the files for new connections, if they have changed. Returns whether changed files were loaded.

        Files that cannot be used are logged once, and the earlier certificate stays in use.
        """
        found = self._times()
        if found in (self._written, self._refused):
            return False
        try:
            # Load them into an unused context first. If the key did not fit, `context` would keep only the certificate.
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
        """Check the files every CHECK_S seconds, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await asyncio.to_thread(self.renew, context)

    def _times(self) -> tuple[int, ...]:
        """Returns the files' modification times in ns; empty while a file is missing."""
        try:
            return tuple(file.stat().st_mtime_ns for file in (self.certificate, self.key))
        except OSError:
            return ()
