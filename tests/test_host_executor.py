"""The host executor itself: that it computes what Metal computes and reports what Metal forbids."""

# ruff: noqa: E501  # a kernel body is easier to compare with its message on one line

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from tests.host_executor import (
    BareKernel,
    ExecutorError,
    HostArray,
    capture,
    compile_source,
    run_graph,
    to_mlx,
)

F32, I32, U32 = mx.float32, mx.int32, mx.uint32
RNG = np.random.default_rng(7)


def run(
    body: str,
    *inputs: Any,
    threads: int = 64,
    group: int | None = None,
    outputs: Any = None,
    header: str = "",
    **options: Any,
) -> np.ndarray:
    """Run a body with inputs a, b, c, ... and one output o of ``threads`` floats by default."""
    shape, dtype = outputs or ((threads,), F32)
    kernel = BareKernel(body, inputs=tuple("abcdefgh"[: len(inputs)]), header=header)
    return kernel(
        *inputs,
        shapes=[shape],
        dtypes=[dtype],
        grid=(threads, 1, 1),
        threadgroup=(group or threads, 1, 1),
        **options,
    )[0]


def error_of(body: str, *inputs: Any, **options: Any) -> str:
    with pytest.raises(ExecutorError) as caught:
        run(body, *inputs, **options)
    return str(caught.value)


def floats(n: int) -> np.ndarray:
    return RNG.standard_normal(n).astype(np.float32)


I = "uint i = thread_position_in_grid.x;\n"  # noqa: E741


# ---- what kernels compute ----
def test_elementwise_over_many_groups_in_every_order() -> None:
    a, b = floats(98432), floats(98432)
    result = run(I + "o[i] = metal::fma(a[i], 2.0f, b[i]);", a, b, threads=98432, group=128)
    np.testing.assert_array_equal(result, (a.astype(np.float64) * 2 + b).astype(np.float32))


def test_small_inputs_are_constant_and_zero_dimensional_ones_are_references() -> None:
    body = I + "auto p = a + 1; o[i] = p[i % 3] * b + float(c[0].x);"
    result = run(
        body.replace("c[0].x", "c[0]"), floats(4)[:4], np.float32(2.0).reshape(()), np.array([3], np.int32)
    )
    assert result.shape == (64,)


def test_the_same_body_compiles_for_device_and_constant_inputs() -> None:
    header = "template <typename P> float third(P p) { return float(p[2]) + metal::exp(float(p[0])); }\n"
    for n in (4, 16):
        a = floats(n)
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
            x = a.astype(dtype)
            result = run(I + "auto p = a + 1; o[i] = third(p) * a[0];", x, header=header)
            wide = x.astype(np.float32)
            np.testing.assert_allclose(result, (wide[3] + np.exp(wide[1])) * wide[0], rtol=1e-5)


def test_thread_attributes_in_three_dimensions() -> None:
    body = """
    uint3 p = thread_position_in_grid, t = thread_position_in_threadgroup, g = threadgroup_position_in_grid;
    uint3 n = threads_per_grid, s = threads_per_threadgroup, m = threadgroups_per_grid;
    uint linear = (p.z * n.y + p.y) * n.x + p.x;
    bool ok = all(p == g * s + t) && all(n == m * s) && all(s == dispatch_threads_per_threadgroup);
    ok = ok && thread_index_in_threadgroup == (t.z * s.y + t.y) * s.x + t.x;
    ok = ok && thread_index_in_simdgroup == thread_index_in_threadgroup % threads_per_simdgroup;
    ok = ok && simdgroup_index_in_threadgroup == thread_index_in_threadgroup / 32 && simdgroups_per_threadgroup == 2;
    ok = ok && thread_index_in_quadgroup == thread_index_in_threadgroup % 4;
    o[linear] = ok ? float(linear) : -1.0f;
    """
    kernel = BareKernel(body)
    result = kernel(floats(8), shapes=[(6, 8, 16)], dtypes=[F32], grid=(16, 8, 6), threadgroup=(8, 4, 2))[0]
    np.testing.assert_array_equal(result.reshape(-1), np.arange(768, dtype=np.float32))


