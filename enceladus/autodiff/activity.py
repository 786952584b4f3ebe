"""Which arrays a kernel's results depend on in a way that has no derivative.

An operation such as a bitcast of floats has no derivative. Where what it makes reaches a floating-point
result, a gradient of 0 would be a silent error, so the gradient with respect to the arrays behind it is
refused. Comparisons, masks, offsets and conversions to integers end such a path: they are step functions,
whose derivative is 0 almost everywhere.

Analysis only; input is a function after ``compiler.prepare``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from enceladus.errors import CompilationError
from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.exchange import AtomicKind
from enceladus.ir.ops import UnaryKind
from enceladus.ir.types import Kind

_HINT = (
    "give the kernel a gradient of its own with @{kernel}.vjp, or pass mx.stop_gradient({name}) where the "
    "gradient is not wanted"
)


@dataclass(slots=True)
class _Trace:
    """Where a value comes from: ``smooth`` arrays by operations that have derivatives, ``broken`` ones
    through an operation that has none (array → that operation)."""

    smooth: frozenset[Value] = frozenset()
    broken: dict[Value, Op] = field(default_factory=dict)

    def joined(self, other: _Trace) -> _Trace:
        if not other.smooth and not other.broken:
            return self
        return _Trace(self.smooth | other.smooth, {**other.broken, **self.broken})

    def broken_by(self, op: Op) -> _Trace:
        return _Trace(frozenset(), {**dict.fromkeys(self.smooth, op), **self.broken})


_NOTHING = _Trace()


class Activity:
    """What a function's values depend on."""

    def __init__(self, function: Function):
        self.function = function
        self._walker = _Walker()
        self._walker.block(function.body)

    def is_active(self, value: Value) -> bool:
        """Whether a gradient of ``value`` leads to a gradient of an array."""
        trace = self._walker.traces.get(value)
        return trace is not None and bool(trace.smooth)

    def refusals(self) -> dict[Value, CompilationError]:
        """Array argument → why there is no gradient with respect to it. Others have one (it may be 0)."""
        name = self.function.name
        return {
            array: CompilationError(
                f"{name} has no gradient with respect to {array.name!r}: {_reason(op)}",
                _HINT.format(kernel=name, name=array.name),
                op.loc,
            )
            for array, op in self._walker.refused.items()
        }


def _reason(op: Op) -> str:
    if isinstance(op, exchange.ArrayAtomic):
        if op.kind is AtomicKind.ADD:
            return "the value that an atomic addition returns depends on the order of the programs"
        return f"an atomic {op.kind.value} has no derivative"
    if isinstance(op, ops.Bitcast):
        return "the bits of a floating-point number have no derivative"
    return f"{op.mnemonic} has no derivative"


def _is_float(value: Value) -> bool:
    element = value.type.element
    dtype = element.element if hasattr(element, "element") else element
    return dtype.kind is Kind.FLOAT


class _Walker:
    def __init__(self) -> None:
        self.traces: dict[Value, _Trace] = {}
        self.refused: dict[Value, Op] = {}

    def of(self, *values: Value | None) -> _Trace:
        found = _NOTHING
        for value in values:
            if value is not None:
                found = self.traces.get(value, _NOTHING).joined(found)
        return found

    def block(self, block: Block) -> None:
        for op in block.ops:
            trace = self.visit(op)
            if trace is not None and (trace.smooth or trace.broken):
                self.traces.update((result, trace) for result in op.results)

    def visit(self, op: Op) -> _Trace | None:
        """The trace of the operation's results (``None``: it has set them itself, or has none)."""
        match op:
            case ops.ArrayLoad():
                loaded = _Trace(frozenset((op.array,))) if _is_float(op.array) else _NOTHING
                return loaded.joined(self.of(op.other))
            case ops.ArrayStore():
                self.stored(op.array, self.of(op.value))
                return None
            case exchange.ArrayAtomic():
                return self.atomic(op)
            case exchange.ArrayAtomicCas() | ops.Compare():
                return None
            case ops.For():
                self.loop(op)
                return None
            case ops.If():
                for block in op.blocks:
                    self.block(block)
                sides = [block.terminator.operands for block in op.blocks]
                self.traces.update((r, self.of(*v)) for r, *v in zip(op.results, *sides, strict=True))
                return None
            case ops.Unary(kind=UnaryKind.ISNAN | UnaryKind.ISINF):
                return None
            case ops.Select():
                return self.of(op.on_true, op.on_false)
            case ops.Bitcast():
                trace = self.of(op.value)
                return trace.broken_by(op) if _is_float(op.value) else trace
            case ops.Cast():
                trace = self.of(op.value)
                # A step function; but bits read as a number are more than its steps.
                return trace if op.dtype.kind is Kind.FLOAT else _Trace(frozenset(), trace.broken)
            case exchange.Gather():
                return self.of(op.source)
            case exchange.Reduce() | exchange.Scan():
                return self.combined(op)
        return self.of(*op.operands)

    def stored(self, array: Value, trace: _Trace) -> None:
        if _is_float(array):
            for source, op in trace.broken.items():
                self.refused.setdefault(source, op)

    def atomic(self, op: exchange.ArrayAtomic) -> _Trace | None:
        if not _is_float(op.array):
            return self.of(op.value).broken_by(op)
        trace = self.of(op.value).joined(_Trace(frozenset((op.array,))))
        self.stored(op.array, trace if op.kind is AtomicKind.ADD else trace.broken_by(op))
        return trace.broken_by(op)

    def combined(self, op: exchange.Reduce | exchange.Scan) -> _Trace:
        trace = self.of(*op.inputs)
        for inner in op.combine.walk():
            if isinstance(inner, ops.Bitcast) and _is_float(inner.value):
                return trace.broken_by(inner)
        return trace

    def loop(self, op: ops.For) -> None:
        carried = [self.of(value) for value in op.initial]
        while True:  # traces only grow, and there are few arrays
            self.traces.update(zip(op.body.arguments[1:], carried, strict=True))
            self.block(op.body)
            after = [
                before.joined(self.of(value))
                for before, value in zip(carried, op.body.terminator.operands, strict=True)
            ]
            grown = any(
                new.smooth != old.smooth or new.broken.keys() != old.broken.keys()
                for new, old in zip(after, carried, strict=True)
            )
            carried = after
            if not grown:
                break
        self.traces.update(zip(op.results, carried, strict=True))
