"""Options of `omnipipe generate`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from omni_cli.checks import fail, require_plots, require_writable
from omni_cli.target_options import (
    Ca,
    Cert,
    Context,
    Endpoint,
    Key,
    Kubeconfig,
    Namespace,
    Pipeline,
    PipelineTarget,
    ServerName,
    Tls,
)


class ModalityOption(StrEnum):
    """The values of --modality."""

    TEXT = "text"
    AUDIO = "audio"
    TRANSCRIPT = "transcript"


def generate(
    endpoint: Endpoint = None,
    pipeline: Pipeline = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
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
    image: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="PNG, JPEG, WebP or GIF; may be repeated.")
    ] = None,
    audio: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="WAV, FLAC, MP3, AAC, Ogg, WebM or M4A; may be repeated.")
    ] = None,
    video: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="MP4, WebM, Matroska or QuickTime; may be repeated.")
    ] = None,
    use_audio_in_video: Annotated[
        bool, typer.Option("--use-audio-in-video", help="Let the model also hear the audio of the videos.")
    ] = False,
    voice: Annotated[str, typer.Option(help="Name of the voice.")] = "",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of every stage.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of the answer; for other stages use --sampling.")
    ] = None,
    sampling: Annotated[
        list[str] | None,
        typer.Option(metavar="STAGE.KEY=VALUE", help="A sampling parameter of a stage; may be repeated."),
    ] = None,
    priority: Annotated[
        int,
        typer.Option(
            min=-1000,
            max=1000,
            help="Lower numbers are served first. A busy stage refuses requests with a number above 0 earlier.",
        ),
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
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    server_name: ServerName = "",
) -> None:
    """Send a prompt to a running pipeline. Streams text to stdout and writes audio to a WAV file.

    \b
    Examples:
      omnipipe generate --endpoint 127.0.0.1:50051 --text "Tell me a story." --out story.wav
      omnipipe generate --endpoint 127.0.0.1:50051 --text "What is this?" --image cat.png --modality text
      omnipipe generate --endpoint 127.0.0.1:50051 --text "What happens?" --video cat.mp4 --use-audio-in-video
      omnipipe generate --endpoint 127.0.0.1:50051 --audio question.wav --out answer.wav --timeline lanes.png
      omnipipe generate --endpoint 127.0.0.1:50051 --text Hi --seed 7 --sampling talker.temperature=0.9
      omnipipe generate --endpoint 127.0.0.1:50051 --text "Read this." --reply "Good morning!" --out good.wav
      omnipipe generate --endpoint 127.0.0.1:50051 --prompt-embeds rows.npy --priority 10
      omnipipe generate --pipeline qwen25-omni -n models --text Hi
      omnipipe generate --endpoint grpcs://omni.models.svc:50051 --ca ca.crt --text Hi
    """
    from omni_cli.commands.generate import (
        InputFileError,
        Outputs,
        SamplingOptionError,
        parse_sampling,
        read_prompt,
        run_generate,
    )
    from omni_proto.client import GenerateArguments

    given = sum(item is not None for item in (text, prompt_file, prompt_embeds))
    if given > 1 or not (given or image or audio or video):
        raise typer.BadParameter(
            "pass the prompt with exactly one of --text, --prompt-file and --prompt-embeds, or as media alone"
        )
    if prompt_embeds and (raw or system or image or audio or video):
        raise typer.BadParameter("--prompt-embeds is the whole prompt: leave out --raw, --system and all media")
    if raw and (system or image or audio or video):
        raise typer.BadParameter("--raw takes no --system and no media: they need the chat template")
    if use_audio_in_video and not video:
        raise typer.BadParameter("--use-audio-in-video needs --video")
    if out and modality and ModalityOption.AUDIO not in modality:
        raise typer.BadParameter("--out needs --modality audio")
    if timeline is not None:
        require_plots("--timeline", timeline)
    require_writable(out, timeline, trace, json_file)
    try:
        arguments: GenerateArguments = {
            "sampling": parse_sampling(sampling or []),
            **read_prompt(
                text,
                prompt_file,
                embeds=prompt_embeds,
                raw=raw,
                system=system,
                images=image or (),
                audios=audio or (),
                videos=video or (),
            ),
            "use_audio_in_video": use_audio_in_video,
            "voice": voice,
            "seed": seed,
            "priority": priority,
            "cache_salt": cache_salt,
            "reply": reply,
            "modalities": [item.value for item in modality or ()],
            "timeout": timeout,
        }
    except SamplingOptionError as error:
        raise typer.BadParameter(str(error)) from error
    except InputFileError as error:
        raise fail(str(error)) from error
    outputs = Outputs(out, timeline, trace, json_file)
    with PipelineTarget(
        endpoint, pipeline, namespace, kubeconfig, context, tls, ca, cert, key, server_name
    ).open() as reached:
        address, client_tls = reached
        status = run_generate(address, arguments, outputs, max_tokens=max_tokens, tls=client_tls)
    raise typer.Exit(status)
