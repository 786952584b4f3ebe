"""Kernels that update arrays: what they read, what stays, what it costs, and histories of updates."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import enceladus
import enceladus.language as tl
from enceladus import CompilationError
from tests.engines import ENGINES, engine, needs_host

# ----------------------------------------------------------------------------------- kernels


@enceladus.jit(do_not_specialize=["n"])
def add_to_first(x_ptr, n, value, BLOCK: tl.constexpr):
    """Adds ``value`` to the first ``n`` elements."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + value, mask=mask)


@enceladus.jit(do_not_specialize=["n"])
def every_other(x_ptr, n, value, BLOCK: tl.constexpr):
    """Sets elements 0, 2, 4, … of the first ``n``."""
    offsets = 2 * (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(x_ptr + offsets, value, mask=offsets < n)


@enceladus.jit(do_not_specialize=["n"])
def mirror(x_ptr, n, BLOCK: tl.constexpr):
    """``x[i] = x[n - 1 - i]``: programs read what other programs write."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(x_ptr + offsets, tl.load(x_ptr + n - 1 - offsets, mask=mask), mask=mask)


@enceladus.jit(do_not_specialize=["n"])
def accumulate(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """``y += x`` over the first ``n``; ``x`` is only read."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(y_ptr + offsets, mask=mask) + tl.load(x_ptr + offsets, mask=mask)
    tl.store(y_ptr + offsets, total, mask=mask)


@enceladus.jit(do_not_specialize=["n"])
def exchange(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Exchanges the first ``n`` elements of two arrays."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x, y = tl.load(x_ptr + offsets, mask=mask), tl.load(y_ptr + offsets, mask=mask)
    tl.store(x_ptr + offsets, y, mask=mask)
    tl.store(y_ptr + offsets, x, mask=mask)


@enceladus.jit
def rows(x_ptr, columns, stride, factor, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    pointers = x_ptr + row * stride + column
    mask = column < columns
    tl.store(pointers, tl.load(pointers, mask=mask) * factor, mask=mask)


@enceladus.jit
def rows_in_blocks(x_ptr, columns, factor, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        pointers = x_ptr + row * columns + column
        mask = column < columns
        tl.store(pointers, tl.load(pointers, mask=mask) * factor, mask=mask)


@enceladus.jit
def tiles(x_ptr, m, n, stride_m, stride_n, factor, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    pointers = x_ptr + i[:, None] * stride_m + j[None, :] * stride_n
    mask = (i[:, None] < m) & (j[None, :] < n)
    tl.store(pointers, tl.load(pointers, mask=mask) * factor, mask=mask)


@pytest.fixture(params=ENGINES)
def anywhere(request):
    with engine(request.param):
        yield request.param


def blocks(n: int, block: int) -> tuple[int]:
    return (enceladus.cdiv(n, block),)


def numbers(*shape: int) -> mx.array:
    return mx.arange(np.prod(shape, dtype=int).item()).astype(mx.float32).reshape(shape)


# --------------------------------------------------------------------------- before and after


def test_what_was_computed_before_keeps_its_values(anywhere):
    x = numbers(4, 6)
    lazy = x * 2
    view, column, flat, copy, whole = x[1:3], x[:, 2], x.reshape(-1), x + 0, x[:]
    transposed = x.T
    alias = x
    add_to_first[blocks(24, 8)](x, 24, 100.0, BLOCK=8)
    after = x * 2
    add_to_first[blocks(24, 8)](x, 10, 100.0, BLOCK=8)
    old = np.arange(24, dtype=np.float32).reshape(4, 6)
    new = old + 100
    newest = new.copy()
    newest.reshape(-1)[:10] += 100
    assert alias is x
    for got, want in [
        (x, newest), (after, new * 2), (lazy, old * 2), (view, old[1:3]), (column, old[:, 2]),
        (flat, old.reshape(-1)), (copy, old), (whole, old), (transposed, old.T),
    ]:  # fmt: skip
        np.testing.assert_array_equal(np.array(got), want)


def test_an_update_of_a_view_leaves_the_whole_alone(anywhere):
    x = numbers(4, 6)
    view, transposed = x[1:3], x.T
    add_to_first[blocks(12, 8)](view, 12, 100.0, BLOCK=8)
    add_to_first[blocks(24, 8)](transposed, 5, 100.0, BLOCK=8)
    old = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(np.array(x), old)
    np.testing.assert_array_equal(np.array(view), old[1:3] + 100)
    want = old.T.copy()
    want.reshape(-1)[:5] += 100
    np.testing.assert_array_equal(np.array(transposed), want)


def test_programs_read_what_was_there_before_the_launch(anywhere):
    x = numbers(37)
    mirror[blocks(37, 8)](x, 37, BLOCK=8)
    np.testing.assert_array_equal(np.array(x), np.arange(37)[::-1])
    mirror[blocks(20, 8)](x, 20, BLOCK=8)
    want = np.arange(37)[::-1].copy()
    want[:20] = want[:20][::-1]
    np.testing.assert_array_equal(np.array(x), want)


def test_two_arrays_in_one_launch(anywhere):
    x, y = numbers(20), numbers(20) + 100
    first, second = exchange[blocks(13, 8)](x, y, 13, BLOCK=8)
    assert first is x and second is y
    np.testing.assert_array_equal(np.array(x), np.r_[np.arange(13) + 100, np.arange(13, 20)])
    np.testing.assert_array_equal(np.array(y), np.r_[np.arange(13), np.arange(13, 20) + 100])


def test_one_array_read_and_updated_under_two_names(anywhere):
    x = numbers(20)
    accumulate[blocks(20, 8)](x, x, 15, BLOCK=8)
    np.testing.assert_array_equal(np.array(x), np.r_[2 * np.arange(15), np.arange(15, 20)])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.int8, mx.uint64, mx.bool_])
def test_the_type_stays(anywhere, dtype):
    x = numbers(20).astype(dtype)
    enceladus.JITFunction(every_other.fn)[blocks(10, 8)](x, 15, 1, BLOCK=8)
    want = np.arange(20, dtype=np.float32)
    want[:15:2] = 1
    assert x.dtype == dtype
    assert mx.array_equal(x, mx.array(want).astype(dtype))


# ------------------------------------------------------------- loads after the program's own stores


def test_what_is_stored_is_what_the_last_store_says(anywhere):
    @enceladus.jit
    def twice(x_ptr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets)
        tl.store(x_ptr + offsets, x + 1)
        tl.store(x_ptr + offsets, x + 2, mask=offsets < 3)

    x = numbers(8)
    twice[(1,)](x, BLOCK=8)
    np.testing.assert_array_equal(np.array(x), np.r_[np.arange(3) + 2, np.arange(3, 8) + 1])


def _after_a_store(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, 1.0)
    tl.store(x_ptr + BLOCK + offsets, tl.load(x_ptr + offsets))


def _in_the_next_iteration(x_ptr, n, BLOCK: tl.constexpr):
    for i in range(n):
        offsets = i + tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1)


def _in_another_iteration_of_two_loops(x_ptr, n, BLOCK: tl.constexpr):
    for i in range(0, n, BLOCK):
        for j in range(0, n, BLOCK):
            offsets = i + j + tl.arange(0, BLOCK)
            tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1)


def _in_the_same_place_each_time(x_ptr, n, BLOCK: tl.constexpr):
    for _ in range(n):
        offsets = tl.arange(0, BLOCK)
        tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1)