SOFTMAX = """
  threadgroup float maxima[32], sums[32];
  uint row = threadgroup_position_in_grid.x, lane = thread_index_in_simdgroup, group = simdgroup_index_in_threadgroup;
  auto p = a + row * N;
  float m = -INFINITY;
  for (int i = thread_index_in_threadgroup; i < N; i += 256) m = max(m, float(p[i]));
  m = simd_max(m);
  if (lane == 0) maxima[group] = m;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  m = simd_max(lane < 8 ? maxima[lane] : -INFINITY);
  float s = 0;
  for (int i = thread_index_in_threadgroup; i < N; i += 256) s += fast::exp(float(p[i]) - m);
  s = simd_sum(s);
  if (lane == 0) sums[group] = s;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  s = simd_sum(lane < 8 ? sums[lane] : 0.0f);
  for (int i = thread_index_in_threadgroup; i < N; i += 256) o[row * N + i] = static_cast<T>(fast::exp(float(p[i]) - m) / s);
"""


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_softmax_through_run_graph(dtype: mx.Dtype) -> None:
    kernel = mx.fast.metal_kernel(name="softmax", input_names=["a"], output_names=["o"], source=SOFTMAX)

    def fn(x: mx.array) -> Any:
        y = x.astype(dtype).reshape(6, 1000)
        return kernel(
            inputs=[y],
            output_shapes=[y.shape],
            output_dtypes=[dtype],
            grid=(256 * 6, 1, 1),
            threadgroup=(256, 1, 1),
            template=[("T", dtype), ("N", 1000)],
        )[0].reshape(2, 3, 1000)

    x = mx.array(floats(6000))
    facts = []
    result = run_graph(fn, x, on_kernel=lambda launch, kernel: facts.append(kernel.last_run))[0]
    expected = mx.softmax(x.astype(dtype).astype(F32).reshape(2, 3, 1000), axis=-1)
    np.testing.assert_allclose(
        result.astype(np.float32), np.array(expected), rtol=1e-2 if dtype == mx.bfloat16 else 1e-5
    )
    assert (facts[0].barriers, facts[0].threadgroup_bytes, facts[0].collectives) == (12, 256, 6 * 8 * 4)


def test_matrix_product_with_fragments() -> None:
    body = """
    simdgroup_float8x8 acc = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    threadgroup float tile[8 * 8];
    for (uint k = 0; k < 32; k += 8) {
      simdgroup_matrix<float, 8, 8> x, y;
      simdgroup_load(x, a + k, 32);
      simdgroup_load(y, b + k, 32, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(acc, x, y, acc);
    }
    simdgroup_store(acc, tile, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index_in_simdgroup; i < 64; i += 32) o[i] = tile[i];
    """
    a, b = floats(256), floats(256)
    result = run(body, a, b, threads=32, outputs=((8, 8), F32))
    np.testing.assert_allclose(result, a.reshape(8, 32) @ b.reshape(8, 32).T, rtol=1e-4, atol=1e-5)


def test_simd_functions() -> None:
    a = RNG.integers(-50, 50, 64).astype(np.int32)
    rows = a.reshape(2, 32)
    cases = {
        "simd_sum(x)": rows.sum(1, keepdims=True).repeat(32, 1),
        "simd_min(x)": rows.min(1, keepdims=True).repeat(32, 1),
        "simd_xor(x)": np.bitwise_xor.reduce(rows, 1, keepdims=True).repeat(32, 1),
        "simd_prefix_inclusive_sum(x)": rows.cumsum(1),
        "simd_prefix_exclusive_sum(x)": rows.cumsum(1) - rows,
        "simd_broadcast(x, 5)": rows[:, 5:6].repeat(32, 1),
        "simd_shuffle(x, (lane * 7) % 32)": rows[:, np.arange(32) * 7 % 32],
        "simd_shuffle_xor(x, 3)": rows[:, np.arange(32) ^ 3],
        "simd_shuffle_up(x, 4)": np.hstack([rows[:, :4], rows[:, :-4]]),
        "simd_shuffle_down(x, 4)": np.hstack([rows[:, 4:], rows[:, -4:]]),
        "simd_shuffle_rotate_up(x, 4)": np.roll(rows, 4, 1),
        "simd_shuffle_rotate_down(x, 4)": np.roll(rows, -4, 1),
        "simd_shuffle_and_fill_up(x, -x, 4)": np.hstack([-rows[:, -4:], rows[:, :-4]]),
        "simd_shuffle_and_fill_down(x, -x, 4)": np.hstack([rows[:, 4:], -rows[:, :4]]),
        "quad_sum(x)": rows.reshape(2, 8, 4).sum(2).repeat(4, 1),
        "quad_shuffle_xor(x, 1)": rows[:, np.arange(32) ^ 1],
        "int(uint(ulong(simd_vote::vote_t(simd_ballot(x > 0)))))": np.array(
            [[sum(int(v > 0) << i for i, v in enumerate(r))] for r in rows]
        )
        .astype(np.uint32)
        .astype(np.int32)
        .repeat(32, 1),
        "int(simd_any(x == 49)) + 2 * int(simd_all(x < 49))": (rows == 49)
        .any(1, keepdims=True)
        .astype(int)
        .repeat(32, 1)
        + 2 * (rows < 49).all(1, keepdims=True).repeat(32, 1),
        "simd_sum(short4(short(x)))[2]": rows.sum(1, keepdims=True).repeat(32, 1),
        "int(simd_shuffle_down(long(x) << 33, 1) >> 33)": np.hstack([rows[:, 1:], rows[:, -1:]]),
    }
    lines = "".join(f"  o[{n * 64} + i] = {expression};\n" for n, expression in enumerate(cases))
    result = run(
        "uint i = thread_position_in_grid.x, lane = thread_index_in_simdgroup; int x = a[i];\n" + lines,
        a,
        outputs=((len(cases), 2, 32), I32),
    )
    for name, expected, actual in zip(cases, cases.values(), result, strict=True):
        np.testing.assert_array_equal(actual, expected, err_msg=name)


