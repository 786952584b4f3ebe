"""Packing of scalars, and the conditions for full coverage."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from enceladus.codegen.kernel import ScalarParameter
from enceladus.errors import InternalError
from enceladus.mlx_bridge.coverage import evaluate, holds
from enceladus.mlx_bridge.scalars import Packer


def _words(dtype, value):
    packer = Packer([ScalarParameter("unused", "int32", -1), ScalarParameter("a", dtype, 0)])
    assert packer.names == ["a"]
    return np.array(packer(value)).tobytes()


@pytest.mark.parametrize(
    ("dtype", "value", "raw"),
    [
        ("int32", -(2**31), struct.pack("<i", -(2**31))),
        ("int32", 2**31 - 1, struct.pack("<i", 2**31 - 1)),
        ("int64", -5, struct.pack("<q", -5)),
        ("int64", 2**62 + 3, struct.pack("<q", 2**62 + 3)),
        ("uint64", 2**64 - 1, b"\xff" * 8),
        ("int1", True, struct.pack("<i", 1)),
        ("int1", False, struct.pack("<i", 0)),
        ("float32", 0.1, struct.pack("<f", 0.1)),
        ("float32", -0.0, struct.pack("<f", -0.0)),
        ("float32", 1e300, struct.pack("<f", float("inf"))),
        ("float32", -1e300, struct.pack("<f", float("-inf"))),
        ("float32", float("nan"), struct.pack("<f", float("nan"))),
    ],
)
def test_bits_of_a_scalar(dtype, value, raw):
    assert _words(dtype, value) == raw


def test_several_scalars_follow_one_another():
    parameters = [
        ScalarParameter("c", "float32", 3),
        ScalarParameter("a", "int32", 0),
        ScalarParameter("b", "int64", 1),
    ]
    packer = Packer(parameters)
    assert packer.names == ["a", "b", "c"]
    assert packer.is_float == [False, False, True]
    assert np.array(packer(7, -(2**40), 1e39)).tobytes() == struct.pack("<iqf", 7, -(2**40), float("inf"))
    assert packer(7, 1, 0.5) is packer(7, 1, 0.5)
    assert packer(7, 1, 0.0) is not packer(7, 1, -0.0)


def test_words_that_do_not_follow_are_a_bug():
    with pytest.raises(InternalError, match="at word 2, expected 1"):
        Packer([ScalarParameter("a", "int32", 0), ScalarParameter("b", "int32", 2)])
    with pytest.raises(InternalError, match="do not fit"):
        Packer([ScalarParameter("a", "int32", 0)])(2**40)


def test_conditions_of_coverage():
    covered = ["min", ["mul", ["grid", 0], 1024], ["scalar", "n"]]
    condition = ["le", ["size"], covered]

    def full(grid, size, n):
        return holds([condition], (grid, 1, 1), size, {"n": n})

    assert full(1, 1000, 1000)
    assert full(1, 1000, 5000)
    assert not full(1, 1000, 999)
    assert not full(1, 1025, 2000)
    assert holds([], (1, 1, 1), 10, {})
    with pytest.raises(InternalError, match="unknown scalar 'm'"):
        evaluate(["scalar", "m"], (1, 1, 1), 1, {})
    with pytest.raises(InternalError, match="unknown form"):
        evaluate(["pow", 1, 2], (1, 1, 1), 1, {})
