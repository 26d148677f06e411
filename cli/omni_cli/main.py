"""The `omnipipe` command: its subcommands and their options, in the order in which `--help` lists them.

Each subcommand imports what it needs when it runs, so that `--help` is quick and the client's commands need neither
an engine nor a cluster.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.ask_options import bench, chat
from omni_cli.checks import (
    OutputFormat,
    PipelineFile,
    fail,
    print_as,
    read_pipeline,
    require_engine,
    require_gateway,
)
from omni_cli.cluster_options import doctor, init, list_pipelines, logs, top
from omni_cli.generate_options import generate
from omni_cli.plan_options import plan
from omni_cli.target_options import Context, Kubeconfig, Namespace

app = typer.Typer(
    name="omnipipe",
    epilog="Exit codes: 0 done, 1 failed or something is wrong, 2 wrong options, 130 ended by Ctrl-C.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    """Print the installed version and end, if --version was given."""
    if wanted:
        from omnipipeline import __version__

        print(f"omnipipe {__version__}")
        raise typer.Exit


@app.callback()
def omnipipe(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Run any-to-any models as pipelines of stage servers, and send requests to them."""


@app.command()
def run(
    pipeline_file: PipelineFile,
    model_dir: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[STAGE=]DIR",
            help="Directory of the checkpoint, instead of spec.model.uri; STAGE=DIR instead of the model of one stage. "
            "May be repeated.",
        ),
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
      omnipipe run pipeline.yaml --model-dir /models/omni --model-dir talker=/models/my-talker
    """
    from omni_cli.commands.run import find_models, needs_vllm, run_pipeline
    from omni_cli.local.pipeline import LocalOptions, requires_client_certificates
    from omni_proto.pipeline import ModelPathError

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
        model_paths = find_models(pipeline, model_dir or ())
    except ModelPathError as error:
        raise fail(str(error)) from error
    options = LocalOptions(
        model_path=model_paths,
        port=port,
        log_dir=log_dir,
        tls_dir=tls_dir and tls_dir.resolve(),
        start_timeout_s=start_timeout,
        grace_s=grace,
        http_port=http,
    )
    raise typer.Exit(run_pipeline(pipeline, options, address_file))


app.command()(generate)
app.command()(chat)
app.command()(bench)


@app.command()
def gateway(
    endpoint: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=[grpc[s]://]HOST:PORT",
            help="A pipeline: its name, and the address of its entry; may be repeated.",
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


@app.command("gateway-key")
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

    from omni_gateway.guard.keys import make_key
    from omni_gateway.rights import ApiKey

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


app.command()(init)


@app.command()
def validate(
    pipeline_files: Annotated[
        list[Path], typer.Argument(metavar="PIPELINE.yaml...", help="Files that hold OmniPipelines; - is stdin.")
    ],
    output: OutputFormat = None,
) -> None:
    """Check the pipelines in files, offline. Prints all problems of all of them.

    A file may have several documents; those of other kinds are ignored beside pipelines. Exit codes: 0 all are valid,
    1 a pipeline has a problem or a file cannot be read, 2 wrong options.

    Components that are not built in cause only a warning, because an image of your own may contain them. The command
    also warns about several devices that count as one GPU, edges without `mode` that could stream, and aliases of
    voices that the published checkpoints lack.

    \b
    Examples:
      omnipipe validate manifests/samples/qwen25-omni.yaml
      kustomize build overlays/prod | omnipipe validate - -o json
    """
    from omni_cli.commands.validate import validate_files

    reports = validate_files(pipeline_files)
    if output is None:
        for report in reports:
            report.write()
    else:
        print_as(output, [report.to_json() for report in reports])
    raise typer.Exit(int(any(report.problems for report in reports)))


@app.command()
def render(
    pipeline_file: PipelineFile,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the file's, else default.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Image of stages that set none. Default: the operator's default image.")
    ] = None,
    pod_monitors: Annotated[
        bool, typer.Option("--pod-monitors", help="Include PodMonitors, as in a cluster that has their API.")
    ] = False,
    output: OutputFormat = None,
) -> None:
    """Print the objects that the operator makes for a pipeline, as YAML documents. Needs no cluster.

    With -o, they are the items of one List.

    \b
    Examples:
      omnipipe render manifests/samples/qwen25-omni.yaml
      omnipipe render pipeline.yaml -n models --image registry.example/stage:1.2 | kubectl diff -f -
    """
    from omni_cli.commands.render import format_manifests, render_children
    from omni_operator.desired.build_settings import DEFAULT_IMAGE, BuildSettings

    pipeline = read_pipeline(pipeline_file)
    settings = BuildSettings(default_image=image or DEFAULT_IMAGE, pod_monitors=pod_monitors)
    manifests = render_children(pipeline, namespace or pipeline.metadata.namespace or "default", settings)
    if output is None:
        sys.stdout.write(format_manifests(manifests))
    else:
        print_as(output, {"apiVersion": "v1", "kind": "List", "items": manifests})


app.command()(plan)


@app.command()
def status(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the OmniPipeline.")],
    namespace: Namespace = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Draw it again after each change, until Ctrl-C.")
    ] = False,
    cost: Annotated[
        bool, typer.Option("--cost", help="Show what the pods cost and did since they started, by stage.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: OutputFormat = None,
) -> None:
    """Draw a pipeline in a cluster: its conditions, and its stages as a graph with readiness and reasons.

    With -o, prints the resource instead, with its status. With --cost, reads the metrics of the pods, through the API
    server.

    \b
    Examples:
      omnipipe status qwen25-omni -n models
      omnipipe status qwen25-omni -o json
      omnipipe status qwen25-omni --watch
      omnipipe status qwen25-omni --cost
    """
    from rich.console import Console

    from omni_cli.cluster.access import ClusterError, connect
    from omni_cli.commands import status as costs
    from omni_cli.commands.status import show_status
    from omni_cli.commands.top import TopError

    if watch and (cost or output is not None):
        raise typer.BadParameter("it is printed once; leave --watch, or --output and --cost, out", param_hint="--watch")
    try:
        if cost:
            found = costs.read_costs(connect(kubeconfig, namespace, context), name)
            if output is None:
                Console(highlight=False).print(costs.draw(found))
            else:
                print_as(output, costs.to_json(found))
            return
        if output is not None:
            print_as(output, connect(kubeconfig, namespace, context).pipeline(name))
            return
        show_status(connect(kubeconfig, namespace, context), name, watch, Console(highlight=False))
    except (ClusterError, TopError) as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


app.command("list")(list_pipelines)
app.command()(logs)
app.command()(top)
app.command()(doctor)


@app.command("tiny-model")
def tiny_model(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to write; created if it is missing.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    shape: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Set of layer sizes: small (default); some families also have gqa or wide."),
    ] = None,
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model family. Needed if several families have a tiny model.")
    ] = None,
) -> None:
    """Write a complete checkpoint of a few megabytes with random weights, for experiments and tests.

    Its output is meaningless, but the same on every run. A directory is refused if it has files that are not from an
    earlier tiny model.

    \b
    Example:
      omnipipe tiny-model /tmp/tiny-omni --family qwen2_5_omni
    """
    require_engine()
    from omni_cli.commands.tiny_model import TinyModelError, write_tiny_model

    try:
        write_tiny_model(directory, family=family, seed=seed, shape=shape)
    except TinyModelError as error:
        raise fail(str(error)) from error
    except OSError as error:
        raise fail(f"cannot write {error.filename or directory}: {error.strerror}") from error
    print(f"wrote {directory}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the results.")] = Path("demo-output"),
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model family of the demo, such as qwen3_omni.")
    ] = None,
    talk: Annotated[
        bool, typer.Option("--talk", help="Ask a spoken question, which Whisper base writes down.")
    ] = False,
    http: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65535, help="Then serve a page and OpenAI's API there, until Ctrl-C."),
    ] = None,
) -> None:
    """Run a text model that speaks, from real weights, as local processes, and ask it a few questions.

    Saves the text, the speech and a timeline of each answer under DIR, and then stops
    everything. The exit code is 1 if anything failed.

    \b
    Example:
      omnipipe demo --out demo-output
    """
    from omni_cli.commands.demo import run_demo

    require_engine()
    raise typer.Exit(run_demo(out, family, talk=talk, http=http))
