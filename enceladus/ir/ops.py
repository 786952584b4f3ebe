"""The operations of the tile IR. Each class states operands, attributes, result types and rules.

Two stages share most of them. The front end emits pointer arithmetic (``AddPointer``, ``Load``,
``Store``); after the pass ``resolve_pointers`` only ``ArrayLoad`` and ``ArrayStore`` remain, which name
the array parameter and an element offset. Legality per stage is checked by ``verifier``.

The meaning of an operation in odd corners (NaN, overflow, shifts, division by zero) is stated on its
kind below and in ``docs/numerics.md``; every engine follows it.
"""

from __future__ import annotations

from enum import Enum

from enceladus.ir.core import Block, Op, Value, operation
from enceladus.ir.types import DType, PointerType, TileType, int1, int32, int64, pointer_type, tile_type

# --------------------------------------------------------------------------------------- kinds


class UnaryKind(Enum):
    """One operand, result of the same type unless said otherwise.

    16-bit floats compute in float32 and round once.
    """

    NEG = "neg"  # integers wrap; floats flip the sign bit
    NOT = "not"  # bitwise; logical on int1
    ABS = "abs"  # the smallest signed integer stays itself
    EXP = "exp"
    EXP2 = "exp2"
    EXPM1 = "expm1"
    LOG = "log"
    LOG2 = "log2"
    LOG10 = "log10"
    LOG1P = "log1p"
    SQRT = "sqrt"  # correctly rounded
    RSQRT = "rsqrt"
    SIN = "sin"
    COS = "cos"
    TAN = "tan"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    SINH = "sinh"
    COSH = "cosh"
    TANH = "tanh"
    ERF = "erf"
    FLOOR = "floor"
    CEIL = "ceil"
    TRUNC = "trunc"
    RINT = "rint"  # half to even
    ROUND = "round"  # half away from zero
    ISNAN = "isnan"  # result int1
    ISINF = "isinf"  # result int1
    POPC = "popc"  # set bits; integers, result int32
    CLZ = "clz"  # leading zeros, the width for 0; integers, result int32


class BinaryKind(Enum):
    """Two operands of one type, result of that type."""

    ADD = "add"  # integers wrap
    SUB = "sub"
    MUL = "mul"
    DIV = "div"  # floats only, correctly rounded
    IDIV = "idiv"  # integers: truncates; x / 0 = 0; the smallest / -1 wraps to itself
    IREM = "irem"  # integers: x - (x idiv y) * y, so x rem 0 = x; sign of the dividend
    AND = "and"
    OR = "or"
    XOR = "xor"
    SHL = "shl"  # amounts below 0 or at least the width give 0
    SHR = "shr"  # arithmetic on signed types; such amounts give 0, or -1 for negative values
    MIN = "min"  # NaN: the other operand, as in IEEE minimumNumber
    MAX = "max"
    MIN_NAN = "min_nan"  # NaN if either is NaN
    MAX_NAN = "max_nan"
    POW = "pow"
    ATAN2 = "atan2"
    UMULHI = "umulhi"  # high half of the product of 32- or 64-bit unsigned (or signed bits taken as unsigned)


class CompareKind(Enum):
    """Comparison, result int1. With NaN only NE is true."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


# ---------------------------------------------------------------------------- sources of values


@operation("constant")
class Constant(Op):
    """A scalar known at compile time. ``value`` is a bool, int or float that fits ``dtype``."""

    value: bool | int | float
    dtype: DType

    def result_types(self) -> tuple[TileType, ...]:
        return (tile_type(self.dtype),)


@operation("program_id")
class ProgramId(Op):
    """This program's index on a grid axis; int32, or int64 in the wide variant."""

    axis: int
    dtype: DType = int32

    def result_types(self) -> tuple[TileType, ...]:
        return (tile_type(self.dtype),)


@operation("num_programs")
class NumPrograms(Op):
    """The grid's size on an axis; int32, or int64 in the wide variant."""

    axis: int
    dtype: DType = int32

    def result_types(self) -> tuple[TileType, ...]:
        return (tile_type(self.dtype),)


@operation("range")
class MakeRange(Op):
    """The tile ``start, start+1, …, end-1``; int32, or int64 in the wide variant."""

    start: int
    end: int
    dtype: DType = int32

    def result_types(self) -> tuple[TileType, ...]:
        return (tile_type(self.dtype, (self.end - self.start,)),)


# --------------------------------------------------------------------------------------- shape


