"""Options of `omnipipe gateway` and `omnipipe gateway-key`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.options.checks import require_gateway


def gateway(
    endpoint: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=URL",
            help="A pipeline: its name, and the grpc:// or grpcs:// URL of its entry; may be repeated.",
        ),
    ],
    http: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 means all addresses.")] = "127.0.0.1",
    config: Annotated[Path | None, typer.Option(metavar="YAML", help="Settings; see docs/gateway.md.")] = None,
    tls_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Serve https with tls.crt and tls.key of DIR.")
    ] = None,
) -> None:
    """Serve OpenAI's HTTP API, and a page to try it, in front of running pipelines.

    \b
    Examples:
      omnipipe gateway --endpoint qwen=grpc://127.0.0.1:50051
      omnipipe gateway --endpoint qwen=grpcs://omni.example.com:50051 --http 8080 --config gateway.yaml
    """
    require_gateway()
    from omni_gateway.__main__ import main as serve_gateway

    arguments = [f"--endpoint={one}" for one in endpoint]
    arguments += [f"--port={http}", f"--host={host}", "--log-format=text"]
    arguments += [f"--config={config}"] if config else []
    arguments += [f"--tls-dir={tls_dir}"] if tls_dir else []
    raise typer.Exit(serve_gateway(arguments))


def gateway_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key, for logs: letters, digits, . _ and -.")],
) -> None:
    """Make an API key for a gateway. Prints the key, and its entry for the gateway's key file. The key itself is not
    stored.

    \b
    Example:
      omnipipe gateway-key alice
    """
    require_gateway()
    from pydantic import ValidationError

    from omni_gateway.guard.keys import ApiKey, make_key

    key, digest = make_key()
    try:
        ApiKey(name=name, sha256=digest)
    except ValidationError as error:
        raise typer.BadParameter(
            "the name must have 1 to 63 letters, digits, dots, underscores and hyphens", param_hint="NAME"
        ) from error
    sys.stderr.write(f"key: {key}\n")
    # The quotes keep a name such as 123 from being read as a number.
    print(f'- {{name: "{name}", sha256: {digest}}}')