def test_integer_functions_and_conversions() -> None:
    values = np.array([0, 1, -1, 2**31 - 1, -(2**31), 12345, -98765, 1 << 20], np.int32)
    cases = {
        "clz(x)": [32 - int(v & 0xFFFFFFFF).bit_length() for v in values.astype(np.int64)],
        "int(popcount(uint(x)))": [int(v & 0xFFFFFFFF).bit_count() for v in values.astype(np.int64)],
        "mulhi(x, 98765)": [int(v) * 98765 >> 32 for v in values],
        "int(mulhi(uint(x), 4000000000u))": [((int(v) & 0xFFFFFFFF) * 4000000000 >> 32) for v in values],
        "int(mulhi(ulong(x), ulong(x)) >> 40)": [((int(v) % 2**64) ** 2 >> 104) for v in values],
        "addsat(x, 2000000000)": [min(int(v) + 2000000000, 2**31 - 1) for v in values],
        "subsat(x, 2000000000)": [max(int(v) - 2000000000, -(2**31)) for v in values],
        "int(rotate(uint(x), 5u))": [((int(v) << 5) | (int(v) & 0xFFFFFFFF) >> 27) for v in values],
        "x << 33": [int(v) << 1 for v in values],  # the count is taken modulo the width
        "int(float(x) * 1e6f)": [
            int(np.clip(float(np.float32(v)) * 1e6, -(2**31), 2**31 - 1)) for v in values
        ],
        "clamp(x, -5, 5)": np.clip(values, -5, 5),
        "int(abs(short(x)))": np.abs(values.astype(np.int16).astype(np.int32)),
        "select(x, 7, x < 0)": np.where(values < 0, 7, values),
        "as_type<int>(as_type<float>(x))": values,
        "x / int(a[0])": None,  # no trap; the value is unspecified
    }
    names = [name for name, expected in cases.items() if expected is not None]
    lines = "".join(f"  o[{n * 8} + i] = {name};\n" for n, name in enumerate(names))
    body = I + "int x = a[i];\n" + lines + "volatile thread int trap = x / a[0]; (void)trap;"
    result = run(body, values, threads=8, outputs=((len(names), 8), I32))
    for name, actual in zip(names, result, strict=True):
        expected = np.array([int(v) % 2**32 for v in cases[name]], np.uint64).astype(np.uint32).view(np.int32)
        np.testing.assert_array_equal(actual, expected, err_msg=name)


def test_half_and_bfloat_round_after_every_operation() -> None:
    for dtype, name in ((np.float16, "half"), (ml_dtypes.bfloat16, "bfloat")):
        a, b, c = (floats(256).astype(dtype) for _ in range(3))
        result = run(I + f"{name} x = a[i] * b[i] + c[i]; x -= a[i]; o[i] = x;", a, b, c, threads=256)
        np.testing.assert_array_equal(result, ((a * b + c) - a).astype(np.float32))


