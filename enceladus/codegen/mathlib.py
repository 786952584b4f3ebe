"""How each elementwise operation is written in Metal Shading Language.

Code generation asks for (kind, element type) and gets a :class:`Spelling`: an expression template for one
element plus the helper functions it needs in the kernel's header. What each operation means in odd corners
is stated in ``ir/ops.py`` and docs/numerics.md; this module is where the Metal text is made to mean that.

Rules:

* Every transcendental, division and square root names its variant, ``precise::`` or ``fast::``: MLX leaves
  Metal's default at the fast functions, whatever the math mode.
* Results always have exactly the MSL type of the result (``type_name``); C promotes 8- and 16-bit operands to
  ``int``, so those results are converted back.
* float16 and bfloat16 use native ``+ - *``, negation, comparison and select. Everything else computes in
  float and converts once. Division too: float has more than twice their digits, so rounding twice is exact.
* Signed overflow is undefined in MSL. ``may_overflow=False`` (a proof, not a wish) gives plain ``a + b``;
  otherwise the operation is done on unsigned numbers.
"""

from __future__ import annotations

from functools import cache

from enceladus.codegen.mathlib_helpers import Helper, all_helpers, header, helper, integer_helper
from enceladus.codegen.mathlib_spelling import (
    Expression,
    Precedence,
    Spelling,
    call,
    constant,
    infix,
    literal,
    type_name,
    unsigned_name,
)
from enceladus.errors import InternalError
from enceladus.ir.ops import BinaryKind, CompareKind, UnaryKind
from enceladus.ir.types import DType, Kind, bfloat16, float16, float32

__all__ = [
    "Expression", "Helper", "Precedence", "Spelling", "all_helpers", "binary", "bitcast", "cast", "compare",
    "constant", "fma", "header", "helper", "literal", "select", "type_name", "unary",
]  # fmt: skip

_P = Precedence

# Functions of Metal's library that exist as precise:: and fast::.
_LIBRARY = {
    kind: kind.value
    for kind in (
        UnaryKind.EXP, UnaryKind.EXP2, UnaryKind.LOG, UnaryKind.LOG2, UnaryKind.LOG10, UnaryKind.SQRT,
        UnaryKind.RSQRT, UnaryKind.SIN, UnaryKind.COS, UnaryKind.TAN, UnaryKind.ASIN, UnaryKind.ACOS,
        UnaryKind.ATAN, UnaryKind.SINH, UnaryKind.COSH, UnaryKind.TANH,
    )
}  # fmt: skip
# fast::sinh and fast::cosh overflow below the true limit and sinh loses all digits near 0.
_NEVER_FAST = (UnaryKind.SINH, UnaryKind.COSH)
# Exact, so the variant does not matter.
_EXACT = {
    UnaryKind.FLOOR: "floor", UnaryKind.CEIL: "ceil", UnaryKind.TRUNC: "trunc", UnaryKind.RINT: "rint",
    UnaryKind.ROUND: "round", UnaryKind.ABS: "fabs",
}  # fmt: skip
_HELPED = {UnaryKind.ERF: "erf", UnaryKind.EXPM1: "expm1", UnaryKind.LOG1P: "log1p"}


def _unsupported(what: object, dtype: DType) -> InternalError:
    return InternalError(f"code generation has no {what} on {dtype}")


def _in_float(dtype: DType, text: str, *needs: str, arity: int = 1) -> Spelling:
    """The call ``text`` on float operands, for ``dtype``: 16-bit operands widened, the result narrowed."""
    if dtype is float32:
        return call(text, *needs, arity=arity)
    widened = text.format(*(f"float({{{i}}})" for i in range(arity)))
    return call(f"{type_name(dtype)}({widened})", *needs, arity=arity)


def _converted(dtype: DType, spelling: Spelling) -> Spelling:
    """``spelling`` with its result converted to ``dtype`` where C would have promoted it to ``int``."""
    if dtype.bits >= 32:
        return spelling
    return Spelling(f"{type_name(dtype)}({spelling.text})", _P.CALL, spelling.operands, spelling.needs)


