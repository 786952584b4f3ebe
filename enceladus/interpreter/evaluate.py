"""Tile IR evaluated on NumPy: what a function means, for comparing it before and after a pass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from enceladus.errors import InternalError
from enceladus.interpreter.arrays import NUMPY_DTYPES, Data, Pointers, constant
from enceladus.interpreter.program import (
    KernelRuntimeError,
    Program,
    Triple,
    bind_array,
    execute,
)
from enceladus.ir import ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.types import PointerType


def evaluate_function(function: Function, grid: Triple, arguments: Sequence[object]) -> None:
    """Run every program of ``grid``, axis 0 fastest, one after the other.

    ``arguments`` are one a function argument, in order: a C-contiguous NumPy array for a pointer (written
    in place), a number for a scalar. Works before and after ``resolve_pointers``. Loads see the contents from
    before the launch, atomic updates the present ones. Raises ``OutOfBoundsError`` for an access outside an
    array.
    """
    if len(arguments) != len(function.arguments):
        raise TypeError(f"{function.name} takes {len(function.arguments)} arguments, not {len(arguments)}")
    bound = {v: bind(v, x) for v, x in zip(function.arguments, arguments, strict=True)}
    program = Program(grid)
    for z, y, x in itertools.product(*(range(n) for n in reversed(grid))):
        program.index = (x, y, z)
        _Evaluation(program, dict(bound)).block(function.body)


def bind(parameter: Value, argument: object) -> Data:
    """The data of a function's argument; ``TypeError`` or ``ValueError`` where it does not fit."""
    element = parameter.type.element
    if not isinstance(element, PointerType):
        if isinstance(argument, np.ndarray):
            return argument.astype(NUMPY_DTYPES[element]).reshape(())
        if not isinstance(argument, bool | int | float | np.generic):
            raise TypeError(f"argument {parameter.name!r} must be a number, not {type(argument).__name__}")
        return constant(argument, element)  # type: ignore[arg-type]
    array = bind_array(parameter.name, argument)  # type: ignore[arg-type]
    found = array.flat.dtype
    if found != NUMPY_DTYPES[element.element]:
        raise TypeError(f"argument {parameter.name!r} is an array of {found}, not {element.element}")
    return Pointers(array, np.asarray(0, np.int64))


class _Evaluation:
    """The values computed so far by one program."""

    def __init__(self, program: Program, values: dict[Value, Data]):
        self.program = program
        self.values = values

    def block(self, block: Block) -> tuple[Data, ...]:
        """Run a block; what its ``Yield`` hands over, or nothing."""
        for op in block.ops:
            if isinstance(op, ops.Yield):
                return tuple(self.values[v] for v in op.values)
            self.values.update(zip(op.results, self.op(op), strict=True))
        return ()

    def op(self, op: Op) -> tuple[Data, ...]:
        if isinstance(op, ops.For):
            return self._for(op)
        if isinstance(op, ops.If):
            return self.block(op.then_block if self.values[op.condition] else op.else_block)
        try:
            return execute(op, self.values.__getitem__, self.program)
        except KeyError as error:
            raise InternalError(f"{op.mnemonic} uses {error.args[0]!r} before it is defined") from error
        except KernelRuntimeError as error:
            error.location = op.loc
            raise

    def _for(self, op: ops.For) -> tuple[Data, ...]:
        lower, upper, step = (int(self.values[v]) for v in (op.lower, op.upper, op.step))  # type: ignore[arg-type]
        carried = tuple(self.values[v] for v in op.initial)
        induction, *parameters = op.body.arguments
        dtype = NUMPY_DTYPES[induction.type.dtype]
        for i in range(lower, upper, step) if step else ():
            self.values[induction] = np.asarray(i, dtype)
            self.values.update(zip(parameters, carried, strict=True))
            carried = self.block(op.body)
        return carried