def test_bfloat_rounding_of_every_upper_half() -> None:
    bits = np.arange(1 << 16, dtype=np.uint32) << 16
    for low in (0x0000, 0x7FFF, 0x8000, 0x8001):
        x = (bits | low).view(np.float32)
        x = x[~np.isnan(x)]
        result = run(
            I + "o[i] = bfloat(a[i]);",
            x,
            threads=x.size,
            group=1,
            outputs=((x.size,), mx.bfloat16),
            schedules=["forward"],
        )
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(
                result.view(np.uint16), x.astype(ml_dtypes.bfloat16).view(np.uint16)
            )


def test_vectors() -> None:
    body = (
        I
        + """
    float4 v = *(const device float4*)(a + 4 * i);
    packed_float3 p = *(const device packed_float3*)(a + i + 1);
    float4 w = select(v, float4(0.0f), v < 0.0f) + float4(p[0], v.yz, 1.0f);
    w.xy = w.yx;
    half4 h = half4(w);
    bool4 positive = float4(h) > 0.0f;
    thread float4& r = w;
    r *= 2;
    v = any(positive) ? r : float4(0.0f);
    *(device packed_float4*)(o + 4 * i) = packed_float4(v);
    """
    )
    a = floats(64)
    v = a.reshape(16, 4)
    w = np.where(v < 0, 0, v) + np.stack([a[1:17], v[:, 1], v[:, 2], np.ones(16, np.float32)], 1)
    w = w[:, [1, 0, 2, 3]] * 2
    expected = np.where((w.astype(np.float16) > 0).any(1, keepdims=True), w, 0)
    np.testing.assert_array_equal(run(body, a, threads=16, outputs=((16, 4), F32)), expected)


def test_conditionals_between_variables_and_temporaries() -> None:
    a = floats(64).astype(ml_dtypes.bfloat16)
    body = (
        I
        + "bfloat x = a[i]; bfloat y = x > bfloat(0.0f) ? x : i < 7 ? bfloat(1.0f) : -x; o[i] = i < 60 ? a[i] + y : y;"
    )
    y = np.where(a > 0, a, np.where(np.arange(64) < 7, ml_dtypes.bfloat16(1), -a)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run(body, a), np.where(np.arange(64) < 60, a + y, y).astype(np.float32))


def test_atomics_and_init_value() -> None:
    body = (
        I
        + """
    threadgroup atomic_int count;
    if (thread_index_in_threadgroup == 0) atomic_store_explicit(&count, 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&count, a[i], memory_order_relaxed);
    device atomic_int* slot = (device atomic_int*)o;
    int old = atomic_load_explicit(slot + 1, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(slot + 1, &old, old + 1, memory_order_relaxed, memory_order_relaxed)) {}
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index_in_threadgroup == 0) {
      atomic_fetch_max_explicit(slot + 2, int(a[i]), memory_order_relaxed);
      atomic_fetch_add_explicit(slot, atomic_load_explicit(&count, memory_order_relaxed), memory_order_relaxed);
    }
    """
    )
    a = RNG.integers(0, 100, 256).astype(np.int32)
    result = run(body, a, threads=256, group=64, outputs=((3,), I32), init_value=5)
    np.testing.assert_array_equal(result, [5 + a.sum(), 5 + 256, max(5, a[::64].max())])


def test_contraction_is_a_choice() -> None:
    a, b, c = floats(4096), floats(4096), floats(4096)
    body = I + "o[i] = a[i] * b[i] + c[i];"
    exact = (a.astype(np.float64) * b + c).astype(np.float32)
    results = []
    for contract in (False, True):
        kernel = BareKernel(body, inputs="abc", contract=contract)
        results += kernel(a, b, c, shapes=[(4096,)], dtypes=[F32], grid=(4096, 1, 1), threadgroup=(128, 1, 1))
    np.testing.assert_array_equal(results[0], a * b + c)
    assert (results[0] != exact).any() and (results[1] == exact).all()


def test_shape_arguments() -> None:
    a = floats(24).reshape(2, 3, 4)
    body = I + "o[i] = i < 3 ? a_shape[i] : i < 6 ? a_strides[i - 3] : a_ndim;"
    np.testing.assert_array_equal(run(body, a, threads=7), [2, 3, 4, 12, 4, 1, 3])


