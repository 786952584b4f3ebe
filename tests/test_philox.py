"""Random numbers against the test vectors of Random123, and against Philox written with Python integers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from enceladus.interpreter.emitter import NumpyEmitter
from enceladus.interpreter.program import Program
from enceladus.ir.builder import use_emitter
from tests.engines import run_everywhere

ENGINES = ("interpreter", "graph")
WORD = {32: (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85),
        64: (0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)}  # fmt: skip


def philox(counter, key, bits=32, rounds=10):
    """The definition of the generator."""
    mask = (1 << bits) - 1
    a, b, step0, step1 = WORD[bits]
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        high0, low0 = divmod(a * c0, 1 << bits)
        high1, low1 = divmod(b * c2, 1 << bits)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + step0) & mask, (k1 + step1) & mask
    return c0, c1, c2, c3


#: (counter, key, words): kat_vectors of Random123, philox4x32-10
KNOWN_32 = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


def computed(function, *args):
    """What a builtin gives on NumPy for scalars."""
    with use_emitter(NumpyEmitter(Program((1, 1, 1)))):
        result = function(*[a if isinstance(a, int) else tl.cast(*a) for a in args])
        return [int(x.value.data) for x in result]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_32)
def test_known_answers(counter, key, expected):
    counter, key, expected = words(counter), words(key), words(expected)
    assert list(philox(counter, key)) == expected, "the reference of the other tests"
    arguments = [(x, tl.uint32) for x in (*counter, *key)]
    assert computed(tl.philox_impl, *arguments) == expected
    # The key of tl.philox is the seed's low word, then the high one.
    seed = key[1] << 32 | key[0]
    assert computed(tl.philox, (seed, tl.uint64), *arguments[:4]) == expected


def test_64_bit_words():
    counter, key = (1, 2**63, 3, 2**64 - 1), (2**60 + 7, 0)
    expected = list(philox(counter, key, 64))
    assert computed(tl.philox, (key[0], tl.uint64), *[(x, tl.uint64) for x in counter]) == expected


def test_fewer_rounds():
    got = computed(tl.philox_impl, *[(x, tl.uint32) for x in (1, 2, 3, 4, 5, 6)], 7)
    assert got == list(philox((1, 2, 3, 4), (5, 6), rounds=7))


@enceladus.jit
def integers_kernel(seed, first, out, OFFSET: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(seed, (first + place).to(OFFSET))
    tl.store(out + place, a)
    tl.store(out + BLOCK + place, b)
    tl.store(out + 2 * BLOCK + place, c)
    tl.store(out + 3 * BLOCK + place, d)
    tl.store(out + 4 * BLOCK + place, tl.randint(seed, first + place))


@pytest.mark.parametrize("seed", [0, 12345, -1, 2**40 + 3])
@pytest.mark.parametrize(
    ("first", "offset"), [(0, tl.int32), (1000, tl.uint32), (2**35, tl.int64), (40, tl.int16), (-5, tl.int32)]
)
def test_integers(seed, first, offset):
    block = 16
    arguments = {
        "seed": seed,
        "first": first,
        "out": enceladus.empty(5 * block, "uint32"),
        "OFFSET": offset,
        "BLOCK": block,
    }
    key = ((seed & 0xFFFFFFFF), (seed >> 32) & 0xFFFFFFFF)
    columns = []
    for place in range(first, first + block):
        high = (place >> 32) & 0xFFFFFFFF if offset is tl.int64 else 0
        columns.append(philox((place & 0xFFFFFFFF, high, 0, 0), key))
    expected = np.array(columns, np.uint64).T.astype(np.uint32)
    for engine, (out,) in run_everywhere(integers_kernel, (1,), arguments, engines=ENGINES).items():
        got = out.reshape(5, block)
        assert np.array_equal(got[:4], expected), engine
        assert np.array_equal(got[4], expected[0]), engine


@enceladus.jit
def floats_kernel(seed, out, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    a, b, c, d = tl.rand4x(seed, place)
    e, f, g, h = tl.randn4x(seed, place)
    tl.store(out + place, tl.rand(seed, place))
    tl.store(out + BLOCK + place, a)
    tl.store(out + 2 * BLOCK + place, b)
    tl.store(out + 3 * BLOCK + place, c)
    tl.store(out + 4 * BLOCK + place, d)
    tl.store(out + 5 * BLOCK + place, tl.randn(seed, place))
    tl.store(out + 6 * BLOCK + place, e)
    tl.store(out + 7 * BLOCK + place, f)
    tl.store(out + 8 * BLOCK + place, g)
    tl.store(out + 9 * BLOCK + place, h)


def uniform(word):
    """Triton's conversion of a random word, in float32."""
    signed = word - (1 << 32) if word >> 31 else word
    return np.float32(-signed - 1 if signed < 0 else signed) * np.float32(4.6566127342e-10)


def test_floats():
    block, seed = 1024, 7
    arguments = {"seed": seed, "out": enceladus.empty(10 * block, "float32"), "BLOCK": block}
    random = np.array([philox((i, 0, 0, 0), (seed, 0)) for i in range(block)], object)
    u = np.array([[uniform(int(word)) for word in row] for row in random], np.float32).T
    assert u.min() >= 0 and u.max() < 1
    wide = np.maximum(u.astype(np.float64), 1e-7)
    pairs = [(wide[0], u[1]), (wide[2], u[3])]
    normal = [np.sqrt(-2 * np.log(a)) * f(2 * math.pi * b) for a, b in pairs for f in (np.cos, np.sin)]
    for engine, (out,) in run_everywhere(floats_kernel, (1,), arguments, engines=ENGINES).items():
        got = out.reshape(10, block)
        assert np.array_equal(got[0], u[0]) and np.array_equal(got[1:5], u), engine
        assert np.allclose(got[5:], [normal[0], *normal], rtol=1e-5, atol=4e-6), engine
    assert abs(np.mean(normal)) < 0.05 and abs(np.std(normal) - 1) < 0.05


def test_the_largest_words_stay_below_one():
    assert uniform(0x7FFFFFFF) < 1 and uniform(0x80000000) < 1
    with use_emitter(NumpyEmitter(Program((1, 1, 1)))):
        for word in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
            got = tl.uint_to_uniform_float(tl.cast(word, tl.uint32))
            assert np.float32(got.value.data) == uniform(word)


def test_box_muller():
    with use_emitter(NumpyEmitter(Program((1, 1, 1)))):
        for u, v in ((0.5, 0.25), (0.0, 0.9), (0.999, 0.0)):
            got = [float(x.value.data) for x in tl.pair_uniform_to_normal(u, v)]
            radius, angle = math.sqrt(-2 * math.log(max(u, 1e-7))), 2 * math.pi * v
            assert np.allclose(
                got, [radius * math.cos(angle), radius * math.sin(angle)], rtol=1e-6, atol=1e-6
            )
