"""Facts about the bodies of generated kernels."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from enceladus.codegen.kernel import CompiledKernel
from enceladus.codegen.names import ATTRIBUTES
from enceladus.compiler import compile_function
from enceladus.frontend.build import build_function
from enceladus.frontend.function import KernelFunction
from enceladus.frontend.signature import Argument, ArrayArgument, ConstantArgument, ScalarArgument
from enceladus.ir.core import Function
from enceladus.ir.types import DTYPES, DType, float32, int1, int32, int64
from enceladus.ir.verifier import Stage, verify
from tests import test_differential_programs as programs
from tests.engines import HostTarget, engine, environment, kernel_from_source, needs_host, numpy_dtype
from tests.host_executor import BareKernel, to_mlx

#: Attributes that bodies use on purpose.
USED_ATTRIBUTES = ("thread_index_in_threadgroup", "threadgroup_position_in_grid", "threadgroups_per_grid")
F32 = ArrayArgument(float32)
INT = ScalarArgument(int32)
INT16 = ScalarArgument(int32, divisible_by_16=True)


def const(value: object) -> ConstantArgument:
    return ConstantArgument(value, repr(value))


def compiled(
    kernel: Any, /, *, num_warps: int = 4, wide: bool = False, **arguments: Argument
) -> CompiledKernel:
    function = build_function(kernel.kernel_function, arguments, num_warps=num_warps, wide=wide)
    return compile_function(function)


def code(body: str) -> str:
    """A body without its comments."""
    return re.sub(r"//.*", "", body)


def one_dimensional(
    dtype: DType = float32, n: Argument = INT, block: int = 1024, **options: Any
) -> CompiledKernel:
    array = ArrayArgument(dtype)
    return compiled(add_kernel, x_ptr=array, y_ptr=array, out_ptr=array, n=n, BLOCK=const(block), **options)


@enceladus.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x & y if x.dtype == tl.int1 else x + y, mask=mask)


# ------------------------------------------------------------------------- vectors and the edge


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t is not int1], ids=str)
def test_sixteen_bytes_a_thread(dtype: DType) -> None:
    """The 1-D pattern loads and stores 16 bytes at a time, also with 8- and 16-bit elements."""
    kernel = one_dimensional(dtype, block=4096)
    count, size = 16 // dtype.itemsize, dtype.itemsize
    text = code(kernel.body)
    assert len(re.findall(rf"enceladus::load{count}x{size}\(", text)) == 2
    assert len(re.findall(rf"enceladus::store{count}x{size}\(", text)) == 1
    # The helpers really move 16 bytes.
    helper = kernel.header.split(f"load{count}x{size}")[1].split("}")[0]
    assert "device uint4*" in helper or "device ulong2*" in helper


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_the_edge_block_goes_element_by_element(dtype: str) -> None:
    text = code(one_dimensional(DTYPES[dtype]).body)
    full, edge = text.split("} else {")
    assert "enceladus::load" in full and "enceladus::" not in edge
    # Consecutive lanes are on consecutive addresses: the thread's index is not scaled.
    index = re.search(r"const int (\w+) = (?:r \* 128 \+ )?tid;", edge)
    assert index is not None
    assert re.search(rf"const int offs = start \+ {index[1]};", edge)
    assert "if (offs < n)" in edge


def test_one_uniform_test_chooses_the_path() -> None:
    text = code(one_dimensional().body)
    assert len(re.findall(r"\bif \(", text)) == 2  # the path, and the edge's mask
    assert "is_aligned<16>(x_ptr)" in text and "is_aligned<16>(y_ptr)" in text
    assert "is_aligned<16>(out_ptr)" not in text  # MLX allocates outputs aligned


def test_a_block_without_mask_needs_no_edge() -> None:
    source = """