# ---- what is reported while compiling ----
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("device float* p = a; o[i] = *p;", r"cannot initialize a variable of type|cannot initialize"),
        ("threadgroup float t[4]; device float* p = t; o[i] = *p;", r"address space|cannot initialize"),
        (
            "thread float* p = o; *p = 1.0f;",
            r"cannot initialize a variable of type 'thread float \*|cannot initialize",
        ),
        ("float* p = (float*)o; *p = 1.0f;", "needs an address space"),
        ("a[i] = 1.0f; o[i] = 0.0f;", r"not assignable|read-only"),
        ("o[i] = double(1);", "double"),
        ("o[i] = min(int(i), i);", "ambiguous"),
        ("o[i] = max(half(1), 2.0f);", "ambiguous"),
        ("bfloat x = 1.0f; o[i] = x;", "no viable conversion"),
        ("bfloat x = bfloat(a[i]); half y = x; o[i] = y;", "no viable conversion"),
        ("bfloat x = bfloat(a[i]); int y = x; o[i] = y;", "no viable conversion"),
        ("o[i] = float(bfloat(a[i]) + half(a[i]));", "deleted"),
        ("float4 x = float4(0.0f); half4 y = x; o[i] = y.x;", "no viable conversion"),
        ("o[i] = simd_sum(long(i));", r"ambiguous|no matching"),
        ("o[i] = erf(a[i]);", "undeclared identifier 'erf'"),
        ("threadgroup float t[2] = {0.0f, 1.0f}; o[i] = t[0];", "cannot have an initializer"),
        ("o[i] = as_type<float>(ulong(i));", "equal size"),
        (
            "o[i] = atomic_fetch_max_explicit((device atomic_float*)o, 1.0f, memory_order_relaxed);",
            "no matching function",
        ),
        ("bfloat x = bfloat(a[i]); x += 1.0f; o[i] = x;", "no viable overloaded"),
        ("auto f = [&](float x) { return x; }; o[i] = f(a[i]);", "lambdas need MSL 3.2"),
        ("o[i] = undefined_name;", r"body:2:8: error: use of undeclared identifier 'undefined_name'"),
    ],
)
def test_texts_that_metal_refuses(body: str, message: str) -> None:
    assert re.search(message, error_of(I + body, floats(64))), error_of(I + body, floats(64))


def test_an_error_in_the_header_is_placed_there() -> None:
    assert "header:2:" in error_of(I + "o[i] = f();", floats(64), header="// one\nfloat f() { return x; }\n")


# ---- what is reported while running ----
@pytest.mark.parametrize("n", [64, 61])
@pytest.mark.parametrize("body", ["o[i] = a[i + 1];", "o[i] = i == 0 ? a[int(i) - 1] : a[i];"])
def test_reads_outside_an_input(body: str, n: int) -> None:
    message = error_of(I + body, floats(n), threads=n)
    element = n if "+ 1" in body else -1
    assert f"out-of-bounds read of input 'a', element {element} of {n}" in message


def test_reads_outside_an_input_by_a_kernel_with_vectors() -> None:
    assert "out-of-bounds read of input 'a', element 64" in error_of(
        I + "float4 x = float4(a[i + 1]); o[i] = x.x;", floats(64)
    )


@pytest.mark.parametrize("body", ["o[i + 1] = a[i];", "o[i - 1] = a[i];"])
def test_writes_outside_an_output(body: str) -> None:
    message = error_of(I + body + " o[i] = 0.0f;", floats(64))
    element = 64 if "+" in body else 2**32 - 1  # an unsigned index wraps
    assert f"out-of-bounds write of output 'o', element {element} of 64" in message


def test_writes_just_outside_a_buffer_that_does_not_fill_its_alignment() -> None:
    message = error_of(
        I + "float2 v = float2(a[i]); o[i] = v.x; if (i == 60) o[61] = v.y;", floats(61), threads=61
    )
    assert "out-of-bounds write" in message and "'o'" in message


def test_writes_to_an_input() -> None:
    assert "write to input 'a', element 3 of 64, which is read-only" in error_of(
        I + "((device float*)a)[3] = 1.0f; o[i] = 0.0f;", floats(64)
    )


def test_accesses_outside_threadgroup_memory() -> None:
    body = (
        I
        + "threadgroup float t[64]; t[i + 1] = a[i]; threadgroup_barrier(mem_flags::mem_threadgroup); o[i] = t[i];"
    )
    assert "out-of-bounds write of threadgroup variable 't', byte 256 of 256" in error_of(body, floats(64))


