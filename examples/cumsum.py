"""Running sums along the last axis, for many rows and for a single long one.

Many rows: one program a row, which carries the running total from block to block. Few long rows would leave
most of a GPU idle that way, so there blocks are programs, in three launches: the total of every block, the
sums of the totals before each block, and the scan of every block on top of those.

The kernels are in ``enceladus/ops/kernels/cumsum.py``; here they are checked against MLX:

    python examples/cumsum.py
"""

from __future__ import annotations

import mlx.core as mx

from enceladus.ops.kernels.cumsum import (
    MANY_ROWS,
    block_totals_kernel,
    cumsum,
    load_block,
    scan_blocks_kernel,
    scan_rows_kernel,
)
from enceladus.testing import assert_close

__all__ = [
    "MANY_ROWS",
    "block_totals_kernel",
    "cumsum",
    "load_block",
    "scan_blocks_kernel",
    "scan_rows_kernel",
]


def main() -> None:
    for dtype, tolerance in ((mx.float32, 1e-5), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        for shape in ((3, 100_000), (100, 10_000), (5, 6, 100)):
            x = mx.random.uniform(shape=shape).astype(dtype) / shape[-1]
            for options in ({"reverse": False, "inclusive": True}, {"reverse": True, "inclusive": False}):
                expected = mx.cumsum(x.astype(mx.float32), -1, **options)
                assert_close(cumsum(x, **options), expected, rtol=tolerance, atol=tolerance)
        print(f"cumsum {dtype}: agrees with mx.cumsum")


if __name__ == "__main__":
    main()
