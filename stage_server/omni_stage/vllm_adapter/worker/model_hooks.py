"""Finds the hooks of a model, once, after it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from omni_stage.vllm_adapter.hooks import (
    ActsAfterSampling,
    FollowsRequests,
    HasPlaceholders,
    Positions,
    PublishesPositions,
    SampledTokens,
    Stretch,
)


@dataclass(frozen=True, slots=True)
class ModelHooks:
    """The hooks of one autoregressive model; see the protocols in hooks.py."""

    publish_positions: Callable[[Positions], Mapping[str, torch.Tensor]] | None = None
    select_positions: Callable[[Stretch], Sequence[tuple[int, int]]] | None = None
    follower: FollowsRequests | None = None
    after_sampling: Callable[[SampledTokens], Mapping[str, torch.Tensor]] | None = None
    placeholder_token_ids: tuple[int, ...] = ()

    @property
    def publishes(self) -> bool:
        """Whether the model itself chooses what it publishes for a position."""
        return self.publish_positions is not None

    @property
    def publishes_positions(self) -> bool:
        """Whether rows of positions are published. A model that only acts after sampling publishes none."""
        return self.publishes or self.after_sampling is None

    @classmethod
    def of(cls, model: Any) -> Self:
        """Returns the model's hooks."""
        publishes = isinstance(model, PublishesPositions)
        return cls(
            publish_positions=model.publish_positions if publishes else None,
            select_positions=getattr(model, "select_positions", None) if publishes else None,
            follower=model if isinstance(model, FollowsRequests) else None,
            after_sampling=model.after_sampling if isinstance(model, ActsAfterSampling) else None,
            placeholder_token_ids=tuple(model.placeholder_token_ids) if isinstance(model, HasPlaceholders) else (),
        )
