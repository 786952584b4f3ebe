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
    """Packs the scalars of one compiled kernel. ``names``: those that are used, in order of their words."""

    def __init__(self, parameters: Sequence[ScalarParameter]):
        used = sorted((p for p in parameters if p.word >= 0), key=lambda p: p.word)
        word = 0
        for parameter in used:
            if parameter.word != word:
                raise InternalError(f"scalar {parameter.name!r} is at word {parameter.word}, expected {word}")
            word += 2 if DTYPES[parameter.dtype].bits == 64 else 1
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
        array = _packed.get(raw)
        if array is None:
            if len(_packed) >= _LIMIT:
                _packed.clear()
            array = _packed[raw] = mx.array(self._words(raw), dtype=mx.int32)
        return array


def _clip(value: float) -> float:
    try:
        struct.pack("<f", value)
    except OverflowError:
        return math.copysign(math.inf, value)
    return value
