"""Checks at start-up whether compiled code and CUDA graphs compute what the model's own code computes.

Which kernels a compiler generates for a GPU, and whether a captured graph reads what the runner wrote, is known only on
that GPU. So before a stage serves, the runner rehearses. It runs the same random requests (tokens, and input rows where
the model takes them) twice, once as configured and once with the model's own code. Each run has a prefill and decode
steps, at batch 1, 2 and the largest captured size. If the results differ by more than rounding does, the stage serves
in eager mode (docs/adr/0018). A third run finds what rounding does.

In a mixture of experts, both runs use the experts that the configured run chose (expert_choices). Rounding alone may
decide between two experts, and another expert gives another result.

The steps are hand-made SchedulerOutputs, as in vLLM's own warm-up of its V2 runner (v1/worker/gpu/warmup.py). No
sampled token is used: every step is a piece of a prompt that never ends, so both runs get the same input.

Private interfaces of vLLM 0.32: `v1.core.sched.output` (SchedulerOutput, NewRequestData, CachedRequestData) and
`GPUModelRunner.execute_model_state`, `kv_cache_config`, `max_num_tokens`, `max_num_reqs`, `input_batch.vocab_size`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm import SamplingParams
from vllm.config import CompilationMode, CUDAGraphMode, VllmConfig
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput

from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.ar.input_rows import INPUT_ROWS
from omni_stage.vllm_adapter.scheduling.payloads import OmniNewRequestData

if TYPE_CHECKING:
    from omni_stage.vllm_adapter.ar.runner import OmniARRunnerMixin


@contextmanager
def shaken(model: nn.Module) -> Iterator[None]:
    """Within this context, round each value of the layers' inputs up or down by one rounding error of its dtype.

    Layers are the modules of the model's lists of modules. Steps must run uncompiled. Each block does the same.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def shake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        device = value.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(0)
        signs = torch.randint(0, 2, value.shape, generator=generators[device], device=device) * 2 - 1
        error = torch.finfo(value.dtype).eps / 2
        return (value.double() * (1 + signs * error)).to(value.dtype)

    def before(layer: nn.Module, args: Any, kwargs: Any) -> Any:
        return tuple(map(shake, args)), {name: shake(value) for name, value in kwargs.items()}

    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 1]
    handles = [layer.register_forward_pre_hook(before, with_kwargs=True) for layers in lists for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


LEAST_TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 5e-3, torch.float32: 1e-3}
MOST_TOLERANCE = 0.1
"""Bounds of the relative tolerance of a batch's hidden states. Between them it is what rounding does to the model
One wrong row changes its own result by 60 % or more at any depth."""
ROW_SLACK = 4
"""Factor on the tolerance for a single row of the batch, and for a router's choice of experts."""
DECODE_STEPS = 2
_ROWS_AT_ONCE = 64
_UNGRAPHED_BATCH = 8
"""The largest batch to rehearse if no graph is captured."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """The results of one step for each of its B requests. All tensors except `experts` are on the host."""

    name: str
    hidden: torch.Tensor
    """[B, H], float32: the hidden state of the last token."""
    choices: Choices | None
    """None on a rank that does not compute logits."""
    experts: list[torch.Tensor] | None = None
    """In the configured run: each router's experts, [tokens, k]; None if their choice cannot be fixed."""
    experts_behind: float = 0.0
    """In the eager run: how far the worst of the configured run's experts is behind the eager run's own choice
    (`ExpertChoices.behind`)."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The tokens that a step would choose, and how it rates the tokens that the configured run chose."""

    best: torch.Tensor
    """[B], int64: the token with the largest logit."""
    behind: torch.Tensor
    """[B], float32: how far the configured run's token is below the largest logit, as a share of the range of the
    logits."""


def rate(logits: torch.Tensor, chosen: torch.Tensor | None) -> Choices:
    """Returns the choices of logits [B, V]. `chosen` [B]: the tokens to rate; None: the tokens with the largest logits.

    Works on some rows at a time, since V is large. Minus infinity marks a token that can never be chosen: it does not
    widen the range.
    """
    best: list[torch.Tensor] = []
    behind: list[torch.Tensor] = []
    for begin in range(0, len(logits), _ROWS_AT_ONCE):
        rows = logits[begin : begin + _ROWS_AT_ONCE].float()
        largest, token = rows.max(dim=-1)
        other = token if chosen is None else chosen[begin : begin + _ROWS_AT_ONCE].to(rows.device)
        gap = largest - rows.gather(-1, other.unsqueeze(-1)).squeeze(-1)
        spread = largest - rows.masked_fill(rows.isneginf(), float("inf")).amin(dim=-1)
        best.append(token.cpu())
        behind.append((gap / spread.clamp(min=1e-9)).cpu())
    return Choices(torch.cat(best), torch.cat(behind))


