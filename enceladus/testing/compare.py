"""Compare a kernel's result with what it should be, on the device."""

from __future__ import annotations

import mlx.core as mx


def largest_error(actual: mx.array, expected: mx.array, *, rtol: float = 0.0, atol: float = 1.0) -> float:
    """The largest ``|actual - expected| / (atol + rtol * |expected|)``; above 1 means: not close.

    With the default tolerances, the largest absolute difference. NaN equals NaN, an infinity equals
    itself; where only one of the two is NaN or infinite the error is infinite. Empty arrays: 0.
    Floats are compared in float32, everything else in int64. ``ValueError`` if the shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"the shapes differ: {actual.shape} and {expected.shape}")
    if actual.size == 0:
        return 0.0
    floating = mx.issubdtype(actual.dtype, mx.floating) or mx.issubdtype(expected.dtype, mx.floating)
    dtype = mx.float32 if floating else mx.int64
    a, b = actual.astype(dtype), expected.astype(dtype)
    error = mx.abs(a - b).astype(mx.float32)
    allowed = atol + rtol * mx.abs(b).astype(mx.float32)
    # A zero tolerance asks for equality: 0 / 0 is no error, anything else over 0 an infinite one.
    error = mx.where(error == 0, 0.0, error / allowed)
    error = mx.where(mx.isnan(error), float("inf"), error)
    same = a == b
    if floating:
        same = same | (mx.isnan(a) & mx.isnan(b))
        error = mx.where(mx.isinf(a) | mx.isinf(b), float("inf"), error)
    result: float = mx.where(same, 0.0, error).max().item()  # type: ignore[assignment]
    return result


def assert_close(actual: mx.array, expected: mx.array, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """``AssertionError`` unless ``|actual - expected| <= atol + rtol * |expected|`` everywhere.

    The dtypes may differ, the shapes may not.
    """
    if actual.shape != expected.shape:
        raise AssertionError(f"the shapes differ: {actual.shape} and {expected.shape}")
    error = largest_error(actual, expected, rtol=rtol, atol=atol)
    if error <= 1.0:
        return
    difference = largest_error(actual, expected)
    raise AssertionError(
        f"not close: the largest difference is {difference:.3g}, {error:.3g} times what "
        f"rtol={rtol:g}, atol={atol:g} allow ({actual.dtype} against {expected.dtype}, shape {actual.shape})"
    )
