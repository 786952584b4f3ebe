"""NVRTC through ctypes: compiles for an NVIDIA GPU what MLX would compile, on any Linux machine.

Needs NVRTC (``pip install nvidia-cuda-nvrtc``), CUDA's headers and MLX's CUDA wheel, whose library holds
the texts it includes; ``MLX_CUDA_SITE`` may name a directory in which that wheel is unpacked. No GPU is
needed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from enceladus.codegen.cuda_header import cuda_source, scalars_by_value
from enceladus.codegen.kernel import CompiledKernel

PROLOGUE = '\n#include "mlx/backend/cuda/device/utils.cuh"\n\n#include <cooperative_groups.h>\n\n'
#: What MLX includes → a phrase by which its text is found in MLX's library.
_INCLUDED = {
    "mlx/backend/cuda/device/utils.cuh": b"struct alignas(sizeof(T) * N) AlignedVector",
    "mlx/backend/cuda/device/complex.cuh": b"#define LIBCUDACXX_ENABLE_SIMPLIFIED_COMPLEX_OPERATIONS",
    "mlx/backend/cuda/device/config.h": b"#define MAX_NDIM 10",
}
_MLX_TYPES = {"int1": "bool", "float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}


class CompileError(Exception):
    """NVRTC refused a text; the message is its log."""


def _package(name: str) -> Iterator[Path]:
    found = importlib.util.find_spec(name)
    if found is not None:
        yield from map(Path, found.submodule_search_locations or ())


@cache
def _nvrtc() -> ctypes.CDLL | None:
    for folder in _package("nvidia"):
        for path in sorted(folder.glob("*/lib/libnvrtc.so.1*"), reverse=True):
            for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
                if ".alt." not in builtins.name:
                    ctypes.CDLL(str(builtins))  # NVRTC looks for it by name
            return ctypes.CDLL(str(path))
    name = ctypes.util.find_library("nvrtc")
    return ctypes.CDLL(name) if name else None


@cache
def _cuda_headers() -> Path | None:
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [Path(home) / "include" for home in homes if home]
    if nvcc:
        candidates.append(Path(nvcc).resolve().parent.parent / "include")
    for folder in _package("nvidia"):
        candidates += [*folder.glob("cu1*/include"), *folder.glob("cuda_runtime/include")]
    return next((c for c in candidates if (c / "cuda_fp16.h").exists()), None)


@cache
def _mlx() -> tuple[Path, dict[str, str]] | None:
    """MLX's include directory and the texts it hands to NVRTC."""
    unpacked = os.environ.get("MLX_CUDA_SITE")
    for folder in [Path(unpacked) / "mlx"] if unpacked else _package("mlx"):
        library = folder / "lib" / "libmlx.so"
        if not library.exists() or not (folder / "include" / "cccl").exists():
            continue
        data = library.read_bytes()
        texts = {}
        for name, phrase in _INCLUDED.items():
            at = data.find(phrase)
            if at < 0:
                break
            texts[name] = data[data.rfind(b"\0", 0, at) + 1 : data.index(b"\0", at)].decode()
        else:
            return folder / "include", texts
    return None


def missing() -> str:
    """Why nothing can be compiled here; ``""`` if it can."""
    if _nvrtc() is None:
        return "needs NVRTC (pip install nvidia-cuda-nvrtc)"
    if _cuda_headers() is None:
        return "needs CUDA's headers (CUDA_HOME)"
    if _mlx() is None:
        return "needs MLX's CUDA wheel (MLX_CUDA_SITE: where it is unpacked)"
    return ""


def compile_kernel(kernel: CompiledKernel, architecture: str = "sm_90", inline: bool = False) -> str:
    """The PTX of a compiled kernel; machine code is made as well. :class:`CompileError` with NVRTC's log."""
    header, source = cuda_source(kernel, inline)
    inputs = [(a.input_name, a.dtype) for a in kernel.arrays if a.input_name]
    if kernel.scalars_name:
        inputs.append((kernel.scalars_name, "int32"))
    outputs = [(a.output_name, a.output_dtype or a.dtype) for a in kernel.arrays if a.output_name]
    outputs += [(a.written_name, "uint8") for a in kernel.arrays if a.written_name]
    name = f"custom_kernel_{kernel.name}"
    parameters = [f"    const {_type(dtype)}* {name}" for name, dtype in inputs]
    if scalars_by_value(kernel):
        parameters.append(f"    const __grid_constant__ Strides {kernel.scalars_name}_strides")
    parameters += [f"    {_type(dtype)}* {name}" for name, dtype in outputs]
    text = (
        f"{PROLOGUE}{header}namespace mlx::core::cu {{\n\nnamespace cg = cooperative_groups;\n\n"
        f"__global__ void {name}(\n" + ",\n".join(parameters) + f") {{\n{source}\n}}\n\n"
        "} // namespace mlx::core::cu\n"
    )
    return compile_text(text, architecture, [f"mlx::core::cu::{name}"])


def _type(dtype: str) -> str:
    return _MLX_TYPES.get(dtype, f"{dtype}_t")


def compile_text(text: str, architecture: str, kernels: Sequence[str]) -> str:
    """Compile with the options and included texts that MLX passes."""
    nvrtc, mlx = _nvrtc(), _mlx()
    assert nvrtc is not None and mlx is not None, missing()
    folder, included = mlx
    options = [
        "--device-as-default-execution-space",
        f"--gpu-architecture={architecture}",
        f"--include-path={folder / 'cccl'}",
        f"--include-path={_cuda_headers()}",
    ]
    program = ctypes.c_void_p()
    count = len(included)
    contents = (ctypes.c_char_p * count)(*(t.encode() for t in included.values()))
    names = (ctypes.c_char_p * count)(*(n.encode() for n in included))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", count, contents, names)
    try:
        for kernel in kernels:
            nvrtc.nvrtcAddNameExpression(program, kernel.encode())
        arguments = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), arguments):
            raise CompileError(_result(nvrtc, program, "ProgramLog"))
        return _result(nvrtc, program, "PTX")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _result(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()


def instructions(ptx: str, pattern: str) -> list[str]:
    """All instructions of the PTX that match a regular expression, in order."""
    return re.findall(rf"^\s*(?:@\S+ )?({pattern}\S*)", ptx, re.MULTILINE)