def _after_a_branch(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    if n > 3:
        tl.store(x_ptr + offsets, 1.0)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1)


@pytest.mark.parametrize(
    "function",
    [
        _after_a_store,
        _in_the_next_iteration,
        _in_another_iteration_of_two_loops,
        _in_the_same_place_each_time,
        _after_a_branch,
    ],
)
def test_a_load_that_would_have_to_see_a_store_is_refused(anywhere, function):
    kernel = enceladus.jit(function)
    with pytest.raises(CompilationError, match="may have to see the program's own store"):
        kernel[(1,)](mx.zeros(64), 8, BLOCK=4)


def test_a_loop_that_only_moves_on_is_accepted(anywhere):
    x = numbers(3, 20)
    rows_in_blocks[(3,)](x, 20, 3.0, BLOCK=8)
    np.testing.assert_array_equal(np.array(x), 3 * np.arange(60).reshape(3, 20))


# --------------------------------------------------------------------------- what it costs

X, MATRIX = mx.zeros(1000), mx.zeros((30, 50))
TILES = {"BM": 16, "BN": 16, "grid": (2, 4)}
Case = tuple[str, enceladus.JITFunction, tuple, dict, str]
COSTS: list[Case] = [
    ("1-D blocks", add_to_first, (X, 1000, 1.0), {"BLOCK": 128, "grid": (8,)}, "free"),
    ("1-D blocks, a block short", add_to_first, (X, 1000, 1.0), {"BLOCK": 128, "grid": (7,)}, "merge"),
    ("1-D blocks, an element short", add_to_first, (X, 999, 1.0), {"BLOCK": 128, "grid": (8,)}, "merge"),
    ("every other element", every_other, (X, 1000, 1.0), {"BLOCK": 128, "grid": (4,)}, "merge"),
    ("rows", rows, (MATRIX, 50, 50, 1.0), {"BLOCK": 64, "grid": (30,)}, "free"),
    ("rows, one short", rows, (MATRIX, 50, 50, 1.0), {"BLOCK": 64, "grid": (29,)}, "merge"),
    ("rows, a column short", rows, (MATRIX, 49, 50, 1.0), {"BLOCK": 64, "grid": (30,)}, "merge"),
    ("every other row", rows, (MATRIX, 50, 100, 1.0), {"BLOCK": 64, "grid": (15,)}, "merge"),
    ("rows in blocks", rows_in_blocks, (MATRIX, 50, 1.0), {"BLOCK": 16, "grid": (30,)}, "free"),
    ("rows in blocks, short", rows_in_blocks, (MATRIX, 50, 1.0), {"BLOCK": 16, "grid": (29,)}, "merge"),
    ("narrower rows in blocks", rows_in_blocks, (MATRIX, 49, 1.0), {"BLOCK": 16, "grid": (30,)}, "merge"),
    ("tiles", tiles, (MATRIX, 30, 50, 50, 1, 1.0), TILES, "free"),
    ("transposed tiles", tiles, (MATRIX, 50, 30, 1, 50, 1.0), {**TILES, "grid": (4, 2)}, "free"),
    ("tiles, a column short", tiles, (MATRIX, 30, 49, 50, 1, 1.0), TILES, "merge"),
    ("tiles, a tile short", tiles, (MATRIX, 30, 50, 50, 1, 1.0), {**TILES, "grid": (2, 3)}, "merge"),
    ("fresh zeros", every_other, (enceladus.zeros(1000), 1000, 1.0), {"BLOCK": 128, "grid": (4,)}, "fill"),
    ("fresh empty", every_other, (enceladus.empty(1000), 1000, 1.0), {"BLOCK": 128, "grid": (4,)}, "free"),
]  # fmt: skip
EXISTING = [case for case in COSTS if not case[0].startswith("fresh")]


