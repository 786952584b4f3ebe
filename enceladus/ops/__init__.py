"""Functions on arrays made of kernels, with MLX's signatures and gradients of their own: docs/ops.md.

``enceladus.ops.nn`` has the layers, ``enceladus.ops.kernels`` the kernels and what launches them.
"""

from enceladus.ops import nn
from enceladus.ops.elementwise import dropout, geglu, gelu, rope, swiglu
from enceladus.ops.row_functions import cross_entropy, cumsum, layer_norm, rms_norm, softmax

__all__ = [
    "cross_entropy",
    "cumsum",
    "dropout",
    "geglu",
    "gelu",
    "layer_norm",
    "nn",
    "rms_norm",
    "rope",
    "softmax",
    "swiglu",
]
