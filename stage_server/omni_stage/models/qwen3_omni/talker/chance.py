"""Samples codes for many frames in one call, with random numbers that depend only on seed, position and group. Pure.

A generator for each request would need one call per request, and a rewind when a preempted request is computed again. A
hash of the three values needs neither.
"""

from __future__ import annotations

import torch

TOP_K = 50
TOP_P = 0.8
"""transformers' code_predictor.generate(top_k=50, top_p=0.8)."""
_MASK = (1 << 31) - 1


def uniform(seeds: torch.Tensor, positions: torch.Tensor, group: int) -> torch.Tensor:
    """Returns random numbers float32 [n] in [0, 1) for `seeds` and `positions` int64 [n] and a group."""
    state = _mix(seeds & _MASK)
    state = _mix(state ^ (seeds >> 31 & _MASK))
    state = _mix(state ^ (positions & _MASK))
    state = _mix(state ^ group)
    # 24 bits: the precision of a float32 below one.
    return (state >> 7).to(torch.float32) * (1.0 / (1 << 24))


def pick_tokens(logits: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Returns tokens int64 [n], sampled from logits float32 [n, V] with top-k and top-p.

    Only the TOP_K likeliest tokens are considered. The candidates are the smallest number of them, likeliest first,
    whose probabilities add up to at least TOP_P. `chance` float32 [n] in [0, 1) selects the candidate at this fraction
    of their cumulative probability.
    """
    likeliest, tokens = logits.topk(min(TOP_K, logits.shape[-1]), dim=-1)
    shares = likeliest.softmax(dim=-1)
    before = shares.cumsum(dim=-1) - shares
    shares = torch.where(before < TOP_P, shares, 0.0)
    reached = shares.cumsum(dim=-1)
    chosen = (reached <= chance.unsqueeze(-1) * reached[:, -1:]).sum(dim=-1)
    last = (shares > 0).sum(dim=-1) - 1
    return tokens.gather(-1, torch.minimum(chosen, last).unsqueeze(-1)).squeeze(-1)


def _mix(state: torch.Tensor) -> torch.Tensor:
    """Returns 31 mixed bits, each of which depends on all 31 input bits. Products stay below 2**63."""
    for factor, shift in ((0x45D9F3B, 16), (0x2C1B3C6D, 15)):
        state = (state ^ (state >> shift)) & _MASK
        state = (state * factor + 0x3C6EF35) & _MASK
    return (state ^ (state >> 16)) & _MASK
