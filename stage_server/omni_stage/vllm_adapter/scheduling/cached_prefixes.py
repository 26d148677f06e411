"""Prefix caching in a stage whose rows another stage reads: the rows that vLLM does not compute come from a RowsCache.

A request that wants rows reuses the blocks that are in the KV cache and whose rows are in the RowsCache. From the first
block that is missing in either, it computes everything itself, as if that block were not cached. Other requests reuse
whatever the KV cache holds; they leave blocks without rows. Rows get into the cache when they arrive with the outputs
of a step, so those of a prompt that is aborted before its first token do not.

Private interfaces of vLLM 0.32 (see scheduler.py for the calls):
- `Scheduler._get_local_prefix_cache_hit(request)` returns the cached blocks and how many tokens they hold, before
  anything is allocated; `KVCacheManager.truncate_computed_blocks` shortens such a result.
- `Request.block_hashes`: one hash for each full block (`v1/core/kv_cache_utils.py`). It also covers the blocks before,
  the content hashes of media, LoRA adapters and, in the first block, the salt.
- `Scheduler._preempt_request` sets `num_computed_tokens` to 0. Steps in flight still run, and their outputs arrive.
"""

from __future__ import annotations

import logging
from typing import Final

import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from omni_stage.errors import ModelExecutionError, OmniStageError
from omni_stage.payloads import OMNI_ROWS_KEY
from omni_stage.vllm_adapter.scheduling.rows_cache import RowsCache, RowsOfRequest, row_bytes
from omni_stage.vllm_adapter.wiring.names import ROW_POSITIONS, ROWS_REUSED
from omni_stage.vllm_adapter.wiring.packing import ROWS_NAME, encode_output, pack_error, pack_tensors, unpack

logger = logging.getLogger(__name__)

_PROMPT_TENSORS: Final = ("mrope_positions", "mrope_delta")
"""Tensors that the worker sends with a request's first rows, complete whatever is cached."""

_NO_POSITIONS: Final = torch.empty(0, dtype=torch.int64)


class CachedPrefixes:
    """The rows of one engine's requests. Called by its scheduler, on one thread."""

    def __init__(self, capacity: int, max_blocks: int, block_tokens: int) -> None:
        """`capacity`: maximum number of bytes of rows that are kept; `max_blocks`: KV blocks of the engine;
        `block_tokens`: tokens of a KV block."""
        self.cache = RowsCache(capacity, max_blocks)
        self._block_tokens = block_tokens
        self._open: dict[str, RowsOfRequest] = {}
        self._reached: dict[str, int] = {}
        """Positions that a preempted request had computed. The worker keeps their rows, or has sent them."""

    def limit(self, request: Request, cached_tokens: int) -> int:
        """Returns how many of the tokens in cached blocks the request may reuse, a multiple of the block's tokens."""
        if not wants_rows(request):
            return cached_tokens
        if request.resumable:
            return 0
        reached = self._reached.get(request.request_id)
        if reached is not None:
            return min(cached_tokens, reached - reached % self._block_tokens)
        if not cached_tokens:
            return 0
        return self.cache.count(request.block_hashes[: cached_tokens // self._block_tokens]) * self._block_tokens

    def after_schedule(self, output: SchedulerOutput, requests: dict[str, Request]) -> None:
        """Take the rows of the prefixes that the step's new requests reuse."""
        for new in output.scheduled_new_reqs:
            request = requests[new.req_id]
            if not wants_rows(request) or request.resumable:
                continue
            chain = request.block_hashes[: new.num_computed_tokens // self._block_tokens]
            if self.cache.count(chain) < len(chain):
                # A part of a session: `limit` did not see it, and none of its rows are missing.
                continue
            self._open[new.req_id] = RowsOfRequest(
                self._block_tokens, new.num_computed_tokens, reused=self.cache.take(chain)
            )

    def preempted(self, request: Request) -> None:
        """Note how far a request was computed that loses its blocks."""
        if wants_rows(request):
            known = self._reached.get(request.request_id, 0)
            self._reached[request.request_id] = max(known, request.num_computed_tokens)

    def ended(self, request: Request) -> None:
        """Forget a request. The rows of its blocks stay in the cache."""
        self._reached.pop(request.request_id, None)
        if self._open.pop(request.request_id, None) is not None:
            self.cache.touch(request.block_hashes)

    def before_update(self, step: SchedulerOutput, output: ModelRunnerOutput, requests: dict[str, Request]) -> None:
        """Complete the rows in a step's outputs with those of reused prefixes, and keep those of full blocks."""
        if not self._open:
            return
        starts = {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        cached = step.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, count in step.num_scheduled_tokens.items():
            rows, request = self._open.get(name), requests.get(name)
            index = output.req_id_to_index.get(name)
            # Rows arrive with tokens: those of an unfinished prefill wait in the worker.
            if rows is None or request is None or index is None or not output.sampled_token_ids[index]:
                continue
            sent = output.pooler_output[index] if output.pooler_output else None
            try:
                filled = self._take(request, rows, sent, starts[name] + count)
            except (ValueError, OmniStageError) as error:
                # One request must not take the engine down. Without reused rows, what it sends is complete anyway.
                logger.error("the rows of request %s are not kept: %s", name, error)
                del self._open[name]
                if not rows.reused:
                    continue
                filled = pack_error(ModelExecutionError.__name__, "the rows of a reused prefix are lost; try again")
            if filled is not sent:
                if not output.pooler_output:
                    output.pooler_output = [None] * len(output.req_ids)
                output.pooler_output[index] = filled

    def _take(self, request: Request, rows: RowsOfRequest, sent: torch.Tensor | None, end: int) -> torch.Tensor | None:
        """Returns what a request sends in place of what the worker sent in a step, which computed until `end`."""
        first = rows.computed // self._block_tokens
        unpacked = unpack(sent, ROWS_NAME) if sent is not None else None
        if unpacked is not None and unpacked.error is not None:
            del self._open[request.request_id]
            return sent
        tensors = {} if unpacked is None else unpacked.tensors
        positions = tensors.pop(ROW_POSITIONS, None)
        others: dict[str, torch.Tensor] = {name: tensors.pop(name) for name in _PROMPT_TENSORS if name in tensors}
        if positions is not None:
            rows.selects = True
        elif rows.selects:
            positions = _NO_POSITIONS
        blocks = rows.add(tensors, positions, end)
        if blocks:
            chain = request.block_hashes[: first + len(blocks)]
            self.cache.put(chain, blocks[: max(0, len(chain) - first)])
        if not rows.reused:
            return sent if positions is None or sent is None else _encode(tensors | others)
        count = sum(len(next(iter(block.values()))) for block in rows.reused if block)
        others[ROWS_REUSED] = torch.tensor([count, sum(map(row_bytes, rows.reused))])
        return pack_tensors({**rows.fill(tensors), **{name: [tensor] for name, tensor in others.items()}})


def wants_rows(request: Request) -> bool:
    """Returns whether the front end asked for this request's rows."""
    params = request.sampling_params
    return bool(params is not None and params.extra_args and params.extra_args.get(OMNI_ROWS_KEY) is True)


def _encode(tensors: dict[str, torch.Tensor]) -> torch.Tensor | None:
    return encode_output(tensors, ROWS_NAME) if tensors else None
