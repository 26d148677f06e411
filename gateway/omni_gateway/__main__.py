"""`python -m omni_gateway`: a gateway in front of named entry stages, or of the OmniPipelines of a cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from omni_gateway.cluster.replicas import ReadyReplicas
from omni_gateway.entries.pipelines import Pipelines, ServedPipeline, StaticPipelines, entry_tls, unix_seconds
from omni_gateway.http_server.app import Running
from omni_gateway.http_server.server import ListenOptions, serve
from omni_gateway.settings import GatewaySettings, GatewaySettingsError, load_settings
from omni_proto.runtime.logs import LineFormatter, configure_logging
from omni_proto.runtime.process import M_MMAP_THRESHOLD, prefer_event_loop, set_malloc_options

LARGE_BYTES: Final = 1 << 20
"""Larger buffers, such as a request's body, are mapped separately, and returned to the system when they are freed. By
default glibc raises this threshold up to 32 MiB, and one small buffer behind a large one then keeps its memory."""


def parse_endpoint(text: str, settings: GatewaySettings) -> ServedPipeline:
    """Returns the pipeline that a text NAME=[grpc[s]://]HOST:PORT names. Raises ValueError."""
    name, equals, address = text.partition("=")
    endpoint = address if "://" in address else f"grpc://{address}"
    scheme, _, target = endpoint.partition("://")
    if not (name and equals and target and scheme in ("grpc", "grpcs")):
        raise ValueError(f"{text!r} is not NAME=HOST:PORT, NAME=grpc://HOST:PORT or NAME=grpcs://HOST:PORT")
    aliases = tuple(alias for alias, meant in settings.model_aliases.items() if meant == name)
    return ServedPipeline(
        name=name,
        endpoint=endpoint,
        aliases=aliases,
        created=unix_seconds(),
        tls=entry_tls(endpoint, settings),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gateway. Returns the exit status: 0 after a drain, 2 for wrong arguments or settings."""
    parser = argparse.ArgumentParser(prog="omni_gateway", description="OpenAI's HTTP API in front of pipelines.")
    parser.add_argument(
        "--endpoint", action="append", default=[], metavar="NAME=URL", help="A pipeline's entry stage; repeatable."
    )
    parser.add_argument("--cluster", action="store_true", help="Serve the OmniPipelines of the Kubernetes cluster.")
    parser.add_argument(
        "--namespace", action="append", default=[], help="Only this namespace's pipelines; repeatable. Needs --cluster."
    )
    parser.add_argument("--kubeconfig", type=Path, help="Default: the pod's service account, or the user's kubeconfig.")
    parser.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help="Number of replicas of this gateway, which share the limits of keys; "
        "with --replicas-of, only until they are counted.",
    )
    parser.add_argument(
        "--replicas-of",
        metavar="NAME",
        help="DNS name of a headless Service of the gateway. Every few seconds, its addresses are counted as replicas.",
    )
    parser.add_argument(
        "--activator",
        metavar="HOST:PORT",
        help="Also listen here for gRPC callers of pipelines that sleep, and wake them. Needs --cluster.",
    )
    parser.add_argument("--config", type=Path, metavar="YAML", help="Settings; see docs/gateway.md.")
    parser.add_argument("--host", default="", help="Address to listen on. Default: all, of IPv4 and IPv6.")
    parser.add_argument("--port", type=int, default=8000, help="Port to listen on; 0 takes a free one.")
    parser.add_argument("--tls-dir", type=Path, metavar="DIR", help="Serve https with tls.crt and tls.key of DIR.")
    parser.add_argument("--address-file", type=Path, help="File for the address, as JSON, once the gateway listens.")
    parser.add_argument("--log-format", choices=("json", "text"), default="json")
    parser.add_argument("--log-level", default="info")
    options = parser.parse_args(argv)
    configure_logging(LineFormatter(options.log_format), options.log_level)
    try:
        settings = load_settings(options.config)
        pipelines = [parse_endpoint(text, settings) for text in options.endpoint]
    except ValueError as error:  # GatewaySettingsError is one
        sys.stderr.write(f"error: {error}\n")
        return 2
    if options.replicas < 1 or bool(options.namespace and not options.cluster) or bool(options.cluster and pipelines):
        parser.error("--replicas is at least 1, --namespace needs --cluster, and --cluster takes no --endpoint")
    if options.activator and not options.cluster:
        parser.error("--activator needs --cluster: other pipelines do not sleep")
    if len({one.name for one in pipelines}) < len(pipelines):
        parser.error("two --endpoint have the same NAME, but the model of a request must name one; give each its own")
    if unknown := set(settings.model_aliases.values()) - {one.name for one in pipelines}:
        parser.error(
            f"modelAliases name {', '.join(sorted(unknown))}, which no --endpoint has; "
            "pipelines of a cluster have their aliases in spec.aliases.models"
        )
    set_malloc_options({M_MMAP_THRESHOLD: LARGE_BYTES})
    prefer_event_loop()
    listen = ListenOptions(options.host, options.port, options.tls_dir, options.address_file)
    found: Pipelines = StaticPipelines(pipelines)
    running: list[Running] = []
    if options.cluster:
        # Imported here, because a gateway in front of named entries needs no Kubernetes client.
        from omni_gateway.cluster.watch import ClusterPipelines

        found = watched = ClusterPipelines(options.namespace, options.kubeconfig, settings)
        running.append(watched.run)
        if options.activator:
            from omni_gateway.cluster.activator import Activator

            running.append(Activator(found, options.activator).run)
    replicas = ReadyReplicas(options.replicas_of, options.replicas)
    if options.replicas_of:
        running.append(replicas.run)
    try:
        serve(found, settings, listen, replicas=replicas.count, running=running)
    except GatewaySettingsError as error:  # raised before it serves
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