def _wrapping(dtype: DType, operator: str) -> Spelling:
    """Signed ``{0} operator {1}`` computed on unsigned numbers."""
    unsigned = unsigned_name(dtype)
    return call(f"{type_name(dtype)}({unsigned}({{0}}) {operator} {unsigned}({{1}}))", arity=2)


# --------------------------------------------------------------------------------------- unary


@cache
def unary(kind: UnaryKind, dtype: DType, fast: bool = False, *, may_overflow: bool = True) -> Spelling:
    """How ``kind`` of a ``dtype`` is written. ``InternalError`` where the operation does not exist.

    ``may_overflow=False``: the operand of an integer NEG or ABS is proven not to be the smallest number.
    """
    if dtype.kind is Kind.FLOAT:
        return _unary_float(kind, dtype, fast)
    if dtype.kind is Kind.BOOL:
        return _unary_bool(kind, dtype)
    return _unary_integer(kind, dtype, may_overflow)


def _unary_float(kind: UnaryKind, dtype: DType, fast: bool) -> Spelling:
    if kind is UnaryKind.NEG:
        # The operand of a minus must not start with one.
        return Spelling("-{0}", _P.UNARY, (_P.CALL,))
    if kind in (UnaryKind.ISNAN, UnaryKind.ISINF):
        return _classify(kind, dtype, fast)
    if kind in _EXACT:
        return _in_float(dtype, f"{_EXACT[kind]}({{0}})")
    if kind in _HELPED:
        return _in_float(dtype, f"enceladus::{_HELPED[kind]}({{0}})", _HELPED[kind])
    if fast and kind is UnaryKind.TANH:
        return _in_float(dtype, "enceladus::fast_tanh({0})", "fast_tanh")
    if kind in _LIBRARY:
        variant = "fast" if fast and kind not in _NEVER_FAST else "precise"
        return _in_float(dtype, f"{variant}::{_LIBRARY[kind]}({{0}})")
    raise _unsupported(kind, dtype)


def _classify(kind: UnaryKind, dtype: DType, fast: bool) -> Spelling:
    """ISNAN and ISINF. In fast mode the compiler may assume that neither exists: look at the bits."""
    if not fast:
        return call(f"{kind.value}({{0}})" if dtype is float32 else f"{kind.value}(float({{0}}))")
    relation, precedence = (">", _P.RELATIONAL) if kind is UnaryKind.ISNAN else ("==", _P.EQUALITY)
    if dtype is float32:
        text = f"(as_type<uint>({{0}}) & 0x7fffffffu) {relation} 0x7f800000u"
    else:
        infinity = "0x7c00u" if dtype is float16 else "0x7f80u"
        text = f"(uint(as_type<uint16_t>({{0}})) & 0x7fffu) {relation} {infinity}"
    return Spelling(text, precedence, (_P.ANY,))


def _unary_bool(kind: UnaryKind, dtype: DType) -> Spelling:
    if kind is UnaryKind.NOT:
        return Spelling("!{0}", _P.UNARY, (_P.UNARY,))
    if kind in (UnaryKind.NEG, UnaryKind.ABS):  # modulo 2
        return Spelling("{0}", _P.ATOM, (_P.ANY,))
    if kind is UnaryKind.POPC:
        return call("int({0})")
    if kind is UnaryKind.CLZ:
        return Spelling("int(!{0})", _P.CALL, (_P.UNARY,))
    raise _unsupported(kind, dtype)


