"""vLLM's schedulers with cached prefixes: each request is sent the rows of all of its positions, computed or reused.

The worker is a model of ours: the row of a position is a number made of all tokens up to it and of the cache salt, so
a row of another prefix or tenant is never equal. Its ledger of rows is the real one.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from omni_stage.payloads import OMNI_ROWS_KEY
from omni_stage.vllm_adapter.ar.capture import CaptureLedger, FreshRows, HostCopy, compute_spans, select_rows
from omni_stage.vllm_adapter.ar.publish import StepOutput, start_positions
from omni_stage.vllm_adapter.scheduling.scheduler import OmniAsyncScheduler, OmniScheduler
from omni_stage.vllm_adapter.wiring.names import ROW_POSITIONS, ROWS_REUSED
from omni_stage.vllm_adapter.wiring.packing import ROWS_NAME, unpack

BLOCK = 16
VOCABULARY = 50
MIB = 1 << 20


def mark(tokens: list[int], salt: str) -> float:
    """Returns a number that tells sequences apart, exact in float32."""
    return float(zlib.crc32(repr((tokens, salt)).encode()) % (1 << 24))


def is_chosen(token: int) -> bool:
    """Whether a model that publishes only some positions publishes this one."""
    return token % 3 == 0


@dataclass
class Worker:
    """Computes tokens and rows of scheduled spans."""

    selects: bool
    tokens: dict[str, list[int]] = field(default_factory=dict)
    salts: dict[str, str] = field(default_factory=dict)
    ledger: CaptureLedger = field(default_factory=CaptureLedger)
    computed: int = 0

    def __post_init__(self) -> None:
        self.ledger.always_delivers_first = self.selects

    def run(self, step: SchedulerOutput) -> ModelRunnerOutput:
        for name in step.finished_req_ids:
            self.ledger.close(name)
        for new in step.scheduled_new_reqs:
            self.tokens[new.req_id] = list(new.prompt_token_ids or [])
            if new.sampling_params.extra_args:
                self.ledger.open(new.req_id, new.num_computed_tokens)
        names = list(step.num_scheduled_tokens)
        spans = compute_spans(names, step.num_scheduled_tokens, start_positions(step))
        self.computed += sum(span.length for span in spans)
        fresh, gaps = self.ledger.plan(spans)
        assert not gaps
        fresh = select_rows(fresh, self._select) if self.selects else fresh
        values = [
            [mark(self.tokens[rows.request_id][: rows.position + at + 1], self.salts[rows.request_id])]
            for rows in fresh
            for at in range(rows.end - rows.begin)
        ]
        copies = {"rows": HostCopy(torch.tensor(values), None)} if values else {}
        sampling = [span.request_id for span in spans if span.start + span.length >= len(self.tokens[span.request_id])]
        deliveries = self.ledger.settle(fresh, copies, sampling)
        extras = {
            name: {ROW_POSITIONS: delivery.positions()} if self.selects else {} for name, delivery in deliveries.items()
        }
        sampled = []
        for name in names:
            known = self.tokens[name]
            token = int(mark(known, "")) % VOCABULARY + 3
            sampled.append([token] if name in sampling else [])
            known.extend(sampled[-1])
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            pooler_output=None,
        )
        return StepOutput(deliveries, extras, {}).attach(output)

    def _select(self, rows: FreshRows) -> list[tuple[int, int]]:
        known = self.tokens[rows.request_id]
        count = rows.end - rows.begin
        return [(at, at + 1) for at in range(count) if is_chosen(known[rows.position + at])]


class Served:
    """A scheduler and a worker, with what each request was sent."""

    def __init__(self, scheduler: Any, *, selects: bool) -> None:
        self.scheduler, self.worker = scheduler, Worker(selects)
        self.rows: dict[str, list[float]] = {}
        self.replies: dict[str, list[int]] = {}
        self.reused: dict[str, int] = {}
        self.prompts: dict[str, list[int]] = {}
        self.wanting: set[str] = set()
        self.preemptions = 0
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._preempt = scheduler._preempt_request
        scheduler._preempt_request = self._count_preemption

    def _count_preemption(self, *args: Any, **kwargs: Any) -> None:
        self.preemptions += 1
        self._preempt(*args, **kwargs)

    def add(self, name: str, prompt: list[int], *, wants: bool = True, salt: str = "", max_tokens: int = 6) -> None:
        extra = {OMNI_ROWS_KEY: True} if wants else None
        self.wanting |= {name} if wants else set()
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, extra_args=extra)
        hasher = get_request_block_hasher(BLOCK, sha256)
        self.worker.salts[name], self.prompts[name] = salt, prompt
        self.rows[name], self.replies[name], self.reused[name] = [], [], 0
        self.scheduler.add_request(Request(name, prompt, params, None, cache_salt=salt or None, block_hasher=hasher))

    def step(self) -> None:
        """Schedules one step, and reads the outputs of the oldest one: with async scheduling, two are in flight."""
        step = self.scheduler.schedule()
        if step.total_num_scheduled_tokens:
            self._in_flight.append((step, self.worker.run(step)))
        if len(self._in_flight) > isinstance(self.scheduler, OmniAsyncScheduler) or not step.total_num_scheduled_tokens:
            self._read()

    def _read(self) -> None:
        if not self._in_flight:
            return
        for client in self.scheduler.update_from_output(*self._in_flight.popleft()).values():
            for output in client.outputs:
                self._take(output.request_id, output)

    def _take(self, name: str, output: Any) -> None:
        self.replies[name] += output.new_token_ids
        if output.pooling_output is None:
            return
        unpacked = unpack(output.pooling_output, ROWS_NAME)
        assert unpacked.error is None
        assert unpacked.tensors.keys() <= {"rows", ROWS_REUSED}
        if ROWS_REUSED in unpacked.tensors:
            self.reused[name] = unpacked.tensors[ROWS_REUSED].tolist()[0]
        if "rows" in unpacked.tensors:
            self.rows[name] += unpacked.tensors["rows"][:, 0].tolist()

    def finish(self) -> None:
        for _ in range(2000):
            if not self.scheduler.has_unfinished_requests():
                break
            self.step()
        assert not self.scheduler.has_unfinished_requests()
        while self._in_flight:
            self._read()
        # The worker learns of ended requests in its next step; nothing is kept of them here.
        assert not self.scheduler._prefixes._open
        assert not self.scheduler._prefixes._reached

    def check(self, name: str) -> None:
        known = self.prompts[name] + self.replies[name][:-1]
        salt = self.worker.salts[name]
        wanted = range(len(known))
        expected = [mark(known[: at + 1], salt) for at in wanted if not self.worker.selects or is_chosen(known[at])]
        assert self.rows[name] == expected, name


@pytest.fixture
def serve(make_scheduler: Callable[..., Any]) -> Callable[..., Served]:
    """Returns a function that builds a scheduler with cached prefixes, and its worker."""
    init_none_hash(sha256)

    def build(
        scheduler_class: type = OmniScheduler, *, selects: bool = False, cache: int = MIB, **options: Any
    ) -> Served:
        omni = {"omni": {"capture_rows": True, "rows_cache_bytes": cache}}
        options = {"kv_blocks": 64, "max_model_len": 512, **options}
        return Served(
            make_scheduler(scheduler_class, additional_config=omni, enable_prefix_caching=True, **options),
            selects=selects,
        )

    return build


def words(count: int, seed: int = 0) -> list[int]:
    return [random.Random(seed * 1000 + at).randrange(VOCABULARY) for at in range(count)]


BOTH_MODELS = pytest.mark.parametrize("selects", [False, True], ids=["all positions", "chosen positions"])


@BOTH_MODELS
def test_a_second_turn_computes_what_is_new_and_sends_all(serve: Callable[..., Served], selects: bool) -> None:
    served = serve(selects=selects)
    served.add("first", words(70))
    served.finish()
    computed = served.worker.computed
    history = words(70) + served.replies["first"]
    served.add("second", history + words(9, 1))
    served.finish()
    for name in ("first", "second"):
        served.check(name)
    # 64 of 76 positions were in full blocks whose rows had arrived; 21 and 5 further ones are new.
    assert served.worker.computed - computed == len(history) + 9 - 64 + 5
    assert served.reused == {"first": 0, "second": sum(is_chosen(t) for t in history[:64]) if selects else 64}


@BOTH_MODELS
def test_the_twentieth_turn_of_a_call_computes_what_the_first_does(serve: Callable[..., Served], selects: bool) -> None:
    """Each turn adds a question and a reply. Without a cache, a turn would compute all of them."""
    served = serve(selects=selects, kv_blocks=256, max_model_len=2048, max_num_batched_tokens=256)
    talk: list[int] = []
    computed: dict[int, int] = {}
    for turn in range(1, 21):
        before = served.worker.computed
        talk += words(60, turn)
        served.add(f"turn {turn}", talk, max_tokens=12)
        served.finish()
        served.check(f"turn {turn}")
        computed[turn] = served.worker.computed - before
        talk = [*talk, *served.replies[f"turn {turn}"]]
    assert len(talk) > 1400
    # At most the rest of a block and the reply's last token more.
    assert max(computed.values()) <= computed[1] + BLOCK + 1


@BOTH_MODELS
def test_blocks_without_rows_are_computed_again(serve: Callable[..., Served], selects: bool) -> None:
    served = serve(selects=selects)
    served.add("reads nothing", words(64), wants=False)
    served.finish()
    served.add("reads", [*words(64), 7])
    served.finish()
    served.check("reads")
    assert served.reused["reads"] == 0
    computed = served.worker.computed
    served.add("reads nothing again", [*words(64), 7], wants=False)
    served.add("reads again", [*words(64), 7])
    served.finish()
    served.check("reads again")
    assert served.worker.computed - computed == 2 * (1 + 5)
    assert served.reused["reads again"] > 0


def test_tenants_with_salts_share_nothing(serve: Callable[..., Served]) -> None:
    served = serve()
    for name, salt in (("a", "a"), ("b", "b"), ("nobody", ""), ("a again", "a")):
        served.add(name, words(64), salt=salt)
        served.finish()
        served.check(name)
    assert served.reused == {"a": 0, "b": 0, "nobody": 0, "a again": 48}


def test_a_request_that_ends_before_its_first_token_leaves_no_rows(serve: Callable[..., Served]) -> None:
    served = serve(max_num_batched_tokens=32)
    served.add("aborted", words(100))
    served.step()
    served.scheduler.finish_requests("aborted", RequestStatus.FINISHED_ABORTED)
    served.add("next", words(100))
    served.finish()
    served.check("next")
    assert served.reused["next"] == 0


def test_rows_that_no_longer_fit_are_computed_again(serve: Callable[..., Served]) -> None:
    served = serve(cache=3 * 1100)
    served.add("first", words(96))
    served.finish()
    served.add("second", words(96))
    served.finish()
    served.check("second")
    assert served.reused["second"] == 48
    assert served.scheduler._prefixes.cache.held <= 3 * 1100


def test_resetting_the_prefix_cache_drops_the_rows(serve: Callable[..., Served]) -> None:
    served = serve()
    served.add("first", words(64))
    served.finish()
    assert served.scheduler.reset_prefix_cache()
    assert len(served.scheduler._prefixes.cache) == 0


def test_rows_that_are_lost_fail_their_request_alone(serve: Callable[..., Served]) -> None:
    served = serve()
    served.add("first", words(64))
    served.finish()
    served.add("lost", words(64))
    served.add("other", words(64, 1))
    step = served.scheduler.schedule()
    output = served.worker.run(step)
    output.pooler_output[output.req_id_to_index["lost"]] = torch.zeros(1, 1)
    outputs = served.scheduler.update_from_output(step, output)[0].outputs
    errors = {item.request_id: unpack(item.pooling_output, ROWS_NAME).error for item in outputs}
    assert errors["other"] is None
    assert errors["lost"] is not None
    assert errors["lost"][0] == "ModelExecutionError"


@BOTH_MODELS
@pytest.mark.parametrize("scheduler_class", [OmniScheduler, OmniAsyncScheduler])
def test_any_mix_of_requests_gets_its_rows(
    make_scheduler: Callable[..., Any], scheduler_class: type, selects: bool
) -> None:
    """Few KV blocks (preemption, eviction), a small cache of rows, chunked prefill, shared prefixes, salts, aborts."""
    init_none_hash(sha256)
    preempted, reused = 0, 0
    for seed in range(10):
        draw = random.Random(seed)
        omni = {"omni": {"capture_rows": True, "rows_cache_bytes": draw.choice([1, 5000, 20_000, MIB])}}
        scheduler = make_scheduler(
            scheduler_class,
            kv_blocks=draw.choice([14, 18, 40]),
            max_num_batched_tokens=draw.choice([16, 48, 128]),
            max_model_len=192,
            additional_config=omni,
            enable_prefix_caching=True,
        )
        served = Served(scheduler, selects=selects)
        run_mix(served, draw)
        preempted += served.preemptions
        reused += sum(served.reused.values())
    assert preempted > 10
    assert reused > 250


def run_mix(served: Served, draw: random.Random) -> None:
    """Runs 24 requests, which arrive at random times, and checks what those that are not aborted are sent."""
    scheduler = served.scheduler
    aborted: set[str] = set()
    for number in range(24):
        done = [name for name in served.replies if served.replies[name] and name not in aborted]
        start = words(draw.randrange(1, 60), draw.randrange(3))
        if done and draw.random() < 0.5:
            before = draw.choice(done)
            start = (served.prompts[before] + served.replies[before])[: draw.randrange(20, 120)]
        served.add(
            f"r{number}",
            start + words(draw.randrange(1, 20), draw.randrange(3)),
            wants=draw.random() < 0.8,
            salt=draw.choice(["", "", "a", "b"]),
            max_tokens=draw.randrange(1, 40),
        )
        for _ in range(draw.randrange(0, 12)):
            served.step()
        if draw.random() < 0.15:
            victim = draw.choice(list(served.replies))
            scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
            aborted.add(victim)
        assert scheduler._prefixes.cache.held <= scheduler._prefixes.cache.capacity
    served.finish()
    for name in served.replies.keys() - aborted:
        if name in served.wanting:
            served.check(name)
        else:
            assert served.rows[name] == []