def test_runaway_stack() -> None:
    body = "thread float big[100000]; for (int k = 0; k < 100000; k++) big[k] = a[k % 64]; o[i] = big[a_shape[0] * i];"
    assert "stack" in error_of(I + body, floats(64))


def test_unwritten_outputs() -> None:
    body = I + "if (i != 5 && i != 9) o[i] = a[i];"
    a = floats(64)
    assert "output 'o': element [0, 5] was never written (2 of 64 elements)" in error_of(
        body, a, outputs=((2, 32), F32)
    )
    result = run(body, a, allow_unwritten=True)
    assert (result[[5, 9]] == 0).all() and result[6] == a[6]


def test_uninitialised_threadgroup_memory() -> None:
    assert "never written" in error_of(I + "threadgroup float t[64]; o[i] = t[i] + a[i];", floats(64))


@pytest.mark.parametrize(
    "body",
    [
        # the last SIMD group reads what the first one writes, and the other way round
        "threadgroup int t[64]; t[i] = i; o[i] = t[63 - i];",
        "threadgroup int t[64]; t[i] = 0; threadgroup_barrier(mem_flags::mem_threadgroup); t[i] += a[i]; o[i] = t[i ^ 32];",
        # the second use of an array needs a barrier of its own
        "threadgroup int t[2]; int s = 0; for (int k = 0; k < 2; k++) { if (i % 32 == 0) t[i / 32] = k;"
        " threadgroup_barrier(mem_flags::mem_threadgroup); s += t[0] + t[1]; } o[i] = s;",
        # lanes of one SIMD group also need one
        "threadgroup int t[64]; t[i] = i; o[i] = t[i ^ 1];",
    ],
)
def test_missing_barriers(body: str) -> None:
    assert "missing barrier" in error_of(I + body, np.arange(1, 65, dtype=np.int32), outputs=((64,), I32))


def test_order_of_threadgroups() -> None:
    body = I + "if (thread_index_in_threadgroup == 0) o[0] = float(threadgroup_position_in_grid.x);"
    assert "in another" in error_of(body, floats(64), threads=256, group=64, outputs=((1,), F32))


def test_divergent_barriers() -> None:
    inside = I + "if (i < 40) {\n threadgroup_barrier(mem_flags::mem_none);\n}\n o[i] = a[i];"
    message = error_of(inside, floats(64))
    assert "the barrier at body line 3" in message and "has ended" in message
    whole = I + "if (i < 32) threadgroup_barrier(mem_flags::mem_none); o[i] = a[i];"
    assert "the barrier at body line 2" in error_of(whole, floats(64))
    two = (
        I
        + "if (i < 32) threadgroup_barrier(mem_flags::mem_none);\nelse threadgroup_barrier(mem_flags::mem_none); o[i] = a[i];"
    )
    assert "is at body line 3" in error_of(two, floats(64))


def test_divergent_collectives() -> None:
    message = error_of(I + "float s = 0;\nif (i % 32 < 5) s = simd_sum(a[i]);\no[i] = s;", floats(64))
    assert "simd_sum at body line 3, column 21 is reached by only some lanes" in message
    message = error_of(I + "float s = i % 2 ? simd_sum(a[i]) : simd_sum(-a[i]);\no[i] = s;", floats(64))
    assert "simd_sum" in message and "is at body line 2" in message
    message = error_of(
        I
        + "if (i % 2) threadgroup_barrier(mem_flags::mem_none);\nelse simdgroup_barrier(mem_flags::mem_none); o[i] = a[i];",
        floats(64),
    )
    assert "only some lanes" in message


def test_shuffles_from_lanes_that_do_not_exist() -> None:
    assert "reads lane 40" in error_of(I + "o[i] = simd_shuffle(a[i], ushort(40));", floats(64))
    assert "inactive" in error_of(I + "o[i] = simd_shuffle_xor(a[i], 16);", floats(64), threads=48)


def test_too_much_threadgroup_memory() -> None:
    body = (
        I
        + "threadgroup float s[8192]; s[i] = a[i];\n threadgroup char more[4]; more[i % 4] = 0; o[i] = s[i];"
    )
    assert "32784 bytes, more than 32768" in error_of(body, floats(64))


