"""How the row kernels of these examples divide rows among programs and SIMD groups."""

from __future__ import annotations

import math

import mlx.core as mx

import enceladus

#: Rows up to this length are held in the registers of one program: one read and one write of each element.
LONGEST_BLOCK = 4096
#: Longer rows are walked through in blocks of this length.
LOOP_BLOCK = 2048
#: More would leave the registers of a thread short, fewer would leave loads short to hide latency. Kernels
#: that carry several tiles through a loop have room for half as many.
ELEMENTS_PER_THREAD, ELEMENTS_PER_THREAD_IN_LOOPS = 16, 8
#: Programs of a kernel that adds something up over rows, each over a share of them.
ROW_PROGRAMS = 256
SIMD_GROUP = 32
FLOATS = (mx.float32, mx.float16, mx.bfloat16)


def count_rows(x: mx.array, name: str = "x") -> tuple[int, int]:
    """(rows, columns) of ``x``, an array of floats of shape (..., columns).

    ``ValueError`` for an array without an axis or without columns, ``TypeError`` for another dtype.
    """
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} is {x.dtype}; float32, float16 and bfloat16 are supported")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name} has shape {x.shape}; it needs at least one column")
    return math.prod(x.shape[:-1]), x.shape[-1]


def choose_num_warps(block: int, elements_per_thread: int = ELEMENTS_PER_THREAD) -> int:
    """How many SIMD groups share a tile of ``block`` elements: from 1 to 16.

    ``elements_per_thread`` elements each where there are that many. One SIMD group is best where it is
    enough: its reductions need neither threadgroup memory nor barriers.
    """
    return max(1, min(16, block // (elements_per_thread * SIMD_GROUP)))


def choose_tile(
    n_cols: int, block: int | None = None, num_warps: int | None = None, *, carries_tiles: bool = False
) -> tuple[int, int]:
    """(the tile for rows of ``n_cols`` elements, the SIMD groups that share it).

    The whole row if it has at most 4096 elements, else a block to walk through it. ``block`` and
    ``num_warps`` are what the caller asked for; rows longer than that ``block`` are walked through too.
    ``carries_tiles``: the kernel carries several tiles through a loop for rows of any length.
    """
    if n_cols > (block or LONGEST_BLOCK):
        block, carries_tiles = block or LOOP_BLOCK, True
    else:
        block = max(enceladus.next_power_of_2(n_cols), SIMD_GROUP)
    each = ELEMENTS_PER_THREAD_IN_LOOPS if carries_tiles else ELEMENTS_PER_THREAD
    return block, num_warps or choose_num_warps(block, each)
