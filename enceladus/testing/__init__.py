"""Timing and comparing, for users' own tests and benchmarks."""

from enceladus.testing.compare import assert_close, largest_error
from enceladus.testing.timing import Measurement, do_bench

__all__ = ["Measurement", "assert_close", "do_bench", "largest_error"]