@operation("splat")
class Splat(Op):
    """A scalar repeated over ``shape`` (at least one dimension)."""

    value: Value
    shape: tuple[int, ...]

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type.with_shape(self.shape),)

    def verify(self) -> str | None:
        return None if self.value.type.is_scalar and self.shape else "splat takes a scalar to a tile"


@operation("expand_dims")
class ExpandDims(Op):
    """Insert a dimension of size 1 at ``axis`` (counted in the result)."""

    value: Value
    axis: int

    def result_types(self) -> tuple[TileType, ...]:
        shape = self.value.type.shape
        return (self.value.type.with_shape((*shape[: self.axis], 1, *shape[self.axis :])),)


@operation("broadcast")
class Broadcast(Op):
    """Repeat dimensions of size 1 until the tile has ``shape`` (same rank)."""

    value: Value
    shape: tuple[int, ...]

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type.with_shape(self.shape),)

    def verify(self) -> str | None:
        old = self.value.type.shape
        fits = len(old) == len(self.shape) and all(a in (1, b) for a, b in zip(old, self.shape, strict=False))
        return None if fits else f"cannot broadcast {old} to {self.shape}"


# --------------------------------------------------------------------------------- arithmetic


@operation("unary", elementwise=True)
class Unary(Op):
    kind: UnaryKind
    value: Value

    def result_types(self) -> tuple[TileType, ...]:
        if self.kind in (UnaryKind.ISNAN, UnaryKind.ISINF):
            return (self.value.type.with_element(int1),)
        if self.kind in (UnaryKind.POPC, UnaryKind.CLZ):
            return (self.value.type.with_element(int32),)
        return (self.value.type,)


@operation("binary", elementwise=True)
class Binary(Op):
    kind: BinaryKind
    lhs: Value
    rhs: Value

    def result_types(self) -> tuple[TileType, ...]:
        return (self.lhs.type,)

    def verify(self) -> str | None:
        return (
            None if self.lhs.type == self.rhs.type else f"operands differ: {self.lhs.type}, {self.rhs.type}"
        )


@operation("compare", elementwise=True)
class Compare(Op):
    kind: CompareKind
    lhs: Value
    rhs: Value

    def result_types(self) -> tuple[TileType, ...]:
        return (self.lhs.type.with_element(int1),)

    def verify(self) -> str | None:
        return (
            None if self.lhs.type == self.rhs.type else f"operands differ: {self.lhs.type}, {self.rhs.type}"
        )


@operation("select", elementwise=True)
class Select(Op):
    """``on_true`` where ``condition`` holds, else ``on_false``; neither side's value is looked at."""

    condition: Value
    on_true: Value
    on_false: Value

    def result_types(self) -> tuple[TileType, ...]:
        return (self.on_true.type,)

    def verify(self) -> str | None:
        if self.on_true.type != self.on_false.type:
            return f"branches differ: {self.on_true.type}, {self.on_false.type}"
        ok = self.condition.type == self.on_true.type.with_element(int1)
        return None if ok else f"condition is {self.condition.type}"


@operation("fma", elementwise=True)
class Fma(Op):
    """``a * b + c`` rounded once (16-bit floats: in float32, then rounded)."""

    a: Value
    b: Value
    c: Value

    def result_types(self) -> tuple[TileType, ...]:
        return (self.a.type,)

    def verify(self) -> str | None:
        return None if self.a.type == self.b.type == self.c.type else "operands differ in type"


@operation("cast", elementwise=True)
class Cast(Op):
    """Convert numbers.

    Integer to integer keeps the low bits; anything to int1 asks "is it not zero?" (NaN is not);
    float to integer truncates, saturates out of range and gives 0 for NaN; integer to float and float
    to narrower float round to nearest even, overflow to infinity.
    """

    value: Value
    dtype: DType

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type.with_element(self.dtype),)


@operation("bitcast", elementwise=True)
class Bitcast(Op):
    """The same bits as another type of the same width."""

    value: Value
    dtype: DType

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type.with_element(self.dtype),)


@operation("hint", elementwise=True)
class Hint(Op):
    """The operand, with the user's promise about it (``tl.multiple_of``, ``tl.max_contiguous``).

    ``divisibility`` and ``contiguity`` are per dimension; 1 says nothing.
    """

    value: Value
    divisibility: tuple[int, ...] = ()
    contiguity: tuple[int, ...] = ()

    def result_types(self) -> tuple[TileType, ...]:
        return (self.value.type,)


# --------------------------------------------------------------------------------------- memory


