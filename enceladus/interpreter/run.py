"""Run a kernel's Python function on NumPy arrays, program by program."""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from enceladus.errors import CompilationError, InternalError
from enceladus.frontend.build import build_function
from enceladus.frontend.function import KernelFunction
from enceladus.frontend.signature import (
    Argument,
    ArrayArgument,
    ConstantArgument,
    ScalarArgument,
    TupleArgument,
)
from enceladus.frontend.values import admit
from enceladus.interpreter.arrays import Pointers, constant, dtype_of
from enceladus.interpreter.emitter import Evaluated, NumpyEmitter
from enceladus.interpreter.joins import Joins
from enceladus.interpreter.locations import location_of
from enceladus.interpreter.program import KernelRuntimeError, Program, Triple, bind_array
from enceladus.interpreter.runtime import Runtime
from enceladus.ir.builder import use_emitter
from enceladus.ir.types import DType, pointer_type, tile_type
from enceladus.language.tensor import tensor


def run_kernel(
    kernel: KernelFunction,
    grid: Triple,
    arguments: Mapping[str, Argument],
    values: Mapping[str, object],
    *,
    num_warps: int = 4,
    wide: bool = False,
) -> None:
    """Run every program of ``grid``, one after the other, axis 0 fastest.

    ``arguments`` has a record for each parameter, as ``frontend.build.build_function`` takes it, and
    ``values`` what it stands for: a C-contiguous NumPy array of the record's element type, of any shape,
    written in place; a number; a tuple of these. Compile-time arguments are read from their records.

    The user's own function runs (lightly rewritten, with its own lines and columns), so ``print``,
    ``breakpoint`` and ``pdb`` work in it. A load sees what was stored before.

    Raises ``CompilationError`` for whatever compiling would refuse, debugging aside;
    :class:`~.program.OutOfBoundsError` (an ``IndexError``) for an access outside an array;
    :class:`~.program.AssumptionError`; ``TypeError`` and ``ValueError`` for arguments that do not fit.
    """
    ir = build_function(kernel, arguments, num_warps=num_warps, wide=wide, debugging=True)
    program = Program(grid)
    emitter = NumpyEmitter(program, wide=wide, num_warps=num_warps)
    runtime = Runtime(emitter, Joins(ir))
    positional = {
        p.name: _argument(p.name, arguments[p.name], values.get(p.name), p.constexpr, emitter)
        for p in kernel.parameters
        if p.name in arguments
    }
    try:
        function = runtime.function(kernel)
        by_name = [p.name for p in kernel.parameters if p.name in positional and p.positional_only]
        args = [positional.pop(name) for name in by_name]
        with use_emitter(emitter):
            for z, y, x in itertools.product(*(range(n) for n in reversed(grid))):
                program.index = (x, y, z)
                function(*args, **positional)
    except (CompilationError, KernelRuntimeError) as error:
        if error.location is None:
            error.location = location_of(error.__traceback__) or kernel.location
        raise


def _argument(name: str, argument: Argument, value: object, constexpr: bool, emitter: NumpyEmitter) -> Any:
    """What the kernel sees as the parameter ``name``: a tile with its data, or a compile-time value."""
    if isinstance(argument, ArrayArgument):
        return _array(name, argument.dtype, value)
    if isinstance(argument, ScalarArgument):
        return _scalar(name, argument.dtype, value)
    if isinstance(argument, TupleArgument):
        if not isinstance(value, tuple | list) or len(value) != len(argument.items):
            raise TypeError(f"argument {name!r} must be a tuple of {len(argument.items)}")
        labels = argument.names or tuple(map(str, range(len(value))))
        items = [
            _argument(f"{name}_{label}", item, part, constexpr, emitter)
            for label, item, part in zip(labels, argument.items, value, strict=True)
        ]
        return _named_tuple(argument.names)(*items) if argument.names else tuple(items)
    if isinstance(argument, ConstantArgument):
        if not constexpr and type(argument.value) is int:  # an integer that equals 1, as in build_function
            return _scalar(name, emitter.index_dtype, argument.value)
        return admit(argument.value, f"the argument {name!r}")
    raise InternalError(f"unknown kind of argument for {name!r}: {argument!r}")


def _array(name: str, dtype: DType, value: object) -> tensor:
    array = bind_array(name, value)  # type: ignore[arg-type]
    if dtype_of(array.flat) is not dtype:
        raise TypeError(f"argument {name!r} is an array of {array.flat.dtype}, not {dtype}")
    pointers = Pointers(array, np.asarray(0, np.int64))
    return tensor(Evaluated(tile_type(pointer_type(dtype)), pointers, name))


def _scalar(name: str, dtype: DType, value: object) -> tensor:
    if not isinstance(value, bool | int | float | np.generic):
        raise TypeError(f"argument {name!r} must be a number, not {type(value).__name__}")
    try:
        data = constant(value, dtype)  # type: ignore[arg-type]
    except OverflowError:
        raise ValueError(f"argument {name!r} is {value}, which does not fit {dtype}") from None
    return tensor(Evaluated(tile_type(dtype), data, name))


@lru_cache(maxsize=256)
def _named_tuple(fields: tuple[str, ...]) -> Any:
    return namedtuple("arguments", fields)
