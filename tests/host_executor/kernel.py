"""Compile a generated Metal text and run it on the CPU."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .buffers import HostArray
from .errors import ExecutorError
from .execution import Execution, Facts, Launch, Variant
from .signature import Parameter, Role, Signature, parse_signature
from .toolchain import build_kernel, runtime
from .translate import translate

Schedule = str | int
Input = np.ndarray | HostArray

#: The runtime holds the state of one execution; threads that launch kernels take turns.
_ONE_AT_A_TIME = threading.Lock()

# The two executions of a run differ in everything that a correct kernel cannot see.
FIRST = Variant(poison=0xFF, at_end=True)
SECOND = Variant(poison=0x5C, at_end=False)


def compile_source(source: str, *, contract: bool = False) -> HostKernel:
    """Compile the full text exactly as MLX generated it.

    ``contract`` lets ``a * b + c`` within a statement become one fused operation, as Metal does.
    """
    signature = parse_signature(source)
    text, variables = translate(signature)
    functions = runtime()
    library, problem = build_kernel(text, contract=contract)
    if "incompatible operand types" in problem:
        text, variables = translate(signature, wrap=True)
        library, problem = build_kernel(text, contract=contract)
    if library is None:
        raise ExecutorError(_explain(problem))
    return HostKernel(signature, variables, library, functions)


def _explain(diagnostics: str) -> str:
    """clang's diagnostics in Metal's words, without the notes that point into the vocabulary header."""
    lines: list[str] = []
    skipping = False
    for line in diagnostics.splitlines():
        if not line[:1].isspace():
            skipping = bool(re.match(r"\S*msl\w*\.h:\d+:\d+: note:|In file included", line))
        if not skipping:
            lines.append(re.sub(r"^/\S*/(msl\w*\.h)", r"\1", line))
    text = "\n".join(lines).replace("__global", "device").replace("__constant", "constant")
    return text.replace("__local", "threadgroup").replace("__private", "thread")


@dataclass(frozen=True)
class _Checked:
    """Arguments of one launch after validation."""

    inputs: list[tuple[Parameter, np.ndarray, int]]
    outputs: list[tuple[Parameter, tuple[int, ...]]]
    launch: Launch


class HostKernel:
    """A compiled kernel. ``last_run`` holds the counters of the most recent execution."""

    def __init__(
        self, signature: Signature, variables: list[str], library: Path, functions: ctypes.CDLL
    ) -> None:
        self.signature = signature
        self.threadgroup_variables = variables
        self.library = library
        self._functions = functions
        self._entry = ctypes.CDLL(str(library)).msl_entry
        self.last_run: Facts | None = None

    def run(
        self,
        inputs: Sequence[Input],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        init_value: float | None = None,
        schedule: Schedule = "forward",
        *,
        input_offsets: Sequence[int] | None = None,
        allow_unwritten: bool = False,
        allow_partial_groups: bool = False,
    ) -> list[np.ndarray]:
        """Execute twice, with different poison and placement, and compare.

        Unwritten elements are an error; with ``allow_unwritten`` they come back as zero bytes.
        """
        checked = self._check(
            inputs, output_shapes, output_dtypes, grid, threadgroup, input_offsets, allow_partial_groups
        )
        first = self._execute(checked, init_value, schedule, FIRST)
        second = self._execute(checked, init_value, schedule, SECOND)
        return self._reconcile(checked, (first, second), init_value, allow_unwritten)

    def run_schedules(
        self,
        inputs: Sequence[Input],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        init_value: float | None = None,
        schedules: Sequence[Schedule] = ("forward", "reverse", 1),
        *,
        input_offsets: Sequence[int] | None = None,
        allow_unwritten: bool = False,
        allow_partial_groups: bool = False,
        exact: bool = True,
    ) -> list[np.ndarray]:
        """Execute once per schedule, alternating poison and placement; all must agree bit for bit.

        ``exact=False`` drops the comparison between schedules (floating-point atomics): then each
        schedule is a full :meth:`run`, and the first one's result is returned.
        """
        checked = self._check(
            inputs, output_shapes, output_dtypes, grid, threadgroup, input_offsets, allow_partial_groups
        )
        if not exact or len(schedules) == 1:
            results = []
            for schedule in schedules:
                pair = [self._execute(checked, init_value, schedule, variant) for variant in (FIRST, SECOND)]
                results.append(self._reconcile(checked, pair, init_value, allow_unwritten))
            return results[0]
        executions = [
            self._execute(checked, init_value, schedule, (FIRST, SECOND)[index % 2])
            for index, schedule in enumerate(schedules)
        ]
        return self._reconcile(checked, executions, init_value, allow_unwritten)

    # ---- validation ----
    def _check(
        self,
        inputs: Sequence[Input],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        input_offsets: Sequence[int] | None,
        allow_partial_groups: bool,
    ) -> _Checked:
        parameters = self.signature.having(Role.INPUT)
        _require(
            len(inputs) == len(parameters), f"the kernel has {len(parameters)} inputs, got {len(inputs)}"
        )
        if input_offsets is not None:
            _require(len(input_offsets) == len(inputs), "input_offsets needs one offset per input")
        checked_inputs = []
        for index, (parameter, value) in enumerate(zip(parameters, inputs, strict=True)):
            array, offset = (value.array, value.offset_bytes) if isinstance(value, HostArray) else (value, 0)
            if input_offsets is not None:
                offset = input_offsets[index]
            checked_inputs.append((parameter, _check_input(parameter, np.asarray(array), offset), offset))
        results = self.signature.having(Role.OUTPUT)
        _require(
            len(output_shapes) == len(output_dtypes) == len(results),
            f"the kernel has {len(results)} outputs,"
            f" got {len(output_shapes)} shapes and {len(output_dtypes)} dtypes",
        )
        checked_outputs = []
        for parameter, shape, dtype in zip(results, output_shapes, output_dtypes, strict=True):
            _require(
                np.dtype(dtype) == parameter.dtype,
                f"output {parameter.name!r} is {parameter.dtype} in the signature, got {np.dtype(dtype)}",
            )
            checked_outputs.append((parameter, tuple(int(n) for n in shape)))
        return _Checked(
            checked_inputs, checked_outputs, _check_launch(grid, threadgroup, allow_partial_groups)
        )

    # ---- execution and comparison ----
    def _execute(
        self, checked: _Checked, init_value: float | None, schedule: Schedule, variant: Variant
    ) -> list[np.ndarray]:
        with _ONE_AT_A_TIME:
            execution = Execution(self, self._functions, checked.inputs, checked.outputs, variant)
            try:
                results, self.last_run = execution.run(self._entry, checked.launch, init_value, schedule)
            finally:
                execution.free()
        return results

    def _reconcile(
        self,
        checked: _Checked,
        executions: Sequence[list[np.ndarray]],
        init_value: float | None,
        allow_unwritten: bool,
    ) -> list[np.ndarray]:
        """Find unwritten elements and differences between executions; return the common result."""
        final = []
        for index, (parameter, shape) in enumerate(checked.outputs):
            raw = [execution[index] for execution in executions]
            size = parameter.dtype.itemsize
            if init_value is None:
                unwritten = np.ones(raw[0].size, bool)
                for number, result in enumerate(raw):
                    unwritten &= result == (FIRST, SECOND)[number % 2].poison
                elements = np.asarray(unwritten.reshape(-1, size).any(axis=1))
                if elements.any() and not allow_unwritten:
                    raise ExecutorError(
                        f"output {parameter.name!r}: element {_index(elements, shape)} was never written"
                        f" ({int(elements.sum())} of {elements.size} elements)"
                    )
                for result in raw:
                    result[unwritten] = 0
            for result in raw[1:]:
                different = (result != raw[0]).reshape(-1, size).any(axis=1)
                if different.any():
                    where = int(np.flatnonzero(different)[0])
                    left, right = (r.view(parameter.dtype)[where] for r in (raw[0], result))
                    raise ExecutorError(
                        f"output {parameter.name!r}: element {_index(different, shape)}"
                        f" is {left} in one execution"
                        f" and {right} in another ({int(different.sum())} elements differ):"
                        " the result depends on the order of threads (a missing barrier),"
                        " or on memory that was never written"
                    )
            final.append(raw[0].view(parameter.dtype).reshape(shape))
        return final


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ExecutorError(message)


def _index(mask: np.ndarray, shape: tuple[int, ...]) -> str:
    place = np.unravel_index(int(np.flatnonzero(mask)[0]), shape) if shape else ()
    return "[" + ", ".join(str(int(i)) for i in place) + "]"


def _check_input(parameter: Parameter, array: np.ndarray, offset: int) -> np.ndarray:
    name = parameter.name
    _require(
        array.dtype == parameter.dtype,
        f"input {name!r} is {parameter.dtype} in the signature, got {array.dtype}",
    )
    _require(
        (array.ndim == 0) == parameter.is_reference,
        f"input {name!r}: a 0-d array is a reference in the signature, and only that",
    )
    space = "constant" if array.size < 8 else "device"
    _require(
        space == parameter.space,
        f"input {name!r} has {array.size} elements and would be in {space} space;"
        f" this text has it in {parameter.space} space",
    )
    _require(
        offset % array.dtype.itemsize == 0,
        f"input {name!r}: offset {offset} is not a multiple of the element size",
    )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _check_launch(grid: Sequence[int], threadgroup: Sequence[int], allow_partial_groups: bool) -> Launch:
    _require(len(grid) == 3 and len(threadgroup) == 3, "grid and threadgroup are three numbers each")
    _require(
        min(*grid, *threadgroup) > 0,
        f"grid {tuple(grid)} and threadgroup {tuple(threadgroup)} must be positive",
    )
    threads = int(np.prod(threadgroup))
    _require(threads <= 1024, f"a threadgroup of {threads} threads is more than 1024")
    # Metal shrinks a threadgroup to the grid silently; a kernel that counts on its size is then wrong.
    partial = [g for g, t in zip(grid, threadgroup, strict=True) if g % t]
    _require(
        not partial or allow_partial_groups,
        f"grid {tuple(grid)} is not a multiple of threadgroup {tuple(threadgroup)}:"
        " edge groups would be smaller",
    )
    clamped = tuple(min(int(g), int(t)) for g, t in zip(grid, threadgroup, strict=True))
    return Launch((int(grid[0]), int(grid[1]), int(grid[2])), (clamped[0], clamped[1], clamped[2]))
