"""The vocabulary of Metal's language in CUDA C++: what lets a generated body compile for NVIDIA GPUs.

``mx.fast.cuda_kernel`` hands NVRTC this text::

    #include "mlx/backend/cuda/device/utils.cuh"
    #include <cooperative_groups.h>
    <header>
    namespace mlx::core::cu {
    namespace cg = cooperative_groups;
    __global__ void custom_kernel_<name>(
        const float* x_ptr, ..., float* out_ptr) {
    <source>
    }
    } // namespace mlx::core::cu

so everything is included before ``header``, which may end by turning Metal's keywords into macros. The text
itself is in ``codegen/cuda/*.cuh``, in the order of ``_PARTS``: own types with Metal's conversions and
rounding (namespace ``metal``), functions, SIMD-groups, atomics, and last the names and keywords.

MLX copies header and source at every call and hashes them at every evaluation, so both are kept short: the
vocabulary is included by path, and the comments of helpers are left out.

What it does not have, and so fails to compile: swizzles (``v.xy``), ``packed_*`` vectors, 8- and 16-bit
atomics, ``simdgroup_matrix``, ``Limits``, textures. ``threadgroup`` declares arrays at the top of a body; a
pointer into one must be declared ``auto`` (CUDA refuses it otherwise).
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from enceladus.codegen.kernel import CompiledKernel

_PARTS = ("types", "math", "simdgroup", "atomic", "names")
_FOLDER = Path(__file__).with_name("cuda")
#: Words that MLX writes between the header and the body; an input of such a name stays as it is.
_LARGEST_RANK = 10  #: dimensions of an array that MLX can describe to a CUDA kernel
_SIGNATURE_WORDS = frozenset({"mlx", "core", "cu", "cg", "cooperative_groups", "Shape", "Strides"})


def _read(part: str) -> str:
    path = _FOLDER / f"{part}.cuh"
    if path.exists():
        return path.read_text(encoding="ascii")
    # A package inside an archive: its loader reads what no file system holds.
    data: bytes = __loader__.get_data(str(path))  # type: ignore[name-defined]
    return data.decode("ascii")


@lru_cache(maxsize=2)
def vocabulary(inline: bool = False) -> str:
    """The vocabulary, the same for every kernel: lines that include its files, or with ``inline`` its text.

    The text, without comments, also stands in where NVRTC could not open the files. Lines that include
    carry a hash of the contents, because MLX compiles a text only once in a process.
    """
    texts = [_read(part) for part in _PARTS]
    paths = [str((_FOLDER / f"{part}.cuh").absolute()) for part in _PARTS]
    if inline or not all(Path(p).exists() and p.isascii() and not set(p) & {'"', "\n"} for p in paths):
        return "".join(map(without_comments, texts))
    contents = blake2b("".join(texts).encode("ascii"), digest_size=8).hexdigest()
    return f"// {contents}\n" + "".join(f'#include "{path}"\n' for path in paths)


def without_comments(text: str) -> str:
    """``text`` without lines that hold only a comment, and without empty lines."""
    return re.sub(r"^[ \t]*(?://.*)?\n", "", text, flags=re.MULTILINE)


def without_second_overloads(text: str) -> str:
    """Helpers without what is for more than one address space."""
    return re.sub(
        r"^#ifndef ENCELADUS_ONE_ADDRESS_SPACE\n.*?^#endif\n", "", text, flags=re.MULTILINE | re.DOTALL
    )


def scalars_by_value(kernel: CompiledKernel) -> bool:
    """Whether the scalars travel as launch parameters: a load that every program would first wait for less.

    MLX passes the strides of an input by value where the source names them, and those of dimensions of
    size 1 mean nothing: so the packed words are the strides of a one-element array. MLX has room for ten.
    """
    return bool(kernel.scalars_name) and 0 < packed_words(kernel) <= _LARGEST_RANK


def packed_words(kernel: CompiledKernel) -> int:
    """32-bit words of the packed scalars."""
    return sum((2 if s.dtype in ("int64", "uint64") else 1) for s in kernel.scalars if s.word >= 0)


def _read_scalars(kernel: CompiledKernel) -> str:
    """What makes the body's ``scalars[k]`` a word of the strides."""
    if not scalars_by_value(kernel):
        return ""
    name = kernel.scalars_name
    return (
        "struct ByValue { const Strides& words; __device__ int operator[](int k) const "
        "{ return int(words[k]); } };\n"
        f"const ByValue by_value_{name}{{{name}_strides}};\n"
        f"#define {name} by_value_{name}\n"
    )


def cuda_source(kernel: CompiledKernel, inline: bool = False) -> tuple[str, str]:
    """``header`` and ``source`` for ``mx.fast.cuda_kernel``; ``inline``: see :func:`vocabulary`.

    Besides the vocabulary, two facts go into the signature, which MLX writes but macros can amend. Inputs
    are ``__restrict__``: MLX gives every output memory of its own, so no store changes an input, and loads
    may pass stores and use the read-only path. (Outputs are not: threads of a group may read each other's.)
    And the number of threads bounds the registers, else a kernel with many of both would not launch.
    In the body, quotients of 1 become calls of a function without branches (``math.cuh``).
    """
    threads = 32 * kernel.num_warps
    names = [name for name in kernel.input_names if name not in _SIGNATURE_WORDS]
    restricted = "".join(f"#define {name} __restrict__ {name}\n" for name in names)
    released = "".join(f"#undef {name}\n" for name in names)
    body = kernel.body.replace("precise::divide(1.0f, ", "precise::reciprocal(")
    helpers = without_comments(without_second_overloads(kernel.header))
    header = (
        f"{vocabulary(inline)}\n"
        # In helper functions "threadgroup" is always part of a pointer's type.
        f"#undef threadgroup\n#define threadgroup\n{helpers}\n"
        f"#undef threadgroup\n#define threadgroup __shared__\n"
        f"#undef __global__\n#define __global__ __attribute__((global)) __launch_bounds__({threads})\n"
        f"{restricted}"
    )
    return header, f'\n{released}{_read_scalars(kernel)}#line 1 "{kernel.name}"\n{body}'
