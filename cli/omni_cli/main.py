"""The `omnipipe` command. Each subcommand imports what it needs when it runs, so that `--help` is quick and the
client's commands need neither an engine nor a cluster."""

from __future__ import annotations

import sys
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from omni_proto.pipeline import OmniPipeline

app = typer.Typer(
    name="omnipipe",
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


PipelineFile = Annotated[Path, typer.Argument(metavar="PIPELINE.yaml", help="File that holds one OmniPipeline.")]


class ModalityOption(StrEnum):
    """What --modality takes."""

    TEXT = "text"
    AUDIO = "audio"


def fail(message: str) -> typer.Exit:
    """Print an error and make the exit that goes with it."""
    sys.stderr.write(f"error: {message}\n")
    return typer.Exit(1)


def require_engine() -> None:
    """Print which extra to install and exit 1 where no engine is installed."""
    if find_spec("vllm") is None:
        raise fail("no engine is installed: pip install 'omnipipeline[cpu]' or 'omnipipeline[gpu]'")


def require_gateway() -> None:
    """Print which extra to install and exit 1 where the gateway's packages are missing."""
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "av")):
        raise fail("the gateway's packages are not installed: pip install 'omnipipeline[gateway]'")


def read_pipeline(path: Path) -> OmniPipeline:
    """The pipeline in the file. Prints every problem and exits 1 if there is one."""
    from omni_proto.pipeline import PipelineError
    from omni_proto.pipeline.read.offline import load_checked

    try:
        return load_checked(path)
    except PipelineError as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(1) from error


