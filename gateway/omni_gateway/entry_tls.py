"""How a gateway connects to entry stages with TLS. Pure, but for the time of files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from omni_gateway.settings import GatewaySettings
from omni_proto.client import ClientTls

TLS_SCHEME: Final = "grpcs://"


def entry_tls(endpoint: str, settings: GatewaySettings, *, server_name: str = "") -> ClientTls | None:
    """Returns how to connect to an entry; None where the endpoint's scheme says it all.

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
    """Returns when the files were last written, in ns: other values mean renewed files. A missing file counts as 0."""
    files = (tls.ca, tls.certificate, tls.key) if tls else ()
    return tuple(_written_at(Path(file)) for file in files if file is not None)


def _written_at(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # while kubelet replaces a Secret's files, or a mistake that connecting will name
        return 0
