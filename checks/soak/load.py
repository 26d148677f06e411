"""Mixed load: many kinds of requests, whose results are compared with allowed codes and with earlier answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from omni_proto.client import AsyncOmniClient, GenerationResult, OmniRequestError, audio_part, image_part, user
from support.media.samples import encode_png, encode_wav, make_audio, make_image

GREEDY = {
    "thinker": {"temperature": 0.0, "max_tokens": 12},
    "talker": {"temperature": 0.0, "max_tokens": 24},
    "token2wav": {"num_inference_steps": 3},
}
LEARN_TIMEOUT_S = 60.0
TIMEOUT_S = 15.0
SLACK_S = 2.0
BY_FAULTS = frozenset(("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"))


@dataclass(frozen=True)
class Kind:
    """A kind of request."""

    arguments: dict[str, Any]
    expected: str = "OK"
    """The status code if there is no fault."""
    cancel: bool = False
    timeout_s: float = TIMEOUT_S
    sampling: dict[str, Any] = field(default_factory=lambda: GREEDY)


KINDS = {
    "text": Kind({"raw_text": "Hello there", "modalities": ["text"]}),
    "speech": Kind({"raw_text": "Tell me about the sea"}),
    "long speech": Kind(
        {"raw_text": "Count"}, sampling={**GREEDY, "talker": {"temperature": 0.0, "max_tokens": 150, "min_tokens": 150}}
    ),
    "image": Kind({"chat": user(image_part(encode_png(make_image(0))), "What is it?"), "modalities": ["text"]}),
    "sound": Kind({"chat": user(audio_part(encode_wav(make_audio(0))), "What is it?")}),
    "partial": Kind({"raw_text": "Whatever you can", "allow_partial": True}),
    "cancelled": Kind({"raw_text": "Never mind"}, cancel=True),
    "in a hurry": Kind({"raw_text": "Quick"}, expected="DEADLINE_EXCEEDED", timeout_s=0.05),
    "unknown voice": Kind({"raw_text": "Hm", "voice": "Nobody"}, expected="INVALID_ARGUMENT"),
    "too long": Kind({"raw_text": "word " * 4000}, expected="INVALID_ARGUMENT"),
}


class Load:
    """Sends requests and counts their outcomes."""

    def __init__(self, client: AsyncOmniClient, rng: random.Random) -> None:
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.compared = 0
        self.longest_over_s = 0.0
        self._client = client
        self._rng = rng
        self._answers: dict[str, tuple[str, int]] = {}

    async def learn(self) -> None:
        """Records the answer to every kind of request while there is no fault."""
        for name, kind in KINDS.items():
            if kind.expected == "OK" and not kind.cancel:
                result = await self._client.run(**kind.arguments, sampling=kind.sampling, timeout=LEARN_TIMEOUT_S)
                self._answers[name] = _answer(result)

    async def work(self, stop: asyncio.Event) -> None:
        """Sends one request after another, of random kinds, until `stop` is set."""
        while not stop.is_set():
            await self._one(self._rng.choice(list(KINDS)))

    async def is_served(self, within_s: float) -> bool:
        """Returns whether a request for speech succeeds. If one fails, it is repeated for up to `within_s` seconds."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                await self._client.run(**KINDS["speech"].arguments, sampling=GREEDY, timeout=TIMEOUT_S)
            except OmniRequestError:
                continue
            return True
        return False

    async def _one(self, name: str) -> None:
        kind = KINDS[name]
        began = time.monotonic()
        try:
            if kind.cancel:
                await self._cancel(kind)
                code, reason = "CANCELLED", ""
            else:
                result = await self._client.run(**kind.arguments, sampling=kind.sampling, timeout=kind.timeout_s)
                code, reason = "OK", ""
                self._compare(name, result)
        except OmniRequestError as error:
            code, reason = error.code.name, error.reason
            if code not in BY_FAULTS and code != kind.expected:
                self.problems.append(f"{name}: {code} {reason} of stage {error.stage or '-'}: {error.message[:200]}")
        over = time.monotonic() - began - kind.timeout_s
        self.longest_over_s = max(self.longest_over_s, over)
        if over > SLACK_S:
            self.problems.append(f"{name}: {over:.1f} s over its deadline")
        self.outcomes[f"{name}: {code} {reason}".strip()] += 1

    async def _cancel(self, kind: Kind) -> None:
        left = self._rng.randrange(20)
        events = self._client.generate(**kind.arguments, sampling=kind.sampling, timeout=kind.timeout_s)
        async with aclosing(events):
            async for _ in events:
                left -= 1
                if left < 0:
                    return

    def _compare(self, name: str, result: GenerationResult) -> None:
        known = self._answers.get(name)
        if known is None:
            return
        if result.failed:
            # allow_partial: the text must be a prefix of the whole answer.
            if not known[0].startswith(result.text):
                self.problems.append(f"{name}: the partial answer is not a prefix of the whole answer")
            return
        self.compared += 1
        if _answer(result) != known:
            self.problems.append(f"{name}: a different answer than before the first fault")


def _answer(result: GenerationResult) -> tuple[str, int]:
    """Returns the text and the audio's length. Samples are not compared, because batches round differently."""
    return result.text, len(result.audio)
