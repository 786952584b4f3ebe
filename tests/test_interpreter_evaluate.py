"""Tile IR evaluated on NumPy: memory, control flow, bounds, both stages."""

import numpy as np
import pytest

from enceladus.errors import Location
from enceladus.interpreter.evaluate import evaluate_function
from enceladus.interpreter.program import AssumptionError, OutOfBoundsError
from enceladus.ir import ops
from enceladus.ir.builder import IRBuilder
from enceladus.ir.core import Block, Function, Value
from enceladus.ir.types import float32, int1, int32, pointer_type, tile_type


class Builder(IRBuilder):
    """An IR builder with arithmetic on values, and one function under construction."""

    def __init__(self, **parameters):
        self.parameters = {
            name: Value(tile_type(element), None, name) for name, element in parameters.items()
        }
        super().__init__(Block(tuple(self.parameters.values())))

    def one(self, op):
        return self.emit(op)[0]

    def constant(self, value, dtype=int32):
        return self.one(ops.Constant(value, dtype))

    def binary(self, kind, lhs, rhs):
        return self.one(ops.Binary(kind, lhs, rhs))

    def splat(self, value, shape):
        return self.one(ops.Splat(value, shape))

    def offsets(self, block):
        """``program_id(0) * block + arange(0, block)``"""
        start = self.binary(ops.BinaryKind.MUL, self.one(ops.ProgramId(0)), self.constant(block))
        return self.binary(ops.BinaryKind.ADD, self.splat(start, (block,)), self.one(ops.MakeRange(0, block)))

    def function(self):
        return Function("test", self.block)


POINTER = pointer_type(float32)


def copy_kernel(resolved, masked, block=4):
    b = Builder(x_ptr=POINTER, y_ptr=POINTER, n=int32)
    x, y, n = b.parameters.values()
    offsets = b.offsets(block)
    b.location = Location("kernel.py", 7)
    mask = other = None
    if masked:
        mask = b.one(ops.Compare(ops.CompareKind.LT, offsets, b.splat(n, (block,))))
        other = b.splat(b.constant(-1.0, float32), (block,))
    if resolved:
        value = b.one(ops.ArrayLoad(x, offsets, mask, other))
        b.emit(ops.ArrayStore(y, offsets, value, mask))
    else:
        value = b.one(ops.Load(b.one(ops.AddPointer(b.splat(x, (block,)), offsets)), mask, other))
        b.emit(ops.Store(b.one(ops.AddPointer(b.splat(y, (block,)), offsets)), value, mask))
    return b.function()


@pytest.mark.parametrize("resolved", [False, True])
def test_masked_copy(resolved):
    x = np.arange(6, dtype=np.float32)
    y = np.full(6, 9, np.float32)
    evaluate_function(copy_kernel(resolved, masked=True), (2, 1, 1), [x, y, 5])
    assert y.tolist() == [0, 1, 2, 3, 4, 9]


@pytest.mark.parametrize("resolved", [False, True])
def test_an_access_outside_names_everything(resolved):
    x, y = np.zeros(6, np.float32), np.zeros(6, np.float32)
    with pytest.raises(OutOfBoundsError) as caught:
        evaluate_function(copy_kernel(resolved, masked=False), (2, 1, 1), [x, y, 6])
    error = caught.value
    assert isinstance(error, IndexError)
    assert (error.parameter, error.offset, error.size) == ("x_ptr", 6, 6)
    assert (error.program, error.element) == ((1, 0, 0), (2,))
    assert error.location.line == 7
    assert str(error) == (
        "kernel.py:7:1: load of x_ptr[6], an array of 6 elements (program (1, 0, 0), tile element [2])"
    )


def test_a_short_target_is_caught_at_the_store():
    x, y = np.zeros(4, np.float32), np.zeros(3, np.float32)
    with pytest.raises(OutOfBoundsError, match=r"store of y_ptr\[3\]"):
        evaluate_function(copy_kernel(False, masked=False), (1, 1, 1), [x, y, 4])


def test_masked_off_lanes_read_other_or_zero():
    b = Builder(x_ptr=POINTER, y_ptr=POINTER)
    x, y = b.parameters.values()
    lanes = b.one(ops.MakeRange(0, 4))
    mask = b.one(ops.Compare(ops.CompareKind.LT, lanes, b.splat(b.constant(2), (4,))))
    b.emit(ops.ArrayStore(y, lanes, b.one(ops.ArrayLoad(x, lanes, mask))))
    x_data, y_data = np.array([1, 2], np.float32), np.full(4, 7, np.float32)
    evaluate_function(b.function(), (1, 1, 1), [x_data, y_data])
    assert y_data.tolist() == [1, 2, 0, 0]


