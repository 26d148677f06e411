"""Settings of the operator process: flags, each with an environment variable of the same name; read once at the start.

`--api-qps 50` and `OMNI_OPERATOR_API_QPS=50` are equivalent; a flag takes precedence. Each setting is defined once, in
OperatorSettings.

pydantic-settings 2.16 is not used. With an alias for the flag and one for the variable, its errors do not say which of
the two was wrong, a variable without the prefix (`workers`) counts too, and --help lists each variable as a flag.
"""

from __future__ import annotations

import argparse
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias

from omni_operator.desired.build_settings import DEFAULT_IMAGE
from omni_operator.rollout.policy import EXTRA_ENGINE_ARGS, FORBIDDABLE
from omni_proto.pipeline.types.resource import OTLP_PATTERN
from omni_proto.runtime.logs import LogFormat

ENV_PREFIX: Final = "OMNI_OPERATOR_"
SERVICE_ACCOUNT_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

PullPolicy: TypeAlias = Literal["Always", "IfNotPresent", "Never"]

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_WORD: Final = r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?"
_LABEL: Final = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_WORD}=({_WORD})?", re.ASCII)
_HTTP_URL: Final = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")


class OperatorSettingsError(Exception):
    """A setting, or the object it refers to, is wrong. str() says what is wrong and what to give instead."""


class _WrongValue(ValueError):
    """A value is wrong. str() completes a sentence that begins with the name of the setting."""


_Reader: TypeAlias = Callable[[str], object]
"""Parses the text of a setting and returns its value. Raises _WrongValue."""


@dataclass(frozen=True, slots=True)
class _Number:
    kind: type[int] | type[float]
    minimum: float
    maximum: float
    unit: str = ""

    def __call__(self, text: str) -> float:
        try:
            value = self.kind(text)
        except ValueError:
            raise _WrongValue(f"is {text!r}, but must be a number") from None
        if not self.minimum <= value <= self.maximum:
            raise _WrongValue(f"is {value!r}, but must be from {self.minimum:.10g} to {self.maximum:.10g}{self.unit}")
        return value


@dataclass(frozen=True, slots=True)
class _Text:
    form: re.Pattern[str]
    problem: str

    def __call__(self, text: str) -> str:
        if not self.form.fullmatch(text):
            raise _WrongValue(f"{text!r} {self.problem}")
        return text


def _one_of(*choices: str) -> _Reader:
    def read(text: str) -> str:
        if text not in choices:
            raise _WrongValue(f"is {text!r}, but must be one of {', '.join(choices)}")
        return text

    return read


def _namespaces(names: Iterable[str]) -> tuple[str, ...]:
    read = _Text(_DNS_LABEL, "is not a valid namespace")
    return tuple(dict.fromkeys(read(name) for name in names))


def _split_namespaces(text: str) -> tuple[str, ...]:
    return _namespaces(part for part in re.split(r"[,\s]+", text) if part)


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    """Returns the pairs of KEY=VALUE,KEY=VALUE, sorted by key."""
    parts = [part for part in text.split(",") if part]
    for part in parts:
        if not _LABEL.fullmatch(part):
            raise _WrongValue(f"is {part!r}, but must be a label: KEY=VALUE")
    return tuple(sorted(dict(part.split("=", 1) for part in parts).items()))


def _fields(text: str) -> tuple[str, ...]:
    """Returns the names of FIELD,FIELD, each once."""
    names = tuple(dict.fromkeys(part for part in re.split(r"[,\s]+", text) if part))
    for name in names:
        if name not in FORBIDDABLE:
            raise _WrongValue(f"names {name!r}, but can name only {', '.join(FORBIDDABLE)}")
    return names


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise _WrongValue(f"is {text!r}, but must be true or false")
    return text == "true"


