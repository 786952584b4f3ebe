"""The CUDA vocabulary: what bodies may contain compiles for an NVIDIA GPU, to the instructions meant.

Compiles as MLX would, without a GPU; what the machine code computes is for the tests that run kernels.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import enceladus.language as tl
from enceladus.codegen import cuda_header, mathlib
from enceladus.codegen.cuda_header import cuda_source, vocabulary
from enceladus.codegen.kernel import ArrayParameter, CompiledKernel, Role
from enceladus.codegen.memory_helpers import MemoryHelpers
from enceladus.compiler import compile_function
from enceladus.frontend.build import build_function
from enceladus.frontend.function import KernelFunction
from enceladus.frontend.signature import ArrayArgument, ConstantArgument, ScalarArgument
from enceladus.ir.types import DTYPES, int1, int32
from tests import cuda_compiler
from tests.cuda_compiler import CompileError, instructions
from tests.cuda_library import library_kernel
from tests.test_cuda_mathlib import all_functions

needs_nvrtc = pytest.mark.skipif(bool(cuda_compiler.missing()), reason=cuda_compiler.missing() or "-")


def kernel(body: str, inputs: dict[str, str], outputs: dict[str, str], header: str = "", warps: int = 4):
    """A kernel whose body is given."""
    arrays = [ArrayParameter(n, d, Role.READ, input_name=n) for n, d in inputs.items()]
    arrays += [ArrayParameter(n, d, Role.WRITTEN, output_name=n) for n, d in outputs.items()]
    return CompiledKernel(
        name="k", body=body, header=header, arrays=arrays, scalars=[], scalars_name="", num_warps=warps,
        math_mode="relaxed", registers=1, threadgroup_bytes=0, ir="",
    )  # fmt: skip


def entry(ptx: str) -> str:
    """The kernel's part of the PTX."""
    return ptx[ptx.index(".entry") :]


# -------------------------------------------------------------------------------- text, everywhere


def test_the_header_is_ascii_and_ends_with_a_newline():
    for inline in (False, True):
        header, _ = cuda_source(kernel("", {"x": "float32"}, {"out": "float32"}), inline)
        assert header.isascii() and header.endswith("\n")


def test_the_vocabulary_is_included_by_path_or_written_out():
    included = vocabulary()
    paths = re.findall(r'^#include "(.*)"$', included, re.MULTILINE)
    assert len(paths) == 5 and all(Path(path).is_absolute() and Path(path).is_file() for path in paths)
    assert re.match(r"// [0-9a-f]{16}\n", included) and len(included) < 200 * len(paths)
    text = vocabulary(inline=True)
    assert "#include" not in text and "struct bfloat" in text
    assert not re.search(r"^ *//", text, re.MULTILINE)


def test_a_folder_that_nvrtc_could_not_open_is_written_out(monkeypatch, tmp_path):
    strange = tmp_path / 'a"b'
    shutil.copytree(cuda_header._FOLDER, strange)
    monkeypatch.setattr(cuda_header, "_FOLDER", strange)
    assert vocabulary.__wrapped__() == vocabulary(inline=True)


def test_an_edited_vocabulary_is_another_text(monkeypatch, tmp_path):
    folder = tmp_path / "cuda"
    shutil.copytree(cuda_header._FOLDER, folder)
    monkeypatch.setattr(cuda_header, "_FOLDER", folder)
    before = vocabulary.__wrapped__()
    with (folder / "math.cuh").open("a") as file:
        file.write("// more\n")
    assert str(folder) in before and vocabulary.__wrapped__() != before


def test_helpers_come_without_comments_and_second_overloads():
    memory = MemoryHelpers(alignment=True)
    memory.load(4, 4)
    made = kernel("", {"x": "float32"}, {"out": "float32"}, memory.header())
    helpers = cuda_source(made)[0].split("#define threadgroup\n")[1]
    assert (
        "// " not in helpers.replace("}  // namespace enceladus", "")
        and "constant" not in helpers
        and "ONE_ADDRESS" not in helpers
    )
    assert helpers.count("load4x4(") == 1 and helpers.count("is_aligned(") == 1


