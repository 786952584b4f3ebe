"""How the row kernels of these examples divide rows among programs and SIMD groups.

The kernels are in ``enceladus/ops/kernels/rows.py``; here they are checked against MLX.

Run it with ``python examples/rows.py``.
"""

from __future__ import annotations

import enceladus
from enceladus.ops.kernels.rows import (
    ELEMENTS_PER_THREAD,
    ELEMENTS_PER_THREAD_IN_LOOPS,
    FLOATS,
    LONGEST_BLOCK,
    LOOP_BLOCK,
    ROW_PROGRAMS,
    SIMD_GROUP,
    choose_num_warps,
    choose_tile,
    count_rows,
)

__all__ = [
    "ELEMENTS_PER_THREAD",
    "ELEMENTS_PER_THREAD_IN_LOOPS",
    "FLOATS",
    "LONGEST_BLOCK",
    "LOOP_BLOCK",
    "ROW_PROGRAMS",
    "SIMD_GROUP",
    "choose_num_warps",
    "choose_tile",
    "count_rows",
]


def main() -> None:
    print("columns  block  SIMD groups  elements a thread  blocks a row")
    for n_cols in (1, 100, 512, 513, 1000, 2048, 4096, 4097, 32_000, 131_072):
        block, num_warps = choose_tile(n_cols)
        each = max(1, block // (num_warps * SIMD_GROUP))
        print(f"{n_cols:7d} {block:6d} {num_warps:12d} {each:18d} {enceladus.cdiv(n_cols, block):13d}")


if __name__ == "__main__":
    main()
