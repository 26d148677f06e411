"""Options of `omnipipe run` and `omnipipe demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omni_cli.options.checks import PipelineFile, fail, read_pipeline, require_engine, require_gateway


def run(
    pipeline_file: PipelineFile,
    model_dir: Annotated[
        Path | None, typer.Option(help="Directory of the checkpoint, instead of spec.model.uri.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="gRPC port of the entry stage on 127.0.0.1; 0 takes a free one.")
    ] = 0,
    log_dir: Annotated[Path | None, typer.Option(help="Directory for the logs of the stages.")] = None,
    http: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Also run the HTTP gateway (OpenAI's API and a page), on this port; 0 takes a free one.",
        ),
    ] = None,
    address_file: Annotated[
        Path | None, typer.Option(help="File to write the addresses to, as JSON, once all stages are ready.")
    ] = None,
    tls_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Serve over TLS with tls.crt and tls.key (and ca.crt) of DIR.")
    ] = None,
    start_timeout: Annotated[float, typer.Option(min=1, help="Seconds in which all stages must become ready.")] = 900.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that stages may take to shut down.")] = 15.0,
) -> None:
    """Run a pipeline on this machine: one process per stage, with the same servers as in a cluster.

    Prints the address of the entry stage once every stage is ready.
    Ctrl-C stops everything. If a stage ends, the others are stopped, the name
    and the last log lines of that stage are shown, and the exit code is 1.

    \b
    Examples:
      omnipipe run manifests/samples/tiny-omni.yaml --model-dir /tmp/tiny-omni
      omnipipe run manifests/samples/sim-omni.yaml
      omnipipe run pipeline.yaml --port 50051 --log-dir logs
      omnipipe run pipeline.yaml --http 8000
    """
    from omni_cli.commands.run import run_pipeline
    from omni_cli.local.engines import find_model, needs_vllm
    from omni_cli.local.pipeline import LocalOptions, requires_client_certificates
    from omni_proto.pipeline import ModelPathError, resolve_model_path

    pipeline = read_pipeline(pipeline_file)
    if needs_vllm(pipeline):
        require_engine()
    if http is not None:
        require_gateway()
        if tls_dir is not None and requires_client_certificates(pipeline):
            raise fail(
                "spec.entry.tls.clientCertificates is Required, and the gateway of --http has no client certificate; "
                "leave out --http, and run omnipipe gateway with entryCertificate and entryKey in its settings"
            )
    try:
        model_path = find_model(Path(resolve_model_path(pipeline, str(model_dir) if model_dir else None))).resolve()
    except ModelPathError as error:
        raise fail(str(error)) from error
    if not (model_path / "config.json").is_file():
        raise fail(
            f"{model_path} holds no checkpoint (config.json is missing); give its directory with --model-dir DIR, "
            "or make a tiny one: omnipipe tiny-model DIR"
        )
    options = LocalOptions(
        model_path=str(model_path),
        port=port,
        log_dir=log_dir,
        tls_dir=tls_dir and tls_dir.resolve(),
        start_timeout_s=start_timeout,
        grace_s=grace,
        http_port=http,
    )
    raise typer.Exit(run_pipeline(pipeline, options, address_file))


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the results.")] = Path("demo-output"),
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model family of the demo, such as qwen3_omni.")
    ] = None,
) -> None:
    """Run a tiny speech model as three local processes and send it a text, an audio and an image prompt.

    Saves the text, the speech and a timeline of each answer under DIR, and stops
    everything. The exit code is 1 if anything failed.

    \b
    Example:
      omnipipe demo --out demo-output
    """
    from omni_cli.commands.demo import run_demo

    require_engine()
    raise typer.Exit(run_demo(out, family))
