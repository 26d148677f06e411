"""The gateway of a local run: one more process, in front of the entry stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from omni_cli.local.ports import LOOPBACK
from omni_cli.local.processes import RUN_MODULE

if TYPE_CHECKING:
    from omni_cli.local.pipeline import LocalOptions
    from omni_proto.pipeline import OmniPipeline

GATEWAY: Final = "gateway"
"""Name of the process, of its log and of its files."""


def gateway_command(pipeline: str, endpoint: str, port: int) -> tuple[str, ...]:
    """Returns the program and its arguments, without --config and --address-file, which StageProcess adds."""
    url = endpoint if "://" in endpoint else f"grpc://{endpoint}"
    command = (*RUN_MODULE, "omni_gateway", "--log-format", "text")
    return (*command, "--endpoint", f"{pipeline}={url}", "--host", LOOPBACK, "--port", str(port))


def gateway_settings(pipeline: OmniPipeline, options: LocalOptions) -> str:
    """Returns the gateway's settings as YAML. The drain has no notice period, because there is no load balancer."""
    aliases = pipeline.spec.aliases
    settings: dict[str, object] = {
        "drainNoticeSeconds": 0,
        "drainSeconds": int(options.grace_s),
        "modelAliases": dict.fromkeys(aliases.models, pipeline.metadata.name),
        "voiceAliases": dict(aliases.voices),
    }
    if options.ca is not None:
        settings["entryCa"] = str(options.ca)
    return yaml.safe_dump(settings)


def read_http_url(address: Path) -> str:
    """Returns the gateway's URL from the address file that it writes once it is ready."""
    return str(json.loads(address.read_text(encoding="utf-8"))["http"])
