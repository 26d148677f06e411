"""Programs of client libraries in a call of ten turns. They are installed the first time, from package registries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.media.spoken import speech_24k
from support.peers.realtime_events import check_event, check_order
from support.processes.foreign_programs import run_cases


def hold_call(name: str, folder: Path, url: str, model: str, *, speech: bool = True) -> dict[str, Any]:
    """Returns what a client saw in its call, whose events are checked. name: a folder of tests/data/clients. speech:
    whether the user speaks in some turns.

    `kinds` has the types of the events, and `ends` the status of each response. Raises AssertionError.
    """
    pcm = folder / "speech.pcm"
    pcm.write_bytes(speech_24k() if speech else b"")
    gave = run_cases(name, folder, f"{url}/v1", model, str(pcm), program="call")
    for event in gave["events"]:
        check_event(event)
    check_order(gave["events"])
    gave["kinds"] = [one["type"] for one in gave["events"]]
    gave["ends"] = [one["response"]["status"] for one in gave["events"] if one["type"] == "response.done"]
    assert len(gave["ends"]) >= 10
    assert gave["audio"] > 0
    return gave