@operation("add_pointer", elementwise=True)
class AddPointer(Op):
    """``pointer + offset`` in elements; ``offset`` is a signed or unsigned integer, exact in 64 bits."""

    pointer: Value
    offset: Value

    def result_types(self) -> tuple[TileType, ...]:
        return (self.pointer.type,)

    def verify(self) -> str | None:
        return None if self.pointer.type.shape == self.offset.type.shape else "shapes differ"


@operation("load", pure=False, elementwise=True)
class Load(Op):
    """Read through pointers. Where ``mask`` is false nothing is read and the result is ``other``, or 0."""

    pointer: Value
    mask: Value | None = None
    other: Value | None = None

    def result_types(self) -> tuple[TileType, ...]:
        element = self.pointer.type.element
        assert isinstance(element, PointerType)
        return (self.pointer.type.with_element(element.element),)


@operation("store", pure=False, elementwise=True)
class Store(Op):
    """Write through pointers where ``mask`` is true."""

    pointer: Value
    value: Value
    mask: Value | None = None

    def result_types(self) -> tuple[TileType, ...]:
        return ()


@operation("array_load", elementwise=True)
class ArrayLoad(Op):
    """``array[offset]`` where ``mask`` holds, else ``other`` (or 0). ``array`` is a kernel argument.

    Pure: a load sees the contents from before the launch, because MLX's inputs are immutable. A load
    that would have to see the program's own store is refused by ``resolve_pointers``.
    """

    array: Value
    offset: Value
    mask: Value | None = None
    other: Value | None = None
    vector: int = 1  #: consecutive elements a thread moves at once (set by layout assignment)

    def result_types(self) -> tuple[TileType, ...]:
        element = self.array.type.element
        assert isinstance(element, PointerType)
        return (self.offset.type.with_element(element.element),)


@operation("array_store", pure=False, elementwise=True)
class ArrayStore(Op):
    """``array[offset] = value`` where ``mask`` holds. ``array`` is a kernel argument."""

    array: Value
    offset: Value
    value: Value
    mask: Value | None = None
    vector: int = 1  #: consecutive elements a thread moves at once (set by layout assignment)

    def result_types(self) -> tuple[TileType, ...]:
        return ()


@operation("is_aligned")
class IsAligned(Op):
    """int1: whether the address of ``array[offset]`` (scalar offset) is a multiple of ``bytes``."""

    array: Value
    offset: Value
    bytes: int = 16

    def result_types(self) -> tuple[TileType, ...]:
        return (tile_type(int1),)


@operation("barrier", pure=False)
class Barrier(Op):
    """All threads of the program wait here, and memory written before is visible after."""

    def result_types(self) -> tuple[TileType, ...]:
        return ()


@operation("assume", pure=False)
class Assume(Op):
    """The user's promise that a scalar condition holds (``tl.assume``)."""

    condition: Value

    def result_types(self) -> tuple[TileType, ...]:
        return ()


# ---------------------------------------------------------------------------------- control flow


@operation("for", pure=False, control_flow=True)
class For(Op):
    """``for i in range(lower, upper, step)`` carrying values.

    The body's arguments are the induction variable and the carried values; it ends in a ``Yield`` of
    the next ones. All threads of a program agree on the trip count. The induction variable has the type
    of the bounds; ``step`` may be negative but not 0 (refused when constant; else no iterations).
    """

    lower: Value
    upper: Value
    step: Value
    initial: tuple[Value, ...]
    body: Block

    def result_types(self) -> tuple[TileType, ...]:
        return tuple(v.type for v in self.initial)


@operation("if", pure=False, control_flow=True)
class If(Op):
    """A branch on a scalar int1. Both blocks end in a ``Yield`` of the same types."""

    condition: Value
    then_block: Block
    else_block: Block

    def result_types(self) -> tuple[TileType, ...]:
        return tuple(v.type for v in self.then_block.terminator.operands)


@operation("yield", pure=False, terminator=True)
class Yield(Op):
    """Ends a nested block and hands over its values."""

    values: tuple[Value, ...] = ()

    def result_types(self) -> tuple[TileType, ...]:
        return ()


__all__ = [
    "AddPointer", "ArrayLoad", "ArrayStore", "Assume", "Barrier", "Binary", "BinaryKind", "Bitcast",
    "Broadcast", "Cast", "Compare", "CompareKind", "Constant", "ExpandDims", "Fma", "For", "Hint", "If",
    "IsAligned", "Load", "MakeRange", "NumPrograms", "ProgramId", "Select", "Splat", "Store", "Unary",
    "UnaryKind", "Yield", "int64", "pointer_type",
]  # fmt: skip
