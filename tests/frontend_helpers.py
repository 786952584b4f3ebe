"""Kernels from text, for tests of the front end: source, then tile IR, then facts about it."""

from __future__ import annotations

import itertools
import linecache
from typing import Any, TypeVar

import enceladus.language as tl
from enceladus.frontend.build import build_function
from enceladus.frontend.function import KernelFunction
from enceladus.frontend.signature import Argument, ArrayArgument, ConstantArgument, ScalarArgument
from enceladus.ir.core import Function, Op
from enceladus.ir.types import float32, int32

_numbers = itertools.count()
FLOATS = ArrayArgument(float32)
INT = ScalarArgument(int32)


def constant(value: object) -> ConstantArgument:
    return ConstantArgument(value, repr(value))


#: What parameters of these names get unless a test says otherwise.
DEFAULTS: dict[str, Argument] = {
    "x": FLOATS,
    "y": FLOATS,
    "out": FLOATS,
    "n": INT,
    "m": INT,
    "s": ScalarArgument(float32),
    "BLOCK": constant(128),
}


def define(source: str, name: str = "kernel", **namespace: Any) -> Any:
    """Run ``source`` as a file of its own that ``linecache`` knows, and return what it calls ``name``.

    ``tl`` and ``jit`` (which makes a ``KernelFunction``) are there already.
    """
    filename = f"<test kernel {next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace.update(tl=tl, jit=KernelFunction, __name__="test_kernels")
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


def build(
    source: str, wide: bool = False, globals: dict[str, Any] | None = None, **arguments: Any
) -> Function:
    """The tile IR of the function ``kernel`` in ``source``; parameters get the defaults above."""
    kernel = define(source, **(globals or {}))
    return build_kernel(kernel, wide, **arguments)


def build_kernel(
    kernel: KernelFunction, wide: bool = False, debugging: bool = False, **arguments: Any
) -> Function:
    given = {p.name: DEFAULTS[p.name] for p in kernel.parameters if p.name in DEFAULTS}
    return build_function(kernel, {**given, **arguments}, wide=wide, debugging=debugging)


OpType = TypeVar("OpType", bound=Op)


def find(function: Function, kind: type[OpType]) -> list[OpType]:
    """All operations of a class, in program order."""
    return [op for op in function.walk() if type(op) is kind]


def one(function: Function, kind: type[OpType]) -> OpType:
    """The only operation of a class."""
    (found,) = find(function, kind)
    return found
