"""Finds the messages in a prompt. The talker reads only users' messages, as in transformers 5.19's generate(). Pure."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_stage.models.qwen3_omni.checkpoint import TextTokens


def find_user_tokens(prompt: torch.Tensor, text: TextTokens) -> torch.Tensor:
    """Returns bool [P] for the prompt int64 [P]: whether a token belongs to a user's message, including its markers.

    A message begins with <|im_start|> and the role. Tokens before the first <|im_start|> count as a message that begins
    where the prompt begins.
    """
    length = prompt.shape[0]
    places = torch.arange(length)
    starts = torch.where(prompt == text.message_start, places, -1)
    began = torch.cummax(starts, dim=0).values.clamp_min(0)
    return prompt[(began + 1).clamp_max(length - 1)] == text.user


def find_reply(prompt: torch.Tensor, text: TextTokens) -> int | None:
    """Returns the index at which the prompt's last assistant message begins; None if there is none."""
    begins = (prompt[:-1] == text.message_start) & (prompt[1:] == text.assistant)
    places = torch.nonzero(begins).flatten()
    return int(places[-1]) if places.numel() else None


def find_media(tokens: torch.Tensor, placeholder_ids: Sequence[int]) -> torch.Tensor:
    """Returns bool [n] for tokens int64 [n]: whether a token stands for a medium."""
    return torch.isin(tokens, torch.tensor(list(placeholder_ids)))