def test_inputs_are_restrict_in_the_signature_only():
    header, source = cuda_source(kernel("  out[0] = x[0];\n", {"x": "float32"}, {"out": "float32"}))
    assert "#define x __restrict__ x\n" in header and source.startswith("\n#undef x\n")
    assert "define out " not in header


def test_an_input_named_like_a_word_of_the_signature_stays_plain():
    header, source = cuda_source(kernel("", {"core": "float32"}, {"out": "float32"}))
    assert "#define core" not in header and "#undef core" not in source


# ------------------------------------------------------------------------------------- compilation


@needs_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_every_operation_of_every_type_compiles(architecture):
    made, index = library_kernel(all_functions())
    assert len(set(index.values())) > 500
    assert ".entry" in cuda_compiler.compile_kernel(made, architecture)


@needs_nvrtc
def test_the_vocabulary_written_out_compiles_to_the_same():
    made = kernel("  out[0] = exp(x[0]);\n", {"x": "float32"}, {"out": "float32"})
    assert cuda_compiler.compile_kernel(made, inline=True) == cuda_compiler.compile_kernel(made)


@needs_nvrtc
def test_every_helper_compiles():
    text = mathlib.header(mathlib.all_helpers())
    made = kernel("  out[0] = enceladus::erf(x[0]);\n", {"x": "float32"}, {"out": "float32"}, text)
    assert ".entry" in cuda_compiler.compile_kernel(made)


@needs_nvrtc
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_vector_accesses_are_single_instructions(dtype):
    for total, suffix in ((4, r"\.(u32|b32)"), (8, r"\.v2\.(u32|b32)"), (16, r"\.v4\.(u32|b32)")):
        count = total // dtype.itemsize
        if count < 2:
            continue
        memory = MemoryHelpers()
        body = (
            f"  const int i = int(thread_index_in_threadgroup) * {count};\n"
            f"  {mathlib.type_name(dtype)} x[{count}];\n"
            f"  {memory.load(count, dtype.itemsize)}(x, x_in + i);\n"
            f"  {memory.store(count, dtype.itemsize)}(x_out + i, x);\n"
        )
        made = kernel(body, {"x_in": dtype.name}, {"x_out": dtype.name}, memory.header())
        ptx = entry(cuda_compiler.compile_kernel(made))
        loads, stores = instructions(ptx, r"ld\.global"), instructions(ptx, r"st\.global")
        assert len(loads) == 1 and re.fullmatch(rf"ld\.global\.nc{suffix}", loads[0]), loads
        assert len(stores) == 1 and re.fullmatch(rf"st\.global{suffix}", stores[0]), stores


@needs_nvrtc
def test_names_that_included_headers_define_are_free():
    names = ("WARP_SIZE", "MAX_NDIM", "INT_MAX", "FLT_EPSILON", "UINT32_MAX", "Shape", "core", "cu")
    lines = "".join(f"  {{ const float {n} = x[0]; out[0] = {n}; }}\n" for n in names)
    assert ".entry" in cuda_compiler.compile_kernel(kernel(lines, {"x": "float32"}, {"out": "float32"}))
    body = "".join(f"  out[0] += {n}[1];\n" for n in names)
    made = kernel(body, dict.fromkeys(names, "float32"), {"out": "float32"})
    assert ".entry" in cuda_compiler.compile_kernel(made)


@needs_nvrtc
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_round_each_result(dtype):
    body = "  out[0] = x[0] * x[1] + x[2];\n"
    ptx = entry(cuda_compiler.compile_kernel(kernel(body, {"x": dtype}, {"out": dtype})))
    assert not re.search(r"fma\S*\.(f16|bf16)", ptx)
    short = "f16" if dtype == "float16" else "bf16"
    assert re.search(rf"mul\.rn\.{short}\b", ptx) and re.search(rf"add\.rn\.{short}\b", ptx)


