"""``tl.tensor``: the tile that kernels compute with."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from enceladus.errors import CompilationError
from enceladus.ir.builder import current_emitter
from enceladus.ir.core import Value
from enceladus.ir.ops import BinaryKind, CompareKind
from enceladus.ir.types import DType, PointerType, TileType
from enceladus.language import semantic
from enceladus.language.constexpr import unwrap
from enceladus.language.missing import MissingNameError, suggestion


def raw(x: Any) -> Any:
    """What ``semantic`` works on: a tile's IR value, a constexpr's plain value, else ``x``."""
    return x.value if x.__class__ is tensor else unwrap(x)


class tensor:  # noqa: N801 - Triton's spelling
    """An immutable tile of numbers or pointers; a scalar is a tile of shape ``()``.

    All operators work element by element with broadcasting, in the types that ``semantic`` describes.
    """

    __slots__ = ("value",)

    #: NumPy scalars leave operators with a tile to the tile.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    value: Value

    def __init__(self, value: Value):
        self.value = value

    @property
    def type(self) -> TileType:
        """Element type and shape."""
        return self.value.type

    @property
    def dtype(self) -> DType | PointerType:
        """The element type; a :class:`PointerType` on pointers."""
        return self.value.type.element

    @property
    def shape(self) -> tuple[int, ...]:
        """Compile-time sizes of the dimensions; ``()`` for a scalar."""
        return self.value.type.shape

    @property
    def numel(self) -> int:
        """Number of elements, at compile time."""
        return self.value.type.numel

    # ----------------------------------------------------------------------------- arithmetic

    def __add__(self, other: Any) -> tensor:
        return tensor(semantic.arithmetic(BinaryKind.ADD, self.value, raw(other)))

    def __radd__(self, other: Any) -> tensor:
        return tensor(semantic.arithmetic(BinaryKind.ADD, raw(other), self.value))

    def __sub__(self, other: Any) -> tensor:
        return tensor(semantic.arithmetic(BinaryKind.SUB, self.value, raw(other)))

    def __rsub__(self, other: Any) -> tensor:
        return tensor(semantic.arithmetic(BinaryKind.SUB, raw(other), self.value))

    def __mul__(self, other: Any) -> tensor:
        return tensor(semantic.arithmetic(BinaryKind.MUL, self.value, raw(other)))

    def __rmul__(self, other: Any) -> tensor:
        return tensor(semantic.arithmetic(BinaryKind.MUL, raw(other), self.value))

    def __truediv__(self, other: Any) -> tensor:
        return tensor(semantic.divide(self.value, raw(other)))

    def __rtruediv__(self, other: Any) -> tensor:
        return tensor(semantic.divide(raw(other), self.value))

    def __floordiv__(self, other: Any) -> tensor:
        return tensor(semantic.integer_division(BinaryKind.IDIV, self.value, raw(other)))

    def __rfloordiv__(self, other: Any) -> tensor:
        return tensor(semantic.integer_division(BinaryKind.IDIV, raw(other), self.value))

    def __mod__(self, other: Any) -> tensor:
        return tensor(semantic.integer_division(BinaryKind.IREM, self.value, raw(other)))

    def __rmod__(self, other: Any) -> tensor:
        return tensor(semantic.integer_division(BinaryKind.IREM, raw(other), self.value))

    def __neg__(self) -> tensor:
        return tensor(semantic.negate(self.value))

    def __pos__(self) -> tensor:
        return self

    def __abs__(self) -> tensor:
        return tensor(semantic.absolute(self.value))

    # -------------------------------------------------------------------------- bits and logic

    def __and__(self, other: Any) -> tensor:
        return tensor(semantic.bitwise(BinaryKind.AND, self.value, raw(other)))

    def __rand__(self, other: Any) -> tensor:
        return tensor(semantic.bitwise(BinaryKind.AND, raw(other), self.value))

    def __or__(self, other: Any) -> tensor:
        return tensor(semantic.bitwise(BinaryKind.OR, self.value, raw(other)))

    def __ror__(self, other: Any) -> tensor:
        return tensor(semantic.bitwise(BinaryKind.OR, raw(other), self.value))

    def __xor__(self, other: Any) -> tensor:
        return tensor(semantic.bitwise(BinaryKind.XOR, self.value, raw(other)))

    def __rxor__(self, other: Any) -> tensor:
        return tensor(semantic.bitwise(BinaryKind.XOR, raw(other), self.value))

    def __lshift__(self, other: Any) -> tensor:
        return tensor(semantic.bitwise(BinaryKind.SHL, self.value, raw(other)))

    def __rlshift__(self, other: Any) -> tensor:
        return tensor(semantic.bitwise(BinaryKind.SHL, raw(other), self.value))

    def __rshift__(self, other: Any) -> tensor:
        return tensor(semantic.bitwise(BinaryKind.SHR, self.value, raw(other)))

    def __rrshift__(self, other: Any) -> tensor:
        return tensor(semantic.bitwise(BinaryKind.SHR, raw(other), self.value))

    def __invert__(self) -> tensor:
        return tensor(semantic.invert(self.value))

    # ----------------------------------------------------------------------------- comparisons

    def __eq__(self, other: Any) -> tensor:  # type: ignore[override]
        return tensor(semantic.compare(CompareKind.EQ, self.value, raw(other)))

    def __ne__(self, other: Any) -> tensor:  # type: ignore[override]
        return tensor(semantic.compare(CompareKind.NE, self.value, raw(other)))

    def __lt__(self, other: Any) -> tensor:
        return tensor(semantic.compare(CompareKind.LT, self.value, raw(other)))

    def __le__(self, other: Any) -> tensor:
        return tensor(semantic.compare(CompareKind.LE, self.value, raw(other)))

    def __gt__(self, other: Any) -> tensor:
        return tensor(semantic.compare(CompareKind.GT, self.value, raw(other)))

    def __ge__(self, other: Any) -> tensor:
        return tensor(semantic.compare(CompareKind.GE, self.value, raw(other)))

    # --------------------------------------------------------------------- indexing and shape

    def __getitem__(self, index: Any) -> tensor:
        """Only ``None`` (a new dimension of size 1), ``:`` and ``...`` may be used as indices."""
        items = index if isinstance(index, tuple) else (index,)
        items = tuple([unwrap(item) for item in items])
        for item in items:
            if item is not None and item is not Ellipsis and not _is_whole(item):
                if self.dtype.is_ptr():
                    raise CompilationError(
                        f"a pointer cannot be indexed with {_spell(item)}",
                        "add the offsets and load: `tl.load(pointer + offsets)`",
                    )
                raise CompilationError(
                    f"a tile cannot be indexed with {_spell(item)}",
                    "only `None`, `:` and `...` are allowed; load single elements with a pointer, "
                    "or pick them with `tl.where`",
                )
        kept = len([item for item in items if item is not None and item is not Ellipsis])
        rank = len(self.shape)
        if kept > rank:
            raise CompilationError(
                f"too many indices: {kept} of `:` for a tile of {rank} dimensions",
                "use `None` to add a dimension",
            )
        if items.count(Ellipsis) > 1:
            raise CompilationError("a tile can be indexed with only one `...`")
        value, axis = self.value, 0
        for item in items:
            if item is None:
                value = semantic.expand_dims(value, axis)
                axis += 1
            else:
                axis += rank - kept if item is Ellipsis else 1
        return tensor(value)

    @property
    def T(self) -> tensor:  # noqa: N802 - NumPy's spelling
        """The tile with its last two dimensions swapped."""
        return tensor(semantic.swap_last("x.T", self.value))

    def __setitem__(self, index: Any, item: Any) -> NoReturn:
        raise CompilationError(
            "a tile cannot be changed in place", "make a new one: `x = tl.where(condition, new, x)`"
        )

    def __iter__(self) -> NoReturn:
        raise CompilationError(
            "a tile cannot be iterated over or unpacked",
            "use `tl.static_range` over indices known at compile time",
        )

    def __len__(self) -> NoReturn:
        raise CompilationError("a tile has no `len`", "use `x.shape[0]`")

    def __pow__(self, other: Any) -> NoReturn:
        raise CompilationError(
            "`**` does not work on tiles", "use `tl.math.pow(x, y)`, or `x * x` for a square"
        )

    __rpow__ = __pow__

    def __matmul__(self, other: Any) -> NoReturn:
        raise CompilationError("`@` does not work on tiles", "multiply element by element with `*`")

    __rmatmul__ = __matmul__

    # ------------------------------------------------------ Python values, under the interpreter

    def _python_value(self, wanted: str, hint: str) -> Any:
        """The number, when it is known because NumPy runs the kernel and this is a scalar."""
        if isinstance(self.dtype, PointerType):
            raise CompilationError(f"a pointer cannot be used as {wanted}", "`tl.load` what it points at")
        if self.shape:
            raise CompilationError(f"a tile of shape {self.shape} cannot be used as {wanted}", hint)
        data = getattr(self.value, "data", None)
        if data is None:
            raise CompilationError(f"a run-time value cannot be used as {wanted}", hint)
        return data

    def __bool__(self) -> bool:
        hint = "use `tl.where` to choose element by element; `if` takes a scalar"
        return bool(self._python_value("a condition", hint))

    def __int__(self) -> int:
        return int(self._python_value("a Python int", "convert it with `.to(tl.int32)`"))

    def __index__(self) -> int:
        if not self.dtype.is_int():
            raise CompilationError(
                f"a {self.dtype} cannot be used as an index", "convert it with `.to(tl.int32)`"
            )
        return int(
            self._python_value("a compile-time integer", "make the parameter it comes from a `tl.constexpr`")
        )

    def __float__(self) -> float:
        return float(self._python_value("a Python float", "convert it with `.to(tl.float32)`"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = [n for n in dir(tensor) if not n.startswith("_")]
        raise MissingNameError(f"a tile has no attribute `{name}`", suggestion(name, known))

    def __repr__(self) -> str:
        data = getattr(self.value, "data", None)
        return f"tl.tensor({self.type})" if data is None else f"tl.tensor({data}, {self.type})"

    __str__ = __repr__


def _is_whole(item: Any) -> bool:
    """Whether ``item`` is ``:``. Tested by identity, because the parts of a slice may be tiles."""
    return isinstance(item, slice) and item.start is None and item.stop is None and item.step is None


def _spell(item: Any) -> str:
    if isinstance(item, slice):
        parts = [item.start, item.stop] if item.step is None else [item.start, item.stop, item.step]
        return "`" + ":".join("" if p is None else str(p) for p in parts) + "`"
    return f"a tile of {item.dtype}" if isinstance(item, tensor) else f"{item!r}"


def tensor_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a builtin also a method of its first argument, as ``x.to(...)``."""
    setattr(tensor, function.__name__, function)
    return function


def to_tensor(x: Any, dtype: DType | None = None, what: str = "constant") -> tensor:
    """``x`` as a tile: numbers become scalar constants; with ``dtype``, everything is cast to it."""
    if x.__class__ is tensor and dtype is None:
        return x
    return tensor(semantic.materialize(raw(x), dtype, what))


def loop_values(start: Any, stop: Any, step: Any) -> Iterator[Any]:
    """The values of a run-time loop when Python runs it.

    Inside a kernel they are scalars of the promoted type of the bounds, as in the compiled loop, so that
    for example ``//`` keeps its meaning; outside they are plain integers.
    """
    if current_emitter() is None:
        return iter(builtins.range(start, stop, step))
    dtype = semantic.common_dtype("range", (raw(start), raw(stop), raw(step)))
    if not dtype.is_int() or dtype.is_bool():
        raise CompilationError(f"a loop needs integer bounds, not {dtype}", "cast them with `.to(tl.int32)`")
    steps = builtins.range(int(start), int(stop), int(step))
    return (tensor(semantic.constant(i, dtype, "range")) for i in steps)