@enceladus.jit
def kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs))
"""
    body = code(compiled(kernel_from_source(source), x_ptr=F32, out_ptr=F32, BLOCK=const(1024)).body)
    assert "enceladus::load4x4" in body and "start + 1023" not in body


def test_rows_of_a_matrix_are_vectors_if_they_are_aligned() -> None:
    def body(stride: Argument) -> str:
        return code(compiled(
            programs.tile_kernel, x_ptr=F32, y_ptr=F32, out_ptr=F32, M=INT, N=stride, sm=stride, sn=const(1),
            BM=const(16), BN=const(64),
        ).body)  # fmt: skip

    assert "enceladus::load4x4" in body(INT16) and "enceladus::store4x4" in body(INT16)
    # With a stride of any size, rows may start anywhere.
    assert not re.search(r"enceladus::(load|store)4x4", body(INT))


def test_a_strided_access_has_no_vectors() -> None:
    kernel = compiled(programs.strided_kernel, x_ptr=F32, out_ptr=F32, n=INT, stride=INT, BLOCK=const(1024))
    assert "enceladus::load" not in code(kernel.body)
    one = compiled(programs.strided_kernel, x_ptr=F32, out_ptr=F32, n=INT, stride=const(1), BLOCK=const(1024))
    assert "enceladus::load4x4" in code(one.body)


# -------------------------------------------------------------------------- what bodies contain


#: Kernels of many kinds, with the constants that they need.
KERNELS: dict[str, dict[str, Any]] = {
    "copy_kernel": {"BLOCK": 1024}, "other_kernel": {"BLOCK": 128}, "mask_kernel": {"BLOCK": 256},
    "never_kernel": {"BLOCK": 64}, "shifted_kernel": {"BLOCK": 512}, "strided_kernel": {"BLOCK": 256},
    "gather_kernel": {"BLOCK": 128}, "tile_kernel": {"BM": 16, "BN": 64},
    "transpose_kernel": {"BM": 32, "BN": 16},
    "broadcast_kernel": {"BM": 32, "BN": 8}, "cube_kernel": {"A": 4, "B": 8, "C": 16}, "scalar_kernel": {},
    "three_axes_kernel": {}, "scalar_types_kernel": {}, "sum_kernel": {"BLOCK": 64},
    "pointer_kernel": {"BLOCK": 64}, "nested_kernel": {"BLOCK": 64, "REPEAT": 2},
    "branch_kernel": {"BLOCK": 32}, "store_in_branch_kernel": {"BLOCK": 64},
    "grid_stride_kernel": {"BLOCK": 128}, "in_place_kernel": {"BLOCK": 64},
    "handed_on_kernel": {"BLOCK": 256}, "names_kernel": {"BLOCK": 64},
    "continued_kernel": {"BLOCK": 64}, "chosen_offsets_kernel": {"BLOCK": 256},
}  # fmt: skip
ELEMENTWISE = [
    "copy_kernel", "other_kernel", "mask_kernel", "tile_kernel", "transpose_kernel", "cube_kernel",
    "sum_kernel", "branch_kernel", "store_in_branch_kernel", "in_place_kernel", "shifted_kernel",
    "chosen_offsets_kernel",
]  # fmt: skip
ARRAYS = {"a", "grid_size", "kernel", "thread", "scalars"}


def records(name: str) -> dict[str, Argument]:
    """Arguments for a kernel of ``KERNELS``: arrays are float32, numbers int32."""
    kernel: KernelFunction = getattr(programs, name).kernel_function
    found: dict[str, Argument] = {}
    for parameter in kernel.parameters:
        if parameter.constexpr:
            found[parameter.name] = const(KERNELS[name][parameter.name])
        elif parameter.name == "index_ptr" or (name == "nested_kernel" and parameter.name.endswith("_ptr")):
            found[parameter.name] = ArrayArgument(int32)
        elif parameter.name == "m_ptr":
            found[parameter.name] = ArrayArgument(int1)
        elif parameter.name.endswith("_ptr") or (name == "names_kernel" and parameter.name in ARRAYS):
            found[parameter.name] = F32
        else:
            found[parameter.name] = INT
    return found


@pytest.mark.parametrize(
    ("name", "wide"),
    # In the wide variant loops count in int64, which changes the type of what nested_kernel carries.
    [(name, wide) for name in KERNELS for wide in (False, True) if not (wide and name == "nested_kernel")],
)
def test_bodies_are_plain(name: str, wide: bool) -> None:
    """ASCII text; MLX finds in it only the attributes and shapes that are meant."""
    kernel = compiled(getattr(programs, name), wide=wide, **records(name))
    assert kernel.body.isascii() and kernel.header.isascii()
    for attribute in ATTRIBUTES:
        if attribute not in USED_ATTRIBUTES:
            assert attribute not in kernel.body, attribute
    for attribute in USED_ATTRIBUTES:
        assert (attribute in kernel.body) == (attribute in code(kernel.body)), "only a comment asks for it"
    for array in kernel.input_names:
        for suffix in ("_shape", "_strides", "_ndim"):
            assert array + suffix not in kernel.body
    assert not any(line.rstrip().endswith("\\") for line in kernel.body.splitlines())
    assert "\t" not in kernel.body and not any(line != line.rstrip() for line in kernel.body.splitlines())


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_kernels_have_no_barriers(name: str) -> None:
    kernel = compiled(getattr(programs, name), **records(name))
    assert "barrier" not in kernel.body and kernel.threadgroup_bytes == 0


def test_barriers_are_where_threads_meet() -> None:
    """A later store by another thread waits for the earlier one."""
    block = const(256)
    kernel = compiled(programs.overlapping_stores_kernel, out_ptr=ArrayArgument(int32), n=INT, BLOCK=block)
    assert "threadgroup_barrier" in code(kernel.body)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("num_warps", [1, 4])
def test_every_stage_is_well_formed(name: str, num_warps: int) -> None:
    """The verifier passes after the front end and after each pass."""
    function = build_function(getattr(programs, name).kernel_function, records(name), num_warps=num_warps)
    verify(function, Stage.TILE)
    seen: list[str] = []

    def listener(step: str, function: Function) -> None:
        seen.append(step)
        verify(function, Stage.LAID_OUT if step == "form_groups" else Stage.ARRAY)

    compile_function(function, listener=listener)
    assert seen[0] == "resolve_pointers" and seen[-1] == "form_groups"


# --------------------------------------------------------------------------------- determinism

_PRINT_BODIES = """
from tests import test_codegen_body as t
for name in t.KERNELS:
    kernel = t.compiled(getattr(t.programs, name), **t.records(name))
    print(name, kernel.body, kernel.header, kernel.ir, kernel.to_json())
