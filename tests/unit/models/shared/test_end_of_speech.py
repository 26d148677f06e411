"""A tiny talker ends its speech soon after the text, and never in it."""

from __future__ import annotations

import torch

from omni_stage.models.shared.tiny.weights import end_after_text

PAD, END = 99, 7


def test_the_end_wins_after_the_text_only() -> None:
    torch.manual_seed(0)
    table, head = torch.randn(100, 64), torch.randn(20, 64) * 0.5

    def run(text: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        noise = torch.randn(len(text), 64, generator=generator)
        return torch.nn.functional.normalize(table[text] + noise, dim=1) * 8

    before = head.clone()
    end_after_text(head, END, run, 90, PAD)
    others = [row for row in range(20) if row != END]
    assert torch.equal(head[others], before[others]), "the codes stay as they were"
    generator = torch.Generator().manual_seed(5)
    spoken = (run(torch.randint(90, (2000,), generator=generator), generator) @ head.T).argmax(1) == END
    ended = (run(torch.full((2000,), PAD), generator) @ head.T).argmax(1) == END
    assert float(spoken.float().mean()) < 0.02
    assert 0.05 < float(ended.float().mean()) < 0.9