@needs_nvrtc
def test_16_bit_floats_convert_as_in_metal():
    body = """\
  const half h = x[0];
  float f = h;
  f = h * 2.0f + y[0];
  half g = f;
  g += h;
  const bfloat16_t b = bfloat16_t(h);
  out[0] = f < 1.0f ? g : half(b);
  out[1] = x[1] > x[2] ? -h : half(0.0f);
  static_assert(sizeof(h * 2.0f) == 4 && sizeof(h * h) == 2 && sizeof(b * b) == 2, "result types");
"""
    made = kernel(body, {"x": "float16", "y": "bfloat16"}, {"out": "float16"})
    assert ".entry" in cuda_compiler.compile_kernel(made)
    with pytest.raises(CompileError):  # nothing becomes a bfloat without a cast
        cuda_compiler.compile_kernel(kernel("  bfloat16_t b = 1.0f;\n", {}, {"out": "float16"}))


@needs_nvrtc
def test_simdgroup_functions_compile():
    lines = []
    for dtype in DTYPES.values():
        if dtype is int1:
            continue
        value, zero = f"{dtype.name}_in[thread_index_in_threadgroup]", f"{mathlib.type_name(dtype)}(0)"
        reductions = ["sum", "product", "min", "max"] + (["and", "or", "xor"] if dtype.is_int() else [])
        prefixes = ["inclusive_sum", "exclusive_sum", "inclusive_product", "exclusive_product"]
        shuffles = ["up", "down", "xor", "rotate_up", "rotate_down"]
        calls = [f"simd_{name}({value})" for name in (*reductions, "broadcast_first")]
        calls += [f"simd_prefix_{name}({value})" for name in prefixes]
        calls += [f"simd_shuffle_{name}({value}, ushort(3))" for name in shuffles]
        calls += [f"simd_shuffle({value}, ushort(5))", f"simd_broadcast({value}, 0)"]
        calls += [f"simd_shuffle_and_fill_up({value}, {zero}, 2)"]
        calls += [f"simd_shuffle_and_fill_down({value}, {zero}, 2, 8)"]
        calls += [f"quad_sum({value})", f"quad_shuffle_xor({value}, 1)"]
        lines += [f"  {dtype.name}_out[at++] = {call};\n" for call in calls]
    body = f"""\
  int at = int(simdgroup_index_in_threadgroup * threads_per_simdgroup + thread_index_in_simdgroup);
{"".join(lines)}
  const bool odd = (thread_index_in_threadgroup & 1) != 0;
  uint64_out[at++] = ulong(simd_ballot(odd));
  int1_out[0] = simd_any(odd) && simd_all(!odd) || simd_ballot(odd).all() || simd_shuffle(odd, 3);
  const uint4 v = simd_shuffle_xor(uint4(1u, 2u, 3u, uint(at)), 4);
  uint32_out[0] = v[0] + v.w;
"""
    names = [d.name for d in DTYPES.values()]
    made = kernel(body, {f"{n}_in": n for n in names}, {f"{n}_out": n for n in names})
    ptx = entry(cuda_compiler.compile_kernel(made))
    assert instructions(ptx, r"redux\.sync\.add") and instructions(ptx, r"shfl\.sync\.bfly")


@needs_nvrtc
def test_atomics_compile_to_atomic_instructions():
    lines = []
    for name in ("int", "uint", "float", "ulong"):
        lines.append(f"  auto p_{name} = reinterpret_cast<device atomic_{name}*>({name}_out);\n")
        operations = ["exchange", "fetch_add"]
        if name != "float":
            operations += ["fetch_sub", "fetch_and", "fetch_or", "fetch_xor", "fetch_min", "fetch_max"]
        for operation in operations:
            call = f"atomic_{operation}_explicit(p_{name}, {name}(x), memory_order_relaxed)"
            lines.append(f"  {name}_out[1] = {call};\n")
        read = f"atomic_load_explicit(p_{name}, memory_order_relaxed)"
        lines.append(f"  atomic_store_explicit(p_{name}, {read}, memory_order_relaxed);\n")
    body = f"""\
  const uint x = threadgroups_per_grid.x;
  threadgroup atomic_int counter[2];
  threadgroup atomic_float total[1];
  if (x < 2) atomic_store_explicit(&counter[x], 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  atomic_fetch_add_explicit(&counter[1], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&total[0], 1.0f, memory_order_relaxed);
{"".join(lines)}
  uint expected = atomic_load_explicit(p_uint, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(
      p_uint, &expected, expected + 1u, memory_order_relaxed, memory_order_relaxed)) {{}}
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
"""
    outputs = {"int_out": "int32", "uint_out": "uint32", "float_out": "float32", "ulong_out": "uint64"}
    ptx = entry(cuda_compiler.compile_kernel(kernel(body, {}, outputs)))
    assert instructions(ptx, r"atom\.global\.add\.f32")
    assert instructions(ptx, r"(atom|red)\.shared\.add")
    assert instructions(ptx, r"atom\.global\.cas")


