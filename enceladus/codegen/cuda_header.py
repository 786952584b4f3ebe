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

What it does not have, and so fails to compile: swizzles (``v.xy``), ``packed_*`` vectors, 8- and 16-bit
atomics, ``simdgroup_matrix``, ``Limits``, textures. ``threadgroup`` declares arrays at the top of a body; a
pointer into one must be declared ``auto`` (CUDA refuses it otherwise).
"""

from __future__ import annotations

from pathlib import Path

from enceladus.codegen.kernel import CompiledKernel

_PARTS = ("types", "math", "simdgroup", "atomic", "names")
#: Words that MLX writes between the header and the body; an input of such a name stays as it is.
_SIGNATURE_WORDS = frozenset({"mlx", "core", "cu", "cg", "cooperative_groups", "Shape", "Strides"})


def _read() -> str:
    folder = Path(__file__).with_name("cuda")
    return "\n".join((folder / f"{part}.cuh").read_text(encoding="ascii") for part in _PARTS)


#: The vocabulary, the same for every kernel.
CUDA_HEADER: str = f'#line 1 "enceladus/codegen/cuda"\n{_read()}'


def cuda_source(kernel: CompiledKernel) -> tuple[str, str]:
    """``header`` and ``source`` for ``mx.fast.cuda_kernel``.

    Besides the vocabulary, two facts go into the signature, which MLX writes but macros can amend. Inputs
    are ``__restrict__``: MLX gives every output memory of its own, so no store changes an input, and loads
    may pass stores and use the read-only path. (Outputs are not: threads of a group may read each other's.)
    And the number of threads bounds the registers, else a kernel with many of both would not launch.
    """
    threads = 32 * kernel.num_warps
    names = [name for name in kernel.input_names if name not in _SIGNATURE_WORDS]
    restricted = "".join(f"#define {name} __restrict__ {name}\n" for name in names)
    released = "".join(f"#undef {name}\n" for name in names)
    header = (
        f"{CUDA_HEADER}\n"
        # In helper functions "threadgroup" is always part of a pointer's type.
        f"#undef threadgroup\n#define threadgroup\n{kernel.header}\n"
        f"#undef threadgroup\n#define threadgroup __shared__\n"
        f"#undef __global__\n#define __global__ __attribute__((global)) __launch_bounds__({threads})\n"
        f"{restricted}"
    )
    return header, f'\n{released}#line 1 "{kernel.name}"\n{kernel.body}'
