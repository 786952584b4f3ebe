"""How the row kernels of these examples divide rows among programs and SIMD groups.

Run it with ``python examples/rows.py``.
"""

from __future__ import annotations

import math

import mlx.core as mx

import enceladus

#: Rows up to this length are held in the registers of one program: one read and one write of each element.
#: Longer rows are walked through in blocks of this length.
LONGEST_BLOCK = 4096
#: More would leave the registers of a thread short, fewer would leave loads short to hide latency.
ELEMENTS_PER_THREAD = 16
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


def choose_block(n_cols: int, longest: int = LONGEST_BLOCK) -> int:
    """The tile for a row of ``n_cols`` elements: the whole row if it has at most ``longest``."""
    return min(max(enceladus.next_power_of_2(n_cols), SIMD_GROUP), longest)


def choose_num_warps(block: int, elements_per_thread: int = ELEMENTS_PER_THREAD) -> int:
    """How many SIMD groups share a tile of ``block`` elements: from 1 to 16.

    ``elements_per_thread`` elements each where there are that many. Kernels that hold several tiles at a
    time ask for fewer than the default. One SIMD group is best where it is enough: its reductions need
    neither threadgroup memory nor barriers.
    """
    return max(1, min(16, block // (elements_per_thread * SIMD_GROUP)))


def main() -> None:
    print("columns  block  SIMD groups  elements a thread  blocks a row")
    for n_cols in (1, 100, 512, 513, 1000, 2048, 4096, 4097, 32_000, 131_072):
        block = choose_block(n_cols)
        num_warps = choose_num_warps(block)
        each = max(1, block // (num_warps * SIMD_GROUP))
        print(f"{n_cols:7d} {block:6d} {num_warps:12d} {each:18d} {enceladus.cdiv(n_cols, block):13d}")


if __name__ == "__main__":
    main()