def _unary_integer(kind: UnaryKind, dtype: DType, may_overflow: bool) -> Spelling:
    signed = dtype.kind is Kind.SIGNED
    name, unsigned = type_name(dtype), unsigned_name(dtype)
    if kind is UnaryKind.NOT:
        return _converted(dtype, Spelling("~{0}", _P.UNARY, (_P.UNARY,)))
    if kind is UnaryKind.NEG:
        if signed and may_overflow and dtype.bits >= 32:
            return call(f"{name}({unsigned}(0) - {unsigned}({{0}}))")
        return _converted(dtype, Spelling("-{0}", _P.UNARY, (_P.CALL,)))
    if kind is UnaryKind.ABS:
        if not signed:
            return Spelling("{0}", _P.ATOM, (_P.ANY,))
        helper_name = integer_helper("abs", dtype)
        return call(f"enceladus::{helper_name}({{0}})", helper_name)
    # The bits of a narrow type, without its sign, in 32 bits.
    bits = f"{unsigned}({{0}})" if dtype.bits >= 32 else f"uint(uint{dtype.bits}_t({{0}}))"
    if kind is UnaryKind.POPC:
        return call(f"int(popcount({bits}))")
    if kind is UnaryKind.CLZ:
        if dtype.bits >= 32:
            return call(f"int(clz({bits}))")
        return Spelling(f"int(clz({bits})) - {32 - dtype.bits}", _P.ADD, (_P.ANY,))
    raise _unsupported(kind, dtype)


# --------------------------------------------------------------------------------------- binary

_OPERATORS = {
    BinaryKind.ADD: ("+", _P.ADD),
    BinaryKind.SUB: ("-", _P.ADD),
    BinaryKind.MUL: ("*", _P.MUL),
    BinaryKind.AND: ("&", _P.BIT_AND),
    BinaryKind.OR: ("|", _P.BIT_OR),
    BinaryKind.XOR: ("^", _P.BIT_XOR),
}
_MIN_MAX = {
    BinaryKind.MIN: "min",
    BinaryKind.MAX: "max",
    BinaryKind.MIN_NAN: "min",
    BinaryKind.MAX_NAN: "max",
}


@cache
def binary(
    kind: BinaryKind,
    dtype: DType,
    fast: bool = False,
    *,
    may_overflow: bool = True,
    divisor_known_nonzero: bool = False,
    divisor: int | None = None,
    both_nonnegative: bool = False,
    amount_known_in_range: bool = False,
) -> Spelling:
    """How ``kind`` of two ``dtype`` is written. ``InternalError`` where the operation does not exist.

    The keywords are proofs about integer operands, each of which allows a plainer text:

    * ``may_overflow=False``: ADD, SUB, MUL, SHL stay within the type;
    * ``divisor_known_nonzero``: the right operand of IDIV, IREM is not 0 (it may be -1);
    * ``divisor``: its value, where it is a constant;
    * ``both_nonnegative``: no operand of IDIV, IREM is negative;
    * ``amount_known_in_range``: 0 <= right operand of SHL, SHR < width.
    """
    if dtype.kind is Kind.FLOAT:
        return _binary_float(kind, dtype, fast)
    if dtype.kind is Kind.BOOL:
        return _binary_bool(kind, dtype)
    if kind in (BinaryKind.IDIV, BinaryKind.IREM):
        nonzero = divisor_known_nonzero or (divisor is not None and divisor != 0)
        # The quotient can leave the type only as smallest / -1.
        stays = dtype.kind is Kind.UNSIGNED or both_nonnegative or (divisor is not None and divisor != -1)
        return _division(kind, dtype, nonzero, stays, both_nonnegative)
    if kind in (BinaryKind.SHL, BinaryKind.SHR):
        return _shift(kind, dtype, amount_known_in_range, may_overflow)
    return _binary_integer(kind, dtype, may_overflow)


def _binary_float(kind: BinaryKind, dtype: DType, fast: bool) -> Spelling:
    if kind in (BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL):
        return infix(*_OPERATORS[kind])
    if kind is BinaryKind.DIV:
        if fast and dtype is float32:
            return infix("/", _P.MUL)
        return _in_float(dtype, "precise::divide({0}, {1})", arity=2)
    if kind in (BinaryKind.MIN, BinaryKind.MAX):
        # fast:: leaves NaN open, and the plain name is the fast one; precise costs nothing more.
        return _in_float(dtype, f"precise::f{kind.value}({{0}}, {{1}})", arity=2)
    if kind in (BinaryKind.MIN_NAN, BinaryKind.MAX_NAN):
        return _in_float(dtype, f"enceladus::{kind.value}({{0}}, {{1}})", kind.value, arity=2)
    if kind in (BinaryKind.POW, BinaryKind.ATAN2):
        # Precise in both modes: fast::pow has no negative bases and no 0^0, fast::atan2 no axes.
        return _in_float(dtype, f"precise::{kind.value}({{0}}, {{1}})", arity=2)
    raise _unsupported(kind, dtype)


