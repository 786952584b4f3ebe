"""Sums of columns, and the logarithm of the sum of exponentials of every row.

The kernels are in ``enceladus/ops/kernels/reductions.py``; here they are checked against MLX.

Run it with ``python examples/reductions.py``.
"""

from __future__ import annotations

import mlx.core as mx

from enceladus.ops.kernels.reductions import (
    FEW_ROWS,
    PROGRAMS,
    TILE,
    column_sum,
    column_sum_kernel,
    logsumexp,
    logsumexp_kernel,
)
from enceladus.testing import assert_close

__all__ = [
    "FEW_ROWS",
    "PROGRAMS",
    "TILE",
    "column_sum",
    "column_sum_kernel",
    "logsumexp",
    "logsumexp_kernel",
]


def main() -> None:
    for dtype, tolerance in ((mx.float32, 1e-5), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        x = mx.random.normal((5000, 300)).astype(dtype)
        wide = x.astype(mx.float32)
        tolerances = {"rtol": tolerance, "atol": 100 * tolerance}
        assert_close(column_sum(x), wide.sum(axis=0), **tolerances)
        assert_close(logsumexp(x), mx.logsumexp(wide, axis=-1), rtol=tolerance, atol=tolerance)
        print(f"column_sum and logsumexp {dtype}: agree with MLX")


if __name__ == "__main__":
    main()
