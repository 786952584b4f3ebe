"""Random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

A counter-based generator: a number is a function of the seed and of its offset, and nothing else. Bits are
those of Triton's generator for the same seed and offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from enceladus.errors import CompilationError
from enceladus.ir.types import DType, float32, int32, int64, uint32, uint64
from enceladus.language import elementwise, semantic
from enceladus.language.builtin import builtin, require_int
from enceladus.language.math import umulhi
from enceladus.language.shapes import require_numbers
from enceladus.language.tensor import tensor

ROUNDS = 10
#: Multipliers and increments of the keys, for 32 and 64 bits.
_CONSTANTS = {
    uint32: (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85),
    uint64: (0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B),
}

Four = tuple[tensor, tensor, tensor, tensor]


def _integers(name: str, argument: str, x: Any) -> tensor:
    value = require_numbers(name, argument, x)
    if value.type.dtype.is_floating():
        raise CompilationError(
            f"{name}: `{argument}` must be integers, not {value.type.dtype}", "cast first: `.to(tl.int32)`"
        )
    return tensor(value)


def _dtype(x: tensor) -> DType:
    return x.value.type.dtype


def _cast(x: tensor, dtype: DType) -> tensor:
    return tensor(semantic.cast(x.value, dtype))


def _word(x: tensor) -> DType:
    """The unsigned type that holds the bits of ``x``: uint64 for 64 bits, else uint32."""
    return uint64 if _dtype(x).bits == 64 else uint32


def _rounds(name: str, n_rounds: Any) -> int:
    count = require_int(name, "n_rounds", n_rounds)
    if count < 1:
        raise CompilationError(f"{name}: `n_rounds` must be positive, got {count}", f"use {ROUNDS}")
    return count


def _permuted(counter: list[tensor], key: list[tensor], n_rounds: int) -> Four:
    """The four words of ``counter`` after ``n_rounds`` rounds under the two of ``key``."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    a, b, step0, step1 = _CONSTANTS[_dtype(c0)]
    for number in range(n_rounds):
        if number:
            k0, k1 = k0 + step0, k1 + step1
        c0, c1, c2, c3 = umulhi(b, c2) ^ c1 ^ k0, c2 * b, umulhi(a, c0) ^ c3 ^ k1, c0 * a
    return c0, c1, c2, c3


@builtin
def philox_impl(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any, n_rounds: Any = ROUNDS) -> Four:
    """Philox 4x32 (or 4x64 for a 64-bit ``c0``) of a counter of four words under a key of two.

    Source: Triton's ``tl.philox_impl``.
    """
    count = _rounds("tl.philox_impl", n_rounds)
    given = zip(("c0", "c1", "c2", "c3", "k0", "k1"), (c0, c1, c2, c3, k0, k1), strict=True)
    words = [_integers("tl.philox_impl", label, x) for label, x in given]
    dtype = _word(words[0])
    words = [_cast(x, dtype) for x in words]
    return _permuted(words[:4], words[4:], count)


@builtin
def philox(seed: Any, c0: Any, c1: Any, c2: Any, c3: Any, n_rounds: Any = ROUNDS) -> Four:
    """Four random words for the counter ``c0 … c3``: uint32, or uint64 if ``c0`` has 64 bits.

    ``seed`` is an integer of up to 64 bits. Source: Triton's ``tl.philox``.
    """
    labels = ("seed", "c0", "c1", "c2", "c3")
    key, *counter = [
        _integers("tl.philox", label, x) for label, x in zip(labels, (seed, c0, c1, c2, c3), strict=True)
    ]
    return _philox("tl.philox", key, counter, n_rounds)


def _philox(name: str, seed: tensor, counter: list[tensor], n_rounds: Any) -> Four:
    count = _rounds(name, n_rounds)
    dtype = _word(counter[0])
    key = _cast(seed, uint64)
    keys = [key, tensor(semantic.constant(0, uint64))] if dtype is uint64 else _halves(key)
    return _permuted([_cast(x, dtype) for x in counter], keys, count)


def _halves(x: tensor) -> list[tensor]:
    """The low and the high 32 bits."""
    return [_cast(x, uint32), _cast(x >> 32, uint32)]


