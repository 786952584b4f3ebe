"""The language of kernels, ``import enceladus.language as tl``: Triton's names, for elementwise programs."""

from typing import Any as _Any

from enceladus.ir.types import DType as dtype  # noqa: N813 - Triton's spelling
from enceladus.ir.types import (
    PointerType,
    bfloat16,
    float16,
    float32,
    int1,
    int8,
    int16,
    int32,
    int64,
    pointer_type,
    uint8,
    uint16,
    uint32,
    uint64,
)
from enceladus.language import math
from enceladus.language.constexpr import constexpr, range, static_range
from enceladus.language.creation import (
    arange,
    broadcast_to,
    cast,
    expand_dims,
    full,
    full_like,
    num_programs,
    program_id,
    zeros,
    zeros_like,
)
from enceladus.language.elementwise import (
    PropagateNan,
    abs,
    cdiv,
    ceil,
    clamp,
    cos,
    div_rn,
    erf,
    exp,
    exp2,
    fdiv,
    floor,
    fma,
    log,
    log2,
    maximum,
    minimum,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    sqrt_rn,
    tanh,
    where,
)
from enceladus.language.math import umulhi
from enceladus.language.memory import load, max_constancy, max_contiguous, multiple_of, store
from enceladus.language.missing import missing_name as _missing_name
from enceladus.language.statements import assume, debug_barrier, static_assert, static_print
from enceladus.language.tensor import tensor

__all__ = [  # noqa: RUF022 - a block, not a column
    "PointerType", "PropagateNan", "abs", "arange", "assume", "bfloat16", "broadcast_to", "cast",
    "cdiv", "ceil", "clamp", "constexpr", "cos", "debug_barrier", "div_rn", "dtype", "erf", "exp",
    "exp2", "expand_dims", "fdiv", "float16", "float32", "floor", "fma", "full", "full_like", "int1",
    "int16", "int32", "int64", "int8", "load", "log", "log2", "math", "max_constancy", "max_contiguous",
    "maximum", "minimum", "multiple_of", "num_programs", "pointer_type", "program_id", "range", "rsqrt",
    "sigmoid", "sin", "sqrt", "sqrt_rn", "static_assert", "static_print", "static_range", "store",
    "tanh", "tensor", "uint16", "uint32", "uint64", "uint8", "umulhi", "where", "zeros", "zeros_like",
]  # fmt: skip


def __getattr__(name: str) -> _Any:
    raise _missing_name("tl", name, __all__)
