"""Loops and branches of the graph engine, where programs agree and where they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
import pytest

from enceladus.errors import CompilationError, Location
from enceladus.ir import ops
from enceladus.ir.core import Block, Value
from enceladus.ir.ops import BinaryKind
from enceladus.ir.types import DType, float32, int1, int8, int32, int64, uint8
from enceladus.mlx_bridge.targets import graph
from tests.graph_helpers import Kernel, assert_engines_agree

Body = Callable[..., Sequence[Value]]


def loop(
    k: Kernel, lower: Value, upper: Value, step: Value, initial: Sequence[Value], body: Body
) -> tuple[Value, ...]:
    """``body(i, *carried)`` gives the next carried values."""
    block = Block(tuple(Value(v.type) for v in (lower, *initial)))
    with k.builder.inside(block):
        k.builder.emit(ops.Yield(tuple(body(*block.arguments))))
    return k.builder.emit(ops.For(lower, upper, step, tuple(initial), block))


def branch(k: Kernel, condition: Value, then: Body, otherwise: Body) -> tuple[Value, ...]:
    blocks = []
    for body in (then, otherwise):
        block = Block()
        with k.builder.inside(block):
            k.builder.emit(ops.Yield(tuple(body())))
        blocks.append(block)
    return k.builder.emit(ops.If(condition, *blocks))


def counting(dtype: DType) -> Kernel:
    """out[pid] = sum of 100 * i + 1 over range(lower, upper, step)."""
    k = Kernel()
    out = k.array(int32, "out")
    lower, upper, step = (k.scalar(dtype, name) for name in ("lower", "upper", "step"))
    [total] = loop(
        k, lower, upper, step, [k.constant(0)],
        lambda i, total: [k.add(total, k.add(k.mul(k.cast(i, int32), 100), 1))],
    )  # fmt: skip
    k.store(out, k.program_id(), total)
    return k


@pytest.mark.parametrize(
    "bounds",
    [(0, 5, 1), (0, 5, 2), (5, 0, -1), (5, 0, -2), (0, 0, 1), (3, 1, 1), (1, 3, -1), (-4, 4, 3), (2, 9, 0)],
)
def test_bounds_the_programs_agree_on(bounds: tuple[int, int, int]) -> None:
    trips = range(*bounds) if bounds[2] else []
    for dtype in (int8, int32, int64):
        k = counting(dtype)
        old = mx.zeros(2, mx.int32)
        got = graph.run(k.function(), (2, 1, 1), [old, *bounds], {0: old})[0]
        assert got.tolist() == [sum(100 * i + 1 for i in trips)] * 2


@pytest.mark.parametrize(
    ("dtype", "bounds", "trips"),
    [(uint8, (0, 255, 1), 255), (int8, (-128, 127, 1), 255), (int64, (-(2**63), 2**63 - 1, 2**62), 4)],
)
def test_bounds_at_the_ends_of_the_type(dtype: DType, bounds: tuple[int, int, int], trips: int) -> None:
    k = Kernel()
    out = k.array(int32, "out")
    values = [k.constant(v, dtype) for v in bounds]
    [total] = loop(k, *values, [k.constant(0)], lambda i, total: [k.add(total, 1)])
    k.store(out, k.program_id(), total)
    old = mx.zeros(1, mx.int32)
    assert graph.run(k.function(), (1, 1, 1), [old], {0: old})[0].tolist() == [trips]


@pytest.mark.parametrize("limit", [1, 8, 1 << 24])
def test_trip_counts_that_differ_by_program(limit: int) -> None:
    """Triangle: program p adds the first p rows, and stores as often as it iterates."""
    k = Kernel()
    x, out, log = k.array(float32, "x"), k.array(float32, "out"), k.array(int32, "log")
    pid, lanes = k.program_id(), k.range(4)
    zero, one = k.constant(0), k.constant(1)
    start = k.to_shape(k.constant(0.0, float32), (4,))

    def body(i: Value, total: Value) -> Sequence[Value]:
        k.store(log, k.add(k.mul(pid, 8), i), k.add(i, 1))
        return [k.add(total, k.load(x, k.add(k.mul(i, 4), lanes)))]

    [total] = loop(k, zero, pid, one, [start], body)
    k.store(out, k.add(k.mul(pid, 4), lanes), total)
    x_values = np.arange(24, dtype=np.float32)
    arguments = [x_values, np.full(24, 9, np.float32), np.zeros(48, np.int32)]
    got = assert_engines_agree(k, (6, 1, 1), arguments, [1, 2], max_elements=limit)
    rows = x_values.reshape(6, 4)
    np.testing.assert_array_equal(got[0].reshape(6, 4), [rows[:p].sum(axis=0) for p in range(6)])
    assert [np.count_nonzero(row) for row in got[1].reshape(6, 8)] == list(range(6))


def test_a_loop_inside_a_loop_with_masks_of_both() -> None:
    k = Kernel()
    out = k.array(int32, "out")
    pid, one = k.program_id(), k.constant(1)

    def outer(i: Value, total: Value) -> Sequence[Value]:
        k.store(out, k.add(k.mul(pid, 4), i), total)
        return loop(k, i, pid, one, [total], lambda j, total: [k.add(k.mul(total, 2), j)])

    [total] = loop(k, k.constant(0), pid, one, [pid], outer)
    k.store(out, k.add(pid, 20), total)
    assert_engines_agree(k, (5, 1, 1), [np.zeros(25, np.int32)], [0])


def test_a_carried_offset_and_two_values() -> None:
    k = Kernel()
    x, out = k.array(int32, "x"), k.array(int32, "out")
    lanes = k.range(4)
    bounds = [k.constant(v) for v in (0, 3, 1)]
    start = [lanes, k.to_shape(k.constant(0), (4,))]
    at, total = loop(k, *bounds, start, lambda i, at, total: [k.add(at, 4), k.add(total, k.load(x, at))])
    k.store(out, lanes, total)
    k.store(out, k.add(lanes, 4), at)
    [got] = assert_engines_agree(k, (1, 1, 1), [np.arange(12, dtype=np.int32), np.zeros(8, np.int32)], [1])
    assert got.tolist() == [12, 15, 18, 21, 12, 13, 14, 15]


def test_bounds_from_array_data_are_refused() -> None:
    k = Kernel()
    x, out = k.array(int32, "x"), k.array(int32, "out")
    k.builder.location = Location("kernel.py", 7, 4)
    loop(k, k.constant(0), k.load(x, k.constant(0)), k.constant(1), [], lambda i: [])
    one = mx.ones(1, mx.int32)
    with pytest.raises(CompilationError, match="depends on array data") as caught:
        graph.run(k.function(), (1, 1, 1), [one, one], {1: one})
    assert caught.value.location == Location("kernel.py", 7, 4)
    assert "mask the iterations" in caught.value.hint
    del out


def choosing(condition: Callable[[Kernel, Value], Value]) -> Kernel:
    """Stores into one half of ``out`` or the other, and merges two tiles and one scalar."""
    k = Kernel()
    flags, out = k.array(int1, "flags"), k.array(int32, "out")
    offsets = k.offsets(4)
    pid = k.program_id()

    def side(sign: int) -> Body:
        def body() -> Sequence[Value]:
            k.store(out, k.add(offsets, 64 if sign > 0 else 128), k.add(offsets, 1))
            return k.mul(k.add(offsets, 1), sign), k.add(pid, sign), offsets

        return body

    a, b, c = branch(k, condition(k, flags), side(1), side(-1))
    k.store(out, offsets, k.add(k.mul(a, 100), k.add(b, c)))
    return k


CONDITIONS: dict[str, Callable[[Kernel, Value], Value]] = {
    "always": lambda k, flags: k.constant(True, int1),
    "never": lambda k, flags: k.constant(False, int1),
    "uniform": lambda k, flags: k.less(k.emit(ops.NumPrograms(0)), 100),
    "by program": lambda k, flags: k.less(k.program_id(), 3),
    "one scalar from data": lambda k, flags: k.load(flags, k.constant(0)),
    "by program from data": lambda k, flags: k.load(flags, k.program_id()),
}


@pytest.mark.parametrize("limit", [4, 8, 1 << 24])
@pytest.mark.parametrize("name", list(CONDITIONS))
def test_branches(name: str, limit: int) -> None:
    flags = np.array([True, False, True, True, False, False, True, False])
    assert_engines_agree(
        choosing(CONDITIONS[name]), (8, 1, 1), [flags, np.zeros(192, np.int32)], [1], max_elements=limit
    )


def test_only_the_branch_taken_is_evaluated() -> None:
    """A loop over array data is refused, but not where every program avoids it."""
    k = Kernel()
    x, out = k.array(int32, "x"), k.array(int32, "out")

    def refused() -> Sequence[Value]:
        loop(k, k.constant(0), k.load(x, k.constant(0)), k.constant(1), [], lambda i: [])
        return [k.constant(1)]

    [value] = branch(k, k.less(k.program_id(), 0), refused, lambda: [k.constant(2)])
    k.store(out, k.program_id(), value)
    assert_engines_agree(k, (3, 1, 1), [np.ones(1, np.int32), np.zeros(3, np.int32)], [1])


@pytest.mark.parametrize("from_data", [False, True])
def test_a_loop_in_a_branch_and_a_branch_in_a_loop(from_data: bool) -> None:
    k = Kernel()
    flags, out = k.array(int1, "flags"), k.array(int32, "out")
    pid, one = k.program_id(), k.constant(1)

    def is_odd(value: Value) -> Value:
        return k.compare(ops.CompareKind.EQ, k.binary(BinaryKind.AND, value, 1), 1)

    def body(i: Value, total: Value) -> Sequence[Value]:
        condition = k.load(flags, k.add(i, pid)) if from_data else is_odd(k.add(i, pid))

        def then() -> Sequence[Value]:
            k.store(out, k.add(k.add(k.mul(pid, 8), i), 8), k.add(total, 1))
            return [k.add(k.mul(total, 3), i)]

        return branch(k, condition, then, lambda: [k.add(total, 5)])

    def inner() -> Sequence[Value]:
        return loop(k, k.constant(0), pid, one, [pid], body)

    [value] = branch(k, is_odd(pid), inner, lambda: [k.constant(-1)])
    k.store(out, pid, value)
    flag_values = np.random.default_rng(1).random(16) < 0.5
    assert_engines_agree(k, (8, 1, 1), [flag_values, np.zeros(80, np.int32)], [1])
