"""TLS settings for connections to entry stages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from omni_gateway.settings import GatewaySettings
from omni_proto.client import ClientTls

TLS_SCHEME: Final = "grpcs://"


def entry_tls(endpoint: str, settings: GatewaySettings, *, server_name: str = "") -> ClientTls | None:
    """Returns the TLS settings of an entry; None if it has no TLS, or the defaults of grpcs:// are enough.

    server_name: the name that the entry's certificate must have; empty: the endpoint's host.
    """
    tls = ClientTls(
        ca=settings.entry_ca,
        certificate=settings.entry_certificate,
        key=settings.entry_key,
        server_name=server_name,
    )
    return tls if endpoint.startswith(TLS_SCHEME) and tls != ClientTls() else None


def file_times(tls: ClientTls | None) -> tuple[int, ...]:
    """Returns the TLS files' modification times in ns, which change when files are renewed; 0 for a missing file."""
    files = (tls.ca, tls.certificate, tls.key) if tls else ()
    return tuple(_written_at(Path(file)) for file in files if file is not None)


def _written_at(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # kubelet is replacing a Secret's files, or the path is wrong, which connecting will report
        return 0