def loop_kernel():
    """``acc = 0; for i in range(lower, upper, step): acc += i``; then ``out[0] = acc``"""
    b = Builder(out_ptr=pointer_type(int32), lower=int32, upper=int32, step=int32)
    out, lower, upper, step = b.parameters.values()
    zero = b.constant(0)
    body = Block((Value(tile_type(int32), None, "i"), Value(tile_type(int32), None, "acc")))
    with b.inside(body):
        total = b.binary(ops.BinaryKind.ADD, body.arguments[1], body.arguments[0])
        b.emit(ops.Yield((total,)))
    (total,) = b.emit(ops.For(lower, upper, step, (zero,), body))
    b.emit(ops.ArrayStore(out, zero, total))
    return b.function()


@pytest.mark.parametrize(
    ("bounds", "expected"), [((0, 5, 1), 10), ((5, 0, -2), 9), ((3, 3, 1), 0), ((0, 5, 0), 0)]
)
def test_loops_carry_values(bounds, expected):
    out = np.full(1, -1, np.int32)
    evaluate_function(loop_kernel(), (1, 1, 1), [out, *bounds])
    assert out.tolist() == [expected]


@pytest.mark.parametrize(("flag", "expected"), [(True, [10]), (False, [20])])
def test_branches_run_one_side(flag, expected):
    b = Builder(out_ptr=pointer_type(int32), flag=int1)
    out, condition = b.parameters.values()
    blocks = Block(), Block()
    for block, number in zip(blocks, (10, 20), strict=True):
        with b.inside(block):
            b.emit(ops.Yield((b.constant(number),)))
    (value,) = b.emit(ops.If(condition, *blocks))
    b.emit(ops.ArrayStore(out, b.constant(0), value))
    result = np.zeros(1, np.int32)
    evaluate_function(b.function(), (1, 1, 1), [result, flag])
    assert result.tolist() == expected


def test_loads_see_the_contents_from_before_the_launch():
    """As on a GPU: no program sees what another one stores; the last store stays."""
    b = Builder(out_ptr=pointer_type(int32))
    (out,) = b.parameters.values()
    zero, ten = b.constant(0), b.constant(10)
    value = b.one(ops.ArrayLoad(out, zero))
    for axis in (1, 0):
        digit = b.one(ops.ProgramId(axis))
        value = b.binary(ops.BinaryKind.ADD, b.binary(ops.BinaryKind.MUL, value, ten), digit)
    b.emit(ops.ArrayStore(out, zero, value))
    result = np.full(1, 7, np.int32)
    evaluate_function(b.function(), (2, 3, 1), [result])
    assert result.tolist() == [721], "7, then the last program's ids: 2 on axis 1 and 1 on axis 0"


def test_a_broken_assumption_is_reported():
    b = Builder(flag=int1)
    b.emit(ops.Assume(b.parameters["flag"]))
    evaluate_function(b.function(), (1, 1, 1), [True])
    with pytest.raises(AssumptionError, match="program"):
        evaluate_function(b.function(), (1, 1, 1), [False])


def test_an_empty_grid_runs_nothing():
    evaluate_function(copy_kernel(False, masked=False), (0, 1, 1), [np.zeros(0, np.float32)] * 2 + [0])


def test_wrong_arguments_are_refused():
    kernel = copy_kernel(False, masked=True)
    good = np.zeros(8, np.float32)
    with pytest.raises(TypeError, match="takes 3 arguments, not 1"):
        evaluate_function(kernel, (1, 1, 1), [good])
    with pytest.raises(TypeError, match="'y_ptr' is an array of int32, not float32"):
        evaluate_function(kernel, (1, 1, 1), [good, good.astype(np.int32), 8])
    with pytest.raises(ValueError, match="'x_ptr' must be a C-contiguous"):
        evaluate_function(kernel, (1, 1, 1), [good[::2], good, 4])
    read_only = good.copy()
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="'y_ptr', which is a read-only array"):
        evaluate_function(kernel, (1, 1, 1), [good, read_only, 8])


def test_arrays_of_any_shape_are_written_in_place():
    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    y = np.zeros((4, 2), np.float32)
    evaluate_function(copy_kernel(True, masked=False), (2, 1, 1), [x, y, 8])
    assert np.array_equal(y.ravel(), x.ravel())


def test_is_aligned_looks_at_the_address():
    b = Builder(x_ptr=POINTER, out_ptr=pointer_type(int1), start=int32)
    x, out, start = b.parameters.values()
    b.emit(ops.ArrayStore(out, b.constant(0), b.one(ops.IsAligned(x, start))))
    storage = np.zeros(16, np.float32)
    first = -(storage.ctypes.data // 4) % 4
    result = np.zeros(1, np.bool_)
    for start in range(4):
        evaluate_function(b.function(), (1, 1, 1), [storage[first:], result, start])
        assert result[0] == (start == 0)