@pytest.mark.parametrize(("kernel", "arguments", "options", "cost"), [c[1:] for c in COSTS],
                         ids=[c[0] for c in COSTS])  # fmt: skip
def test_cost_of_unwritten_elements(kernel, arguments, options, cost):
    warm = kernel.warmup(*arguments, **options)
    assert warm.costs == {"x_ptr": cost}
    assert f"x_ptr: {warm.roles['x_ptr']}; {cost}: " in warm.explain()


def test_costs_of_an_empty_launch():
    assert add_to_first.warmup(X, 1000, 1.0, BLOCK=128, grid=(0,)).costs == {"x_ptr": "free"}


@needs_host
@pytest.mark.parametrize(("kernel", "arguments", "options"), [c[1:4] for c in EXISTING],
                         ids=[c[0] for c in EXISTING])  # fmt: skip
def test_what_is_free_is_whole(kernel, arguments, options):
    """The executor finds elements of an output that nobody wrote, so a wrong proof fails here."""
    results = []
    for name in ("host", "graph"):
        with engine(name):
            copies = [x + 5 if isinstance(x, mx.array) else x for x in arguments]
            grid = options["grid"]
            rest = {key: value for key, value in options.items() if key != "grid"}
            results.append(np.array(enceladus.JITFunction(kernel.fn)[grid](*copies, **rest)))
    np.testing.assert_array_equal(*results)


# --------------------------------------------------------------------------------- histories

SHAPES = [(7,), (24,), (4, 6), (2, 3, 4)]


