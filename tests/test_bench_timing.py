"""``enceladus.testing``: timing says what it measured, comparing catches what it should."""

from __future__ import annotations

import json
import math

import mlx.core as mx
import pytest

from enceladus.testing import Measurement, assert_close, do_bench, largest_error

INF, NAN = math.inf, math.nan


def measurement(*seconds: float, **more: object) -> Measurement:
    fields = {"host_seconds": 1e-6, "launches": 1, "warmup": 0, "input_sets": 1, "input_bytes": 4}
    return Measurement(seconds, device="cpu: x", method="m", **{**fields, **more})  # type: ignore[arg-type]


def test_do_bench_calls_in_rounds_over_all_input_sets() -> None:
    seen: list[int] = []

    def fn(x: mx.array) -> mx.array:
        seen.append(id(x))
        return x + 1

    sets = [(mx.zeros((4,)),) for _ in range(3)]
    measured = do_bench(fn, inputs=sets, warmup=1, repeats=2, launches=4, bytes=32, flops=4)
    assert measured.launches == 6  # whole rounds
    assert len(seen) == 3 * 6
    assert seen == [id(s[0]) for s in sets] * 6
    assert len(measured.seconds) == 2
    assert (measured.input_sets, measured.input_bytes) == (3, 16)
    assert measured.device.startswith(("cpu: ", "gpu: "))


def test_do_bench_evaluates_every_call() -> None:
    results: list[mx.array] = []
    calls = 0

    def fn(x: mx.array) -> tuple[mx.array, list[mx.array]]:
        nonlocal calls
        calls += 1
        results.append(x * 2)
        return results[-1], [x + 1]

    do_bench(fn, inputs=[(mx.ones((3,)),)], warmup=0, repeats=1, launches=2)
    assert calls == 2
    assert all(mx.array_equal(r, mx.full((3,), 2.0)) for r in results)


def test_do_bench_rotates_through_more_than_the_cache() -> None:
    measured = do_bench(
        lambda x: x + 1, inputs=lambda: (mx.zeros((256,)),), repeats=1, launches=1, rotate_bytes=5000
    )
    assert measured.input_sets == 5


def test_do_bench_chooses_the_number_of_launches() -> None:
    slow = do_bench(lambda x: mx.sin(x), inputs=[(mx.zeros((1 << 20,)),)], repeats=1, evaluation_seconds=1e-6)
    quick = do_bench(lambda x: x + 1, inputs=[(mx.zeros((4,)),)], repeats=1)
    assert slow.launches == 1
    assert quick.launches > 10


def test_do_bench_refuses_what_it_cannot_time() -> None:
    with pytest.raises(TypeError, match="returned no MLX array"):
        do_bench(lambda: None)
    with pytest.raises(ValueError, match="inputs is empty"):
        do_bench(lambda x: x, inputs=[])
    with pytest.raises(ValueError, match="repeats=0"):
        do_bench(lambda: mx.zeros(1), repeats=0)


def test_measurement_quantiles_and_rates() -> None:
    m = measurement(3e-6, 1e-6, 2e-6, 5e-6, 4e-6, bytes=6000, flops=9_000_000)
    assert m.median == 3e-6
    assert m.quantile(0) == 1e-6 and m.quantile(1) == 5e-6
    assert m.quantile(0.125) == pytest.approx(1.5e-6)
    assert m.gbps == pytest.approx(2.0)
    assert m.tflops == pytest.approx(3.0)
    assert measurement(1.0).gbps is None
    with pytest.raises(ValueError, match="between 0 and 1"):
        m.quantile(20)
    assert "2.0 GB/s" in str(m) and "3.00 µs" in str(m)


def test_measurement_survives_json() -> None:
    m = measurement(1e-6, 2e-6, bytes=8)
    assert Measurement.from_json(json.loads(json.dumps(m.to_json()))) == m


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([1.0, NAN, INF, -INF], [1.0, NAN, INF, -INF], 0.0),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([2.0], [NAN], INF),
        ([INF], [-INF], INF),
        ([INF], [1e30], INF),
        ([3.0], [1.0], 2.0),
        ([-0.0], [0.0], 0.0),
        ([], [], 0.0),
    ],
)
def test_largest_error(actual: list[float], expected: list[float], error: float) -> None:
    assert largest_error(mx.array(actual), mx.array(expected)) == error


def test_largest_error_of_integers_and_booleans() -> None:
    assert largest_error(mx.array([2**31 - 1]), mx.array([-(2**31)])) == pytest.approx(2**32)
    assert largest_error(mx.array([True, False]), mx.array([True, True])) == 1.0


def test_assert_close() -> None:
    assert_close(mx.array([100.0]), mx.array([101.0]), rtol=0.01, atol=0.0)
    assert_close(mx.array([1.0], dtype=mx.float16), mx.array([1.0]), rtol=0.0, atol=0.0)
    with pytest.raises(AssertionError, match="largest difference is 1,"):
        assert_close(mx.array([100.0]), mx.array([101.0]), rtol=0.009, atol=0.0)
    with pytest.raises(AssertionError, match="shapes differ"):
        assert_close(mx.zeros((2,)), mx.zeros((3,)))
    with pytest.raises(AssertionError):
        assert_close(mx.array([NAN]), mx.array([0.0]))
