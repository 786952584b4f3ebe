"""Pack run-time numbers into the kernel's ``scalars`` input: int32 words at places the compiler chose."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import mlx.core as mx

from enceladus.codegen.kernel import ScalarParameter
from enceladus.errors import InternalError
from enceladus.ir.types import DTYPES, Kind

#: Packed numbers that were used lately; MLX arrays are immutable, so launches may share them.
_packed: dict[bytes, mx.array] = {}
_strided: dict[bytes, mx.array] = {}
_LIMIT = 4096


def _code(name: str) -> str:
    """How ``struct`` writes a scalar of this type: one or two whole words."""
    dtype = DTYPES[name]
    if dtype.kind is Kind.FLOAT:
        if dtype.bits != 32:
            raise InternalError(f"a scalar argument of type {name}")
        return "f"
    if dtype.bits == 64:
        return "q" if dtype.kind is Kind.SIGNED else "Q"
    return "i" if dtype.kind is Kind.SIGNED else "I"


class Packer:
    """Packs the scalars of one compiled kernel. ``names``: those that are used, in order of their words.

    ``as_strides``: as the strides of a one-element array (see ``codegen.cuda_header.scalars_by_value``).
    """

    def __init__(self, parameters: Sequence[ScalarParameter], as_strides: bool = False):
        used = sorted((p for p in parameters if p.word >= 0), key=lambda p: p.word)
        word = 0
        for parameter in used:
            if parameter.word != word:
                raise InternalError(f"scalar {parameter.name!r} is at word {parameter.word}, expected {word}")
            word += 2 if DTYPES[parameter.dtype].bits == 64 else 1
        self._as_strides = as_strides
        self.names = [p.name for p in used]
        self.is_float = [DTYPES[p.dtype].kind is Kind.FLOAT for p in used]
        self._pack = struct.Struct("<" + "".join(_code(p.dtype) for p in used)).pack
        self._words = struct.Struct(f"<{word}i").unpack

    def __call__(self, *values: bool | int | float) -> mx.array:
        """The int32 array that holds ``values``, one for each of ``names``."""
        try:
            raw = self._pack(*values)
        except OverflowError:  # a float beyond float32's range becomes infinite, as in a cast
            raw = self._pack(*(_clip(v) if f else v for v, f in zip(values, self.is_float, strict=True)))
        except struct.error as error:
            raise InternalError(f"scalars {values} do not fit their words: {error}") from error
        cache = _strided if self._as_strides else _packed
        array = cache.get(raw)
        if array is None:
            if len(cache) >= _LIMIT:
                cache.clear()
            words = self._words(raw)
            if self._as_strides:
                return _with_strides(words, raw)
            array = cache[raw] = mx.array(words, dtype=mx.int32)
        return array


def _with_strides(words: tuple[int, ...], raw: bytes) -> mx.array:
    array = mx.as_strided(mx.zeros((1,), dtype=mx.int32), (1,) * len(words), words)
    try:
        mx.eval(array)  # a constant: once here, not in every graph that uses it, and for every thread
    except ValueError:  # inside a transformation that allows no evaluation
        return array
    _strided[raw] = array
    return array


def _clip(value: float) -> float:
    try:
        struct.pack("<f", value)
    except OverflowError:
        return math.copysign(math.inf, value)
    return value
