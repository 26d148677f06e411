"""The one place where channels to stages are opened, so that each has the options that every channel needs."""

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
    """Open a blocking channel; without credentials it is plaintext.

    options: used instead of the defaults of `omni_proto.rpc.options.channel_options`. Options that every channel needs
    are always added.
    """
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
    """Open an asyncio channel; without credentials it is plaintext.

    options: used instead of the defaults of `omni_proto.rpc.options.channel_options`. Options that every channel needs
    are always added.
    """
    complete = complete_options(options)
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=complete)
    return grpc.aio.secure_channel(target, credentials, options=complete)
