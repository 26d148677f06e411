"""gRPC options of every channel and server of a pipeline, shared by stages and clients."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

Options = tuple[tuple[str, int | str], ...]

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of one message: larger than any chunk, and small enough not to block other calls of the connection."""

# By default, channels of a process share connections to the same address. When such a connection is established, each
# channel's thread starts to watch its health. gRPC core 1.85 has a race there: `HealthWatcher::SetSubchannel` publishes
# a HealthProducer before `Start` sets its subchannel, so another thread may use it too early (SIGSEGV).
_REQUIRED: Final[Options] = (("grpc.use_local_subchannel_pool", 1),)
_SERVICE_CONFIG: Final = {
    "loadBalancingConfig": [{"round_robin": {}}],
    # "" stands for the whole server: it reports readiness there, so a draining server leaves the rotation.
    "healthCheckConfig": {"serviceName": ""},
}
_KEEPALIVE_MS: Final = 30_000
_KEEPALIVE_TIMEOUT_MS: Final = 10_000


def channel_options() -> Options:
    """Returns the options of a channel to a stage.

    They set round_robin over healthy pods, connections not shared with other channels, no proxy, no TXT lookup, DNS
    queries at least 5 s apart, messages of at most 8 MiB, and a keepalive ping every 30 s. A channel to a single pod
    needs round_robin too: gRPC watches no health with pick_first.
    """
    return (
        *_REQUIRED,
        ("grpc.service_config", json.dumps(_SERVICE_CONFIG, separators=(",", ":"))),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.dns_min_time_between_resolutions_ms", 5_000),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 2_000),
        # Reconnects within about a second after a stage is back, so that the retries of one request reach it.
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # By default gRPC stops pinging a connection that carries no data for a while, as during a long prefill.
        ("grpc.http2.max_pings_without_data", 0),
        # Reads ahead of flow control; makes tensor transfers 5-10 % faster.
        ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
    )


def complete_options(options: Iterable[tuple[str, int | str]] | None) -> Options:
    """Returns the options for a new channel: the given ones, or channel_options() if options is None.

    In both cases they include the options that keep gRPC from crashing, which the caller cannot override.
    """
    if options is None:
        return channel_options()
    names = {name for name, _ in _REQUIRED}
    return (*_REQUIRED, *((name, value) for name, value in options if name not in names))


def server_options(request_timeout_s: float = 300.0) -> Options:
    """Returns the options of a stage's server.

    Connections live for 60 s, so that channels find new pods. Calls in flight may continue for request_timeout_s, the
    time limit of a request. Clients may ping every 10 s, with or without calls. A port that is in use is an error.
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


USER_KEY: Final = "x-omni-user"
"""Metadata key with which a client that has many users names the user of a call. The value has 1 to 64 characters of
A-Z, a-z, 0-9, - and _, and is best a pseudonym. The entry stage counts refused calls of each user apart, and shares
places of new forms of structured output, and of calls that have not sent Start, between users. Nobody verifies the
value, so it divides what its client may use, and adds nothing to it. The stage sends it to no other stage."""
