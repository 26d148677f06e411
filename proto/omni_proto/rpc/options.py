"""Options of every channel and server of a pipeline: said once, used by stages and clients alike."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

Options = tuple[tuple[str, int | str], ...]

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of one message: above every chunk, and far below what would block other calls of the connection."""

# By default channels of a process share connections to one address. When such a connection comes up, each channel's
# thread starts watching its health, and in gRPC core 1.85 one may meet what another has half made:
# `HealthWatcher::SetSubchannel` enters a HealthProducer before `Start` gives it its subchannel. SIGSEGV.
_REQUIRED: Final[Options] = (("grpc.use_local_subchannel_pool", 1),)
_SERVICE_CONFIG: Final = {
    "loadBalancingConfig": [{"round_robin": {}}],
    # The server as a whole: it answers "" with its readiness, and drops out of the rotation while it drains.
    "healthCheckConfig": {"serviceName": ""},
}
_KEEPALIVE_MS: Final = 30_000
_KEEPALIVE_TIMEOUT_MS: Final = 10_000


def channel_options() -> Options:
    """Options of a channel to a stage: round_robin over healthy pods, connections of its own, no proxy, no TXT look-up,
    names asked again every 5 s at most, messages of at most 8 MiB, a keepalive ping every 30 s."""
    return (
        *_REQUIRED,
        ("grpc.service_config", json.dumps(_SERVICE_CONFIG, separators=(",", ":"))),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.dns_min_time_between_resolutions_ms", 5_000),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 2_000),
        # A stage that is back is found within about a second, by the retries of a single request.
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # gRPC's default ends pings on a connection that carries no data for a while, as a long prefill does.
        ("grpc.http2.max_pings_without_data", 0),
        # Reads ahead of flow control: 5-10 % on tensors.
        ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
    )


def complete_options(options: Iterable[tuple[str, int | str]] | None) -> Options:
    """Returns the options to open a channel with: the caller's, or channel_options() for None, and in any case what
    keeps gRPC from crashing."""
    if options is None:
        return channel_options()
    names = {name for name, _ in _REQUIRED}
    return (*_REQUIRED, *((name, value) for name, value in options if name not in names))


def server_options(request_timeout_s: float = 300.0) -> Options:
    """Options of a stage's server.

    Connections live 60 s, so that channels find new pods; calls in flight continue for request_timeout_s, the longest
    request. Pings every 10 s or slower are welcome, with or without calls. A port in use is an error.
    """
    grace_ms = max(1, round(request_timeout_s * 1000))
    return (
        ("grpc.max_connection_age_ms", 60_000),
        ("grpc.max_connection_age_grace_ms", grace_ms),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
        ("grpc.so_reuseport", 0),
    )
