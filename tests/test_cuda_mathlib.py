"""The table of documented answers on an NVIDIA GPU: the tests of ``codegen.mathlib``, run there.

The same test functions with another ``library``; left out are those about a CPU's compiler.
"""

from __future__ import annotations

import mlx.core as mx
import pytest

from tests import test_mathlib, test_mathlib_integers
from tests.cuda_library import CudaLibrary, Functions
from tests.mathlib_cases import FLOATS, operations

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not mx.cuda.is_available(), reason="needs an NVIDIA GPU and MLX's CUDA build"),
]

_FLOAT_TESTS = (
    "test_float32_functions_keep_their_accuracy",
    "test_float32_functions_of_two_numbers_keep_their_accuracy",
    "test_every_16_bit_number_is_right_within_one_ulp",
    "test_16_bit_arithmetic_rounds_each_result_once",
    "test_special_operands",
    "test_fast_tanh_keeps_digits_near_zero_and_does_not_overflow",
    "test_isnan_and_isinf",
    "test_minimum_and_maximum_of_nan",
    "test_comparisons_with_nan",
    "test_fma_rounds_once",
)
_INTEGER_TESTS = (
    "test_integer_operations_at_the_corners",
    "test_integer_fma_wraps",
    "test_select_keeps_every_value",
    "test_float_to_integer_truncates_and_saturates",
    "test_integers_convert",
    "test_large_integers_reach_bfloat16_through_float32",
    "test_float32_narrows_to_nearest_even",
    "test_16_bit_floats_convert_through_float32",
    "test_float_to_bool_asks_whether_it_is_not_zero",
    "test_bitcasts_keep_bits",
)


def all_functions() -> Functions:
    return operations(FLOATS) | test_mathlib_integers.FUNCTIONS


@pytest.fixture(scope="module")
def library() -> CudaLibrary:
    return CudaLibrary(all_functions())


for _module, _names in ((test_mathlib, _FLOAT_TESTS), (test_mathlib_integers, _INTEGER_TESTS)):
    for _name in _names:
        globals()[_name] = getattr(_module, _name)