def _random(name: str, seed: Any, offset: Any, n_rounds: Any) -> Four:
    """The four words for ``offset``: a counter of 64 bits and two zeros."""
    place = _integers(name, "offset", offset)
    key = _integers(name, "seed", seed)
    zero = tensor(semantic.constant(0, uint32))
    words = _halves(place) if _dtype(place).bits == 64 else [_cast(place, uint32), zero]
    return _philox(name, key, [*words, zero, zero], n_rounds)


# ---------------------------------------------------------------------------------------- integers


@builtin
def randint4x(seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> Four:
    """Four tiles of random uint32 for a tile of offsets; the cheapest way to many numbers.

    Source: Triton's ``tl.randint4x``.
    """
    return _random("tl.randint4x", seed, offset, n_rounds)


@builtin
def randint(seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> tensor:
    """A random uint32 for each of a tile of offsets. Source: Triton's ``tl.randint``."""
    return _random("tl.randint", seed, offset, n_rounds)[0]


# ------------------------------------------------------------------------------------------ floats


@builtin
def uint_to_uniform_float(x: Any) -> tensor:
    """A random integer of 32 or 64 bits as a float32 in [0, 1).

    Source: Triton's ``tl.random.uint_to_uniform_float``.
    """
    value = _integers("tl.uint_to_uniform_float", "x", x)
    if _dtype(value).bits < 32:
        raise CompilationError(
            f"tl.uint_to_uniform_float needs integers of 32 or 64 bits, not {value.dtype}", "use tl.randint"
        )
    return _uniform(value)


def _uniform(x: tensor) -> tensor:
    wide = _dtype(x).bits == 64
    bits = tensor(semantic.bitcast(x.value, int64 if wide else int32))
    # The largest factor that keeps the product below 1 in float32.
    scale = 1.0842020432385337e-19 if wide else 4.6566127342e-10
    return elementwise.where(bits < 0, -bits - 1, bits) * scale


@builtin
def rand(seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> tensor:
    """A float32, uniform in [0, 1), for each of a tile of offsets. Source: Triton's ``tl.rand``."""
    return _uniform(_random("tl.rand", seed, offset, n_rounds)[0])


@builtin
def rand4x(seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> Four:
    """Four tiles of :func:`rand`. Source: Triton's ``tl.rand4x``."""
    return _four(_uniform, _random("tl.rand4x", seed, offset, n_rounds))


def _four(function: Callable[[tensor], tensor], words: Four) -> Four:
    a, b, c, d = map(function, words)
    return a, b, c, d


@builtin
def pair_uniform_to_normal(u1: Any, u2: Any) -> tuple[tensor, tensor]:
    """Two independent numbers uniform in [0, 1) as two of the standard normal distribution (Box and Muller).

    Source: Triton's ``tl.random.pair_uniform_to_normal``.
    """
    first, second = (
        require_numbers("tl.pair_uniform_to_normal", label, x) for label, x in (("u1", u1), ("u2", u2))
    )
    return _normal(tensor(semantic.cast(first, float32)), tensor(semantic.cast(second, float32)))


def _normal(u1: tensor, u2: tensor) -> tuple[tensor, tensor]:
    radius = elementwise.sqrt(elementwise.log(elementwise.maximum(u1, 1.0e-7)) * -2.0)
    angle = u2 * 6.283185307179586
    return radius * elementwise.cos(angle), radius * elementwise.sin(angle)


@builtin
def randn(seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> tensor:
    """A float32 of the standard normal distribution for each of a tile of offsets.

    Source: Triton's ``tl.randn``.
    """
    first, second, _, _ = _random("tl.randn", seed, offset, n_rounds)
    return _normal(_uniform(first), _uniform(second))[0]


@builtin
def randn4x(seed: Any, offset: Any, n_rounds: Any = ROUNDS) -> Four:
    """Four tiles of :func:`randn`. Source: Triton's ``tl.randn4x``."""
    a, b, c, d = _four(_uniform, _random("tl.randn4x", seed, offset, n_rounds))
    return (*_normal(a, b), *_normal(c, d))
