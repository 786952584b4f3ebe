"""Build the tile IR of a kernel: the front end's entry point."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from enceladus.errors import CompilationError, InternalError
from enceladus.frontend.frame import Compilation
from enceladus.frontend.function import MISSING, KernelFunction, Parameter
from enceladus.frontend.signature import (
    Argument,
    ArrayArgument,
    ConstantArgument,
    ScalarArgument,
    TupleArgument,
)
from enceladus.frontend.statements import Statements
from enceladus.frontend.values import admit, tensor
from enceladus.ir.builder import IRBuilder, current_emitter, use_emitter
from enceladus.ir.core import ArgumentHints, Block, Function, Value
from enceladus.ir.types import pointer_type, tile_type
from enceladus.language import semantic


def build_function(
    kernel: KernelFunction,
    arguments: Mapping[str, Argument],
    *,
    num_warps: int = 4,
    wide: bool = False,
    debugging: bool = False,
) -> Function:
    """The tile IR of ``kernel`` for arguments of these types and compile-time values.

    ``arguments`` has a record for each parameter; one that is left out takes its default, as a
    ``ConstantArgument``. Run-time leaves become the function's arguments in the order of the signature,
    depth first through tuples: ``x``, ``x_0``, ``x_field``. In ``wide`` functions, index arithmetic is in
    64 bits; the caller gives integer scalars as int64 then.

    A constant 1 for a parameter that is not a ``tl.constexpr`` comes from specialization. It becomes a
    constant *of the index type*, not a bare literal, so that types do not depend on the value.

    ``debugging`` passes over ``print``, ``breakpoint``, imports and run-time ``assert``, which only the
    interpreter runs; it asks for the types and errors of the rest.

    Raises ``CompilationError`` for what the language refuses, ``TypeError`` for missing or unknown arguments.
    """
    unknown = [name for name in arguments if name not in kernel.by_name]
    if unknown:
        raise TypeError(f"{kernel.name}() has no parameter {unknown[0]!r}")
    body = Block()
    builder = IRBuilder(body, wide=wide, num_warps=num_warps)
    signature = _Signature(builder)
    compilation = Compilation(builder, debugging)
    compilation.active.append(kernel)
    try:
        with use_emitter(builder):
            builder.location = kernel.location
            scope = {p.name: signature.parameter(kernel, p, arguments) for p in kernel.parameters}
            body.arguments = tuple(signature.values)
            for value in signature.values:
                value.owner = body
            Statements(compilation, kernel, scope).function_body()
    except CompilationError as error:
        if error.location is None:
            error.location = kernel.location
        # The frames of the walk say nothing about the user's kernel.
        raise error.with_traceback(None) from error.__cause__
    return Function(
        kernel.name, body, num_warps, wide, hints=signature.hints, source_lines=compilation.source_lines
    )


def inline_function(kernel: KernelFunction, args: Sequence[Any]) -> Any:
    """What ``kernel`` returns for ``args``, recorded by the current emitter, which is an ``IRBuilder``.

    For the interpreter, where a builtin asks for the trace of a function. What only the interpreter runs
    (``print``) is passed over.
    """
    builder = current_emitter()
    if not isinstance(builder, IRBuilder):
        raise InternalError(f"{kernel.name} cannot be recorded without an IR builder")
    compilation = Compilation(builder, debugging=True)
    compilation.active.append(kernel)
    scope = {
        p.name: admit(p.default, f"the default of {p.name!r}") for p in kernel.parameters if p.has_default
    }
    scope.update(zip(kernel.parameter_names, args, strict=False))
    return Statements(compilation, kernel, scope, builder.location or kernel.location).function_body()


def is_specialized_one(argument: ConstantArgument, constexpr: bool) -> bool:
    """Whether a constant stands for a run-time integer that is 1 (``constexpr``: the annotation)."""
    return not constexpr and type(argument.value) is int and argument.value == 1


class _Signature:
    """Makes the values that the kernel's parameters stand for."""

    def __init__(self, builder: IRBuilder):
        self.builder = builder
        self.values: list[Value] = []
        self.hints: dict[Value, ArgumentHints] = {}

    def parameter(
        self, kernel: KernelFunction, parameter: Parameter, arguments: Mapping[str, Argument]
    ) -> Any:
        argument = arguments.get(parameter.name)
        if argument is None:
            if parameter.default is MISSING:
                raise TypeError(f"{kernel.name}() misses an argument for {parameter.name!r}")
            argument = ConstantArgument(parameter.default, "")
        return self.argument(parameter.name, argument, parameter.constexpr)

    def argument(self, name: str, argument: Argument, constexpr: bool) -> Any:
        if isinstance(argument, ArrayArgument):
            return self.run_time(name, Value(tile_type(pointer_type(argument.dtype)), name=name))
        if isinstance(argument, ScalarArgument):
            value = Value(tile_type(argument.dtype), name=name)
            if argument.divisible_by_16:
                self.hints[value] = ArgumentHints(divisibility=16)
            return self.run_time(name, value)
        if isinstance(argument, TupleArgument):
            labels = argument.names or tuple(map(str, range(len(argument.items))))
            items = [
                self.argument(f"{name}_{label}", item, constexpr)
                for label, item in zip(labels, argument.items, strict=True)
            ]
            return _named_tuple(argument.names)(*items) if argument.names else tuple(items)
        if isinstance(argument, ConstantArgument):
            constant = argument.value
            if is_specialized_one(argument, constexpr):
                return tensor(semantic.materialize(constant, self.builder.index_dtype))
            return admit(constant, f"the argument {name!r}")
        raise InternalError(f"unknown kind of argument for {name!r}: {argument!r}")

    def run_time(self, name: str, value: Value) -> tensor:
        self.values.append(value)
        return tensor(value)


@lru_cache(maxsize=256)
def _named_tuple(fields: tuple[str, ...]) -> Any:
    return namedtuple("arguments", fields)
