"""Options that say which pipeline a command talks to: an endpoint, or the name of a pipeline in a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omni_cli.checks import fail

if TYPE_CHECKING:
    from omni_proto.client import ClientTls

VARIABLE = "OMNIPIPE_ENDPOINT"
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="[grpc[s]://]HOST:PORT",
        envvar=VARIABLE,
        help="Address of the entry stage, or the url of a pipeline's status.",
    ),
]
Pipeline = Annotated[
    str | None,
    typer.Option(
        "--pipeline",
        metavar="NAME",
        help="Name of an OmniPipeline in the cluster, whose entry is reached through the API server; instead of "
        "--endpoint.",
    ),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace. Default: that of the kubeconfig's context.")
]
Kubeconfig = Annotated[Path | None, typer.Option(help="Credentials. Default: KUBECONFIG, else ~/.kube/config.")]
Context = Annotated[str | None, typer.Option(metavar="NAME", help="Context. Default: the kubeconfig's current one.")]
Tls = Annotated[bool, typer.Option("--tls", help="Connect over TLS, as grpcs://HOST:PORT does.")]
Ca = Annotated[
    Path | None, typer.Option(metavar="PEM", help="CAs to trust, instead of the public ones; implies --tls.")
]
Cert = Annotated[Path | None, typer.Option(metavar="PEM", help="The client's own certificate; implies --tls.")]
Key = Annotated[Path | None, typer.Option(metavar="PEM", help="The key of --cert.")]
ServerName = Annotated[
    str, typer.Option(help="Name that the server's certificate must have; implies --tls. Default: the host.")
]


@dataclass(frozen=True, slots=True)
class PipelineTarget:
    """The pipeline that a command talks to."""

    endpoint: str | None
    pipeline: str | None
    namespace: str | None
    kubeconfig: Path | None
    context: str | None
    tls: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""

    def check(self) -> None:
        """Raises BadParameter unless exactly one of --endpoint and --pipeline is given. A pipeline takes precedence
        over the variable."""
        if self.pipeline is not None and self.endpoint not in (None, os.environ.get(VARIABLE)):
            raise typer.BadParameter("--endpoint and --pipeline are both given; keep one", param_hint="--pipeline")
        if self.pipeline is None and not self.endpoint:
            raise typer.BadParameter(
                "give the address of the entry stage, or --pipeline NAME for a pipeline in the cluster",
                param_hint="--endpoint",
            )

    @contextmanager
    def open(self) -> Iterator[tuple[str, ClientTls | None]]:
        """Yields the endpoint and the TLS settings for a client. If the cluster refuses, exits with code 1."""
        from omni_proto.client import ClientTls

        self.check()
        asked = self.tls or self.ca or self.cert or self.key or self.server_name
        tls = ClientTls(self.ca, self.cert, self.key, self.server_name) if asked else None
        if self.pipeline is None:
            yield self.endpoint or "", tls
            return
        from omni_cli.cluster.access import ClusterError, connect
        from omni_cli.cluster.forward import forward_entry

        try:
            with forward_entry(connect(self.kubeconfig, self.namespace, self.context), self.pipeline, tls) as reached:
                yield reached
        except ClusterError as error:
            raise fail(str(error)) from error
