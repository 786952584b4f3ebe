"""Spellings of ``codegen.mathlib`` run on an NVIDIA GPU, called like those of ``portable_cpp.Library``."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from enceladus.codegen.cuda_header import cuda_source
from enceladus.codegen.kernel import ArrayParameter, CompiledKernel, Role
from enceladus.codegen.mathlib import Expression, Spelling, header, type_name
from enceladus.ir.types import DTYPES, DType
from tests.host_executor import to_mlx, to_numpy
from tests.portable_cpp import NUMPY_TYPES

_THREADS = 128

Functions = dict[Any, tuple[Spelling, tuple[DType, ...], DType]]


def library_kernel(functions: Functions) -> tuple[CompiledKernel, dict[Any, int]]:
    """One kernel that holds all ``functions``, and key → the number by which a launch chooses one.

    Inputs: ``a_<type>``, ``b_<type>``, ``c_<type>`` for every type, then ``choice`` (number, element count).
    """
    numbers: dict[Any, int] = {}
    index = {key: numbers.setdefault(f, len(numbers)) for key, f in functions.items()}
    needs: set[str] = set()
    cases = []
    for (spelling, sources, target), number in numbers.items():
        needs.update(spelling.needs)
        names = [Expression(n) for n in "abc"[: len(sources)]]
        pairs = list(zip(sources, "abc", strict=False))
        reads = " ".join(f"const {type_name(s)} {n} = {n}_{s.name}[i];" for s, n in pairs)
        # The braces refuse a result of another type if that could change its value.
        result = f"{type_name(target)}{{{spelling(*names).text}}}"
        cases.append(f"    case {number}: {{ {reads} out_{target.name}[i] = {result}; break; }}\n")
    body = (
        f"  const int start = int(threadgroup_position_in_grid.x) * {_THREADS};\n"
        "  const int i = start + int(thread_index_in_threadgroup);\n"
        "  if (i >= choice[1]) return;\n  switch (choice[0]) {\n" + "".join(cases) + "  }\n"
    )
    arrays = [
        ArrayParameter(f"{n}_{d.name}", d.name, Role.READ, input_name=f"{n}_{d.name}")
        for n in "abc"
        for d in DTYPES.values()
    ]
    arrays += [
        ArrayParameter(f"out_{d.name}", d.name, Role.WRITTEN, output_name=f"out_{d.name}")
        for d in DTYPES.values()
    ]
    kernel = CompiledKernel(
        name="mathlib", body=body, header=header(needs), arrays=arrays, scalars=[], scalars_name="choice",
        num_warps=_THREADS // 32, math_mode="relaxed", registers=1, threadgroup_bytes=0, ir="",
    )  # fmt: skip
    return kernel, index


class CudaLibrary:
    """Functions, each the spelling of one operation, called by key on NumPy arrays."""

    #: What only the C++ library can count.
    undefined_behaviour = 0

    def __init__(self, functions: Functions):
        self._functions = functions
        compiled, self._index = library_kernel(functions)
        text, source = cuda_source(compiled)
        self._kernel: Any = mx.fast.cuda_kernel(
            name=compiled.name,
            input_names=compiled.input_names,
            output_names=compiled.output_names,
            source=source,
            header=text,
        )

    def __call__(self, key: Any, *operands: np.ndarray) -> np.ndarray:
        """The function ``key`` of every element of ``operands`` (arrays of one shape and the right types)."""
        _, sources, target = self._functions[key]
        size = operands[0].size
        inputs = []
        for position in range(3):
            for dtype in DTYPES.values():
                if position < len(sources) and sources[position] is dtype:
                    array = np.ascontiguousarray(operands[position]).reshape(-1)
                    assert array.dtype == NUMPY_TYPES[dtype.name], (key, array.dtype, dtype)
                else:
                    array = np.zeros(1, NUMPY_TYPES[dtype.name])
                inputs.append(to_mlx(array))
        inputs.append(mx.array([self._index[key], size], dtype=mx.int32))
        outputs = self._kernel(
            inputs=inputs,
            output_shapes=[(size if d is target else 1,) for d in DTYPES.values()],
            output_dtypes=[to_mlx(np.zeros(1, NUMPY_TYPES[d.name])).dtype for d in DTYPES.values()],
            grid=(-(-size // _THREADS) * _THREADS, 1, 1),
            threadgroup=(_THREADS, 1, 1),
            stream=mx.gpu,
        )
        chosen = outputs[list(DTYPES.values()).index(target)]
        return to_numpy(chosen).reshape(operands[0].shape)