@needs_nvrtc
def test_threadgroup_arrays_and_pointers():
    header = """\
namespace enceladus {
template <typename T>
inline T first(const threadgroup T* p) { return p[0]; }
}
"""
    body = """\
  threadgroup float buffer[128];
  threadgroup half halves[128];
  buffer[thread_index_in_threadgroup] = x[thread_index_in_threadgroup];
  halves[thread_index_in_threadgroup] = half(x[0]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  auto row = buffer + 64;
  const uint4 v = *reinterpret_cast<const threadgroup uint4*>(buffer + 4 * thread_index_in_simdgroup);
  const float sum = row[3] + enceladus::first(buffer + 1) + as_type<float>(v[2]) + float(halves[0]);
  out[thread_index_in_threadgroup] = sum;
"""
    ptx = entry(cuda_compiler.compile_kernel(kernel(body, {"x": "float32"}, {"out": "float32"}, header)))
    assert instructions(ptx, r"st\.shared") and instructions(ptx, r"bar\.sync")
    assert ".local" not in ptx
    with pytest.raises(CompileError, match="__shared__"):
        refused = "  threadgroup float buffer[128];\n  threadgroup float* p = buffer;\n  out[0] = p[0];\n"
        cuda_compiler.compile_kernel(kernel(refused, {}, {"out": "float32"}))


@needs_nvrtc
def test_vectors_have_operators_and_subscripts():
    body = """\
  uint4 v = uint4(1u, 2u, 3u, thread_index_in_threadgroup);
  v = (v << 2u) + v * 3u;
  v[1] |= 5u;
  v += uint4(1u);
  const float4 f = float4(v) * 0.5f - float4(1.0f);
  const half2 h = half2(half(f.x), half(f.y)) * half2(half(2.0f));
  const bool4 less = f < float4(2.0f);
  out[0] = fma(f, f, f)[2] + float(h.x) + float(less.w) + as_type<float>(ushort2(1, 2)) + floor(f).z;
  out[1] = float(thread_position_in_grid.x + threads_per_threadgroup.y + threadgroup_position_in_grid.z);
"""
    assert ".entry" in cuda_compiler.compile_kernel(kernel(body, {}, {"out": "float32"}))


@needs_nvrtc
@pytest.mark.parametrize("call", ["min(1, 2u)", "max(h, 1.0f)", "min(1.0f, 1)"])
def test_min_and_max_of_different_types_are_refused(call):
    with pytest.raises(CompileError):
        cuda_compiler.compile_kernel(
            kernel(f"  half h = half(1.0f);\n  out[0] = float({call});\n", {}, {"out": "float32"})
        )


@needs_nvrtc
def test_the_number_of_threads_bounds_the_registers():
    for warps in (1, 4, 32):
        made = kernel("  out[0] = x[0];\n", {"x": "int8"}, {"out": "int8"}, warps=warps)
        assert f".maxntid {32 * warps}" in cuda_compiler.compile_kernel(made)


