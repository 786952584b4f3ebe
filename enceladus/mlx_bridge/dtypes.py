"""Element types on both sides: Enceladus's ``DType``, MLX's ``Dtype``, and their names in NumPy."""

from __future__ import annotations

import mlx.core as mx

from enceladus.ir.types import DTYPES, DType, bfloat16, int1

#: Enceladus name → MLX type. ``int1`` is MLX's ``bool_``.
TO_MLX: dict[str, mx.Dtype] = {
    name: mx.bool_ if dtype is int1 else getattr(mx, name) for name, dtype in DTYPES.items()
}

#: MLX type → Enceladus type.
FROM_MLX: dict[mx.Dtype, DType] = {TO_MLX[name]: dtype for name, dtype in DTYPES.items()}


def name_of(dtype: object) -> str:
    """``"float32"`` for MLX's, NumPy's and Enceladus's spellings of it."""
    return str(getattr(dtype, "name", dtype)).removeprefix("mlx.core.")


def unsupported(subject: str, dtype: object) -> TypeError:
    """The error for an array whose element type no kernel can have; ``subject`` is the parameter."""
    name = name_of(dtype)
    advice = {
        "float64": "GPU kernels have no float64; convert it first, for example x.astype(float32)",
        "complex64": "pass the real and imaginary parts as two float32 arrays",
        "complex128": "pass the real and imaginary parts as two float32 arrays",
    }.get(name, f"arrays may have {', '.join(DTYPES)}")
    return TypeError(f"{subject} has dtype {name}, which kernels do not support; {advice}")


def from_mlx(dtype: mx.Dtype, subject: str) -> DType:
    """The element type of an MLX array; ``TypeError`` in terms of ``subject`` where there is none."""
    found = FROM_MLX.get(dtype)
    if found is None:
        raise unsupported(subject, dtype)
    return found


def from_any(dtype: object, subject: str) -> mx.Dtype:
    """An MLX type from MLX's, Enceladus's or NumPy's own, from a name, or from ``float``/``int``/``bool``."""
    if isinstance(dtype, mx.Dtype):
        return TO_MLX[from_mlx(dtype, subject).name]
    if isinstance(dtype, DType):
        return TO_MLX[dtype.name]
    if dtype is float:
        return mx.float32
    if dtype is int:
        return mx.int32
    if dtype is bool:
        return mx.bool_
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", getattr(dtype, "__name__", ""))
    if name in ("bool", "bool_"):
        return mx.bool_
    if name in TO_MLX:
        return TO_MLX[name]
    raise unsupported(subject, name or dtype)


__all__ = ["FROM_MLX", "TO_MLX", "bfloat16", "from_any", "from_mlx", "name_of", "unsupported"]
