"""What `omnipipe run` does before it starts a stage. tests/processes/test_cli_supervisor.py tests the rest."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from omni_cli.commands.run import STOP_SIGNALS, StopRequest


@pytest.fixture
def signals() -> Iterator[None]:
    """Restores the handlers of the stop signals."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("inherited", "stops"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)], ids=["-", "nohup"])
@pytest.mark.usefixtures("signals")
def test_a_closed_terminal_stops_the_run_unless_it_was_started_by_nohup(
    inherited: signal.Handlers, stops: bool
) -> None:
    signal.signal(signal.SIGHUP, inherited)
    stop = StopRequest()
    stop.install()
    signal.raise_signal(signal.SIGHUP)
    assert stop() is stops