def find_difference(configured: Sequence[Rehearsed], eager: Sequence[Rehearsed], tolerance: float) -> str:
    """Returns a sentence on where the runs differ by more than rounding; "" if they do not.

    `eager` holds the eager run's ratings of the tokens and experts that the configured run chose.

    Hidden states: |configured - eager| <= tolerance * |eager| for each step, and ROW_SLACK times that for each request
    (Euclidean norms). Tokens: the same, unless eager rates them within `tolerance` of the range of its logits; rounding
    decides such a tie, and two correct runs may decide it differently. Experts: none of the chosen experts is behind
    eager's own choice by more than ROW_SLACK * tolerance of the range of its router's logits.
    """
    for one, other in zip(eager, configured, strict=True):
        if not torch.isfinite(other.hidden).all():
            return f"{one.name}: hidden states are not finite"
        difference = (other.hidden - one.hidden).norm(dim=-1)
        size = one.hidden.norm(dim=-1).clamp(min=1e-9)
        whole = float(difference.norm() / size.norm())
        worst = float((difference / size).max())
        if whole > tolerance or worst > ROW_SLACK * tolerance:
            return (
                f"{one.name}: hidden states differ by {whole:.2g} of their size ({worst:.2g} in the worst request); "
                f"{tolerance:g} is allowed"
            )
        if not one.experts_behind <= ROW_SLACK * tolerance:
            return (
                f"{one.name}: a router chose an expert that the model's own code rates {one.experts_behind:.2g} of its "
                f"range below its own choice; {ROW_SLACK * tolerance:g} is allowed"
            )
        if one.choices is not None and other.choices is not None:
            # Not written with ">": NaN would compare as false and pass.
            wrong = ~(one.choices.behind <= tolerance)
            if wrong.any():
                return f"{one.name}: {int(wrong.sum())} of {len(wrong)} requests would get another token"
    return ""


def find_tolerance(eager: Sequence[Rehearsed], noisy: Sequence[Rehearsed], dtype: torch.dtype) -> float:
    """Returns the tolerance for `find_difference`, from two runs of the model's own code: as it is, and `shaken`."""
    moved = [
        float((other.hidden - one.hidden).norm() / one.hidden.norm().clamp(min=1e-9))
        for one, other in zip(eager, noisy, strict=True)
    ]
    finite = [value for value in moved if math.isfinite(value)]
    least = LEAST_TOLERANCES.get(dtype, LEAST_TOLERANCES[torch.bfloat16])
    return min(MOST_TOLERANCE, max(least, *finite)) if finite else least


def batch_sizes(captured: Iterable[int], maximum: int) -> list[int]:
    """Returns 1, 2 and the largest size of a captured graph (else _UNGRAPHED_BATCH), ascending, none above
    `maximum`."""
    largest = max(captured, default=_UNGRAPHED_BATCH)
    return sorted({min(size, maximum) for size in (1, 2, largest)})


def is_compiled(config: VllmConfig) -> bool:
    """Returns whether the engine is configured to run anything but the model's own code."""
    compilation = config.compilation_config
    return compilation.mode != CompilationMode.NONE or compilation.cudagraph_mode != CUDAGraphMode.NONE