@needs_nvrtc
@pytest.mark.parametrize(
    ("call", "instruction"),
    [
        ("precise::sqrt(x[0])", r"sqrt\.rn\.f32"),
        ("precise::divide(x[0], x[1])", r"div\.rn\.f32"),
        ("x[0] / x[1]", r"div\.rn\.f32"),
        ("precise::divide(1.0f, x[0])", r"rcp\.approx\.ftz\.f32"),
        ("precise::fmin(x[0], x[1])", r"min\.f32"),
        ("fma(x[0], x[1], x[2])", r"fma\.rn\.f32"),
        ("rint(x[0])", r"cvt\.rni\.f32\.f32"),
        ("fast::sqrt(x[0])", r"sqrt\.approx\.f32"),
        ("fast::divide(x[0], x[1])", r"div\.approx\.f32"),
        ("fast::sin(x[0])", r"sin\.approx\.f32"),
        ("fast::exp(x[0])", r"ex2\.approx\.f32"),
        ("fast::exp2(x[0])", r"ex2\.approx\.ftz\.f32"),
        ("fast::log(x[0])", r"lg2\.approx\.f32"),
    ],
)
def test_functions_become_the_instructions_meant(call, instruction):
    made = kernel(f"  out[0] = {call};\n", {"x": "float32"}, {"out": "float32"})
    ptx = entry(cuda_compiler.compile_kernel(made))
    assert instructions(ptx, instruction + r"\b")
    assert not instructions(ptx, r"(call|bra)\b")


@needs_nvrtc
def test_erf_computes_both_ranges_without_a_branch():
    text = mathlib.header(["erf"])
    made = kernel("  out[0] = enceladus::erf(x[0]);\n", {"x": "float32"}, {"out": "float32"}, text)
    ptx = entry(cuda_compiler.compile_kernel(made))
    assert not instructions(ptx, r"(call|bra)\b")
    assert len(instructions(ptx, r"ex2\.")) == 1 and len(instructions(ptx, r"fma\.rn\.f32")) == 11


# ------------------------------------------------------------------------------- whole kernels


def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


@needs_nvrtc
@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d is not int1], ids=str)
def test_a_whole_kernel_compiles(dtype):
    array = ArrayArgument(dtype)
    arguments = dict.fromkeys(("x_ptr", "y_ptr", "out_ptr"), array)
    arguments |= {"n": ScalarArgument(int32), "BLOCK": ConstantArgument(1024, "1024")}
    made = compile_function(build_function(KernelFunction(add_kernel), arguments))
    ptx = entry(cuda_compiler.compile_kernel(made))
    assert instructions(ptx, r"ld\.global\.nc\.v[24]") and instructions(ptx, r"st\.global\.v[24]")


def collecting_kernel(x_ptr, out_ptr, old_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.atomic_max(out_ptr + offs // 2, x, mask=offs < n)
    tl.store(old_ptr + offs, tl.atomic_add(x_ptr + offs, x), mask=offs < n)


def mixing_kernel(x_ptr, out_ptr, old_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.atomic_add(out_ptr + offs // 2, x, mask=offs < n)
    tl.atomic_min(out_ptr, tl.max(x))
    tl.store(old_ptr + offs, tl.atomic_xchg(out_ptr + offs, x), mask=offs < n)


def claiming_kernel(x_ptr, out_ptr, old_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(old_ptr + offs, tl.atomic_cas(out_ptr + offs // 2, 0, tl.load(x_ptr + offs)))


ATOMIC_TYPES = [d for d in DTYPES.values() if d is not int1 and d.bits < 64]


@needs_nvrtc
@pytest.mark.parametrize("dtype", ATOMIC_TYPES, ids=str)
def test_whole_kernels_with_atomics_compile(dtype):
    array = ArrayArgument(dtype)
    arguments = dict.fromkeys(("x_ptr", "out_ptr", "old_ptr"), array)
    for block in (32, 1024):
        constants = {"n": ScalarArgument(int32), "BLOCK": ConstantArgument(block, str(block))}

        def compiled(function, constants=constants):
            made = compile_function(build_function(KernelFunction(function), arguments | constants))
            return entry(cuda_compiler.compile_kernel(made))

        ptx = compiled(collecting_kernel)
        assert instructions(ptx, r"(atom|red)\.global\.max\.u32")
        assert instructions(ptx, rf"atom\.global\.add\.{'f32' if dtype.is_floating() else '[us]32'}")
        assert not instructions(ptx, r"atom\.global\.cas")
        ptx = compiled(mixing_kernel)
        assert instructions(ptx, r"atom\.global\.cas") and instructions(ptx, r"atom\.global\.exch")
        if not dtype.is_floating():
            assert instructions(compiled(claiming_kernel), r"atom\.global\.cas")