"""


def test_the_text_does_not_depend_on_hashing() -> None:
    texts = set()
    for seed in ("1", "2"):
        command = [sys.executable, "-c", _PRINT_BODIES]
        done = subprocess.run(
            command, env=environment(PYTHONHASHSEED=seed), capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert len(texts.pop()) > 10_000


def test_compiling_twice_gives_the_same() -> None:
    assert one_dimensional().to_json() == one_dimensional().to_json()


# ------------------------------------------------------------------------------- address spaces


@needs_host
@pytest.mark.parametrize("size", [1, 7, 8, 100])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "int64"])
def test_one_body_serves_both_address_spaces(dtype: str, size: int) -> None:
    """MLX binds inputs of fewer than 8 elements as ``constant``; the same body must compile for both."""
    kernel = one_dimensional(DTYPES[dtype])
    bare = BareKernel(
        kernel.body, inputs=kernel.input_names, outputs=kernel.output_names, header=kernel.header
    )
    x, y = (np.arange(size).astype(numpy_dtype(DTYPES[dtype])) for _ in range(2))
    out = to_mlx(x).dtype
    scalars = np.array([size], np.int32)
    (result,) = bare(x, y, scalars, shapes=[(size,)], dtypes=[out], grid=(128, 1, 1), threadgroup=(128, 1, 1))
    np.testing.assert_array_equal(result.astype(float), (x + y).astype(float))
    source = bare.captured([x, y, scalars], [(size,)], [out], (128, 1, 1), (128, 1, 1)).source
    space = "constant" if size < 8 else "device"
    assert re.search(rf"const {space} \w+\* x_ptr \[\[buffer", source)


@needs_host
@pytest.mark.parametrize("elements", [1, 2, 3])
def test_the_vector_path_is_taken_only_when_aligned(elements: int) -> None:
    """The host executor counts how many bytes an access moves: misaligned inputs go one by one."""
    x = np.arange(1024, dtype=np.float32)
    kernel = one_dimensional()
    bare = BareKernel(
        kernel.body, inputs=kernel.input_names, outputs=kernel.output_names, header=kernel.header
    )
    scalars = np.array([1024], np.int32)
    for offset in (0, 4 * elements):
        (result,) = bare(
            x, x, scalars, shapes=[(1024,)], dtypes=[to_mlx(x).dtype], grid=(128, 1, 1),
            threadgroup=(128, 1, 1), input_offsets=[offset, 0, 0],
        )  # fmt: skip
        np.testing.assert_array_equal(result, x + x)


# ----------------------------------------------------------------------------------- the wide variant


def test_wide_index_arithmetic() -> None:
    wide, narrow = one_dimensional(n=ScalarArgument(int64), wide=True), one_dimensional()
    assert "int64_t" not in code(narrow.body)
    assert re.search(r"const int64_t start = int64_t\(threadgroup_position_in_grid\.x\) \* ", code(wide.body))
    assert re.search(r"const int64_t offs = ", wide.body)
    (n,) = wide.scalars
    assert (n.dtype, n.word) == ("int64", 0)
    assert "scalars[1]" in wide.body  # two words
    assert "enceladus::load4x4" in wide.body


@needs_host
def test_wide_index_arithmetic_reaches_beyond_32_bits() -> None:
    """Offsets beyond 2**31 are refused by the mask, not wrapped into the array."""
    kernel = one_dimensional(n=ScalarArgument(int64), wide=True, block=128)
    source = code(kernel.body)
    # Programs count from 2**25 here: block starts are 2**32 and more.
    body = kernel.body.replace("int64_t(threadgroup_position_in_grid.x)",
                               "(int64_t(threadgroup_position_in_grid.x) + (int64_t(1) << 25))")  # fmt: skip
    assert body != kernel.body and "int(offs)" not in source
    bare = BareKernel(body, inputs=kernel.input_names, outputs=kernel.output_names, header=kernel.header)
    x = np.ones(256, np.float32)
    scalars = np.array([256, 0], np.int32)
    (result,) = bare(
        x, x, scalars, shapes=[(256,)], dtypes=[to_mlx(x).dtype], grid=(256, 1, 1), threadgroup=(128, 1, 1),
        init_value=5.0,
    )  # fmt: skip
    np.testing.assert_array_equal(result, np.full(256, 5, np.float32))


# ----------------------------------------------------------------------------------- coverage


def coverage_of(kernel: CompiledKernel, name: str = "out_ptr") -> list[Any] | None:
    return next(a.coverage for a in kernel.arrays if a.name == name)


def test_coverage_of_the_one_dimensional_pattern() -> None:
    expected = [["le", ["size"], ["min", ["mul", ["grid", 0], 1024], ["scalar", "n"]]]]
    assert coverage_of(one_dimensional()) == expected


@pytest.mark.parametrize(
    "name", ["tile_kernel", "copy_kernel", "branch_kernel", "sum_kernel", "other_kernel"]
)
def test_coverage_is_proven(name: str) -> None:
    arguments = records(name)
    output = "a_ptr" if name == "other_kernel" else "out_ptr"
    assert coverage_of(compiled(getattr(programs, name), **arguments), output)


@pytest.mark.parametrize("name", ["mask_kernel", "shifted_kernel", "gather_kernel", "store_in_branch_kernel",
                                  "grid_stride_kernel"])  # fmt: skip
def test_coverage_is_not_invented(name: str) -> None:
    assert coverage_of(compiled(getattr(programs, name), **records(name))) is None


@needs_host
def test_an_unproven_launch_marks_what_is_written() -> None:
    target = HostTarget()
    kernel = enceladus.JITFunction(programs.copy_kernel.fn)
    x = to_mlx(np.arange(10, dtype=np.float32))
    with engine("host", target):
        kernel[(1,)](x, x * 0, 5, BLOCK=16)
        kernel[(1,)](x, x * 0, 10, BLOCK=16)
    merging, covering = target.compiled
    assert len(merging.output_names) == 2 and len(covering.output_names) == 1


# ---------------------------------------------------------------------------------- regressions


def test_groups_without_a_loop_of_their_own_do_not_redeclare_names() -> None:
    """Two tile groups in one block, each small enough to need no loop."""
    source = """