_BOOL_AND = Spelling("{0} && {1}", _P.AND, (_P.AND, _P.EQUALITY))
_BOOL_OR = infix("||", _P.OR)
_BOOL_XOR = Spelling("{0} != {1}", _P.EQUALITY, (_P.ADD, _P.ADD))
_BOOL_AND_NOT = Spelling("{0} && !{1}", _P.AND, (_P.AND, _P.UNARY))
# int1 is the integers modulo 2; x / 0 = 0, x rem 0 = x, and a shift by 1 is out of range.
_BOOL = {
    BinaryKind.ADD: _BOOL_XOR, BinaryKind.SUB: _BOOL_XOR, BinaryKind.XOR: _BOOL_XOR,
    BinaryKind.MUL: _BOOL_AND, BinaryKind.AND: _BOOL_AND, BinaryKind.IDIV: _BOOL_AND,
    BinaryKind.MIN: _BOOL_AND, BinaryKind.MIN_NAN: _BOOL_AND,
    BinaryKind.OR: _BOOL_OR, BinaryKind.MAX: _BOOL_OR, BinaryKind.MAX_NAN: _BOOL_OR,
    BinaryKind.IREM: _BOOL_AND_NOT, BinaryKind.SHL: _BOOL_AND_NOT, BinaryKind.SHR: _BOOL_AND_NOT,
}  # fmt: skip


def _binary_bool(kind: BinaryKind, dtype: DType) -> Spelling:
    if kind not in _BOOL:
        raise _unsupported(kind, dtype)
    return _BOOL[kind]


def _binary_integer(kind: BinaryKind, dtype: DType, may_overflow: bool) -> Spelling:
    if kind in (BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL):
        # Narrow types compute in int, which only the product of two uint16 can leave.
        if dtype.bits >= 32:
            guard = may_overflow and dtype.kind is Kind.SIGNED
        else:
            guard = kind is BinaryKind.MUL and dtype.bits == 16 and dtype.kind is Kind.UNSIGNED
        if guard:
            return _wrapping(dtype, _OPERATORS[kind][0])
        return _converted(dtype, infix(*_OPERATORS[kind]))
    if kind in _OPERATORS:
        return _converted(dtype, infix(*_OPERATORS[kind]))
    if kind in _MIN_MAX:
        return call(f"{_MIN_MAX[kind]}({{0}}, {{1}})", arity=2)
    if kind is BinaryKind.UMULHI and dtype.bits >= 32:
        if dtype.kind is Kind.UNSIGNED:
            return call("mulhi({0}, {1})", arity=2)
        unsigned = unsigned_name(dtype)
        return call(f"{type_name(dtype)}(mulhi({unsigned}({{0}}), {unsigned}({{1}})))", arity=2)
    raise _unsupported(kind, dtype)


def _helper_call(base: str, dtype: DType) -> Spelling:
    name = integer_helper(base, dtype)
    return call(f"enceladus::{name}({{0}}, {{1}})", name, arity=2)


def _division(kind: BinaryKind, dtype: DType, nonzero: bool, stays: bool, both_nonnegative: bool) -> Spelling:
    """IDIV and IREM. ``stays``: the quotient is known to fit the type."""
    base = kind.value
    if not nonzero:
        return _helper_call(base, dtype)
    if kind is BinaryKind.IDIV:
        # A narrow quotient is computed in int, where it always fits, and wraps when converted.
        plain = stays or dtype.bits < 32
    else:
        # % of a negative number is undefined in MSL.
        plain = both_nonnegative or dtype.kind is Kind.UNSIGNED
    if not plain:
        return _helper_call(f"{base}_nonzero", dtype)
    return _converted(dtype, infix("/" if kind is BinaryKind.IDIV else "%", _P.MUL))


