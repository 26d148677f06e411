"""The voices of the stages below, for a stage that does not know them itself: for example an LLM above a voice."""

from __future__ import annotations

import math
import time
from typing import Final

import grpc

from omni_proto.stage_config import Modality, StageConfig
from omni_stage.service.edges.channels import DownstreamChannels

KEPT_S: Final = 30.0
"""How long an answer is kept, in seconds. A stage below may be replaced by one with other voices."""
LONGEST_S: Final = 2.0
"""Maximum wait for the answer of a stage below, in seconds."""
SHARE: Final = 0.8
"""Maximum share of the caller's remaining time."""


class VoicesBelow:
    """Asks the stage below that speaks, or whose own stages below do, with GetStage."""

    def __init__(self, config: StageConfig, channels: DownstreamChannels) -> None:
        self._channels = channels
        self._speaking = next((edge.stage for edge in config.downstream if Modality.AUDIO in edge.outputs), None)
        self._voices: tuple[str, ...] = ()
        self._found_at = -math.inf

    async def find(self, remaining_s: float | None) -> tuple[str, ...]:
        """Returns the names of the voices, the default first. Empty if no stage below speaks, or none can be asked.

        `remaining_s`: number of seconds after which the caller needs its own answer; None: there is no such limit.
        """
        if self._speaking is None or time.monotonic() - self._found_at < KEPT_S:
            return self._voices
        within_s = LONGEST_S if remaining_s is None else min(LONGEST_S, SHARE * remaining_s)
        try:
            answer = await self._channels.describe(self._speaking, within_s=within_s)
        except grpc.aio.AioRpcError:
            # Not an error of the caller's: an older answer applies, or the stage that speaks checks the voice.
            return self._voices
        self._voices, self._found_at = tuple(answer.voices), time.monotonic()
        return self._voices
