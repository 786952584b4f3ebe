"""examples/rows.py: tiles and SIMD groups for rows of every length."""

from __future__ import annotations

import mlx.core as mx
import pytest

from tests.row_examples import example


def test_tiles_hold_short_rows_and_walk_through_long_ones() -> None:
    rows = example("rows")
    for carries_tiles in (False, True):
        for n_cols in (*range(1, 5000, 7), 4096, 4097, 131_072):
            block, num_warps = rows.choose_tile(n_cols, carries_tiles=carries_tiles)
            assert block.bit_count() == 1 and num_warps.bit_count() == 1
            assert (block >= n_cols) == (n_cols <= rows.LONGEST_BLOCK)
            assert 4 * block <= 16 * 1024 and num_warps <= 16
            assert block <= 16 * 32 * num_warps, "at most 16 elements a thread"
            assert block >= 32 * num_warps, "no thread without an element"


def test_what_the_caller_asks_for_is_taken() -> None:
    choose_tile = example("rows").choose_tile
    assert choose_tile(1000, 256) == (256, 1)
    assert choose_tile(1000, None, 8) == (1024, 8)
    assert choose_tile(100, 256) == (128, 1)
    assert choose_tile(8192, 8192) == (8192, 16), "a whole row where the caller allows its length"


def test_count_rows() -> None:
    count_rows = example("rows").count_rows
    assert count_rows(mx.zeros((5,))) == (1, 5)
    assert count_rows(mx.zeros((2, 3, 5), mx.bfloat16)) == (6, 5)
    assert count_rows(mx.zeros((0, 5))) == (0, 5)
    with pytest.raises(ValueError, match=r"logits has shape \(\)"):
        count_rows(mx.zeros(()), "logits")