def _shift(kind: BinaryKind, dtype: DType, in_range: bool, may_overflow: bool) -> Spelling:
    if not in_range:
        return _helper_call(kind.value, dtype)
    if kind is BinaryKind.SHL and dtype.kind is Kind.SIGNED and may_overflow:
        text = f"{type_name(dtype)}({unsigned_name(dtype)}({{0}}) << {{1}})"
        return Spelling(text, _P.CALL, (_P.ANY, _P.UNARY))
    return _converted(dtype, infix("<<" if kind is BinaryKind.SHL else ">>", _P.SHIFT))


# ------------------------------------------------------------------------------ compare, select, fma

_COMPARE = {
    CompareKind.EQ: infix("==", _P.EQUALITY),
    CompareKind.NE: infix("!=", _P.EQUALITY),
    CompareKind.LT: infix("<", _P.RELATIONAL),
    CompareKind.LE: infix("<=", _P.RELATIONAL),
    CompareKind.GT: infix(">", _P.RELATIONAL),
    CompareKind.GE: infix(">=", _P.RELATIONAL),
}


def compare(kind: CompareKind, dtype: DType, fast: bool = False) -> Spelling:
    """How a comparison of two ``dtype`` is written; the result is ``bool``. The same for every type."""
    return _COMPARE[kind]


_SELECT = Spelling("{0} ? {1} : {2}", _P.TERNARY, (_P.OR, _P.OR, _P.OR))


def select(dtype: DType) -> Spelling:
    """``condition ? on_true : on_false``; both must already have exactly the type of ``dtype``."""
    return _SELECT


@cache
def fma(dtype: DType, fast: bool = False, *, may_overflow: bool = True) -> Spelling:
    """``{0} * {1} + {2}``: floats round once (16-bit ones in float, then to the type); integers wrap."""
    if dtype.kind is Kind.FLOAT:
        return _in_float(dtype, "fma({0}, {1}, {2})", arity=3)
    if dtype.kind is Kind.BOOL:
        return Spelling("({0} && {1}) != {2}", _P.EQUALITY, (_P.AND, _P.EQUALITY, _P.ADD))
    if dtype.kind is Kind.SIGNED and not may_overflow and dtype.bits >= 32:
        return Spelling("{0} * {1} + {2}", _P.ADD, (_P.MUL, _P.UNARY, _P.MUL))
    unsigned = unsigned_name(dtype)
    text = f"{unsigned}({{0}}) * {unsigned}({{1}}) + {unsigned}({{2}})"
    return call(f"{type_name(dtype)}({text})", arity=3)


# --------------------------------------------------------------------------------------- casts

_IDENTITY = Spelling("{0}", _P.ATOM, (_P.ANY,))


@cache
def cast(source: DType, target: DType, fast: bool = False) -> Spelling:
    """How a ``source`` number becomes a ``target`` number."""
    if source is target:
        return _IDENTITY
    wide = "float({0})" if source in (float16, bfloat16) else "{0}"
    if target.kind is Kind.BOOL:
        if source.kind is Kind.FLOAT:
            operand = _P.ADD if source is float32 else _P.ANY
            return Spelling(f"{wide} != 0.0f", _P.EQUALITY, (operand,))
        return Spelling("{0} != 0", _P.EQUALITY, (_P.ADD,))
    if target.kind is not Kind.FLOAT and source.kind is Kind.FLOAT:
        name = integer_helper("to", target)
        return call(f"enceladus::{name}({wide})", name)
    if target in (float16, bfloat16) and source is not float32:
        # Metal converts to bfloat from float only; one way for both. Integers past 24 bits round twice.
        return call(f"{type_name(target)}(float({{0}}))")
    return call(f"{type_name(target)}({{0}})")


@cache
def bitcast(source: DType, target: DType) -> Spelling:
    """The bits of a ``source`` as a ``target`` of the same width; bool has no bits to speak of."""
    if source is target:
        return _IDENTITY
    if Kind.BOOL in (source.kind, target.kind) or source.bits != target.bits:
        raise InternalError(f"code generation cannot reinterpret {source} as {target}")
    if Kind.FLOAT in (source.kind, target.kind):
        return call(f"as_type<{type_name(target)}>({{0}})")
    return call(f"{type_name(target)}({{0}})")
