"""Records which experts each router of a mixture of experts chose, and makes the model's own code choose the same.

The check at start-up (compiled_check) compares two runs of the same input: one as configured, which may be compiled and
use CUDA graphs, and one with the model's uncompiled code. A router takes the best few of many experts, and rounding
decides between two experts that it rates nearly alike. If the two runs take different experts, their results differ,
although neither is wrong. So the run as configured records its experts, and the uncompiled run has to use these. It
measures how much lower its routers rate them than the experts that they would have taken.

Recording is one copy of [tokens, k] integers for each layer and step. CUDA graphs that are captured after `bind` make
that copy at every replay, because a captured operation cannot be removed from a graph. It is a thousandth of a
millisecond or two for each layer; graphs captured again without it would not be those that were checked.

Private interfaces of vLLM 0.32 used here, and why:
- `MoERunner.router`, `._quant_method.is_monolithic`, `._forward_entry` (layers/fused_moe/runner/moe_runner.py): where
  the routers are, whether the kernel uses them at all, and whether a compiler traces them, as on a CPU.
- `BaseRouter.set_capture_fn`: sets a function that the router calls with the chosen ids, inside the graph. vLLM's
  RoutedExpertsCapturer uses it in the same way.
- `BaseRouter._compute_routing`: the choice itself, with the logits that it is made from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

_NOT_RECORDED = -1


class ExpertChoices:
    """The experts that a model's routers chose in its latest step. Routers are in the order of the model's layers."""

    def __init__(self, routers: Sequence[BaseRouter], most_tokens: int, device: torch.device) -> None:
        """`most_tokens`: maximum number of tokens in a step, padding included."""
        self._routers = list(routers)
        shapes = [(most_tokens, router.top_k) for router in self._routers]
        self._ids = [torch.full(shape, _NOT_RECORDED, dtype=torch.int32, device=device) for shape in shapes]
        self._behind: list[torch.Tensor] = []
        for router, ids in zip(self._routers, self._ids, strict=True):
            router.set_capture_fn(partial(_record, ids))

    @classmethod
    def bind(cls, model: nn.Module, most_tokens: int, device: torch.device) -> ExpertChoices | None:
        """Returns a recorder for a loaded model's routers. Call it before CUDA graphs are captured.

        None if the model has no routers, or if no choice can be imposed on one of them.
        """
        runners = [module for module in model.modules() if isinstance(module, MoERunner)]
        if not runners or not all(map(_can_be_fixed, runners)):
            return None
        return cls([runner.router for runner in runners], most_tokens, device)

    def end(self) -> None:
        """Stop recording in steps without CUDA graphs."""
        for router in self._routers:
            router.set_capture_fn(None)

    def forget(self) -> None:
        """Clear the record before a step, so that `recorded` notices a router that did not run in it."""
        for ids in self._ids:
            ids.fill_(_NOT_RECORDED)

    def recorded(self, tokens: int) -> list[torch.Tensor] | None:
        """Returns each router's ids [tokens, k], int32, on the device; None if a router did not record all of them."""
        if any(bool((ids[:tokens] == _NOT_RECORDED).any()) for ids in self._ids):
            return None
        return [ids[:tokens].clone() for ids in self._ids]

    @contextmanager
    def told(self, choice: Sequence[torch.Tensor]) -> Iterator[None]:
        """Make every router choose these experts (from `recorded`) within this context. Steps must run uncompiled."""
        self._behind = []
        try:
            for router, ids in zip(self._routers, choice, strict=True):
                compute = router._compute_routing
                # An attribute of the instance hides the method of its class until it is deleted.
                router.__dict__["_compute_routing"] = partial(self._obey, compute, ids)
            yield
        finally:
            for router in self._routers:
                router.__dict__.pop("_compute_routing", None)

    @property
    def behind(self) -> float:
        """The largest result of `rate_choice` over all steps and routers of the latest `told` block; 0 if there were
        none."""
        return max((float(value) for value in self._behind), default=0.0)

    def _obey(
        self, compute: Any, told: torch.Tensor, hidden: torch.Tensor, logits: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if len(logits) != len(told):
            raise RuntimeError(f"a step of {len(logits)} tokens got the experts of {len(told)} tokens")
        ids = told.long()
        self._behind.append(rate_choice(logits, ids))
        others = torch.full_like(logits, torch.finfo(logits.dtype).min)
        return compute(hidden, others.scatter(-1, ids, logits.gather(-1, ids)), *args, **kwargs)


def rate_choice(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Returns how far the lowest of the chosen experts is below the k-th best, as a share of the range of the logits.

    `logits`: [tokens, experts]; `ids`: [tokens, k], int64. The result is a scalar, the worst of all tokens; 0 if the
    choice is the best.
    """
    values = logits.float()
    kth_best = values.topk(ids.shape[-1], dim=-1).values[:, -1]
    spread = values.amax(dim=-1) - values.amin(dim=-1)
    return ((kth_best - values.gather(-1, ids).amin(dim=-1)) / spread.clamp(min=1e-9)).amax()


def _record(buffer: torch.Tensor, ids: torch.Tensor) -> None:
    rows = min(len(ids), len(buffer))
    buffer[:rows].copy_(ids[:rows])


def _can_be_fixed(runner: MoERunner) -> bool:
    """Returns whether a choice can be imposed on the router.

    The kernel must use the router, no compiler may trace it, and the chosen experts' weights must depend only on the
    logits of these experts.
    """
    router: Any = runner.router
    return (
        isinstance(router, BaseRouter)
        and not runner._quant_method.is_monolithic
        and isinstance(runner._forward_entry, torch._ops.OpOverloadPacket)
        and router.capture_fn is None
        and getattr(router, "scoring_func", "softmax") == "softmax"
        and getattr(router, "renormalize", False)
        and not getattr(router, "use_grouped_topk", False)
        and getattr(router, "e_score_correction_bias", None) is None
        and getattr(router, "custom_routing_function", None) is None
    )
