"""Layers on ``enceladus.ops``: MLX's, with their constructors and parameter names, so that weights load."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from enceladus.ops.elementwise import dropout, gelu, rope
from enceladus.ops.row_functions import layer_norm, rms_norm


class RMSNorm(nn.RMSNorm):
    """``mlx.nn.RMSNorm`` through :func:`enceladus.ops.rms_norm`. Parameter: ``weight``."""

    def __call__(self, x: mx.array) -> mx.array:
        return rms_norm(x, self["weight"], self.eps)


class LayerNorm(nn.LayerNorm):
    """``mlx.nn.LayerNorm`` through :func:`enceladus.ops.layer_norm`. Parameters: ``weight``, ``bias``."""

    def __call__(self, x: mx.array) -> mx.array:
        weight = self.get("weight", None)
        bias = self.get("bias", None)
        return layer_norm(x, weight, bias, self.eps)


class Dropout(nn.Dropout):
    """``mlx.nn.Dropout`` through :func:`enceladus.ops.dropout`, with keys from MLX's global random state.

    It zeroes other elements than ``mlx.nn.Dropout`` does with the same state.
    """

    def __init__(self, p: float = 0.5):
        super().__init__(p)
        self._p = p

    def __call__(self, x: mx.array) -> mx.array:
        return dropout(x, self._p) if self.training else x


class RoPE(nn.RoPE):
    """``mlx.nn.RoPE`` through :func:`enceladus.ops.rope`. ``offset`` is an int."""

    def __call__(self, x: mx.array, offset: int = 0) -> mx.array:
        return rope(
            x, self.dims, traditional=self.traditional, base=self.base, scale=self.scale, offset=offset
        )


class GELU(nn.GELU):
    """``mlx.nn.GELU`` through :func:`enceladus.ops.gelu`: ``approx`` "none", "precise" or its alias "tanh".

    ``ValueError`` for "fast", which is not supported.
    """

    def __init__(self, approx: str = "none"):
        if approx == "fast":
            raise ValueError("approx='fast' is not supported; use 'none', 'precise' or mlx.nn.GELU")
        super().__init__(approx)

    def __call__(self, x: mx.array) -> mx.array:
        return gelu(x, approximate=self._approx != "none")
