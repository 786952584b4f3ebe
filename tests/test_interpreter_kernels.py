
"""Kernels run by the interpreter, end to end, against plain NumPy."""

import collections
import math
import traceback

import ml_dtypes
import numpy as np
import pytest

import enceladus.language as tl
from enceladus.errors import CompilationError
from enceladus.frontend.build import build_function
from enceladus.frontend.function import KernelFunction
from enceladus.frontend.signature import ArrayArgument, ConstantArgument, ScalarArgument, TupleArgument
from enceladus.interpreter.arrays import dtype_of
from enceladus.interpreter.evaluate import evaluate_function
from enceladus.interpreter.program import AssumptionError, OutOfBoundsError
from enceladus.interpreter.run import run_kernel

jit = KernelFunction


def record(value, constexpr):
    """The argument record that the launcher would make."""
    if constexpr or value is None or isinstance(value, KernelFunction):
        return ConstantArgument(value, repr(value))
    if isinstance(value, np.ndarray):
        return ArrayArgument(dtype_of(value))
    if isinstance(value, tuple):
        return TupleArgument(tuple(record(v, False) for v in value), getattr(value, "_fields", ()))
    if isinstance(value, bool):
        return ScalarArgument(tl.int1)
    return ScalarArgument(tl.float32 if isinstance(value, float) else tl.int32)


def launch(kernel, grid, *args, wide=False, num_warps=4, **constexprs):
    values = dict(zip(kernel.parameter_names, args, strict=False)) | constexprs
    records = {name: record(value, kernel.by_name[name].constexpr) for name, value in values.items()}
    run_kernel(kernel, (*grid, 1, 1)[:3], records, values, num_warps=num_warps, wide=wide)


# ------------------------------------------------------------------------------- whole programs


@jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)


@pytest.mark.parametrize("n", [1, 7, 1000, 1024])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint64"])
def test_vector_add(n, dtype):
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x, y = (np.arange(n) * k % 100 for k in (3, 7))
    x, y, out = x.astype(dtype), y.astype(dtype), np.zeros(n, dtype)
    launch(add_kernel, (-(-n // 128),), x, y, out, n, BLOCK=128)
    with np.errstate(over="ignore"):
        assert np.array_equal(out, x + y)


@jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@jit
def gelu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, gelu(x), mask=mask)


def test_gelu():
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    out = np.empty_like(x)
    launch(gelu_kernel, (4,), x, out, x.size, BLOCK=256)
    expected = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()])
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-7)


