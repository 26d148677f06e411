"""Records which experts each router of a mixture of experts chose, and makes the model's own code choose the same.

For the check at start-up (compiled_check). A router takes the best few of many experts, and rounding decides between
two that it rates nearly alike. Another expert is another answer, though neither run is wrong. So the configured run
records its choice, and the model's own code takes that choice and says how far below its own the chosen experts are.

Recording is one copy of [tokens, k] integers for each layer and step. It stays in the CUDA graphs that are captured
after `bind`, since nothing can be taken out of a graph.

Private interfaces of vLLM 0.32 used here, and why:
- `MoERunner.router`, `._quant_method.is_monolithic`, `._forward_entry` (layers/fused_moe/runner/moe_runner.py): where
  the routers are, whether the kernel asks them at all, and whether a compiler sees into them (on a CPU it does).
- `BaseRouter.set_capture_fn`: called with the chosen ids inside the graph, as RoutedExpertsCapturer does.
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
    """The experts that the routers of a model chose in its latest step, by router in the order of its layers."""

    def __init__(self, routers: Sequence[BaseRouter], most_tokens: int, device: torch.device) -> None:
        """`most_tokens`: the most tokens of a step, padding included."""
        self._routers = list(routers)
        shapes = [(most_tokens, router.top_k) for router in self._routers]
        self._ids = [torch.full(shape, _NOT_RECORDED, dtype=torch.int32, device=device) for shape in shapes]
        self._behind: list[torch.Tensor] = []
        for router, ids in zip(self._routers, self._ids, strict=True):
            router.set_capture_fn(partial(_record, ids))

    @classmethod
    def bind(cls, model: nn.Module, most_tokens: int, device: torch.device) -> ExpertChoices | None:
        """Returns the recorder of a loaded model's routers, or None if it has none whose choice can be fixed.

        To be called before CUDA graphs are captured.
        """
        runners = [module for module in model.modules() if isinstance(module, MoERunner)]
        if not runners or not all(map(_can_be_fixed, runners)):
            return None
        return cls([runner.router for runner in runners], most_tokens, device)

    def recorded(self, tokens: int) -> list[torch.Tensor] | None:
        """Returns the ids [tokens, k] of each router, int32, on the device; None if the latest step did not ask all."""
        if any(bool((ids[:tokens] == _NOT_RECORDED).any()) for ids in self._ids):
            return None
        return [ids[:tokens].clone() for ids in self._ids]

    @contextmanager
    def told(self, choice: Sequence[torch.Tensor]) -> Iterator[None]:
        """Let every router take these experts, as `recorded` returned them, in steps that run uncompiled."""
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
        """How far the worst expert of the latest `told` was below its router's own choice, as a share of the range."""
        return max((float(value) for value in self._behind), default=0.0)

    def _obey(
        self, compute: Any, told: torch.Tensor, hidden: torch.Tensor, logits: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if len(logits) != len(told):
            raise RuntimeError(f"a step of {len(logits)} tokens got the experts of {len(told)}")
        ids = told.long()
        self._behind.append(rate_choice(logits, ids))
        others = torch.full_like(logits, torch.finfo(logits.dtype).min)
        return compute(hidden, others.scatter(-1, ids, logits.gather(-1, ids)), *args, **kwargs)


def rate_choice(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Returns by how much the lowest of the chosen experts misses the k-th best, as a share of the range of the logits.

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
    """Whether the router is asked, unseen by a compiler, and its weights depend on the chosen experts alone."""
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
