"""Which of a prompt's tokens the talker reads: those of users' messages, as in transformers 5.19's generate(). Pure."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omni_stage.models.qwen3_omni.checkpoint import TextTokens


def find_user_tokens(prompt: torch.Tensor, text: TextTokens) -> torch.Tensor:
    """Returns bool [P] for the prompt int64 [P]: whether a token is in a user's message, including its markers.

    A message begins with <|im_start|> and the role. Tokens before the first one count as a message that begins with
    the prompt.
    """
    length = prompt.shape[0]
    places = torch.arange(length)
    starts = torch.where(prompt == text.message_start, places, -1)
    began = torch.cummax(starts, dim=0).values.clamp_min(0)
    return prompt[(began + 1).clamp_max(length - 1)] == text.user


def find_reply(prompt: torch.Tensor, text: TextTokens) -> int | None:
    """Returns where the last assistant's message of the prompt begins; None if it has none."""
    begins = (prompt[:-1] == text.message_start) & (prompt[1:] == text.assistant)
    places = torch.nonzero(begins).flatten()
    return int(places[-1]) if places.numel() else None


def find_media(tokens: torch.Tensor, placeholder_ids: Sequence[int]) -> torch.Tensor:
    """Returns bool [n] for tokens int64 [n]: whether a token stands for a medium."""
    return torch.isin(tokens, torch.tensor(list(placeholder_ids)))