def test_misaligned_vectors() -> None:
    body = I + "o[i] = ((const device float4*)a)[i].y;"
    a = floats(256)
    np.testing.assert_array_equal(run(body, a), a[1::4])
    assert re.search(
        r"misaligned access to input 'a', element 0 of 256 at body line 2", error_of(body, HostArray(a, 4))
    )
    assert "misaligned" in error_of(body, a, input_offsets=[8])
    packed = body.replace("float4", "packed_float4")
    np.testing.assert_array_equal(run(packed, HostArray(a, 4)), a[1::4])
    assert "misaligned access to output 'o', element 1" in error_of(
        I + "*(device float2*)(o + (i & 15)) = float2(a[i]);", a
    )


def test_kernels_can_ask_for_the_alignment_of_a_pointer() -> None:
    body = (
        I
        + "ulong at = reinterpret_cast<ulong>(a); o[i] = at % 16 == 0 ? ((const device float4*)a)[i].x : a[4 * i];"
    )
    a = floats(256)
    for offset in (0, 4):
        np.testing.assert_array_equal(run(body, HostArray(a, offset)), a[::4])


def test_partial_threadgroups() -> None:
    body = I + "o[i] = a[i] + threads_per_threadgroup.x;"
    assert "not a multiple" in error_of(body, floats(100), threads=100, group=64)
    a = floats(100)
    np.testing.assert_array_equal(
        run(body, a, threads=100, group=64, allow_partial_groups=True),
        a + np.where(np.arange(100) < 64, 64, 36).astype(np.float32),
    )


def test_arguments_must_match_the_text() -> None:
    a = floats(64)
    launch = BareKernel(I + "o[i] = a[i];").captured([a], [(64,)], [F32], (64, 1, 1), (64, 1, 1))
    assert launch.name.startswith("custom_kernel_bare") and launch.grid == (64, 1, 1)
    kernel = compile_source(launch.source)

    def message(*inputs: Any, dtype: Any = np.float32, threadgroup: Any = (64, 1, 1)) -> str:
        with pytest.raises(ExecutorError) as caught:
            kernel.run(inputs, [(64,)], [dtype], (64, 1, 1), threadgroup)
        return str(caught.value)

    assert "has 1 inputs, got 2" in message(a, a)
    assert "input 'a' is float32 in the signature, got float64" in message(a.astype(np.float64))
    assert "would be in constant space" in message(a[:4])
    assert "output 'o' is float32 in the signature, got int32" in message(a, dtype=np.int32)
    assert "more than 1024" in message(a, threadgroup=(64, 32, 1))
    np.testing.assert_array_equal(
        kernel.run([a], [(64,)], [np.float32], (64, 1, 1), (64, 1, 1), schedule=3)[0], a
    )


def test_capture_lists_launches_in_order() -> None:
    first = mx.fast.metal_kernel(
        name="first", input_names=["a"], output_names=["o"], source=I + "o[i] = a[i] + 1;"
    )
    second = mx.fast.metal_kernel(
        name="second", input_names=["a"], output_names=["o"], source=I + "o[i] = a[i] * 2;"
    )

    def fn(x: mx.array) -> mx.array:
        for kernel in (first, second):
            x = kernel(
                inputs=[x],
                output_shapes=[x.shape],
                output_dtypes=[x.dtype],
                grid=(64, 1, 1),
                threadgroup=(32, 1, 1),
            )[0]
        return x

    a = floats(64)
    assert [launch.name.split("_")[2] for launch in capture(fn, to_mlx(a))] == ["first", "second"]
    np.testing.assert_array_equal(run_graph(fn, to_mlx(a))[0], (a + 1) * 2)


def test_constants_in_the_header_and_in_the_body() -> None:
    header = "constant constexpr float weights[2] = {1.0f, 2.0f};\n"
    body = (
        I
        + "constexpr constant int more[2] = {3, 4}; constant float* p = weights; o[i] = p[i & 1] + more[i & 1];"
    )
    np.testing.assert_array_equal(run(body, floats(8), header=header), np.array([4, 6] * 32, np.float32))


def test_a_report_leaves_the_executor_usable() -> None:
    a = floats(1024)
    body = (
        I
        + "threadgroup float t[1024]; t[i] = a[i]; threadgroup_barrier(mem_flags::mem_threadgroup); o[i] = t[1023 - i]"
    )
    for _ in range(3):
        assert "out-of-bounds" in error_of(body + " + a[i * i * 64];", a, threads=1024)
        np.testing.assert_array_equal(run(body + ";", a, threads=1024), a[::-1])
