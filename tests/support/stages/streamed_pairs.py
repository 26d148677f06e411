"""Two stages joined by a Stream edge, whose scripted engines a test advances step by step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import torch

from omni_stage.models.component import EdgeRows, StageStep
from support.stages import scripted_stages as lab


@dataclass
class Pair:
    """A thinker that streams to a talker, and what the talker read."""

    thinker: Any
    talker: Any
    reads: list[EdgeRows] = field(default_factory=list)

    @property
    def rows(self) -> list[int]:
        """Returns the ids that the talker has read, one per row."""
        return [i for read in self.reads if "ids" in read.tensors for i in read.tensors["ids"].tolist()]


@dataclass
class Gates:
    """Events that the scripts wait for, so that tests do not depend on timing."""

    talker_has: dict[int, asyncio.Event] = field(default_factory=dict)
    talker_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def has(self, rows: int) -> asyncio.Event:
        return self.talker_has.setdefault(rows, asyncio.Event())


def step(begin: int, end: int, **more: Any) -> StageStep:
    """Returns a step with the rows [begin, end) and one word."""
    tensors = {"x": lab.rows(end - begin, begin), "ids": torch.arange(begin, end)}
    return StageStep(text=f"{begin} ", token_ids=[begin], tensors=tensors, **more)
