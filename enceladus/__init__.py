"""Tile kernels in Python for MLX, compiled to the bodies of Metal kernels.

import enceladus
import enceladus.language as tl

@enceladus.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)

out = add[(enceladus.cdiv(x.size, 1024),)](x, y, enceladus.empty_like(x), x.size, BLOCK=1024)
"""

__version__ = "0.1.0"

from enceladus.errors import CompilationError, EnceladusError, EnceladusWarning, InternalError
from enceladus.mlx_bridge.batching import vmap
from enceladus.mlx_bridge.fresh import (
    FreshArray,
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from enceladus.mlx_bridge.gradients import no_gradients
from enceladus.mlx_bridge.jit import JITFunction, jit
from enceladus.mlx_bridge.op import op
from enceladus.mlx_bridge.sizes import cdiv, next_power_of_2

__all__ = [
    "CompilationError",
    "EnceladusError",
    "EnceladusWarning",
    "FreshArray",
    "InternalError",
    "JITFunction",
    "cdiv",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "jit",
    "next_power_of_2",
    "no_gradients",
    "ones",
    "ones_like",
    "op",
    "vmap",
    "zeros",
    "zeros_like",
]


def __getattr__(name: str) -> object:
    """``enceladus.language`` and ``enceladus.ops``, imported when first used."""
    if name == "language":
        import enceladus.language

        return enceladus.language
    if name == "ops":
        import enceladus.ops

        return enceladus.ops
    raise AttributeError(f"module 'enceladus' has no attribute {name!r}")
