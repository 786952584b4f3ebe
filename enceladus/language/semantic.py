"""The meaning of the language: promotion, broadcasting, and the primitive operation each operator becomes.

Everything here works on IR values and Python literals (``bool``, ``int``, ``float``) and returns IR values;
``tensor`` wraps them for the user. The rules of promotion are Triton's:

* Two tiles (or run-time scalars): float with integer gives the float type; of two float types the wider
  one; float16 with bfloat16 gives float32; of two integers of one signedness the wider one; of a signed
  and an unsigned one the unsigned type if it is at least as wide, else the signed; ``int1`` with any other
  type gives the other type.
* A literal takes the other operand's type if its kind (bool < int < float) is not higher: an integer
  must then be in range, and a finite number too large for a 16-bit float makes the operation a float32 one.
  A float literal with integers is a float32, an int literal with ``int1`` an int32 (int64 or uint64 if it
  does not fit).

Where this differs from Triton: ``/`` of two 16-bit floats, and ``minimum``/``maximum`` of bfloat16, keep the
16-bit type, because all 16-bit operations compute in float32 and round back; literals are weak in every
builtin, not only in operators; ``/`` of a signed and an unsigned integer is allowed, for it is a float32.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from math import frexp, inf, isfinite, ldexp, prod
from typing import Any, NoReturn

from enceladus.errors import CompilationError
from enceladus.ir.builder import current_emitter
from enceladus.ir.core import Op, Value
from enceladus.ir.exchange import Transpose
from enceladus.ir.ops import (
    AddPointer,
    Binary,
    BinaryKind,
    Bitcast,
    Broadcast,
    Cast,
    Compare,
    CompareKind,
    Constant,
    ExpandDims,
    Splat,
    Unary,
    UnaryKind,
)
from enceladus.ir.types import (
    DType,
    Kind,
    PointerType,
    bfloat16,
    float16,
    float32,
    int1,
    int32,
    int64,
    uint32,
    uint64,
)

#: What the operators accept: a tile or run-time scalar, or a Python number.
Operand = Value | bool | int | float
Shape = tuple[int, ...]

MAX_DIMENSION = 65536
MAX_ELEMENTS = 1 << 20

SYMBOLS: dict[BinaryKind | CompareKind, str] = {
    BinaryKind.ADD: "+", BinaryKind.SUB: "-", BinaryKind.MUL: "*", BinaryKind.DIV: "/",
    BinaryKind.IDIV: "//", BinaryKind.IREM: "%", BinaryKind.AND: "&", BinaryKind.OR: "|",
    BinaryKind.XOR: "^", BinaryKind.SHL: "<<", BinaryKind.SHR: ">>",
    CompareKind.EQ: "==", CompareKind.NE: "!=", CompareKind.LT: "<", CompareKind.LE: "<=",
    CompareKind.GT: ">", CompareKind.GE: ">=",
}  # fmt: skip


def perform(op: Op) -> tuple[Value, ...]:
    """Hand a primitive operation to the current emitter."""
    emitter = current_emitter()
    if emitter is None:
        raise CompilationError(
            "tiles only exist inside a kernel", "run this from a function under `@enceladus.jit`"
        )
    return emitter.emit(op)


def emit(op: Op) -> Value:
    """Hand a primitive operation with one result to the current emitter."""
    return perform(op)[0]


# -------------------------------------------------------------------------------------- literals


def plain_number(x: Any) -> Any:
    """A NumPy scalar as a Python number; anything else as it is."""
    if type(x).__module__ == "numpy" and getattr(x, "shape", None) == ():
        return x.item()
    return x


def require_number(what: str, x: Any) -> bool | int | float:
    """``x`` as a Python number, or an error that says ``what`` it was used for."""
    x = plain_number(x)
    if isinstance(x, (bool, int, float)):
        return x
    found = (
        "None" if x is None else f"{x!r}" if isinstance(x, (str, tuple, list)) else f"a {type(x).__name__}"
    )
    hint = (
        "test it with `is None` first: an argument given as None is a compile-time None" if x is None else ""
    )
    raise CompilationError(f"`{what}` needs tiles or numbers, got {found}", hint)


def literal_dtype(x: bool | int | float) -> DType:
    """The type of a number on its own: int1, float32, or the first of int32, int64, uint64 that holds it."""
    if isinstance(x, bool):
        return int1
    if isinstance(x, float):
        return float32
    for dtype in (int32, int64, uint64):
        if dtype.minimum <= x <= dtype.maximum:
            return dtype
    raise CompilationError(f"the integer {x} does not fit 64 bits")


#: Bits of the significand, exponent of the smallest subnormal, largest finite value.
_FLOAT_FORMATS = {
    float32: (24, -149, (2.0 - 2.0**-23) * 2.0**127),
    float16: (11, -24, 65504.0),
    bfloat16: (8, -133, (2.0 - 2.0**-7) * 2.0**127),
}


def round_to(x: float, dtype: DType) -> float:
    """``x`` rounded once, half to even, to the nearest number of a float type; overflow gives infinity."""
    if x == 0.0 or not isfinite(x):
        return x
    bits, smallest, largest = _FLOAT_FORMATS[dtype]
    quantum = max(frexp(x)[1] - bits, smallest)
    rounded = ldexp(float(round(ldexp(x, -quantum))), quantum)
    if rounded == 0.0:
        return 0.0 if x > 0 else -0.0
    if abs(rounded) > largest:
        return inf if x > 0 else -inf
    return rounded


def _as_float(x: bool | int | float) -> float:
    try:
        return float(x)
    except OverflowError:
        raise CompilationError(f"the integer {x} is too large for any float type") from None


def constant(x: Any, dtype: DType, what: str = "constant") -> Value:
    """A scalar of ``dtype``. Floats round; an integer type takes only a whole number in its range."""
    x = require_number(what, x)
    if dtype.kind is Kind.FLOAT:
        return emit(Constant(round_to(_as_float(x), dtype), dtype))
    if isinstance(x, float):
        if not x.is_integer():
            raise CompilationError(
                f"{what}: {x} is not a value of {dtype}", "write a whole number, or use a float type"
            )
        x = int(x)
    _require_in_range(x, dtype)
    return emit(Constant(bool(x) if dtype.kind is Kind.BOOL else int(x), dtype))


def _require_in_range(x: int, dtype: DType, combined: bool = False) -> None:
    """Refuse an ``x`` that ``dtype`` does not hold; ``combined``: it met a tile of that type."""
    if dtype.minimum <= x <= dtype.maximum:
        return
    reason = f"the literal {x} is out of range for {dtype} ({dtype.minimum} to {dtype.maximum})"
    if dtype.is_bool():
        raise CompilationError(reason, "write True or False, or use an integer type")
    if not combined:
        raise CompilationError(reason, "use a value in range, or a wider type")
    wider = literal_dtype(x) if literal_dtype(x).bits > dtype.bits else int64
    raise CompilationError(reason, f"cast the tile to a type that holds it: `.to(tl.{wider})`")


def materialize(x: Any, dtype: DType | None = None, what: str = "constant") -> Value:
    """``x`` as an IR value: a value is cast if ``dtype`` is given, a literal becomes a constant."""
    if isinstance(x, Value):
        return x if dtype is None else cast(x, dtype)
    x = require_number(what, x)
    return constant(x, literal_dtype(x) if dtype is None else dtype, what)


# ------------------------------------------------------------------------------------- promotion


@lru_cache(maxsize=256)
def promote_types(a: DType, b: DType) -> DType:
    """The type in which an operation on ``a`` and ``b`` computes (the module's docstring has the rules)."""
    if a is b:
        return a
    if a.kind is Kind.FLOAT and b.kind is Kind.FLOAT:
        if a.bits == b.bits:  # float16 and bfloat16
            return float32
        return a if a.bits > b.bits else b
    if a.kind is Kind.FLOAT or b.kind is Kind.BOOL:
        return a
    if b.kind is Kind.FLOAT or a.kind is Kind.BOOL:
        return b
    if a.kind is b.kind:
        return a if a.bits > b.bits else b
    unsigned, signed = (a, b) if a.kind is Kind.UNSIGNED else (b, a)
    return unsigned if unsigned.bits >= signed.bits else signed


_KIND_RANK = {Kind.BOOL: 0, Kind.SIGNED: 1, Kind.UNSIGNED: 1, Kind.FLOAT: 2}


def promote_literal(dtype: DType, x: bool | int | float) -> DType:
    """The type in which an operation on a tile of ``dtype`` and the literal ``x`` computes."""
    rank = 2 if isinstance(x, float) else 0 if isinstance(x, bool) else 1
    if rank > _KIND_RANK[dtype.kind]:
        return literal_dtype(x)
    if dtype.kind is Kind.FLOAT:
        if dtype is not float32:
            value = _as_float(x)
            if isfinite(value) and not isfinite(round_to(value, dtype)):
                return float32
        return dtype
    _require_in_range(int(x), dtype, combined=True)
    return dtype


def _refuse_pointers(what: str) -> NoReturn:
    hint = {
        "-": "subtract an integer from a pointer, or subtract the offsets themselves",
        "+": "add integers to pointers: `ptr + offset`",
        "tl.where": "choose between the offsets, then add them to one pointer",
    }.get(what, "compute with the offsets, or `tl.load` the values first")
    raise CompilationError(f"`{what}` does not work on pointers", hint)


def common_dtype(what: str, operands: tuple[Any, ...]) -> DType:
    """The type in which an operation on all ``operands`` computes. Tiles decide first, then literals."""
    dtype: DType | None = None
    literals = []
    for x in operands:
        if not isinstance(x, Value):
            literals.append(require_number(what, x))
            continue
        element = x.type.element
        if isinstance(element, PointerType):
            _refuse_pointers(what)
        else:
            dtype = element if dtype is None else promote_types(dtype, element)
    if dtype is None:
        return reduce(promote_types, map(literal_dtype, literals))
    for x in literals:
        dtype = promote_literal(dtype, x)
    return dtype


def promote(what: str, *operands: Any) -> tuple[Value, ...]:
    """All ``operands`` in their common type, not yet broadcast. ``what`` names the operation in errors."""
    dtype = common_dtype(what, operands)
    return tuple([materialize(x, dtype, what) for x in operands])


# ---------------------------------------------------------------------------------------- shapes


def check_shape(shape: Shape, what: str) -> Shape:
    """``shape`` if a tile may have it: powers of two up to 65536, at most 2**20 elements."""
    for size in shape:
        if size < 1 or size & (size - 1) or size > MAX_DIMENSION:
            hint = f"use a power of two from 1 to {MAX_DIMENSION}"
            if 1 <= size <= MAX_DIMENSION:
                power = 1 << (size - 1).bit_length()
                hint = f"use enceladus.next_power_of_2({size}) = {power} and mask the rest"
            raise CompilationError(f"{what}: every dimension must be a power of two, got {size}", hint)
    if prod(shape) > MAX_ELEMENTS:
        raise CompilationError(
            f"{what}: a tile of shape {shape} has {prod(shape)} elements, more than {MAX_ELEMENTS}",
            "use smaller blocks and more programs",
        )
    return shape


@lru_cache(maxsize=1024)
def broadcast_shapes(a: Shape, b: Shape) -> Shape:
    """The shape that NumPy's rules give to an operation on tiles of shapes ``a`` and ``b``."""
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + a
    right = (1,) * (rank - len(b)) + b
    for axis, (m, n) in enumerate(zip(left, right, strict=True)):
        if m != n and m != 1 and n != 1:
            raise CompilationError(
                f"tiles of shapes {a} and {b} cannot be combined: dimension {axis} is {m} and {n}",
                "sizes must be equal or 1; `x[:, None]` and `x[None, :]` insert a dimension of 1",
            )
    return check_shape(tuple([max(m, n) for m, n in zip(left, right, strict=True)]), "broadcast")


def broadcast_to(value: Value, shape: Shape, what: str = "broadcast") -> Value:
    """``value`` repeated to ``shape``; dimensions are matched from the right, as in NumPy."""
    old = value.type.shape
    if old == shape:
        return value
    if not old:
        return emit(Splat(value, shape))
    fits = len(old) <= len(shape) and all(
        m in (1, n) for m, n in zip(reversed(old), reversed(shape), strict=False)
    )
    if not fits:
        raise CompilationError(
            f"{what}: a tile of shape {old} cannot be broadcast to {shape}",
            "sizes must be equal or 1, counted from the last dimension",
        )
    for _ in range(len(shape) - len(old)):
        value = emit(ExpandDims(value, 0))
    return value if value.type.shape == shape else emit(Broadcast(value, shape))


def broadcast(*values: Value) -> tuple[Value, ...]:
    """``values`` repeated to their common shape."""
    shape = values[0].type.shape
    for v in values:
        if v.type.shape != shape:
            shape = broadcast_shapes(shape, v.type.shape)
    return tuple([broadcast_to(v, shape) for v in values])


def expand_dims(value: Value, axis: int) -> Value:
    """``value`` with a dimension of size 1 inserted at ``axis`` of the result."""
    return emit(ExpandDims(value, axis)) if value.type.shape else emit(Splat(value, (1,)))


def swap_last(what: str, value: Value) -> Value:
    """``value`` with its last two dimensions swapped."""
    rank = len(value.type.shape)
    if rank < 2:
        raise CompilationError(
            f"{what} needs a tile of two dimensions or more, got shape {value.type.shape}",
            "`x[:, None]` and `x[None, :]` make a column and a row of a 1-D tile",
        )
    return emit(Transpose(value, (*range(rank - 2), rank - 1, rank - 2)))


# ----------------------------------------------------------------------------------------- casts


def cast(value: Value, dtype: DType) -> Value:
    """``value`` converted to ``dtype``; nothing is emitted when it has that type already."""
    element = value.type.element
    if element is dtype:
        return value
    if isinstance(element, PointerType):
        raise CompilationError(
            "a pointer cannot be cast to a number",
            "`tl.load` what it points at, or pass the number as an argument",
        )
    return emit(Cast(value, dtype))


def bitcast(value: Value, dtype: DType) -> Value:
    """The bits of ``value`` as ``dtype``, which must be as wide."""
    element = value.type.element
    if element is dtype:
        return value
    if isinstance(element, PointerType):
        raise CompilationError(
            "a pointer cannot be bitcast", "view the array as another dtype before the launch"
        )
    if element.bits != dtype.bits:
        raise CompilationError(
            f"bitcast needs one width, got {element} ({element.bits} bits) and {dtype} ({dtype.bits} bits)",
            "leave out `bitcast=True` to convert the value",
        )
    return emit(Bitcast(value, dtype))


def truth(x: Any, what: str = "condition") -> Value:
    """``x`` as int1: whether it is not zero."""
    if not isinstance(x, Value):
        return constant(bool(require_number(what, x)), int1)
    if isinstance(x.type.element, PointerType):
        _refuse_pointers(what)
    return cast(x, int1)


# ------------------------------------------------------------------------------------- operators


def is_pointer(x: Any) -> bool:
    """Whether ``x`` is a pointer or a tile of pointers."""
    return isinstance(x, Value) and isinstance(x.type.element, PointerType)


def arithmetic(kind: BinaryKind, a: Any, b: Any) -> Value:
    """``+``, ``-``, ``*``: pointers with integers, else numbers in their common type.

    Two int1: ``*`` is ``&``; ``+`` and ``-`` are refused, because one bit cannot hold the result.
    """
    if is_pointer(a) or is_pointer(b):
        return _pointer_arithmetic(kind, a, b)
    lhs, rhs = broadcast(*promote(SYMBOLS[kind], a, b))
    if lhs.type.element is int1:
        if kind is not BinaryKind.MUL:
            _refuse_bool(SYMBOLS[kind])
        kind = BinaryKind.AND
    return emit(Binary(kind, lhs, rhs))


def _refuse_bool(what: str) -> NoReturn:
    raise CompilationError(
        f"`{what}` on two int1 would not fit one bit",
        "use `&`, `|`, `^` for logic, or cast to a number first: `.to(tl.int32)`",
    )


def _pointer_arithmetic(kind: BinaryKind, a: Any, b: Any) -> Value:
    symbol = SYMBOLS[kind]
    if is_pointer(a) and is_pointer(b):
        _refuse_pointers(symbol)
    pointer, offset = (a, b) if is_pointer(a) else (b, a)
    if kind is BinaryKind.MUL or (kind is BinaryKind.SUB and pointer is b):
        _refuse_pointers(symbol)
    if isinstance(offset, Value):
        found = offset.type.element
    else:
        offset = require_number(symbol, offset)
        found = literal_dtype(offset)
    if found.is_floating():
        raise CompilationError(
            f"a pointer moves by whole elements, not by a {found}", "cast the offset: `.to(tl.int32)`"
        )
    if not isinstance(offset, Value):
        steps = int(offset)
        offset = materialize(-steps if kind is BinaryKind.SUB else steps)
    else:
        offset = cast(offset, int32) if found is int1 else offset
        if kind is BinaryKind.SUB:
            offset = emit(Unary(UnaryKind.NEG, _negatable(offset)))
    return emit(AddPointer(*broadcast(pointer, offset)))


def _negatable(offset: Value) -> Value:
    """``offset`` in a signed type in which its negation is exact."""
    emitter = current_emitter()
    wide = emitter is not None and emitter.index_dtype is int64
    dtype = offset.type.dtype
    return cast(offset, int64 if wide or dtype.bits == 64 or dtype is uint32 else int32)


def divide(a: Any, b: Any) -> Value:
    """``/``: integers divide as float32, floats in their common type, correctly rounded."""
    dtype = common_dtype("/", (a, b))
    if dtype.kind is not Kind.FLOAT:
        dtype = float32
    lhs, rhs = broadcast(materialize(a, dtype, "/"), materialize(b, dtype, "/"))
    return emit(Binary(BinaryKind.DIV, lhs, rhs))


def integer_division(kind: BinaryKind, a: Any, b: Any) -> Value:
    """``//`` and ``%`` as in C: the quotient truncates, the remainder has the sign of the dividend."""
    symbol = SYMBOLS[kind]
    dtype = common_dtype(symbol, (a, b))
    if dtype.kind is Kind.FLOAT:
        hint = "`tl.floor(a / b)`" if kind is BinaryKind.IDIV else "`a - tl.floor(a / b) * b`"
        raise CompilationError(f"`{symbol}` needs integers, not {dtype}", f"write {hint} for floats")
    if dtype is int1:
        _refuse_bool(symbol)
    if isinstance(a, Value) and isinstance(b, Value):
        kinds = {a.type.dtype.kind, b.type.dtype.kind}
        if kinds == {Kind.SIGNED, Kind.UNSIGNED}:
            raise CompilationError(
                f"`{symbol}` on {a.type.element} and {b.type.element}: their signs differ",
                "cast one of them, for example with `.to(tl.int32)`",
            )
    lhs, rhs = broadcast(materialize(a, dtype, symbol), materialize(b, dtype, symbol))
    return emit(Binary(kind, lhs, rhs))


def bitwise(kind: BinaryKind, a: Any, b: Any) -> Value:
    """``&``, ``|``, ``^``, ``<<``, ``>>`` on integers in their common type."""
    symbol = SYMBOLS[kind]
    dtype = common_dtype(symbol, (a, b))
    if dtype.kind is Kind.FLOAT:
        raise CompilationError(
            f"`{symbol}` needs integers, not {dtype}",
            "cast with `.to(tl.int32)`, or look at the bits with `.to(tl.uint32, bitcast=True)`",
        )
    if dtype is int1 and kind in (BinaryKind.SHL, BinaryKind.SHR):
        _refuse_bool(symbol)
    lhs, rhs = broadcast(materialize(a, dtype, symbol), materialize(b, dtype, symbol))
    return emit(Binary(kind, lhs, rhs))


def compare(kind: CompareKind, a: Any, b: Any) -> Value:
    """Comparison in the operands' common type; the result is int1."""
    return emit(Compare(kind, *broadcast(*promote(SYMBOLS[kind], a, b))))


def negate(value: Value) -> Value:
    """``-x``; unsigned integers wrap."""
    element = value.type.element
    if isinstance(element, PointerType):
        _refuse_pointers("-")
    if element is int1:
        raise CompilationError("`-` on int1 would not fit one bit", "use `~x`, or `-x.to(tl.int32)`")
    return emit(Unary(UnaryKind.NEG, value))


def invert(value: Value) -> Value:
    """``~x``: all bits of an integer flipped; logical not of an int1."""
    element = value.type.element
    if isinstance(element, PointerType):
        _refuse_pointers("~")
    if element.is_floating():
        raise CompilationError(
            f"`~` needs integers or int1, not {element}",
            "cast with `.to(tl.int32)`, or compare first: `~(x > 0)`",
        )
    return emit(Unary(UnaryKind.NOT, value))


def absolute(value: Value) -> Value:
    """``abs(x)``; unsigned integers and int1 are their own, the smallest signed integer stays itself."""
    element = value.type.element
    if isinstance(element, PointerType):
        _refuse_pointers("abs")
    if element.is_int() and not element.is_int_signed():
        return value
    return emit(Unary(UnaryKind.ABS, value))
