"""From the values of a call to records for the compiler and leaves for the launch.

The compiler sees records (``frontend/signature.py``), never arrays. The launch sees *leaves*: the
run-time arrays and numbers in the order of the kernel's flattened signature, depth first through
tuples (``name`` for a plain parameter, ``name_0``, ``name_1`` for the items of a tuple, ``name_field``
for those of a named tuple).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import mlx.core as mx

from enceladus.frontend.dependencies import digest_of
from enceladus.frontend.function import MISSING, KernelFunction, Parameter, as_kernel_function
from enceladus.frontend.signature import (
    Argument,
    ArrayArgument,
    ConstantArgument,
    ScalarArgument,
    TupleArgument,
)
from enceladus.ir.types import DTYPES, DType, PointerType, float32, int1, int32, int64, uint64
from enceladus.mlx_bridge.dtypes import FROM_MLX, from_mlx, unsupported
from enceladus.mlx_bridge.fresh import FreshArray

NoneType = type(None)
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ArrayLeaf:
    """A run-time array: an ``mx.array``, a NumPy array or a :class:`FreshArray`.

    ``parameter`` says where the user wrote it (``"x"``, ``"pair[1]"``), for error messages.
    """

    name: str
    parameter: str
    value: Any
    dtype: DType

    @property
    def is_fresh(self) -> bool:
        return isinstance(self.value, FreshArray)

    @property
    def is_numpy(self) -> bool:
        return not isinstance(self.value, (FreshArray, mx.array))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def size(self) -> int:
        return int(self.value.size)


@dataclass(frozen=True, slots=True)
class ScalarLeaf:
    """A run-time number of type ``dtype``."""

    name: str
    value: bool | int | float
    dtype: DType


Leaf = ArrayLeaf | ScalarLeaf


@dataclass(frozen=True, slots=True)
class BoundArguments:
    """The arguments of one call: a record per parameter, and the run-time leaves."""

    records: tuple[tuple[str, Argument], ...]
    leaves: tuple[Leaf, ...]

    @property
    def arrays(self) -> list[ArrayLeaf]:
        return [leaf for leaf in self.leaves if isinstance(leaf, ArrayLeaf)]

    @property
    def scalars(self) -> list[ScalarLeaf]:
        return [leaf for leaf in self.leaves if isinstance(leaf, ScalarLeaf)]


# ------------------------------------------------------------------------------------- binding


def bind(
    kernel: KernelFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Match a call with the kernel's parameters.

    Returns ``(values, options)``: values by parameter name in the order of the signature, defaults filled
    in, and the keywords that are no parameter. ``TypeError`` for too many, repeated and missing arguments.
    """
    name = kernel.name
    positional = [p.name for p in kernel.parameters if not p.keyword_only]
    if len(args) > len(positional):
        raise TypeError(
            f"{name}() takes {_count(len(positional), 'positional argument')} "
            f"({', '.join(positional)}) but {len(args)} were given"
        )
    given = dict(zip(positional, args, strict=False))
    options = {}
    for key, value in kwargs.items():
        if key not in kernel.by_name:
            options[key] = value
        elif key in given:
            raise TypeError(f"{name}() got more than one value for argument {key!r}")
        else:
            given[key] = value
    return complete(kernel, given), options


