"""vLLM's router uses the experts that it is given, and weights them as it weights its own choice."""

from __future__ import annotations

import pytest
import torch
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter

from omni_stage.vllm_adapter.ar.expert_choices import ExpertChoices, rate_choice

TOKENS, EXPERTS, TOP = 7, 16, 4
CPU = torch.device("cpu")


def router() -> CPURouter:
    return CPURouter(top_k=TOP, global_num_experts=EXPERTS, renormalize=True)


def logits(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(seed)).to(dtype)


def select(one: CPURouter, scores: torch.Tensor) -> dict[int, dict[int, float]]:
    """Returns, for each token, the weights of its experts: token -> expert -> weight."""
    weights, ids = one.select_experts(torch.zeros(TOKENS, 8), scores)
    return {
        token: {int(i): float(w) for i, w in zip(ids[token], weights[token], strict=True)} for token in range(TOKENS)
    }


def test_what_a_router_chose_is_recorded() -> None:
    first, second = router(), router()
    choices = ExpertChoices([first, second], 10, CPU)
    assert choices.recorded(TOKENS) is None
    chosen = [select(first, logits(0)), select(second, logits(1))]
    recorded = choices.recorded(TOKENS)
    assert recorded is not None
    for ids, one in zip(recorded, chosen, strict=True):
        assert [set(row) for row in ids.tolist()] == [set(one[token]) for token in range(TOKENS)]
    assert choices.recorded(TOKENS + 1) is None, "no step has filled that many rows"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_router_given_its_own_choice_weighs_it_the_same(dtype: torch.dtype) -> None:
    one = router()
    choices = ExpertChoices([one], TOKENS, CPU)
    own = select(one, logits(2, dtype))
    recorded = choices.recorded(TOKENS)
    assert recorded is not None
    with choices.told(recorded):
        told = select(one, logits(2, dtype))
    assert choices.behind == 0.0
    assert told.keys() == own.keys()
    for token in own:
        assert told[token] == pytest.approx(own[token], rel=1e-3)


def test_a_router_given_another_choice_obeys_and_reports_how_far_behind_it_is() -> None:
    one, scores = router(), logits(3)
    choices = ExpertChoices([one], TOKENS, CPU)
    own = select(one, scores)
    order = scores.argsort(dim=-1, descending=True)
    # Token 5 is given its fifth best expert instead of its fourth best.
    other = order[:, :TOP].clone()
    other[5, -1] = order[5, TOP]
    with choices.told([other.int()]):
        told = select(one, scores)
    assert [set(told[token]) for token in range(TOKENS)] == [set(row) for row in other.tolist()]
    gap = float(scores[5, order[5, TOP - 1]] - scores[5, order[5, TOP]]) / float(scores[5].max() - scores[5].min())
    assert choices.behind == pytest.approx(gap)
    expected = torch.softmax(scores[5, other[5]], dim=-1)
    assert [told[5][int(expert)] for expert in other[5]] == pytest.approx(expected.tolist())
    assert select(one, scores) == own, "the router uses its own choice again"


def test_the_record_of_the_published_thinker_is_small() -> None:
    """48 routers, 8 experts a token, 8,192 tokens a step: docs/gpu-sizing.md need not name it."""
    choices = ExpertChoices([router()] * 48, 8192, torch.device("meta"))
    assert sum(ids.nbytes for ids in choices._ids) * 8 / TOP <= 16 << 20


def test_a_choice_of_another_step_is_refused() -> None:
    one = router()
    choices = ExpertChoices([one], TOKENS, CPU)
    with (
        pytest.raises(RuntimeError, match="a step of 7 tokens got the experts of 3 tokens"),
        choices.told([torch.zeros(3, TOP, dtype=torch.int32)]),
    ):
        select(one, logits(0))
    assert "_compute_routing" not in vars(one)


def test_how_far_behind_is_a_share_of_the_range() -> None:
    scores = torch.tensor([[4.0, 3.0, 2.0, 0.0], [0.0, 1.0, 2.0, 4.0]])
    assert float(rate_choice(scores, torch.tensor([[0, 1], [2, 3]]))) == 0.0
    assert float(rate_choice(scores, torch.tensor([[1, 0], [3, 1]]))) == 0.25
    assert float(rate_choice(scores, torch.tensor([[0, 3], [3, 2]]))) == 0.75
