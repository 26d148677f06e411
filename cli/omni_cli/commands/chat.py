"""`omnipipe chat`: a conversation with a running pipeline, with media by path and from the microphone.

Answers are played where there is a player.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from omni_cli.commands.generate import InputFileError, ask, read_media
from omni_proto.client import (
    ArgumentError,
    ChatMessage,
    ClientTls,
    GenerateArguments,
    GenerationResult,
    OmniRequestError,
    Part,
    assistant,
    audio_part,
    image_part,
    system,
    user,
    video_part,
)

HELP: Final = """/image FILE, /audio FILE, /video FILE   attach a file to the next message
/record                                 speak: records until the next Enter, and sends it with what that line says
/save FILE.wav                          save the last answer's audio
/clear                                  forget the conversation
/help, /quit                            this list; the end (also Ctrl-D)
"""
_MEDIA: Final = {"/image": image_part, "/audio": audio_part, "/video": video_part}
_PLAYERS: Final = (
    ("pw-play",),
    ("paplay",),
    ("afplay",),
    ("aplay", "--quiet"),
    ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error"),
)


_RECORDERS: Final = (
    ("pw-record", "--rate=16000", "--channels=1"),
    ("parecord", "--file-format=wav", "--rate=16000", "--channels=1"),
    ("arecord", "--quiet", "--format=S16_LE", "--rate=16000", "--channels=1"),
    ("rec", "-q", "-r", "16000", "-c", "1"),
)
"""Programs that write a WAV file, whose name comes last, until SIGTERM. macOS has none: `rec` comes with SoX.