def complete(kernel: KernelFunction, given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` in the order of the signature with defaults; values may be ``MISSING``."""
    values = {}
    missing = []
    for parameter in kernel.parameters:
        value = given.get(parameter.name, MISSING)
        if value is MISSING:
            value = parameter.default
            if value is MISSING:
                missing.append(repr(parameter.name))
        values[parameter.name] = value
    if missing:
        number = _count(len(missing), "argument")
        raise TypeError(f"{kernel.name}() is missing {number}: {', '.join(missing)}")
    return values


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# -------------------------------------------------------------------------------- classification


@dataclass(frozen=True, slots=True)
class Classifier:
    """Turns values into records and leaves. ``wide`` makes integers 64-bit (offsets past 2**31)."""

    kernel: KernelFunction
    do_not_specialize: frozenset[str] = frozenset()
    wide: bool = False

    def classify(self, values: Mapping[str, Any]) -> BoundArguments:
        """Records and leaves of all parameters; ``TypeError`` or ``OverflowError`` naming the argument."""
        records: list[tuple[str, Argument]] = []
        leaves: list[Leaf] = []
        for parameter in self.kernel.parameters:
            name = parameter.name
            if parameter.constexpr:
                record: Argument = constant(values[name], self._subject(name), constexpr=True)
            else:
                record = self._runtime(values[name], name, name, parameter, leaves)
            records.append((name, record))
        if len({leaf.name for leaf in leaves}) < len(leaves):
            names = [leaf.name for leaf in leaves]
            twice = next(name for name in names if names.count(name) > 1)
            raise TypeError(
                f"{self.kernel.name}(): an item of a tuple argument is called {twice!r} in the compiled "
                "kernel, and so is another argument; rename the parameter"
            )
        return BoundArguments(tuple(records), tuple(leaves))

    def _subject(self, place: str) -> str:
        return f"{self.kernel.name}(): argument {place!r}"

    def _runtime(
        self, value: Any, name: str, place: str, parameter: Parameter, leaves: list[Leaf]
    ) -> Argument:
        """The record of a run-time value called ``name`` in the IR; its leaves are appended."""
        if isinstance(value, mx.array):
            dtype = FROM_MLX.get(value.dtype) or from_mlx(value.dtype, self._subject(place))
            leaves.append(ArrayLeaf(name, place, value, dtype))
            return ArrayArgument(dtype)
        value = unwrap_numpy_scalar(value)
        if value is None or is_constexpr_value(value):
            return constant(value, self._subject(place), constexpr=False)
        if isinstance(value, (bool, int, float)):
            return self._scalar(value, name, place, parameter, leaves)
        if isinstance(value, FreshArray):
            dtype = FROM_MLX[value.dtype]
            leaves.append(ArrayLeaf(name, place, value, dtype))
            return ArrayArgument(dtype)
        if is_numpy_array(value):
            dtype = numpy_dtype(value, self._subject(place))
            leaves.append(ArrayLeaf(name, place, value, dtype))
            return ArrayArgument(dtype)
        if isinstance(value, tuple):
            fields = tuple(getattr(value, "_fields", ()))
            labels = fields or range(len(value))
            items = tuple(
                self._runtime(item, f"{name}_{label}", f"{place}[{index}]", parameter, leaves)
                for index, (label, item) in enumerate(zip(labels, value, strict=True))
            )
            return TupleArgument(items, fields)
        raise TypeError(f"{self._subject(place)} {_advice(value, place)}")

    def _scalar(
        self, value: bool | int | float, name: str, place: str, parameter: Parameter, leaves: list[Leaf]
    ) -> Argument:
        if isinstance(value, bool):
            leaves.append(ScalarLeaf(name, value, int1))
            return ScalarArgument(int1)
        if isinstance(value, float):
            leaves.append(ScalarLeaf(name, float(value), float32))
            return ScalarArgument(float32)
        value = int(value)
        specialize = parameter.name not in self.do_not_specialize
        if value == 1 and specialize:
            return ConstantArgument(1, "int:1")
        if -_INT32_MAX - 1 <= value <= _INT32_MAX and not self.wide:
            dtype = int32
        elif -(2**63) <= value < 2**63:
            dtype = int64
        elif 2**63 <= value < 2**64:
            dtype = uint64
        else:
            raise OverflowError(
                f"{self._subject(place)} is {value}, which does not fit 64 bits (int64 or uint64)"
            )
        leaves.append(ScalarLeaf(name, value, dtype))
        return ScalarArgument(dtype, divisible_by_16=specialize and value % 16 == 0)


def _advice(value: Any, place: str) -> str:
    """What is wrong with ``value`` as a run-time argument, and what to do."""
    if isinstance(value, (str, DType, PointerType, mx.Dtype)) or as_kernel_function(value) or callable(value):
        kind = "a kernel function" if as_kernel_function(value) else f"{_article(type(value).__name__)}"
        return (
            f"is {kind}, which must be known at compile time: annotate the parameter, {place}: tl.constexpr"
        )
    if isinstance(value, list):
        return "is a list; pass a tuple, or mx.array(...) for data"
    if type(value).__module__.partition(".")[0] == "torch":
        return "is a PyTorch tensor; pass mx.array(tensor.numpy())"
    if isinstance(value, complex):
        return "is a complex number, which kernels do not support; pass its parts as two floats"
    return (
        f"is {_article(type(value).__name__)}; a kernel takes mx.array, NumPy arrays, enceladus.empty(...), "
        "numbers, None and tuples of these"
    )


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


# ------------------------------------------------------------------------------------- constants


def is_constexpr_value(value: Any) -> bool:
    """Whether ``value`` is a ``tl.constexpr(...)``."""
    kind = type(value)
    return kind.__name__ == "constexpr" and kind.__module__.startswith("enceladus.")


def constant(value: Any, subject: str, *, constexpr: bool) -> ConstantArgument:
    """The record of a compile-time value, for a constexpr parameter or ``None`` elsewhere."""
    while is_constexpr_value(value):
        value = value.value
    value = unwrap_numpy_scalar(value)
    if isinstance(value, mx.Dtype):
        value = from_mlx(value, f"{subject}: the type")
    if isinstance(value, tuple):
        value = _plain_tuple(value, subject)
    return ConstantArgument(value, constant_text(value, subject))


def _plain_tuple(value: tuple[Any, ...], subject: str) -> tuple[Any, ...]:
    items = [constant(item, subject, constexpr=True).value for item in value]
    kind: Any = type(value)
    return kind(*items) if hasattr(value, "_fields") else tuple(items)


def constant_text(value: Any, subject: str) -> str:
    """Text that stands for a compile-time value in a key: 1, 1.0, True and "1" differ.

    ``TypeError`` for a value that cannot be one.
    """
    if value is None or isinstance(value, (bool, str)):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, int):
        return f"int:{int(value)}"
    if isinstance(value, float):
        return f"float:{float(value).hex()}"
    if isinstance(value, (DType, PointerType)):
        return f"dtype:{value}"
    if isinstance(value, tuple):
        fields = ",".join(getattr(value, "_fields", ()))
        return f"tuple<{fields}>({', '.join(constant_text(item, subject) for item in value)})"
    function = as_kernel_function(value)
    if function is not None:
        return f"kernel:{function.name}:{function.source_hash}"
    if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
        return f"function:{value.__module__}.{value.__qualname__}:{digest_of(value)}"
    if isinstance(value, Enum):
        return f"enum:{type(value).__qualname__}.{value.name}:{constant_text(value.value, subject)}"
    if isinstance(value, mx.array) or is_numpy_array(value):
        raise TypeError(f"{subject} is constexpr, so it must be known at compile time; it got an array")
    if isinstance(value, FreshArray):
        raise TypeError(f"{subject} is constexpr; it got the description of an output, {value!r}")
    raise TypeError(
        f"{subject} is constexpr; it takes numbers, strings, dtypes, functions, None and tuples of these, "
        f"not {_article(type(value).__name__)}"
    )


# ----------------------------------------------------------------------------------------- NumPy


def is_numpy_array(value: Any) -> bool:
    """Whether ``value`` is a NumPy array; imports nothing."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def unwrap_numpy_scalar(value: Any) -> Any:
    """``np.int64(3)`` → 3; other values unchanged."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    return value


def numpy_dtype(array: Any, subject: str) -> DType:
    """The element type of a NumPy array (``ml_dtypes.bfloat16`` included)."""
    name = "int1" if array.dtype.name == "bool" else array.dtype.name
    dtype = DTYPES.get(name)
    if dtype is None or not array.dtype.isnative:
        raise unsupported(subject, array.dtype)
    return dtype


def share_memory(one: Any, other: Any) -> bool:
    """Whether two NumPy arrays have an element in common (or it would take long to find out)."""
    import numpy

    if not numpy.may_share_memory(one, other):
        return False
    try:
        return bool(numpy.shares_memory(one, other, max_work=100_000))  # type: ignore[arg-type]
    except numpy.exceptions.TooHardError:
        return True


def numpy_to_mlx(array: Any) -> mx.array:
    """A copy of a NumPy array in MLX; bfloat16 goes by its bits."""
    if not array.flags.c_contiguous:  # MLX refuses some strides
        array = array.copy(order="C")
    if array.dtype.name == "bfloat16":
        return mx.array(array.view("uint16")).view(mx.bfloat16)
    return mx.array(array)


def mlx_to_numpy(source: mx.array, target: Any) -> None:
    """Copy an MLX array into a NumPy array of the same shape; evaluates it."""
    import numpy

    if target.dtype.name == "bfloat16":
        target[...] = numpy.array(source.view(mx.uint16)).view(target.dtype)
    else:
        target[...] = numpy.array(source)
