"""Settings of the operator process: flags, each with an environment variable of the same name; read once at the start.

`--api-qps 50` and `OMNI_OPERATOR_API_QPS=50` are the same; a flag wins.
"""

from __future__ import annotations

import argparse
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NoReturn, cast

from omni_operator.desired.build_settings import DEFAULT_IMAGE
from omni_proto.logs import LogFormat

ENV_PREFIX: Final = "OMNI_OPERATOR_"
SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_WORD = r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?"
_LABEL = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_WORD}=({_WORD})?", re.ASCII)
_HTTP_URL = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")

PullPolicy = Literal["Always", "IfNotPresent", "Never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """What the process was started with."""

    kubeconfig: Path | None = None
    """Credentials file. None: those of the pod, else the default kubeconfig."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty is the whole cluster."""
    default_image: str = DEFAULT_IMAGE
    """Image of stages that name none."""
    image_pull_policy: PullPolicy | None = None
    """Pull policy of stage pods. None: Kubernetes' choice by the image's tag."""
    cluster_domain: str = "cluster.local"
    """DNS domain of the cluster."""
    hub_endpoint: str | None = None
    """URL of a mirror of the model hub; None is the public hub."""
    pod_monitors: bool = True
    """Write PodMonitors where the cluster has that API."""
    pod_monitor_labels: tuple[tuple[str, str], ...] = ()
    """Their labels by which a Prometheus selects them."""
    log_format: LogFormat = "json"
    log_level: str = "info"
    api_qps: float = 200.0
    """Most calls a second, watches and the lease apart; twice as many at once."""
    max_pipelines: int = 100
    """Pipelines of a namespace that are worked on, the oldest first."""
    workers: int = 4
    """Pipelines worked on at the same time."""
    debounce_s: float = 0.25
    """Time in which changes of a pipeline's children are collected before it is reconciled."""
    status_pause_s: float = 1.0
    """Least time between two writes of a status of which only numbers differ."""
    resync_s: float = 300.0
    """Every pipeline is reconciled this often even if nothing happens."""
    health_port: int = 8081
    """/healthz and /readyz; 0 is any free port."""
    metrics_port: int = 9090
    """/metrics; 0 is any free port."""
    address_file: Path | None = None
    """Where to write the ports as JSON once they are bound; for tests and local runs."""
    lease_name: str = "omnipipeline-operator"
    lease_namespace: str = "default"
    identity: str = ""
    """Who holds the lease; unique to this process."""
    lease_duration_s: int = 15
    """How long another operator waits before it takes over from one that went silent."""


class SettingsError(Exception):
    """A setting, or what it names, is wrong. str() names the setting, the value and what is possible."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message}; `python -m omni_operator --help` lists the flags")


def parse_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> OperatorSettings:
    """Settings from flags, then environment variables, then defaults. Raises SettingsError naming what is wrong."""
    parser = _build_parser()
    parser.set_defaults(**_read_environment(parser, environ))
    options = parser.parse_args(list(arguments))
    namespaces = tuple(dict.fromkeys(options.namespace))
    for namespace in namespaces:
        _check(bool(_DNS_LABEL.fullmatch(namespace)), "--namespace", namespace, "is no name of a namespace")
    _check(
        bool(_DNS_NAME.fullmatch(options.cluster_domain)), "--cluster-domain", options.cluster_domain, "is no domain"
    )
    hub = options.hub_endpoint
    _check(hub is None or bool(_HTTP_URL.fullmatch(hub)), "--hub-endpoint", hub, "must be an http or https URL")
    _check(bool(_DNS_NAME.fullmatch(options.lease_name)), "--lease-name", options.lease_name, "is no object name")
    _check(0.1 <= options.api_qps <= 100_000, "--api-qps", options.api_qps, "must be from 0.1 to 100000")
    _check(1 <= options.max_pipelines <= 100_000, "--max-pipelines", options.max_pipelines, "must be from 1 to 100000")
    _check(1 <= options.workers <= 64, "--workers", options.workers, "must be from 1 to 64")
    _check(0 <= options.debounce <= 10, "--debounce", options.debounce, "must be from 0 to 10 seconds")
    _check(0 <= options.status_pause <= 60, "--status-pause", options.status_pause, "must be from 0 to 60 seconds")
    _check(1 <= options.resync <= 86_400, "--resync", options.resync, "must be from 1 to 86400 seconds")
    _check(3 <= options.lease_duration <= 300, "--lease-duration", options.lease_duration, "must be from 3 to 300")
    for flag, port in (("--health-port", options.health_port), ("--metrics-port", options.metrics_port)):
        _check(0 <= port <= 65_535, flag, port, "must be from 0 to 65535")
    return OperatorSettings(
        kubeconfig=options.kubeconfig,
        namespaces=namespaces,
        default_image=options.default_image,
        image_pull_policy=options.image_pull_policy,
        cluster_domain=options.cluster_domain,
        hub_endpoint=options.hub_endpoint,
        pod_monitors=options.pod_monitors,
        pod_monitor_labels=_parse_labels("--pod-monitor-labels", options.pod_monitor_labels),
        log_format=options.log_format,
        log_level=options.log_level,
        api_qps=options.api_qps,
        max_pipelines=options.max_pipelines,
        workers=options.workers,
        debounce_s=options.debounce,
        status_pause_s=options.status_pause,
        resync_s=options.resync,
        health_port=options.health_port,
        metrics_port=options.metrics_port,
        address_file=options.address_file,
        lease_name=options.lease_name,
        lease_namespace=options.lease_namespace or _own_namespace(namespaces),
        identity=options.identity or f"{socket.gethostname()}_{secrets.token_hex(4)}",
        lease_duration_s=options.lease_duration,
    )


def _build_parser() -> argparse.ArgumentParser:
    defaults = OperatorSettings()
    parser = _Parser(
        prog="python -m omni_operator",
        description="Runs OmniPipelines: one Deployment of stage pods per stage.",
        epilog=f"Every flag can be given as an environment variable: --api-qps as {ENV_PREFIX}API_QPS. "
        "Exit codes: 0 stopped by SIGTERM or SIGINT, 70 internal error, 78 bad settings.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--kubeconfig", type=Path, help="credentials; default: those of the pod, else the default kubeconfig")
    add(
        "--namespace",
        action="append",
        default=[],
        help="namespace to serve, may be repeated; default: the whole cluster",
    )
    add("--default-image", default=defaults.default_image, help="image of stages that name none (%(default)s)")
    add(
        "--image-pull-policy",
        choices=("Always", "IfNotPresent", "Never"),
        help="pull policy of stage pods; default: Kubernetes' choice by the image's tag",
    )
    add("--cluster-domain", default=defaults.cluster_domain, help="DNS domain of the cluster (%(default)s)")
    add("--hub-endpoint", help="URL of a mirror of the model hub; default: the public hub")
    add(
        "--pod-monitors",
        action=argparse.BooleanOptionalAction,
        default=defaults.pod_monitors,
        help="write PodMonitors where the cluster has that API",
    )
    add("--pod-monitor-labels", default="", help="labels by which Prometheus selects them: KEY=VALUE,KEY=VALUE")
    add("--log-format", choices=("json", "text"), default=defaults.log_format, help="(%(default)s)")
    add("--log-level", choices=("debug", "info", "warning", "error"), default=defaults.log_level, help="(%(default)s)")
    add("--api-qps", type=float, default=defaults.api_qps, help="most API calls a second (%(default)s)")
    add(
        "--max-pipelines",
        type=int,
        default=defaults.max_pipelines,
        help="pipelines of a namespace that are worked on, the oldest first (%(default)s)",
    )
    add("--workers", type=int, default=defaults.workers, help="pipelines worked on at the same time (%(default)s)")
    add(
        "--debounce",
        type=float,
        default=defaults.debounce_s,
        help="seconds in which changes are collected (%(default)s)",
    )
    add(
        "--status-pause",
        type=float,
        default=defaults.status_pause_s,
        help="least seconds between two writes of a status of which only numbers differ (%(default)s)",
    )
    add(
        "--resync",
        type=float,
        default=defaults.resync_s,
        help="seconds between reconciles of every pipeline (%(default)s)",
    )
    add("--health-port", type=int, default=defaults.health_port, help="/healthz, /readyz; 0: any (%(default)s)")
    add("--metrics-port", type=int, default=defaults.metrics_port, help="/metrics; 0: any (%(default)s)")
    add("--address-file", type=Path, help="file that gets the ports as JSON once they are bound")
    add("--lease-name", default=defaults.lease_name, help="Lease by which one operator writes (%(default)s)")
    add("--lease-namespace", default="", help="its namespace; default: the pod's, else the first that is served")
    add("--identity", default="", help="who holds the lease; default: host name and a random part")
    add("--lease-duration", type=int, default=defaults.lease_duration_s, help="seconds (%(default)s)")
    return parser


def _read_environment(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> dict[str, object]:
    """Values of the parser's options that the environment holds."""
    values: dict[str, object] = {}
    for action in parser._actions:
        name = ENV_PREFIX + action.dest.upper()
        text = environ.get(name, "")
        if not text or action.dest == "help":
            continue
        if action.dest == "namespace":
            values["namespace"] = [part for part in re.split(r"[,\s]+", text) if part]
        elif isinstance(action, argparse.BooleanOptionalAction):
            _check(text in ("true", "false"), name, text, "must be true or false")
            values[action.dest] = text == "true"
        else:
            if action.choices is not None:
                _check(text in action.choices, name, text, f"must be one of {', '.join(action.choices)}")
            values[action.dest] = _convert(name, action, text)
    return values


def _convert(name: str, action: argparse.Action, text: str) -> object:
    convert = action.type
    if not callable(convert):
        return text
    try:
        return cast(object, convert(text))
    except ValueError:
        raise SettingsError(f"{name} is {text!r}, but must be a number") from None


def _parse_labels(flag: str, text: str) -> tuple[tuple[str, str], ...]:
    """KEY=VALUE,KEY=VALUE as pairs, in the order of their keys."""
    parts = [part for part in text.split(",") if part]
    for part in parts:
        _check(bool(_LABEL.fullmatch(part)), flag, part, "must be a label: KEY=VALUE")
    return tuple(sorted(dict(part.split("=", 1) for part in parts).items()))


def _check(right: bool, name: str, value: object, problem: str) -> None:
    if not right:
        raise SettingsError(
            f"{name} is {value!r}, but {problem}" if "must" in problem else f"{name} {value!r} {problem}"
        )


def _own_namespace(namespaces: Sequence[str]) -> str:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        return namespaces[0] if namespaces else "default"