@enceladus.jit
def kernel(x_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(a_ptr + offs, x + 1, mask=mask)
    tl.store(b_ptr + offs, x.to(tl.int32), mask=mask)
"""
    kernel = kernel_from_source(source)
    x = np.arange(100, dtype=np.int8)
    arguments = {"x_ptr": x, "a_ptr": enceladus.empty(100, np.int8), "b_ptr": enceladus.empty(100, np.int32)}
    for block in (128, 1024):
        expected = (x + np.int8(1), x.astype(np.int32))
        programs.assert_everywhere(kernel, (1,), {**arguments, "n": 100, "BLOCK": block}, *expected)


def test_names_do_not_hide_vector_types() -> None:
    source = """
@enceladus.jit
def kernel(x_ptr, out_ptr, half, uint, float, BLOCK: tl.constexpr):
    int = tl.arange(0, BLOCK)
    uint4 = tl.load(x_ptr + int) * half
    float2 = uint4 + uint
    tl.store(out_ptr + int, float2 * float + uint4)
"""
    kernel = compiled(kernel_from_source(source), x_ptr=F32, out_ptr=F32, half=INT, uint=INT, float=INT,
                      BLOCK=const(1024))  # fmt: skip
    declared = re.findall(r"\b(?:int|float|uint4?|bool)\d? (\w+)(?:\[\d+\])? ?[=;]", code(kernel.body))
    assert declared
    hidden = re.compile(r"(bool|u?char|u?short|u?int|u?long|half|bfloat|float)[2-4]?")
    assert not [name for name in declared if hidden.fullmatch(name)]