class History:
    """Arrays in MLX and what they should hold in NumPy. Two names may stand for one array."""

    def __init__(self) -> None:
        self.arrays: list[mx.array] = []
        self.expected: list[np.ndarray] = []

    def add(self, array: mx.array, expected: np.ndarray) -> None:
        self.arrays.append(array)
        self.expected.append(np.array(expected))

    def update(self, place: int, change: Callable[[np.ndarray], None]) -> None:
        """Change the array at ``place`` in the model, under all its names."""
        new = self.expected[place].copy()
        change(new.reshape(-1))
        for other, array in enumerate(self.arrays):
            if array is self.arrays[place]:
                self.expected[other] = new


LAUNCHES = ("add", "every other", "mirror", "accumulate", "exchange")
OTHERS = ("slice", "transpose", "reshape", "copy", "alias", "double", "sum", "evaluate")
KINDS = LAUNCHES + OTHERS


def step(history: History, data: st.DataObject) -> None:
    """One random launch, view, copy, or MLX operation."""
    place = data.draw(st.integers(0, len(history.arrays) - 1))
    x, model = history.arrays[place], history.expected[place]
    n = data.draw(st.integers(0, x.size))
    block = data.draw(st.sampled_from([4, 32]))
    grid = blocks(n, block)
    kind = data.draw(st.sampled_from(KINDS))
    if kind == "add":
        add_to_first[grid](x, n, 1.0, BLOCK=block)

        def change(flat: np.ndarray) -> None:
            flat[:n] += 1

        history.update(place, change)
    elif kind == "every other":
        every_other[grid](x, n, -1.0, BLOCK=block)

        def change(flat: np.ndarray) -> None:
            flat[:n:2] = -1

        history.update(place, change)
    elif kind == "mirror":
        mirror[grid](x, n, BLOCK=block)

        def change(flat: np.ndarray) -> None:
            flat[:n] = flat[:n][::-1].copy()

        history.update(place, change)
    elif kind in ("accumulate", "exchange"):
        other = data.draw(st.integers(0, len(history.arrays) - 1))
        y = history.arrays[other]
        n = min(n, y.size)
        theirs, mine = history.expected[other].reshape(-1).copy(), model.reshape(-1).copy()
        if kind == "accumulate":
            accumulate[grid](y, x, n, BLOCK=block)

            def change(flat: np.ndarray) -> None:
                flat[:n] += theirs[:n]

            history.update(place, change)
        elif x is y:
            with pytest.raises(ValueError, match="are the same array"):
                exchange[grid](x, y, n, BLOCK=block)
        else:
            exchange[grid](x, y, n, BLOCK=block)

            def change(flat: np.ndarray) -> None:
                flat[:n] = theirs[:n]

            def change_other(flat: np.ndarray) -> None:
                flat[:n] = mine[:n]

            history.update(place, change)
            history.update(other, change_other)
    elif kind == "slice":
        start = data.draw(st.integers(0, model.shape[0] - 1))
        stride = data.draw(st.sampled_from([1, 2]))
        history.add(x[start::stride], model[start::stride])
    elif kind == "transpose":
        history.add(x.T, model.T)
    elif kind == "reshape":
        history.add(x.reshape(-1), model.reshape(-1))
    elif kind == "copy":
        history.add(x[:], model)
    elif kind == "alias":
        history.add(x, model)
    elif kind == "double":
        history.add(x * 2, model * 2)
    elif kind == "sum":
        history.add(x.sum(0, keepdims=True), model.sum(0, keepdims=True))
    else:
        mx.eval(x)


def play(data: st.DataObject, steps: int) -> None:
    history = History()
    for shape in data.draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)):
        array = numbers(*shape) + len(history.arrays)
        history.add(array, np.array(array))
    for _ in range(data.draw(st.integers(1, steps))):
        step(history, data)
    for got, want in zip(history.arrays, history.expected, strict=True):
        np.testing.assert_array_equal(np.array(got), want)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_histories_in_the_graph_engine(data):
    with engine("graph"):
        play(data, 20)


@needs_host
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.data())
def test_histories_in_metal_text(data):
    with engine("host"):
        play(data, 8)


@pytest.mark.slow
@needs_host
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_long_histories_in_metal_text(data):
    with engine("host"):
        play(data, 30)
