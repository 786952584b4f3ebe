"""The language of kernels, ``import enceladus.language as tl``: Triton's names."""

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
from enceladus.language.atomics import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xchg,
    atomic_xor,
)
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
from enceladus.language.philox import (
    pair_uniform_to_normal,
    philox,
    philox_impl,
    rand,
    rand4x,
    randint,
    randint4x,
    randn,
    randn4x,
    uint_to_uniform_float,
)
from enceladus.language.reductions import (
    all,
    any,
    argmax,
    argmin,
    max,
    min,
    reduce,
    reduce_or,
    sum,
    xor_sum,
)
from enceladus.language.scans import associative_scan, cumprod, cumsum
from enceladus.language.shapes import (
    broadcast,
    cat,
    flip,
    gather,
    interleave,
    join,
    map_elementwise,
    permute,
    ravel,
    reshape,
    split,
    squeeze,
    swizzle2d,
    trans,
    unsqueeze,
    view,
)
from enceladus.language.sorting import histogram, softmax, sort, topk
from enceladus.language.statements import assume, debug_barrier, static_assert, static_print
from enceladus.language.tensor import tensor

__all__ = [  # noqa: RUF022 - a block, not a column
    "PointerType", "PropagateNan", "abs", "all", "any", "arange", "argmax", "argmin", "associative_scan",
    "assume", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or",
    "atomic_xchg", "atomic_xor", "bfloat16", "broadcast", "broadcast_to", "cast", "cat", "cdiv", "ceil",
    "clamp", "constexpr", "cos", "cumprod", "cumsum", "debug_barrier", "div_rn", "dtype", "erf", "exp",
    "exp2", "expand_dims", "fdiv", "flip", "float16", "float32", "floor", "fma", "full", "full_like",
    "gather", "histogram", "int1", "int16", "int32", "int64", "int8", "interleave", "join", "load", "log",
    "log2", "map_elementwise", "math", "max", "max_constancy", "max_contiguous", "maximum", "min",
    "minimum", "multiple_of", "num_programs", "pair_uniform_to_normal", "permute", "philox", "philox_impl",
    "pointer_type", "program_id", "rand", "rand4x", "randint", "randint4x", "randn", "randn4x", "range",
    "ravel", "reduce", "reduce_or", "reshape", "rsqrt", "sigmoid", "sin", "softmax", "sort", "split",
    "sqrt", "sqrt_rn", "squeeze", "static_assert", "static_print", "static_range", "store", "sum",
    "swizzle2d", "tanh", "tensor", "topk", "trans", "uint16", "uint32", "uint64", "uint8",
    "uint_to_uniform_float", "umulhi", "unsqueeze", "view", "where", "xor_sum", "zeros", "zeros_like",
]  # fmt: skip


def __getattr__(name: str) -> _Any:
    raise _missing_name("tl", name, __all__)