@app.command()
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
        typer.Option(min=0, max=65535, help="Serve OpenAI's API and a page on this port too; 0 takes a free one."),
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
    Ctrl-C stops everything. If a stage ends, the others are stopped, its name
    and the last lines of its log are shown, and the exit code is 1.

    \b
    Examples:
      omnipipe run manifests/samples/tiny-omni.yaml --model-dir /tmp/tiny-omni
      omnipipe run manifests/samples/sim-omni.yaml
      omnipipe run pipeline.yaml --port 50051 --log-dir logs
      omnipipe run pipeline.yaml --http 8000
    """
    from omni_cli.commands.run import run_pipeline
    from omni_cli.local.engines import find_model, needs_vllm
    from omni_cli.local.pipeline import LocalOptions
    from omni_proto.pipeline import ModelPathError, resolve_model_path

    pipeline = read_pipeline(pipeline_file)
    if needs_vllm(pipeline):
        require_engine()
    if http is not None:
        require_gateway()
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


@app.command()
def generate(
    endpoint: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the entry stage, or the url of a pipeline's status.")
    ],
    text: Annotated[str | None, typer.Option(help="The prompt.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="File with the prompt, instead of --text; - is stdin.")
    ] = None,
    prompt_embeds: Annotated[
        Path | None,
        typer.Option(metavar="NPY", help="Embeddings [rows, hidden size] instead of text; the stage must accept them."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send the prompt unchanged, without the chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    image: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="PNG or JPEG; may be repeated.")] = None,
    audio: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="WAV or FLAC; may be repeated.")] = None,
    voice: Annotated[str, typer.Option(help="Name of the voice.")] = "",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of every stage.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of the entry stage; for other stages use --sampling.")
    ] = None,
    sampling: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE.KEY=VALUE", help="A sampling parameter of a stage; may be repeated."),
    ] = None,
    priority: Annotated[
        int, typer.Option(min=-1000, max=1000, help="Lower numbers are served first; above 0 yields to all others.")
    ] = 0,
    cache_salt: Annotated[str, typer.Option(help="Share cached prefixes only with requests of this salt.")] = "",
    reply: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Speak this text, instead of a reply that the model writes.")
    ] = None,
    modality: Annotated[
        list[ModalityOption] | None, typer.Option(help="What to return; may be repeated. Default: all.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="WAV", help="Write the audio to this file.")] = None,
    timeline: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Save a timeline of what each stage did.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Save the timeline in Perfetto's (Chrome's) trace format.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the response to this file, without the audio.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Deadline in seconds.")] = 300.0,
    tls: Annotated[bool, typer.Option("--tls", help="Connect over TLS, as grpcs://HOST:PORT does.")] = False,
    ca: Annotated[
        Path | None, typer.Option(metavar="PEM", help="CAs to trust, instead of the public ones; means --tls.")
    ] = None,
    cert: Annotated[Path | None, typer.Option(metavar="PEM", help="The client's own certificate; means --tls.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="PEM", help="The key of --cert.")] = None,
    server_name: Annotated[
        str, typer.Option(help="Name that the server's certificate must have; means --tls. Default: the host.")
    ] = "",
) -> None:
    """Send a prompt to a running pipeline. Streams text to stdout and writes audio to a WAV file.

    \b
    Examples:
      omnipipe generate --endpoint 127.0.0.1:50051 --text "Tell me a story." --out story.wav
      omnipipe generate --endpoint 127.0.0.1:50051 --text "What is this?" --image cat.png --modality text
      omnipipe generate --endpoint 127.0.0.1:50051 --text Hi --audio question.wav --timeline lanes.png
      omnipipe generate --endpoint 127.0.0.1:50051 --text Hi --seed 7 --sampling talker.temperature=0.9
      omnipipe generate --endpoint 127.0.0.1:50051 --text "Read this." --reply "Good morning!" --out good.wav
      omnipipe generate --endpoint 127.0.0.1:50051 --prompt-embeds rows.npy --priority 10
      omnipipe generate --endpoint grpcs://omni.models.svc:50051 --ca ca.crt --text Hi
    """
    from omni_cli.commands.generate import GenerateOptions, InputFileError, run_generate
    from omni_cli.sampling import SamplingOptionError, parse_sampling
    from omni_proto.client import ClientTls

    if sum(item is not None for item in (text, prompt_file, prompt_embeds)) != 1:
        raise typer.BadParameter("pass the prompt with exactly one of --text, --prompt-file and --prompt-embeds")
    if prompt_embeds and (raw or system or image or audio):
        raise typer.BadParameter("--prompt-embeds is the whole prompt: leave out --raw, --system, --image and --audio")
    if raw and (system or image or audio):
        raise typer.BadParameter("--raw takes no --system, --image or --audio: they need the chat template")
    if out and modality and ModalityOption.AUDIO not in modality:
        raise typer.BadParameter("--out needs --modality audio")
    try:
        options = GenerateOptions(
            endpoint=endpoint,
            text=text,
            prompt_file=prompt_file,
            prompt_embeds=prompt_embeds,
            raw=raw,
            system=system,
            images=tuple(image or ()),
            audios=tuple(audio or ()),
            voice=voice,
            seed=seed,
            max_tokens=max_tokens,
            sampling=parse_sampling(sampling or []),
            priority=priority,
            cache_salt=cache_salt,
            reply=reply,
            modalities=tuple(item.value for item in modality or ()),
            out=out,
            timeline=timeline,
            trace=trace,
            json_file=json_file,
            timeout_s=timeout,
            tls=ClientTls(ca, cert, key, server_name) if tls or ca or cert or key or server_name else None,
        )
        raise typer.Exit(run_generate(options))
    except SamplingOptionError as error:
        raise typer.BadParameter(str(error)) from error
    except InputFileError as error:
        raise fail(str(error)) from error


@app.command()
def gateway(
    endpoint: Annotated[
        list[str],
        typer.Option(metavar="NAME=URL", help="A pipeline: its name, and grpc://HOST:PORT of its entry; repeatable."),
    ],
    http: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one.")] = "127.0.0.1",
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
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key, for logs.")],
) -> None:
    """Make an API key of a gateway: prints the key, and its entry for the gateway's file of keys.

    The key itself is kept nowhere.

    \b
    Example:
      omnipipe gateway-key alice
    """
    require_gateway()
    from omni_gateway.guard.keys import make_key

    key, digest = make_key()
    sys.stderr.write(f"key: {key}\n")
    print(f"- {{name: {name}, sha256: {digest}}}")


@app.command()
def validate(pipeline_file: PipelineFile) -> None:
    """Check a pipeline file, offline. Prints every problem at once; exit code 1 if there is one.

    Warns of a component that is not built in: an image of your own may bring it. Warns of an edge without `mode` that
    could stream.

    \b
    Example:
      omnipipe validate manifests/samples/qwen25-omni.yaml
    """
    from omni_proto.pipeline import order_stages
    from omni_proto.pipeline.rules.component_checks import list_late_edges, list_unknown_components

    pipeline = read_pipeline(pipeline_file)
    for warning in (*list_unknown_components(pipeline), *list_late_edges(pipeline)):
        sys.stderr.write(f"warning: {pipeline_file}: {warning}\n")
    names = " -> ".join(stage.name for stage in order_stages(pipeline))
    print(f"OK: {pipeline.metadata.name}, {len(pipeline.spec.stages)} stages: {names}")


@app.command()
def render(
    pipeline_file: PipelineFile,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the file's, else default.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Image of stages that name none. Default: the operator's default image.")
    ] = None,
    pod_monitors: Annotated[
        bool, typer.Option("--pod-monitors", help="Include PodMonitors, as in a cluster that has their API.")
    ] = False,
) -> None:
    """Print the objects that the operator makes for a pipeline, as YAML. Needs no cluster.

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
    sys.stdout.write(format_manifests(manifests))


@app.command()
def status(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the OmniPipeline.")],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace. Default: that of the kubeconfig's context.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Draw it again after each change, until Ctrl-C.")
    ] = False,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Credentials. Default: KUBECONFIG, else ~/.kube/config.")
    ] = None,
) -> None:
    """Draw a pipeline in a cluster: its conditions, and its stages as a graph with readiness and reasons.

    \b
    Examples:
      omnipipe status qwen25-omni -n models
      omnipipe status qwen25-omni --watch
    """
    from rich.console import Console

    from omni_cli.commands.status import StatusError, show_status

    try:
        show_status(name, kubeconfig, namespace, watch, Console(highlight=False))
    except StatusError as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


@app.command("tiny-model")
def tiny_model(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to write; created if it is missing.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    shape: Annotated[
        str | None, typer.Option(metavar="NAME", help="Sizes; gqa has grouped-query attention. Default: small.")
    ] = None,
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model family. Default: the one that has a tiny model.")
    ] = None,
) -> None:
    """Write a complete checkpoint of a few megabytes with random weights, for experiments and tests.

    Its output is meaningless, but the same on every run.

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
) -> None:
    """Run a tiny speaking model as three local processes and send it a text, an audio and an image prompt.

    Saves the text, the speech and a timeline of each under DIR, and stops
    everything. Exit code 1 on any failure.

    \b
    Example:
      omnipipe demo --out demo-output
    """
    from omni_cli.commands.demo import run_demo

    require_engine()
    raise typer.Exit(run_demo(out))
