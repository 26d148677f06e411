"""The cache of published rows: bounded, whole chains, and blocks cut from rows that arrive in any portions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st

from omni_stage.vllm_adapter.scheduling.rows_cache import RowsCache, RowsOfRequest, join_rows, row_bytes


def chain_of(tokens: Sequence[int]) -> list[bytes]:
    """Returns one name per block, which covers all blocks up to it, as vLLM's hashes do."""
    return [bytes(tokens[: index + 1]) for index in range(len(tokens))]


def rows_of(name: bytes) -> dict[str, torch.Tensor]:
    """Returns rows that tell which block they belong to; blocks differ in how many they have."""
    return {"rows": torch.full((name[-1] % 3, 2), float(hash(name) % 1000))} if name[-1] % 3 else {}


@settings(max_examples=200)
@given(
    st.integers(0, 12_000),
    st.integers(0, 12),
    st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 12)), max_size=40),
)
def test_what_is_held_is_right_and_bounded(capacity: int, most: int, calls: list[tuple[list[int], int]]) -> None:
    cache = RowsCache(capacity, most)
    for tokens, end in calls:
        chain = chain_of(tokens)[: end + 1]
        known = cache.count(chain)
        cache.put(chain, [rows_of(name) for name in chain[known:]])
        assert 0 <= cache.held <= capacity
        assert len(cache) <= most
        held = chain[: cache.count(chain)]
        for name, block in zip(held, cache.take(held), strict=True):
            assert row_bytes(block) == row_bytes(rows_of(name))
            assert all(torch.equal(tensor, rows_of(name)[key]) for key, tensor in block.items())
    cache.clear()
    assert cache.held == len(cache) == 0


def test_later_blocks_of_a_chain_go_before_earlier_ones_and_old_chains_before_new_ones() -> None:
    cache = RowsCache(10 * 1024, 99)
    old, new = chain_of([1, 0, 0, 0, 0, 0]), chain_of([2, 0, 0, 0, 0, 0])
    for chain in (old, new):
        cache.put(chain, [{} for _ in chain])
    assert (cache.count(old), cache.count(new)) == (4, 6)
    cache.touch(old)
    longer = chain_of([3, *[0] * 11])
    cache.put(longer, [{} for _ in longer])
    assert (cache.count(old), cache.count(new), cache.count(longer)) == (0, 0, 10)


def test_nothing_is_kept_after_a_gap() -> None:
    cache = RowsCache(1 << 20, 99)
    chain = chain_of([1, 2, 3])
    cache.put(chain, [{}])
    assert len(cache) == 0
    with pytest.raises(KeyError):
        cache.take(chain)


@settings(max_examples=200)
@given(
    st.integers(1, 7),
    st.integers(0, 3),
    st.lists(st.integers(0, 23), min_size=1, max_size=12),
    st.one_of(st.none(), st.sets(st.integers(0, 200))),
)
def test_blocks_hold_the_rows_of_their_positions(
    block_tokens: int, reused: int, portions: list[int], chosen: set[int] | None
) -> None:
    begin = reused * block_tokens
    request = RowsOfRequest(block_tokens, begin)
    blocks = []
    at = begin
    for portion in portions:
        positions = [p for p in range(at, at + portion) if chosen is None or p in chosen]
        at += portion
        rows = {"rows": torch.tensor(positions, dtype=torch.float32)[:, None]}
        given_positions = None if chosen is None else torch.tensor(positions, dtype=torch.int64)
        blocks += request.add(rows, given_positions, at)
    assert len(blocks) == (at // block_tokens) - reused
    for index, block in enumerate(blocks, start=reused):
        inside = range(index * block_tokens, (index + 1) * block_tokens)
        expected = [float(p) for p in inside if chosen is None or p in chosen]
        assert (block["rows"][:, 0].tolist() if block else []) == expected
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in block.values())
    # Rows that wait for their block to be complete do not keep a portion's memory alive either.
    assert sum(t.untyped_storage().nbytes() for part in request._block for t in part.values()) <= 4 * block_tokens


@pytest.mark.parametrize(
    ("rows", "positions"),
    [
        pytest.param({"rows": torch.zeros(3, 1)}, None, id="a row is missing"),
        pytest.param({}, None, id="no rows"),
        pytest.param({"rows": torch.zeros(1, 1)}, torch.tensor([0, 2]), id="more positions than rows"),
    ],
)
def test_rows_that_do_not_match_their_positions_are_refused(
    rows: dict[str, torch.Tensor], positions: torch.Tensor | None
) -> None:
    with pytest.raises(ValueError, match="did not send one row"):
        RowsOfRequest(4, 0).add(rows, positions, 4)


def test_reused_rows_come_first_and_once() -> None:
    request = RowsOfRequest(2, 4, reused=[{"rows": torch.tensor([[0.0], [1.0]])}, {}])
    fresh = {"rows": torch.tensor([[4.0]])}
    assert torch.cat(request.fill(fresh)["rows"])[:, 0].tolist() == [0, 1, 4]
    assert torch.cat(request.fill(fresh)["rows"])[:, 0].tolist() == [4]
    assert join_rows([]) == {}
