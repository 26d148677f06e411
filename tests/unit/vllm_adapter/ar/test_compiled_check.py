"""Which differences between compiled and eager code are reported, and at which batch sizes the two are compared."""

from __future__ import annotations

import pytest
import torch

from omni_stage.vllm_adapter.ar.compiled_check import Rehearsed, batch_sizes, find_difference, rate

TOLERANCE = 2e-2
HIDDEN = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
LOGITS = torch.randn(6, 100, generator=torch.Generator().manual_seed(1))


def compare(
    hidden: torch.Tensor = HIDDEN, logits: torch.Tensor | None = LOGITS, eager_logits: torch.Tensor | None = LOGITS
) -> str:
    """Returns the difference between a compiled run (`hidden`, `logits`) and an eager one (HIDDEN, `eager_logits`)."""
    configured = Rehearsed("decode step 1 of 6", hidden, None if logits is None else rate(logits, None))
    chosen = None if configured.choices is None else configured.choices.best
    eager = Rehearsed("decode step 1 of 6", HIDDEN, None if eager_logits is None else rate(eager_logits, chosen))
    return find_difference([configured], [eager], TOLERANCE)


def changed(tensor: torch.Tensor, row: int, factor: float) -> torch.Tensor:
    result = tensor.clone()
    result[row] *= factor
    return result


def runner_up(by: float) -> torch.Tensor:
    """Returns LOGITS with request 2's second-best token made the best, by `by` times the range of the logits."""
    result = LOGITS.clone()
    best, second = LOGITS[2].topk(2).indices
    result[2, second] = LOGITS[2, best] + by * (LOGITS[2].max() - LOGITS[2].min())
    return result


def close_race(gap: float) -> torch.Tensor:
    """Returns logits in which request 2's two best tokens differ by `gap`, a share of the range of the logits."""
    result = LOGITS.clone()
    best, second = LOGITS[2].topk(2).indices
    result[2, second] = LOGITS[2, best] - gap * (LOGITS[2].max() - LOGITS[2].min())
    return result


def test_rounding_is_no_difference() -> None:
    assert compare() == ""
    assert compare(HIDDEN * 1.019) == ""
    # One rounding to bfloat16 is far below the tolerance.
    assert compare(HIDDEN.bfloat16().float(), LOGITS.bfloat16()) == ""
    assert compare(logits=None, eager_logits=None) == ""


@pytest.mark.parametrize(
    ("configured", "what"),
    [
        pytest.param({"hidden": HIDDEN * 1.021}, "hidden states differ by 0.021", id="everywhere a little"),
        pytest.param({"hidden": changed(HIDDEN, 5, 0.0)}, "in the worst request", id="one request lost"),
        pytest.param({"hidden": changed(HIDDEN, 3, 1.1)}, "in the worst request", id="one request a little"),
        pytest.param({"hidden": changed(HIDDEN, 0, float("nan"))}, "not finite", id="not a number"),
        pytest.param({"hidden": HIDDEN.roll(1, 0)}, "hidden states differ", id="requests exchanged"),
        pytest.param({"logits": LOGITS.roll(1, 0)}, "6 of 6 requests would get another token", id="logits exchanged"),
        pytest.param({"eager_logits": LOGITS * float("nan")}, "another token", id="logits that are not numbers"),
    ],
)
def test_differences_are_named(configured: dict[str, torch.Tensor], what: str) -> None:
    difference = compare(**configured)
    assert what in difference
    assert difference.startswith("decode step 1 of 6: ")


@pytest.mark.parametrize(("gap", "same"), [(0.01, True), (0.03, False)])
def test_a_race_that_rounding_decides_is_no_difference(gap: float, same: bool) -> None:
    """If the eager run's two best tokens are close, the compiled run may choose the second."""
    assert (compare(logits=runner_up(0.001), eager_logits=close_race(gap)) == "") is same


def test_tokens_that_can_never_be_chosen_do_not_widen_the_range() -> None:
    best = int(LOGITS[0].argmax())
    logits = LOGITS.clone()
    logits[:, (best + 1) % 100] = float("-inf")
    assert rate(logits, None).behind.tolist() == [0.0] * 6
    assert torch.equal(rate(logits, LOGITS.argmin(dim=-1)).behind, torch.ones(6))


def test_rows_are_rated_some_at_a_time() -> None:
    """Rating many rows in parts gives the same result as rating each row by itself."""
    logits = LOGITS.repeat(30, 1)
    chosen = logits.roll(1, 0).argmax(dim=-1)
    together = rate(logits, chosen)
    alone = [rate(row[None], token[None]) for row, token in zip(logits, chosen, strict=True)]
    assert torch.equal(together.best, torch.cat([one.best for one in alone]))
    assert torch.equal(together.behind, torch.cat([one.behind for one in alone]))


@pytest.mark.parametrize(
    ("captured", "most", "sizes"),
    [
        pytest.param([1, 2, 4, 256], 1024, [1, 2, 256], id="graphs"),
        pytest.param([1, 2, 4, 256], 64, [1, 2, 64], id="fewer requests than the largest graph"),
        pytest.param([], 128, [1, 2, 8], id="compiled without graphs"),
        pytest.param([1, 2, 4], 1, [1], id="one request at a time"),
    ],
)
def test_batch_sizes(captured: list[int], most: int, sizes: list[int]) -> None:
    assert batch_sizes(captured, most) == sizes
