"""Give the interior blocks their vectors: split straight-line code into a fast and an exact version.

Before: loads and stores under ragged masks such as ``offs < n``. After, per straight-line stretch with
contiguous accesses::

    if (every mask is true for the whole tile, and addresses are multiples of 16 bytes):
        the same operations without those masks, and without selections by them; contiguous accesses carry
        ``vector > 1``
    else:
        the operations as they were, element by element

The condition is uniform over a program, so there is no divergence; only edge blocks and misaligned arrays
take the second version. Whether a mask is full is decided exactly: the largest value of the tile is
compared in 64 bits unless interval analysis proves that 32 do. Output arrays are fresh allocations, whose
start is aligned.
Values used after the stretch leave through the branch's results.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cached_property

from enceladus.errors import Location
from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.ops import BinaryKind, CompareKind
from enceladus.ir.types import int32, int64
from enceladus.passes.affine import Analysis, Polynomial, constant_polynomial, uses_of
from enceladus.passes.intervals import Intervals
from enceladus.passes.updates import ATOMICS

VECTOR_BYTES = 16

Access = ops.ArrayLoad | ops.ArrayStore


def run(function: Function, marked: Set[Value] = frozenset()) -> Function:
    """Rewrite ``function`` in place and return it.

    ``marked`` are arrays whose written elements are marked one by one: their stores stay scalar.
    """
    _Splitter(function, marked).block(function.body)
    return function


def fastest_axis(accesses: list[ops.ArrayLoad | ops.ArrayStore], analysis: Analysis) -> int:
    """The axis along which most accesses are contiguous (stores count twice); the last one on a tie."""
    rank = len(accesses[0].offset.type.shape)
    votes = [0] * rank
    for op in accesses:
        affine = analysis.affine(op.offset)
        for axis in range(rank):
            if affine is not None and affine.step(axis) == 1 and op.offset.type.shape[axis] > 1:
                votes[axis] += 2 if isinstance(op, ops.ArrayStore) else 1
    best = max(votes)
    return max(axis for axis in range(rank) if votes[axis] == best)


def is_cheap(value: Value) -> bool:
    """Whether recomputing a tile is better than keeping it: index arithmetic without loads."""
    op = value.owner
    match op:
        case ops.MakeRange() | ops.Splat():
            return True
        case ops.ExpandDims() | ops.Broadcast() | ops.Hint() | exchange.Reshape() | exchange.Transpose():
            return is_cheap(op.value)
        case exchange.Pick() if op.results[0].type.shape:
            return is_cheap(op.value)
        case exchange.Join():
            return is_cheap(op.first) and is_cheap(op.second)
        case ops.Binary() | ops.Compare():
            dtype = op.lhs.type.element
            return not dtype.is_floating() and is_cheap(op.lhs) and is_cheap(op.rhs)
        case ops.Cast():
            return is_cheap(op.value)
        case ops.Unary():
            return not op.value.type.element.is_floating() and is_cheap(op.value)
    return False


class _Splitter:
    def __init__(self, function: Function, marked: Set[Value]):
        self.marked = marked
        self.threads = 32 * function.num_warps
        self.function = function
        self.analysis = Analysis(function)
        self.intervals = Intervals(function)
        self.out: list[Op] = []
        self.emitted: dict[object, Value] = {}
        self.loc: Location | None = None

    def emit(self, op: Op) -> Value:
        """Add a scalar operation, or find the equal one that this stretch already has."""
        key = (type(op), tuple(map(id, op.operands)), op.attributes)
        known = self.emitted.get(key)
        if known is None:
            op.loc = self.loc
            op.results = tuple(Value(t, op) for t in op.result_types())
            self.out.append(op)
            known = self.emitted[key] = op.results[0]
        return known

    # ----------------------------------------------------------------------------- blocks

    def block(self, block: Block) -> None:
        needed_later = [set(op.operands) | _inner_uses(op) for op in block.ops]
        rewritten: list[Op] = []
        position = 0
        while position < len(block.ops):
            end = position
            while end < len(block.ops) and not self.ends_stretch(block.ops[end]):
                end += 1
            if end > position:
                used = set().union(*needed_later[end:]) if end < len(block.ops) else set()
                rewritten.extend(self.stretch(block.ops[position:end], used))
            if end < len(block.ops):
                op = block.ops[end]
                for nested in op.blocks:
                    self.block(nested)
                rewritten.append(op)
            position = end + 1
        block.ops = rewritten

    @cached_property
    def uses(self) -> dict[Value, int]:
        return uses_of(self.function.body)

    def ends_stretch(self, op: Op) -> bool:
        if isinstance(op, ATOMICS):  # scalars must not pass the update that they depend on
            return self.uses.get(op.results[0], 0) > 0
        if isinstance(op, exchange.Transpose):  # a trip through threadgroup memory, once
            return not is_cheap(op.value)
        if isinstance(op, exchange.Pick) and op.results[0].type.is_scalar:
            return True
        large = isinstance(op, exchange.Sort | exchange.Histogram | exchange.Gather)  # not worth having twice
        return bool(op.blocks) or isinstance(op, ops.Barrier) or large or op.terminator

    def stretch(self, stretch: list[Op], used: set[Value]) -> list[Op]:
        """``stretch`` unchanged, or its scalar part followed by the two versions."""
        accesses = [
            op
            for op in stretch
            if isinstance(op, ops.ArrayLoad | ops.ArrayStore) and not op.offset.type.is_scalar
        ]
        if not accesses:
            return stretch
        self.out, self.emitted = [], {}
        widths: dict[Access, int] = {}
        full: dict[Value, bool] = {}
        for rank_group in _by_shape(accesses):
            axis = fastest_axis(rank_group, self.analysis)
            for op in rank_group:
                mask = op.mask
                if mask is not None and mask not in full:
                    full[mask] = self.can_test(mask)
                if mask is None or full[mask]:
                    widths[op] = self.width(op, axis)
        vectored = {op: w for op, w in widths.items() if w > 1}
        if not vectored:
            return stretch
        scalars: list[Op] = []
        tiles: list[Op] = []
        for each in stretch:
            (scalars if each.pure and each.results and not each.results[0].type.shape else tiles).append(each)
        self.out = list(scalars)
        for scalar in scalars:
            key = (type(scalar), tuple(map(id, scalar.operands)), scalar.attributes)
            self.emitted.setdefault(key, scalar.results[0])
        self.loc = accesses[0].loc
        condition: Value | None = None
        masks = {op.mask: None for op in accesses if op.mask is not None and full[op.mask]}
        tests = [t for mask in masks for t in self.full_tests(mask)]
        tests += self.alignment_tests(vectored)
        seen: list[Value] = []
        for test in tests:
            if test in seen:
                continue
            seen.append(test)
            condition = test if condition is None else self.emit(ops.Binary(BinaryKind.AND, condition, test))
        if condition is None:  # proven at compile time: no second version
            for access, width in vectored.items():
                access.vector = width
            return self.out + tiles
        leaving = [v for op in tiles for v in op.results if v in used and not is_cheap(v)]
        fast = self.version(tiles, leaving, vectored, set(masks))
        if leaving or any(v in used for op in tiles for v in op.results):
            exact = self.version(tiles, leaving, {}, set())
        else:  # nobody else needs the original operations
            end = ops.Yield()
            end.loc, end.results = self.loc, ()
            exact = Block((), [*tiles, end])
        branch = ops.If(condition, fast, exact)
        branch.loc = self.loc
        branch.results = tuple(leaving)  # the originals are gone: their users now see the branch's results
        cheap = [
            op for op in tiles if op.pure and any(v in used for v in op.results) and is_cheap(op.results[0])
        ]
        self.out.extend(_with_producers(cheap, tiles))
        self.out.append(branch)
        for value in leaving:
            value.owner = branch
        return self.out

    # ------------------------------------------------------------------------------ tests

    def can_test(self, mask: Value) -> bool:
        """Whether "the mask is true everywhere" has a uniform test."""
        op = mask.owner
        match op:
            case ops.Splat():
                return True
            case ops.Binary(kind=BinaryKind.AND):
                return self.can_test(op.lhs) and self.can_test(op.rhs)
            case ops.Broadcast() | ops.ExpandDims():
                return self.can_test(op.value)
            case ops.Compare(kind=CompareKind.LT | CompareKind.LE | CompareKind.GE | CompareKind.GT):
                return self.bounded(op.lhs) and self.bounded(op.rhs)
        return False

    def bounded(self, value: Value) -> bool:
        """Whether the tile is ``splat + static range`` so that its extremes are scalars."""
        if isinstance(value.owner, ops.Splat):
            return True
        if not value.type.dtype.is_int_signed():
            return False
        return self.split(value) is not None

    def split(self, value: Value) -> tuple[Value | None, int, int] | None:
        """``value = splat(scalar) + tile`` with static bounds ``low..high`` of the tile part.

        ``scalar`` is ``None`` for a tile without a scalar part.
        """
        op = value.owner
        match op:
            case ops.Splat():
                return (op.value, 0, 0)
            case ops.MakeRange():
                return (None, op.start, op.end - 1)
            case ops.Broadcast() | ops.ExpandDims() | ops.Hint():
                return self.split(op.value)
            case ops.Binary(kind=BinaryKind.ADD):
                left, right = self.split(op.lhs), self.split(op.rhs)
                if left is None or right is None or (left[0] is not None and right[0] is not None):
                    return None
                return (left[0] or right[0], left[1] + right[1], left[2] + right[2])
            case ops.Binary(kind=BinaryKind.MUL):
                for tile, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                    constant = _splat_constant(factor) or 0
                    inner = self.split(tile) if constant > 0 else None
                    if inner is not None and inner[0] is None:
                        return (None, inner[1] * constant, inner[2] * constant)
        return None

    def full_tests(self, mask: Value) -> list[Value]:
        op = mask.owner
        match op:
            case ops.Splat():
                return [op.value]
            case ops.Binary():
                return self.full_tests(op.lhs) + self.full_tests(op.rhs)
            case ops.Broadcast() | ops.ExpandDims():
                return self.full_tests(op.value)
            case ops.Compare():
                less = op.kind in (CompareKind.LT, CompareKind.LE)
                low = self.extreme(op.lhs, largest=less)
                high = self.extreme(op.rhs, largest=not less)
                if low.type != high.type:
                    low, high = self.widen(low), self.widen(high)
                return [self.emit(ops.Compare(op.kind, low, high))]
        raise AssertionError("can_test was asked first")

    def extreme(self, value: Value, largest: bool) -> Value:
        """The largest or smallest element as a scalar, without overflow."""
        parts = self.split(value)
        if parts is None:  # a splat of any type
            assert isinstance(value.owner, ops.Splat)
            return value.owner.value
        scalar, low, high = parts
        shift = high if largest else low
        dtype = value.type.dtype
        if scalar is None:
            return self.emit(ops.Constant(shift, dtype))
        if shift == 0:
            return scalar
        bounds = self.intervals.of(scalar)
        if bounds[0] + low < dtype.minimum or bounds[1] + high > dtype.maximum:
            scalar, dtype = self.widen(scalar), int64
        amount = self.emit(ops.Constant(shift, dtype))
        return self.emit(ops.Binary(BinaryKind.ADD, scalar, amount))

    def widen(self, value: Value) -> Value:
        return value if value.type.dtype is int64 else self.emit(ops.Cast(value, int64))

    # --------------------------------------------------------------------------- alignment

    def width(self, op: ops.ArrayLoad | ops.ArrayStore, axis: int) -> int:
        """Elements a thread can move at once from an aligned start; 1 where the access is not contiguous."""
        affine = self.analysis.affine(op.offset)
        if affine is None or affine.step(axis) != 1:
            return 1
        shape = op.offset.type.shape
        element = op.array.type.element.element  # type: ignore[union-attr]
        if element.is_bool() or (isinstance(op, ops.ArrayStore) and op.array in self.marked):
            return 1
        per_thread = max(1, op.offset.type.numel // self.threads)
        width = min(VECTOR_BYTES // element.itemsize, shape[axis], per_thread)
        start = affine.base.get((), 0)
        for other, step in enumerate(affine.steps):
            if other != axis and shape[other] > 1:
                width = min(width, self.analysis.divisor_of(step))
        return max(1, min(width, (start & -start) or width))

    def alignment_tests(self, vectored: dict[Access, int]) -> list[Value]:
        """Run-time tests that every vector access starts on a multiple of its size."""
        tests = []
        asked: set[tuple[Value, Value | None, int]] = set()
        for op, width in vectored.items():
            assert isinstance(op, ops.ArrayLoad | ops.ArrayStore)
            affine = self.analysis.affine(op.offset)
            assert affine is not None
            proven = self.analysis.divisor_of(affine.base) % width == 0
            if proven and isinstance(op, ops.ArrayStore):
                continue
            element = op.array.type.element.element  # type: ignore[union-attr]
            start = self.scalar(affine.base) if not proven else self.emit(ops.Constant(0, int32))
            size = width * element.itemsize
            key = (op.array, None if proven else start, size)
            if key not in asked:
                asked.add(key)
                tests.append(self.emit(ops.IsAligned(op.array, start, size)))
        return tests

    def scalar(self, p: Polynomial) -> Value:
        """The scalar that a polynomial describes, as operations."""
        constant = constant_polynomial(p)
        if constant is not None:
            return self.emit(ops.Constant(constant, int32))
        wide = any(v.type.dtype is int64 for monomial in p for v in monomial)
        dtype = int64 if wide else int32
        total: Value | None = None
        for monomial, coefficient in p.items():
            term: Value | None = None
            for value in monomial:
                factor = value if value.type.dtype is dtype else self.emit(ops.Cast(value, dtype))
                term = factor if term is None else self.emit(ops.Binary(BinaryKind.MUL, term, factor))
            if term is None or coefficient != 1:
                number = self.emit(ops.Constant(coefficient, dtype))
                term = number if term is None else self.emit(ops.Binary(BinaryKind.MUL, term, number))
            total = term if total is None else self.emit(ops.Binary(BinaryKind.ADD, total, term))
        assert total is not None
        return total

    # ----------------------------------------------------------------------------- versions

    def version(
        self, tiles: list[Op], leaving: list[Value], vectored: dict[Access, int], full: set[Value]
    ) -> Block:
        mapping: dict[Value, Value] = {}
        copies = []
        for op in tiles:
            if isinstance(op, ops.Select) and op.condition in full:
                mapping[op.results[0]] = mapping.get(op.on_true, op.on_true)
                continue
            copy = op.clone(mapping)
            if isinstance(op, ops.ArrayLoad | ops.ArrayStore):
                assert isinstance(copy, ops.ArrayLoad | ops.ArrayStore)
                if op.mask in full:
                    copy.mask = None
                    if isinstance(copy, ops.ArrayLoad):
                        copy.other = None
                copy.vector = vectored.get(op, 1)
            elif isinstance(op, exchange.ArrayAtomic) and op.mask in full:
                assert isinstance(copy, exchange.ArrayAtomic)
                copy.mask = None
            copies.append(copy)
        end = ops.Yield(tuple(mapping[v] for v in leaving))
        end.loc, end.results = self.loc, ()
        return Block((), [*copies, end])


def _splat_constant(value: Value) -> int | None:
    op = value.owner
    if isinstance(op, ops.Splat) and isinstance(op.value.owner, ops.Constant):
        return int(op.value.owner.value)
    return None


def _inner_uses(op: Op) -> set[Value]:
    return {v for block in op.blocks for inner in block.walk() for v in inner.operands}


def _by_shape(accesses: list[ops.ArrayLoad | ops.ArrayStore]) -> list[list[ops.ArrayLoad | ops.ArrayStore]]:
    groups: dict[tuple[int, ...], list[ops.ArrayLoad | ops.ArrayStore]] = {}
    for op in accesses:
        groups.setdefault(op.offset.type.shape, []).append(op)
    return list(groups.values())


def _with_producers(wanted: list[Op], tiles: list[Op]) -> list[Op]:
    needed: set[Value] = {v for op in wanted for v in op.results}
    kept = []
    for op in reversed(tiles):
        if any(v in needed for v in op.results):
            kept.append(op)
            needed.update(op.operands)
    kept.reverse()
    return kept
