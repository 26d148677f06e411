"""Cached prefixes of prompts that consist of placeholders and rows, on vLLM's schedulers.

The worker is a model of ours: each slot of its KV cache keeps what it was computed from, and a request that would read
a slot of other input fails.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from omni_stage.payloads.input_digests import DIGEST_BYTES, GROUP, OMNI_DIGESTS_KEY, digest_inputs
from omni_stage.vllm_adapter.ar.publish import start_positions
from omni_stage.vllm_adapter.scheduling.scheduler import OmniAsyncScheduler, OmniScheduler

BLOCK = 16
PLACEHOLDER = 7
Input = tuple[Any, ...]


class WrongInput(Exception):
    """A request would read what was computed from another input."""


class Served:
    """A scheduler, and a worker that notes what each slot of the KV cache holds."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.inputs: dict[str, list[Input]] = {}
        self.computed: dict[str, int] = {}
        self.preemptions = 0
        self._tables: dict[str, list[int]] = {}
        self._slots: dict[tuple[int, int], Input] = {}
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._preempt = scheduler._preempt_request
        scheduler._preempt_request = self._count_preemption

    def _count_preemption(self, *args: Any, **kwargs: Any) -> None:
        self.preemptions += 1
        self._preempt(*args, **kwargs)

    def add(
        self, name: str, rows: list[int], *, places: list[int] | None = None, salt: str = "", digests: bool = True
    ) -> None:
        """Adds a request whose position p reads rows[p] and has the M-RoPE position places[p]."""
        places = places or list(range(len(rows)))
        values = torch.tensor(rows, dtype=torch.bfloat16)[:, None].repeat(1, 3)
        digested = digest_inputs(values, torch.tensor(places)[:, None].repeat(1, 3))
        params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
        params.extra_args = {OMNI_DIGESTS_KEY: digested} if digests else None
        self.inputs[name] = [(row, place, salt) for row, place in zip(rows, places, strict=True)]
        self.computed[name] = 0
        prompt = [PLACEHOLDER] * len(rows)
        hasher = get_request_block_hasher(BLOCK, sha256)
        self.scheduler.add_request(Request(name, prompt, params, None, cache_salt=salt or None, block_hasher=hasher))

    def step(self) -> None:
        """Schedules one step, and reads the outputs of the oldest one: with async scheduling, two are in flight."""
        step = self.scheduler.schedule()
        if step.total_num_scheduled_tokens:
            self._in_flight.append((step, self._run(step)))
        if len(self._in_flight) > isinstance(self.scheduler, OmniAsyncScheduler) or not step.total_num_scheduled_tokens:
            while self._in_flight:
                self.scheduler.update_from_output(*self._in_flight.popleft())

    def finish(self) -> None:
        """Runs all requests to their ends."""
        while self.scheduler.has_unfinished_requests() or self._in_flight:
            self.step()

    def _run(self, step: SchedulerOutput) -> ModelRunnerOutput:
        for new in step.scheduled_new_reqs:
            self._tables[new.req_id] = list(new.block_ids[0])
        cached = step.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            known = [] if name in cached.resumed_req_ids else self._tables[name]
            self._tables[name] = known + list(blocks[0] if blocks else [])
        starts = start_positions(step)
        sampled: list[list[int]] = []
        for name, count in step.num_scheduled_tokens.items():
            inputs, table = self.inputs[name], self._tables[name]
            end = starts[name] + count
            self.computed[name] += count
            for at in range(end):
                slot = (table[at // BLOCK], at % BLOCK)
                if at >= starts[name]:
                    self._slots[slot] = inputs[at]
                elif self._slots[slot] != inputs[at]:
                    raise WrongInput(f"{name} reads {self._slots[slot]} at {at}, not {inputs[at]}")
            samples = end >= len(inputs)
            sampled.append([3] if samples else [])
            # What a sampled position reads is known to this request alone.
            inputs += [("frame", name, end)] if samples else []
        names = list(step.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            pooler_output=None,
        )


@pytest.fixture
def serve(make_scheduler: Callable[..., Any]) -> Callable[..., Served]:
    """Returns a function that builds a scheduler that hashes inputs, and its worker."""
    init_none_hash(sha256)

    def build(scheduler_class: type = OmniScheduler, **options: Any) -> Served:
        options = {"kv_blocks": 256, "max_model_len": 2048, "enable_prefix_caching": True, **options}
        return Served(make_scheduler(scheduler_class, additional_config={"omni": {"hash_inputs": True}}, **options))

    return build


def rows_of(count: int, seed: int = 0) -> list[int]:
    return [random.Random(seed * 1000 + at).randrange(200) for at in range(count)]


def test_the_twentieth_turn_computes_what_the_first_does(serve: Callable[..., Served]) -> None:
    served = serve()
    frame = rows_of(9, 99)
    talk: list[int] = []
    for turn in range(1, 21):
        talk += rows_of(60, turn)
        served.add(f"turn {turn}", talk + frame)
        served.finish()
    assert len(talk) == 1200
    # At most the rest of the block before, in which the last turn had something else.
    assert served.computed["turn 20"] <= served.computed["turn 1"] + BLOCK


@pytest.mark.parametrize(
    ("second", "reused"),
    [
        pytest.param({"rows": rows_of(70)}, 64, id="the same"),
        pytest.param({"rows": [*rows_of(40), *rows_of(30, 1)]}, 32, id="other rows from 40 on"),
        pytest.param(
            {"rows": rows_of(70), "places": [*range(20), *range(21, 71)]}, 16, id="other positions from 20 on"
        ),
        pytest.param({"rows": rows_of(70), "salt": "b"}, 0, id="another salt"),
        pytest.param({"rows": rows_of(70), "digests": False}, 0, id="no digests"),
        pytest.param({"rows": [*rows_of(70), *rows_of(20, 2)]}, 64, id="a longer prompt"),
        pytest.param({"rows": rows_of(64)}, 48, id="a prompt of whole blocks, whose last one gives the logits"),
    ],
)
def test_a_prefix_is_reused_as_far_as_all_inputs_are_equal(
    serve: Callable[..., Served], second: dict[str, Any], reused: int
) -> None:
    served = serve()
    served.add("first", rows_of(70), salt="a" if "salt" in second else "")
    served.finish()
    served.add("second", **second)
    served.finish()
    assert len(served.inputs["second"]) - 1 - served.computed["second"] == reused


@pytest.mark.parametrize("scheduler_class", [OmniScheduler, OmniAsyncScheduler])
@pytest.mark.parametrize("seed", range(4))
def test_no_request_reads_what_was_computed_from_other_input(
    serve: Callable[..., Served], scheduler_class: type, seed: int
) -> None:
    """Conversations that share beginnings, in steps of 48 tokens, in a KV cache that holds three of their requests."""
    served, chance = serve(scheduler_class, kv_blocks=28, max_num_batched_tokens=48), random.Random(seed)
    talks = [rows_of(20) for _ in range(4)]
    for number in range(40):
        talk = chance.randrange(len(talks))
        if len(talks[talk]) > 110:
            talks[talk] = talks[talk][: chance.randrange(20, 60)]
        talks[talk] = talks[talk] + rows_of(chance.randrange(5, 40), chance.randrange(3))
        served.add(f"{number}", talks[talk], salt=chance.choice(["", "", "b"]))
        for _ in range(chance.randrange(4)):
            served.step()
    served.finish()
    assert served.preemptions
    assert sum(served.computed.values()) < sum(len(inputs) - 1 for inputs in served.inputs.values())


def test_without_digests_in_the_hashes_the_worker_sees_it(make_scheduler: Callable[..., Any]) -> None:
    init_none_hash(sha256)
    served = Served(make_scheduler(OmniScheduler, max_model_len=512, enable_prefix_caching=True))
    served.add("first", rows_of(70))
    served.finish()
    served.add("second", rows_of(70, 1))
    with pytest.raises(WrongInput):
        served.finish()


def test_digests_differ_by_dtype_width_rows_and_positions() -> None:
    rows, places = (
        torch.randn(40, 4, generator=torch.Generator().manual_seed(0)),
        torch.arange(40)[:, None].repeat(1, 3),
    )
    digests = digest_inputs(rows, places)
    assert len(digests) == 40 // GROUP * DIGEST_BYTES
    assert digest_inputs(rows[:GROUP], places) == digests[:DIGEST_BYTES] == digest_inputs(rows, places[:20])
    changed = rows.clone()
    changed[20, 1] += 1
    assert digest_inputs(changed, places)[:DIGEST_BYTES] == digests[:DIGEST_BYTES]
    others = [(changed, places), (rows.double(), places), (rows.reshape(80, 2), places), (rows, places + 1)]
    assert len({digests[DIGEST_BYTES:], *(digest_inputs(*other)[-DIGEST_BYTES:] for other in others)}) == 5
