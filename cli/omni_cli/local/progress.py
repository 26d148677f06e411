"""Shows progress while weights are fetched and engines load: bars on a terminal, elsewhere a line for each change."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_LINE_BYTES: Final = 25_000_000
"""Without a terminal, a line is printed each time this many bytes have come."""


class StartProgress(Protocol):
    """Shows the progress of a pipeline's stages while they start."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def loading(self, stage: str) -> None:
        """Show that the stage's process has started."""

    def ready(self, stage: str, seconds: float) -> None:
        """Show that the stage is ready, this many seconds after its start."""


class PlainProgress:
    """Prints one line for each change, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def loading(self, stage: str) -> None:
        """Print that the stage loads."""
        self._console.print(f"{stage}: loading", highlight=False, markup=False)

    def ready(self, stage: str, seconds: float) -> None:
        """Print that the stage is ready."""
        self._console.print(f"{stage}: ready after {seconds:.1f} s", highlight=False, markup=False)


class TerminalProgress:
    """Shows a spinner for each stage."""

    def __init__(self, console: Console, stages: Sequence[str]) -> None:
        width = max(len(stage) for stage in stages)
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn(f"{{task.fields[stage]:<{width}}}"),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def loading(self, stage: str) -> None:
        """Show a spinner."""
        if stage in self._tasks:
            self._progress.reset(self._tasks[stage], description="loading", total=1)
        else:
            self._tasks[stage] = self._progress.add_task("loading", total=1, stage=stage)

    def ready(self, stage: str, seconds: float) -> None:
        """Show a tick."""
        self._progress.update(self._tasks[stage], completed=1, description="ready")


def make_progress(console: Console, stages: Sequence[str]) -> StartProgress:
    """Returns the progress display that suits the console."""
    return TerminalProgress(console, stages) if console.is_terminal else PlainProgress(console)


class FetchProgress:
    """Shows how many bytes of each file have been downloaded. Shows nothing if there is no download."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console)
        self._tasks: dict[str, TaskID] = {}
        self._printed: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, name: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes have come."""
        if self._console.is_terminal:
            if name not in self._tasks:
                self._progress.start()
                self._tasks[name] = self._progress.add_task(f"downloading {name}", total=total)
            self._progress.update(self._tasks[name], completed=done)
        elif done // _LINE_BYTES > self._printed.get(name, -1) or (done == total and self._printed.get(name) != total):
            self._printed[name] = total if done == total else done // _LINE_BYTES
            self._console.print(
                f"downloading {name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB", highlight=False, markup=False
            )