All end their file at SIGTERM as at SIGINT, which a shell that starts this program in the background ignores for it and
for its children.
"""
MAX_RECORDING_S: Final = 300
"""A recording that is forgotten ends by itself."""
_RECORDER_ENDS_S: Final = 60
"""How long a recorder may take to write the end of its file. On a busy machine, five seconds were not enough."""
_WAV_HEADER_BYTES: Final = 44


def find_recorder() -> tuple[str, ...] | None:
    """Returns the command of the first recorder that is installed, without the file; None if there is none."""
    return next((command for command in _RECORDERS if shutil.which(command[0])), None)


class RecordingError(RuntimeError):
    """The recorder wrote nothing. The message is for people."""


class Recording:
    """A running recorder. Its file is deleted with `stop`."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._program = command[0]
        self._folder = tempfile.TemporaryDirectory(prefix="omnipipe-")
        self._file = Path(self._folder.name, "spoken.wav")
        self._process = subprocess.Popen(
            [*command, str(self._file)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._limit = threading.Timer(MAX_RECORDING_S, self._process.terminate)
        self._limit.daemon = True
        self._limit.start()

    def stop(self) -> Part:
        """End the recording. Returns it as a part of a prompt. Raises RecordingError or InputFileError."""
        self._limit.cancel()
        self._process.terminate()
        try:
            try:
                said = self._process.communicate(timeout=_RECORDER_ENDS_S)[1]
            except subprocess.TimeoutExpired:
                self._process.kill()
                said = self._process.communicate()[1]
            if not self._file.exists() or self._file.stat().st_size <= _WAV_HEADER_BYTES:
                reason = said.strip()[:200] or "is there a microphone?"
                raise RecordingError(f"{self._program} recorded nothing: {reason}")
            return read_media(self._file, audio_part)
        finally:
            self._folder.cleanup()


def find_player() -> tuple[str, ...] | None:
    """Returns the command of the first player that is installed, without the file; None if there is none."""
    return next((command for command in _PLAYERS if shutil.which(command[0])), None)


@dataclass(slots=True)
class Chat:
    """A conversation. A message whose answer failed is not kept, so the next one is answered as if it had not been."""

    send: Callable[[Sequence[ChatMessage]], GenerationResult]
    """Asks for the answer to a conversation, and shows it. Raises OmniRequestError or ArgumentError."""
    report: Callable[[str], object]
    """Shows a line that is not part of the answer."""
    play: Callable[[GenerationResult], object] = lambda answer: None
    recorder: tuple[str, ...] | None = None
    """Command of /record, without the file; None: there is none."""
    recording: Recording | None = None
    """What /record began. The next line ends it."""
    history: list[ChatMessage] = field(default_factory=list)
    """All messages so far. Nothing bounds it here: the stage refuses a prompt beyond its maxModelLen by name."""
    attached: list[Part] = field(default_factory=list)
    """Media of the next message."""
    last: GenerationResult | None = None

    def take(self, line: str) -> bool:
        """Act on one line of the user: a command or a message. Returns whether the conversation continues."""
        if self.recording is not None and not self._end_recording():
            return True
        command, _, rest = line.strip().partition(" ")
        path = Path(rest.strip()).expanduser()
        if command in ("/quit", "/exit"):
            return False
        if command in _MEDIA:
            self._attach(command, path)
        elif command == "/clear":
            self.history = [message for message in self.history if message.role == "system"]
            self.attached = []
            self.report("(forgotten)")
        elif command == "/save":
            self._save(path)
        elif command == "/record":
            self._record()
        elif command.startswith("/"):
            self.report(HELP.rstrip() if command == "/help" else f"{command} is no command; /help lists them")
        elif line.strip():
            self._ask(line.strip())
        elif self.attached:
            self._ask("")
        return True

    def _attach(self, command: str, path: Path) -> None:
        try:
            self.attached.append(read_media(path, _MEDIA[command]))
        except InputFileError as error:
            self.report(f"error: {error}")
        else:
            self.report(f"({path.name} goes with the next message; an empty line sends it alone)")

    def _record(self) -> None:
        if self.recorder is None:
            self.report(f"no recorder is installed: one of {', '.join(name for name, *_ in _RECORDERS)} is needed")
            return
        self.recording = Recording(self.recorder)
        self.report("(recording; Enter sends it)")

    def _end_recording(self) -> bool:
        """Returns whether something was recorded."""
        recording, self.recording = self.recording, None
        try:
            if recording is not None:
                self.attached.append(recording.stop())
        except (RecordingError, InputFileError) as error:
            self.report(f"error: {error}")
            return False
        return True

    def _save(self, path: Path) -> None:
        if self.last is None or not self.last.audio:
            self.report("there is no answer with audio yet")
            return
        try:
            self.last.write_wav(path)
        except OSError as error:
            self.report(f"error: cannot write {path}: {error.strerror}")
        else:
            self.report(f"{path}: {self.last.audio_seconds:.2f} s of audio")

    def _ask(self, text: str) -> None:
        message = user(*self.attached, *([text] if text else []))
        try:
            answer = self.send([*self.history, message])
        except (OmniRequestError, ArgumentError) as error:
            self.report(f"error: {error}")
            return
        except KeyboardInterrupt:
            self.report("(cancelled)")
            return
        self.attached = []
        self.history.append(message)
        if answer.text:
            self.history.append(assistant(answer.text))
        self.last = answer
        for stage in answer.cut_stages:
            self.report(f"(stage {stage} reached its maximum length: the end is missing; --max-tokens may be larger)")
        self.play(answer)


def run_chat(
    endpoint: str,
    lines: Iterable[str],
    *,
    arguments: GenerateArguments,
    system_message: str = "",
    max_tokens: int | None = None,
    tls: ClientTls | None = None,
    player: tuple[str, ...] | None = None,
    recorder: tuple[str, ...] | None = None,
) -> int:
    """Answer each line until they end. Returns the exit status, 0."""

    def send(messages: Sequence[ChatMessage]) -> GenerationResult:
        request: GenerateArguments = {**arguments, "chat": list(messages)}
        return ask(endpoint, request, _show, max_tokens=max_tokens, tls=tls, show_heard=lambda t: report(f"heard: {t}"))

    def play(answer: GenerationResult) -> None:
        if player is None or not answer.audio:
            return
        with tempfile.NamedTemporaryFile(suffix=".wav") as file:
            answer.write_wav(file.name)
            # A player that fails, for example without an audio device, must not end the conversation.
            done = subprocess.run([*player, file.name], capture_output=True, text=True, check=False)
        if done.returncode:
            report(f"{player[0]} cannot play: {done.stderr.strip()[:200]}")

    def report(line: str) -> None:
        sys.stderr.write(f"{line.rstrip()}\n")

    chat = Chat(send, report, play, recorder, history=[system(system_message)] if system_message else [])
    for line in lines:
        if not chat.take(line):
            break
    if chat.recording is not None:
        with contextlib.suppress(RecordingError, InputFileError):
            chat.recording.stop()
    return 0


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def prompt_lines() -> Iterable[str]:
    """Yields lines of the terminal, with a prompt, editing and history where readline is there; or those of a pipe."""
    if not sys.stdin.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            # A line that is not UTF-8 is refused like any other wrong text, and the next ones are sent.
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        yield from sys.stdin
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - input() then edits lines
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            sys.stderr.write("\n")
            return