@jit
def transform_2d_kernel(x_ptr, out_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(1) * R + tl.arange(0, R)[:, None]
    c = tl.program_id(0) * C + tl.arange(0, C)[None, :]
    mask = (r < rows) & (c < cols)
    x = tl.load(x_ptr + r * cols + c, mask=mask, other=-1.0)
    tl.store(out_ptr + r * cols + c, tl.where(x > 0, x, r * 10 + c), mask=mask)


def test_two_dimensions():
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    out = np.zeros_like(x)
    launch(transform_2d_kernel, (2, 2), x, out, 5, 6, R=4, C=4)
    r, c = np.mgrid[:5, :6]
    assert np.array_equal(out, np.where(x > 0, x, r * 10 + c).astype(np.float32))


# -------------------------------------------------------------------------------- control flow


@jit
def loop_kernel(out_ptr, lower, upper, step, UNROLLED: tl.constexpr):
    total = 0
    halves = 0.0
    for i in range(lower, upper, step):
        total += i // 2
        halves += i / 2
    for k in tl.static_range(UNROLLED):
        total += k
    tl.store(out_ptr, total)
    tl.store(out_ptr + 1, halves.to(tl.int32))


@pytest.mark.parametrize("bounds", [(0, 10, 1), (-7, 8, 3), (10, 0, -4), (5, 5, 1), (0, 5, 0)])
def test_loops(bounds):
    out = np.zeros(2, np.int32)
    launch(loop_kernel, (1,), out, *bounds, UNROLLED=3)
    steps = range(*bounds) if bounds[2] else ()
    # '//' on run-time integers truncates, as in C
    assert out.tolist() == [sum(int(i / 2) for i in steps) + 3, int(sum(i / 2 for i in steps))]


@jit
def loop_of_literals_kernel(out_ptr):
    for i in range(-3, 4):
        tl.store(out_ptr + i + 3, i // 2)


def test_a_loop_variable_is_a_run_time_value_even_with_literal_bounds():
    out = np.zeros(7, np.int32)
    launch(loop_of_literals_kernel, (1,), out)
    assert out.tolist() == [-1, -1, 0, 0, 0, 1, 1]


@jit
def branch_kernel(x_ptr, out_ptr, threshold):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid)
    y = 1
    if x > threshold:
        y = 2
        x = x * 2
    elif x == threshold:
        y = 3
    else:
        x = -x
    tl.store(out_ptr + pid, x * y // 2)


def test_branches():
    x = np.array([1, 5, 9], np.int32)
    out = np.zeros_like(x)
    launch(branch_kernel, (3,), x, out, 5)
    assert out.tolist() == [0, 7, 18]  # -1 // 2 truncates


@jit
def join_type_kernel(x_ptr, out_ptr, flag):
    scale = 0
    if flag:
        scale = tl.load(x_ptr)
    # In float16 the sum is lost; in float32 it would not be.
    tl.store(out_ptr, (scale + 2048.0 + 1.0).to(tl.float32))


@pytest.mark.parametrize("flag", [False, True])
def test_a_number_takes_the_type_of_the_branch_not_taken(flag):
    x, out = np.zeros(1, np.float16), np.zeros(1, np.float32)
    launch(join_type_kernel, (1,), x, out, flag)
    assert out[0] == 2048.0


@jit
def pick(flag, x):
    y = x if flag else 3
    return y * 1000


@jit
def conditional_kernel(x_ptr, out_ptr, flag):
    x = tl.load(x_ptr)
    tl.store(out_ptr, pick(flag, x).to(tl.int32))
    tl.store(out_ptr + 1, pick(flag, 7))


@pytest.mark.parametrize(("flag", "expected"), [(True, [-24, 7000]), (False, [3000 % 256 - 256, 3000])])
def test_conditional_expressions_take_types_by_call_site(flag, expected):
    x, out = np.array([1], np.int8), np.zeros(2, np.int32)
    with pytest.raises(CompilationError, match="1000"):
        launch(conditional_kernel, (1,), x, out, flag)  # 1000 is no int8
    x = x.astype(np.int16)
    launch(conditional_kernel, (1,), x, out, flag)
    assert out.tolist() == ([1000, 7000] if flag else [3000, 3000])


@jit
def logic_kernel(x_ptr, out_ptr, a, b, n):
    tl.store(out_ptr, (a and b).to(tl.int32))
    tl.store(out_ptr + 1, (a or b).to(tl.int32))
    tl.store(out_ptr + 2, (not a).to(tl.int32))
    tl.store(out_ptr + 3, (0 <= a < b <= 9).to(tl.int32))
    if n > 0 and tl.load(x_ptr + n) > 0:  # must not load unless n > 0
        tl.store(out_ptr + 4, 1)
    if n <= 0 or tl.load(x_ptr + n) > 0:
        tl.store(out_ptr + 5, 1)


@pytest.mark.parametrize(("a", "b", "n"), [(3, 0, -5), (0, 0, 1), (2, 9, 0), (9, 2, 1), (-1, 4, -1)])
def test_logic_gives_int1_and_stops_early(a, b, n):
    x, out = np.array([0, 1], np.float32), np.zeros(6, np.int32)
    launch(logic_kernel, (1,), x, out, a, b, n)
    expected = [bool(a and b), bool(a or b), not a, 0 <= a < b <= 9, n > 0 and x[n] > 0, n <= 0 or x[n] > 0]
    assert out.tolist() == list(map(int, expected))


@jit
def compile_time_kernel(x_ptr, out_ptr, bias_ptr, MODE: tl.constexpr, FLAG: tl.constexpr = None):
    x = tl.load(x_ptr)
    if MODE == "double" and bias_ptr is None:
        x = x * 2
    elif bias_ptr is not None:
        x = x + tl.load(bias_ptr)
    if FLAG:
        x = -x
    tl.store(out_ptr, x)


@pytest.mark.parametrize(
    ("bias", "constants", "expected"),
    [(None, {"MODE": "double"}, 6), (5, {"MODE": "x"}, 8), (None, {"MODE": "", "FLAG": True}, -3)],
)
def test_compile_time_conditions(bias, constants, expected):
    x, out = np.array([3], np.int32), np.zeros(1, np.int32)
    bias = None if bias is None else np.array([bias], np.int32)
    launch(compile_time_kernel, (1,), x, out, bias, **constants)
    assert out[0] == expected


@jit
def builtins_kernel(out_ptr, a, b):
    tl.store(out_ptr, min(a, b, 4))
    tl.store(out_ptr + 1, max(a, b))
    tl.store(out_ptr + 2, abs(a))
    n: tl.constexpr = max(2, 5) + len((1, 2))
    tl.store(out_ptr + 3, n)


def test_python_builtins():
    out = np.zeros(4, np.int32)
    launch(builtins_kernel, (1,), out, -6, 9)
    assert out.tolist() == [-6, 9, 6, 7]


# --------------------------------------------------------------------------- helpers, arguments


@jit
def double(x):
    return x * 2


@jit
def minmax(a, b):
    low = tl.minimum(a, b)
    return low, tl.maximum(a, b)


@jit
def apply_kernel(arrays, factors, FUNCTION: tl.constexpr):
    offs = tl.arange(0, 4)
    low, high = minmax(FUNCTION(tl.load(arrays.x + offs)), factors[0])
    tl.store(arrays.out + offs, low + high * factors[1])


def test_tuples_and_functions_as_arguments():
    arrays = collections.namedtuple("Arrays", "x out")(np.arange(4, dtype=np.int32), np.zeros(4, np.int32))
    launch(apply_kernel, (1,), arrays, (3, 10), FUNCTION=double)
    x = arrays.x * 2
    assert arrays.out.tolist() == (np.minimum(x, 3) + np.maximum(x, 3) * 10).tolist()


SCALE = tl.constexpr(3)


def closure_kernel(offset):
    @jit
    def kernel(out_ptr, one):
        tl.store(out_ptr, SCALE * 2 + offset + one.to(tl.int32))

    return kernel


def test_globals_closures_and_an_argument_of_one():
    out = np.zeros(1, np.int32)
    kernel = closure_kernel(100)
    records = {"out_ptr": ArrayArgument(tl.int32), "one": ConstantArgument(1, "1")}
    before = set(globals())
    run_kernel(kernel, (1, 1, 1), records, {"out_ptr": out, "one": 1})
    assert out[0] == 107
    assert set(globals()) == before


@jit
def grid_kernel(out_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    index = x + tl.num_programs(0) * (y + tl.num_programs(1) * z)
    tl.store(out_ptr + index, index * 1000 + z * 100 + y * 10 + x)


def test_grid():
    out = np.zeros(24, np.int32)
    launch(grid_kernel, (2, 3, 4), out)
    expected = [i * 1000 + (i // 6) * 100 + i // 2 % 3 * 10 + i % 2 for i in range(24)]
    assert out.tolist() == expected
    launch(grid_kernel, (0,), np.zeros(0, np.int32))


@jit
def index_type_kernel(out_ptr, BIG: tl.constexpr):
    offs = (tl.arange(0, 1) + 1) * BIG * 4
    tl.store(out_ptr + tl.arange(0, 1), offs)


@pytest.mark.parametrize(("wide", "expected"), [(False, 0), (True, 2**32)])
def test_index_arithmetic_is_64_bits_in_the_wide_variant(wide, expected):
    out = np.ones(1, np.int64)
    launch(index_type_kernel, (1,), out, BIG=2**30, wide=wide)
    assert out[0] == expected


@jit
def shift_kernel(x_ptr):
    i = tl.program_id(0)
    tl.store(x_ptr + i + 1, tl.load(x_ptr + i) + 10)


def test_loads_see_the_contents_from_before_the_launch():
    x = np.zeros(4, np.int32)
    launch(shift_kernel, (3,), x)
    assert x.tolist() == [0, 10, 10, 10], "no program sees what another one stored, as on a GPU"


# ----------------------------------------------------------------- the same kernel as tile IR


@jit
def mixture_kernel(x_ptr, out_ptr, n, flag, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=1)
    factor = 1
    pair = (0, 0.5)
    for i in range(3):
        if (i > 0 and flag) or n % 2 == 0:
            factor = factor * 2
            x = x + i
        pair = (pair[1] * 2 if i else 7.0, 1.0)
    x = x * factor + (1 if flag else 2) - tl.where(x > n, pair[0], pair[1])
    tl.store(out_ptr + offs, x, mask=offs < n)


@pytest.mark.parametrize("n", [5, 6])
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_python_and_tile_ir_agree(n, flag, dtype):
    x = np.arange(8).astype(dtype)
    results = np.zeros((2, 8), dtype)
    arguments = {name: record(v, False) for name, v in zip(("x_ptr", "out_ptr", "n"), (x, x, n), strict=True)}
    arguments |= {"flag": record(flag, False), "BLOCK": ConstantArgument(4, "4")}
    values = {"x_ptr": x, "out_ptr": results[0], "n": n, "flag": flag}
    run_kernel(mixture_kernel, (2, 1, 1), arguments, values)
    ir = build_function(mixture_kernel, arguments)
    evaluate_function(ir, (2, 1, 1), [x, results[1], n, flag])
    assert np.array_equal(results[0], results[1]) and results[0, :n].any()


# ------------------------------------------------------------------------------------ debugging


@jit
def printing_kernel(x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 2))
    print("pid", tl.program_id(0))
    print(f"x = {x}", x.shape)


def test_print_shows_values(capsys):
    launch(printing_kernel, (2,), np.array([1.5, 2.5], np.float32))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "0" in lines[0] and "1" in lines[2]
    assert "1.5" in lines[1] and "2.5" in lines[1] and "(2,)" in lines[1]


@jit
def failing_helper(x, size):
    return tl.load(
        x + size,
    )


@jit
def outside_kernel(x_ptr, size):
    y = 1
    z = failing_helper(x_ptr, size)
    tl.store(x_ptr, z + y)


def line_of(kernel, text):
    lines = kernel.source.splitlines()
    return kernel.tree.lineno + next(i for i, line in enumerate(lines) if text in line)


def test_an_access_outside_points_at_the_source():
    with pytest.raises(OutOfBoundsError) as caught:
        launch(outside_kernel, (1,), np.zeros(4, np.float32), 4)
    error = caught.value
    assert (error.parameter, error.offset, error.size, error.program) == ("x_ptr", 4, 4, (0, 0, 0))
    assert error.location.file == __file__
    assert error.location.line == line_of(failing_helper, "return")
    assert error.location.call_site.line == line_of(outside_kernel, "z =")
    assert "return tl.load(" in str(error) and "^" in str(error)
    frames = {f.name: f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__}
    assert frames["outside_kernel"] == line_of(outside_kernel, "z =")
    assert frames["failing_helper"] == line_of(failing_helper, "return")


def test_a_masked_off_access_outside_is_fine():
    x, out = np.ones(3, np.float32), np.zeros(3, np.float32)
    launch(add_kernel, (1,), x, x, out, 3, BLOCK=8)
    assert out.tolist() == [2, 2, 2]
    with pytest.raises(OutOfBoundsError, match=r"load of x_ptr\[3\], an array of 3 elements"):
        launch(add_kernel, (1,), x, x, out, 4, BLOCK=8)


@jit
def debugger_kernel(x_ptr, n):
    value = tl.load(x_ptr)
    if value > 0 and n > 0:
        breakpoint()
        value = value + 1
    tl.store(x_ptr, value)


def test_breakpoint_stops_in_the_kernel(monkeypatch):
    import sys

    stops = []

    def hook():
        frame = sys._getframe(1)
        stops.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno, set(frame.f_locals)))

    monkeypatch.setattr(sys, "breakpointhook", hook)
    x = np.array([1.0], np.float32)
    launch(debugger_kernel, (1,), x, 1)
    ((file, name, line, names),) = stops
    assert (file, name) == (__file__, "debugger_kernel")
    assert line == line_of(debugger_kernel, "breakpoint")
    assert {"x_ptr", "n", "value"} <= names
    assert x[0] == 2.0


@jit
def stepping_kernel(x_ptr, n):
    total = 0
    for i in range(n):
        if i > 0:
            total += 1
    tl.store(x_ptr, total)


def test_a_debugger_steps_through_the_lines_as_written():
    import sys

    lines = []

    def trace(frame, event, arg):
        if frame.f_code.co_name != "stepping_kernel" or frame.f_code.co_filename != __file__:
            return None
        if event == "line":
            lines.append(frame.f_lineno - stepping_kernel.tree.lineno)
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        launch(stepping_kernel, (1,), np.zeros(1, np.int32), 2)
    finally:
        sys.settrace(old)
    stops = [line for k, line in enumerate(lines) if k == 0 or line != lines[k - 1]]
    assert stops == [1, 2, 3, 2, 3, 4, 2, 5]


@jit
def asserting_kernel(n):
    assert n > 2, "too small"
    tl.assume(n < 10)


def test_run_time_assertions_and_assumptions_are_checked():
    launch(asserting_kernel, (1,), 5)
    with pytest.raises(AssertionError, match="too small"):
        launch(asserting_kernel, (1,), 2)
    with pytest.raises(AssumptionError, match="assume") as caught:
        launch(asserting_kernel, (1,), 11)
    assert caught.value.location.line == line_of(asserting_kernel, "tl.assume")


# ---------------------------------------------------------------------------------------- errors


@jit
def mistyped_kernel(x_ptr, flag):
    x = tl.load(x_ptr)
    if flag:
        x = x.to(tl.int32)
    tl.store(x_ptr, x)


def test_what_compiling_refuses_is_refused_here():
    with pytest.raises(CompilationError, match="'x' is an int32 scalar in the first branch") as caught:
        launch(mistyped_kernel, (1,), np.zeros(1, np.float32), False)
    assert caught.value.location.file == __file__


def test_wrong_arguments():
    x = np.zeros(8, np.float32)
    records = {"x_ptr": ArrayArgument(tl.float16)}
    with pytest.raises(TypeError, match="'x_ptr' is an array of float32, not float16"):
        run_kernel(printing_kernel, (1, 1, 1), records, {"x_ptr": x})
    with pytest.raises(ValueError, match="'x_ptr' must be a C-contiguous"):
        launch(printing_kernel, (1,), x[::2])
    with pytest.raises(TypeError, match="'x_ptr' must be a NumPy array"):
        run_kernel(printing_kernel, (1, 1, 1), {"x_ptr": ArrayArgument(tl.float32)}, {"x_ptr": [1.0]})
    with pytest.raises(ValueError, match="does not fit int32"):
        launch(asserting_kernel, (1,), 2**40)