def _setting(default: Any, help_text: str, read: _Reader = str, **more: str) -> Any:
    """Returns a dataclass field whose metadata describes its flag.

    more: `name` of the flag, if it differs from the field's name; `action="switch"` for a flag without a value.
    """
    return field(default=default, metadata={"help": help_text, "read": read, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Settings that the process was started with. A flag has the name of its field without the unit (`_s`)."""

    kubeconfig: Path | None = _setting(None, "credentials; default: the pod's, else the default kubeconfig", Path)
    namespaces: tuple[str, ...] = _setting(
        (), "namespace to serve, may be repeated; default: the whole cluster", _split_namespaces, name="namespace"
    )
    default_image: str = _setting(DEFAULT_IMAGE, "image of stages that set none")
    image_pull_policy: PullPolicy | None = _setting(
        None,
        "pull policy of stage pods: Always, IfNotPresent or Never; default: Kubernetes' choice by the image's tag",
        _one_of("Always", "IfNotPresent", "Never"),
    )
    cluster_domain: str = _setting("cluster.local", "DNS domain of the cluster", _Text(_DNS_NAME, "is not a domain"))
    hub_endpoint: str | None = _setting(
        None,
        "URL of a mirror of the model hub; default: the public hub",
        _Text(_HTTP_URL, "is wrong: it must be an http or https URL"),
    )
    activator: str | None = _setting(
        None,
        "NAME:PORT of the gateway's pods, to which the Service of a pipeline that sleeps leads; default: nowhere",
        _Text(re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\.?:[1-9]\d{0,4}"), "is wrong: it must be NAME:PORT"),
    )
    otlp_endpoint: str | None = _setting(
        None,
        "OpenTelemetry collector of pipelines that set none; default: no traces",
        _Text(re.compile(OTLP_PATTERN.strip("^$")), "is wrong: it must be http://HOST:PORT or https://HOST:PORT"),
    )
    pod_monitors: bool = _setting(True, "write PodMonitors if the cluster has their API", _switch, action="switch")
    pod_monitor_labels: tuple[tuple[str, str], ...] = _setting(
        (), "labels by which Prometheus selects the PodMonitors: KEY=VALUE,KEY=VALUE", _labels
    )
    forbidden_fields: tuple[str, ...] = _setting(
        (), "fields that no pipeline may set, in defaults or in a stage: FIELD,FIELD such as env,volumes", _fields
    )
    allow_extra_engine_args: bool = _setting(
        False, "let pipelines give further arguments of vLLM (stages[].extraEngineArgs)", _switch, action="switch"
    )
    log_format: LogFormat = _setting("json", "json or text", _one_of("json", "text"))
    log_level: str = _setting("info", "debug, info, warning or error", _one_of("debug", "info", "warning", "error"))
    api_qps: float = _setting(
        200.0,
        "maximum API calls per second, not counting watches, lists and the lease; bursts may be twice as large",
        _Number(float, 0.1, 1e5),
    )
    max_pipelines: int = _setting(
        100, "maximum number of pipelines per namespace; the oldest are managed", _Number(int, 1, 1e5)
    )
    workers: int = _setting(4, "maximum number of pipelines reconciled at the same time", _Number(int, 1, 64))
    debounce_s: float = _setting(
        0.25,
        "seconds for which changes of a pipeline's children are collected before the pipeline is reconciled",
        _Number(float, 0, 10, " seconds"),
    )
    status_pause_s: float = _setting(
        1.0,
        "minimum seconds between two writes of a status that differ only in numbers and messages",
        _Number(float, 0, 60, " seconds"),
    )
    resync_s: float = _setting(
        300.0, "seconds after which every pipeline is reconciled again", _Number(float, 1, 86_400, " seconds")
    )
    health_port: int = _setting(8081, "/healthz and /readyz; 0: any free port", _Number(int, 0, 65_535))
    metrics_port: int = _setting(9090, "/metrics; 0: any free port", _Number(int, 0, 65_535))
    address_file: Path | None = _setting(None, "file that gets the ports as JSON once they are bound", Path)
    lease_name: str = _setting(
        "omnipipeline-operator", "name of the Lease for leader election", _Text(_DNS_NAME, "is not a valid object name")
    )
    lease_namespace: str = _setting(
        "default", "namespace of the Lease for leader election; default: the pod's, else the first that is served"
    )
    identity: str = _setting("", "this process's identity in the Lease; default: host name and a random part")
    lease_duration_s: int = _setting(
        15,
        "seconds after which another operator takes over from one that stopped renewing the Lease",
        _Number(int, 3, 300),
    )

    @property
    def policy(self) -> tuple[str, ...]:
        """Fields that no pipeline may set, for check_policy."""
        return self.forbidden_fields if self.allow_extra_engine_args else (*self.forbidden_fields, EXTRA_ENGINE_ARGS)


def describe_bounds(name: str) -> dict[str, Any]:
    """Returns the bounds of a setting as keywords of a JSON schema: of a number its minimum and maximum, of a text its
    pattern, which also allows the empty text, of a list of fields their names. Empty for other settings.

    Raises KeyError if there is no such setting.
    """
    read = {item.name: item.metadata["read"] for item in fields(OperatorSettings)}[name]
    match read:
        case _Number():
            return {"minimum": read.minimum, "maximum": read.maximum}
        case _Text():
            return {"pattern": f"^({read.form.pattern})?$"}
        case _ if read is _fields:
            return {"items": {"enum": list(FORBIDDABLE)}}
        case _:
            return {}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OperatorSettingsError(f"{message}; `python -m omni_operator --help` lists the flags")


def parse_settings(arguments: Sequence[str], environ: Mapping[str, str]) -> OperatorSettings:
    """Returns settings from flags, then environment variables, then defaults. Raises OperatorSettingsError."""
    flags = vars(_build_parser().parse_args(list(arguments)))
    values: dict[str, Any] = {}
    for item in fields(OperatorSettings):
        given = flags[item.name]
        variable = ENV_PREFIX + _flag_of(item).replace("-", "_").upper()
        if isinstance(given, bool):
            values[item.name] = given
        elif given is not None:
            values[item.name] = _read(f"--{_flag_of(item)}", item, given)
        elif environ.get(variable):
            values[item.name] = _read(variable, item, environ[variable])
    namespaces = values.get("namespaces", ())
    values["lease_namespace"] = values.get("lease_namespace") or _own_namespace(namespaces)
    values["identity"] = values.get("identity") or f"{socket.gethostname()}_{secrets.token_hex(4)}"
    return OperatorSettings(**values)


def _flag_of(item: Field[Any]) -> str:
    return str(item.metadata.get("name", item.name.removesuffix("_s").replace("_", "-")))


def _read(name: str, item: Field[Any], given: str | list[str]) -> object:
    try:
        return _namespaces(given) if isinstance(given, list) else item.metadata["read"](given)
    except _WrongValue as error:
        raise OperatorSettingsError(f"{name} {error}") from None


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m omni_operator",
        description="Runs OmniPipelines: one Deployment of stage pods per stage.",
        epilog=f"Every flag can be given as an environment variable: --api-qps as {ENV_PREFIX}API_QPS. "
        "Exit codes: 0 stopped by SIGTERM or SIGINT, 70 internal error, 78 bad settings or unreadable credentials.",
        allow_abbrev=False,
    )
    for item in fields(OperatorSettings):
        flag, text = f"--{_flag_of(item)}", item.metadata["help"]
        if item.metadata.get("action") == "switch":
            parser.add_argument(flag, dest=item.name, action=argparse.BooleanOptionalAction, help=text)
            continue
        action = "append" if item.metadata["read"] is _split_namespaces else "store"
        shown = "" if "default:" in text or item.default in (None, "", ()) else f" ({item.default})"
        metavar = _flag_of(item).replace("-", "_").upper()
        parser.add_argument(flag, dest=item.name, action=action, metavar=metavar, help=text + shown)
    return parser


def _own_namespace(namespaces: Sequence[str]) -> str:
    try:
        return SERVICE_ACCOUNT_NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        return namespaces[0] if namespaces else "default"