def check_runner(runner: OmniARRunnerMixin) -> str:
    """Rehearse with a runner that is ready to serve; call it on every rank.

    Returns how the configured run differs from the eager run; "" if it does not, or if nothing is compiled.
    """
    config = runner.vllm_config
    if not is_compiled(config):
        return ""
    # At most as many requests as there are blocks for: block 0 is vLLM's null block.
    groups = len(runner.kv_cache_config.kv_cache_groups)
    blocks = sum(-(-_longest_prompt() // size) for size in _block_sizes(runner))
    maximum = min(runner.max_num_reqs, (runner.kv_cache_config.num_blocks - 1) // max(1, blocks)) if groups else 0
    if maximum < 1:
        return ""
    found = ""
    for size in batch_sizes(config.compilation_config.cudagraph_capture_sizes or (), maximum):
        configured = _rehearse(runner, size)
        with runner.as_written():
            eager = _rehearse(runner, size, configured)
            with shaken(runner.get_model()):
                noisy = _rehearse(runner, size, configured)
        tolerance = find_tolerance(eager, noisy, runner.dtype)
        # Every rank runs all sizes, even after it found a difference: the other ranks wait for it in every layer.
        found = found or find_difference(configured, eager, tolerance)
    return found


def _longest_prompt() -> int:
    return 8 + DECODE_STEPS + 1


def _block_sizes(runner: OmniARRunnerMixin) -> list[int]:
    return [group.kv_cache_spec.block_size for group in runner.kv_cache_config.kv_cache_groups]


@torch.inference_mode()
def _rehearse(runner: OmniARRunnerMixin, size: int, configured: Sequence[Rehearsed] | None = None) -> list[Rehearsed]:
    """Run a prefill of `size` requests, in as many steps as it needs, then DECODE_STEPS steps of one token each.

    `configured`: None for the configured run; for the eager run the steps of the configured run, whose experts the
    eager run uses and whose tokens it rates.
    """
    requests = _new_requests(runner, size)
    prefills = [len(request.prompt_token_ids or ()) - DECODE_STEPS - 1 for request in requests]
    ids = [request.req_id for request in requests]
    steps: list[Rehearsed] = []

    def other() -> Rehearsed | None:
        return configured[len(steps)] if configured else None

    try:
        begin = 0
        while begin < size:
            end, tokens = begin, 0
            while end < size and tokens + prefills[end] <= runner.max_num_tokens:
                tokens += prefills[end]
                end += 1
            scheduled = dict(zip(ids[begin:end], prefills[begin:end], strict=True))
            output = _scheduler_output(scheduled, new=requests[begin:end])
            steps.append(_run(runner, output, f"prefill of {end - begin}", other()))
            begin = end
        for index in range(DECODE_STEPS):
            done = [prefill + index for prefill in prefills]
            output = _scheduler_output(dict.fromkeys(ids, 1), computed=dict(zip(ids, done, strict=True)))
            steps.append(_run(runner, output, f"decode step {index + 1} of {size}", other()))
    finally:
        runner.execute_model_state = None
        runner.execute_model(_scheduler_output({}, finished=set(ids)))
    return steps


def _run(runner: OmniARRunnerMixin, scheduler_output: SchedulerOutput, name: str, other: Rehearsed | None) -> Rehearsed:
    choices = runner.expert_choices
    told = other.experts if other is not None else None
    if choices is not None and told is None:
        choices.forget()
    with choices.told(told) if choices is not None and told is not None else nullcontext():
        runner.execute_model(scheduler_output)
    state = runner.execute_model_state
    if state is None:
        raise RuntimeError("a rehearsed step left no state")
    # The batch may hold the requests in another order.
    order = [runner.input_batch.req_ids.index(request_id) for request_id in scheduler_output.num_scheduled_tokens]
    hidden = state.sample_hidden_states[order].to("cpu", torch.float32)
    logits = state.logits
    if logits is not None and order != list(range(len(logits))):
        logits = logits[order]
    rated = None if other is None or other.choices is None else other.choices.best
    best = None if logits is None else rate(logits, rated)
    output = runner.sample_tokens(None)
    if isinstance(output, AsyncModelRunnerOutput):
        output.get_output()
    if choices is None:
        return Rehearsed(name, hidden, best)
    experts = choices.recorded(scheduler_output.total_num_scheduled_tokens) if other is None else None
    return Rehearsed(name, hidden, best, experts, choices.behind if told is not None else 0.0)


def _new_requests(runner: OmniARRunnerMixin, size: int) -> list[NewRequestData]:
    """Returns requests of 7 to 11 tokens with blocks of their own; the same on every rank and in every call."""
    generator = torch.Generator().manual_seed(0)
    vocabulary, row_size = runner.input_batch.vocab_size, runner.input_row_size
    excluded = set(runner.no_embedding_token_ids)
    block_sizes = _block_sizes(runner)
    next_block = 1
    requests: list[NewRequestData] = []
    for index in range(size):
        length = _longest_prompt() - index % 5
        tokens = torch.randint(vocabulary, (length,), generator=generator).tolist()
        blocks: list[list[int]] = []
        for block_size in block_sizes:
            count = -(-length // block_size)
            blocks.append(list(range(next_block, next_block + count)))
            next_block += count
        request = NewRequestData(
            req_id=f"rehearsal-{index}",
            prompt_token_ids=[0 if token in excluded else token for token in tokens],
            mm_features=[],
            sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
            pooling_params=None,
            block_ids=tuple(blocks),
            num_computed_tokens=0,
            lora_request=None,
        )
        if row_size:
            rows = torch.randn(length, row_size, generator=generator)
            payload = AdditionalInformationPayload.from_mapping({INPUT_ROWS: rows})
            request = OmniNewRequestData.upgrade(request, payload)
        requests.append(request)
    return requests


def _scheduler_output(
    scheduled: dict[str, int],
    new: Sequence[NewRequestData] = (),
    computed: dict[str, int] | None = None,
    finished: set[str] | None = None,
) -> SchedulerOutput:
    cached = computed or {}
    return SchedulerOutput(
        scheduled_new_reqs=list(new),
        scheduled_cached_reqs=CachedRequestData(
            req_ids=list(cached),
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[None] * len(cached),
            num_computed_tokens=list(cached.values()),
            num_output_tokens=[0] * len(cached),
        ),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens={},
        scheduled_encoder_inputs={},
        finished_req_ids=finished or set(),
        free_encoder_mm_hashes=[],
    )
