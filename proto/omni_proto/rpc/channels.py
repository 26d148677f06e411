"""The one place where channels to stages are opened, with the options that all of them need."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
import grpc.aio

from omni_proto.rpc.options import complete_options


def open_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    options: Iterable[tuple[str, int | str]] | None = None,
) -> grpc.Channel:
    """Opens a blocking channel, in plaintext without credentials. options replace channel_options()."""
    complete = complete_options(options)
    if credentials is None:
        return grpc.insecure_channel(target, options=complete)
    return grpc.secure_channel(target, credentials, options=complete)


def open_aio_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    options: Iterable[tuple[str, int | str]] | None = None,
) -> grpc.aio.Channel:
    """Opens an asyncio channel, in plaintext without credentials. options replace channel_options()."""
    complete = complete_options(options)
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=complete)
    return grpc.aio.secure_channel(target, credentials, options=complete)
