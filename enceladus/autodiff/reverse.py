"""A kernel's backward kernel: reverse-mode differentiation of the tile IR.

``Plan`` says whether a kernel has one; ``Plan.build`` makes it. The backward kernel runs on the same grid. A
program computes again what it computed forward, then goes through its operations from the last to the first:

* a store of a value becomes a load of the output's cotangent, at the same offsets under the same mask;
* arithmetic follows ``rules``; what was repeated is summed up, what was summed up is repeated;
* a load becomes an addition to the array's gradient: an atomic one (in float32), or a plain store where no
  element is loaded twice in the launch (see ``injective``);
* a loop that only adds to what it carries runs once more, and its iterations are independent.

Everything else has no backward kernel (:class:`NoBackward` says why), and the caller falls back.

Arguments of the backward kernel: those of the kernel, under their names, then ``cotangent_<output>``,
``grad_<input>`` and ``old_<output>`` (the gradient of the contents that the launch started from). Input is a
function after ``compiler.prepare``; the result is in stage ``TILE``, as the front end would leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from enceladus.autodiff.activity import Activity
from enceladus.autodiff.emit import Emit
from enceladus.autodiff.injective import Prover
from enceladus.autodiff.rules import gradients
from enceladus.errors import EnceladusError
from enceladus.ir import exchange, ops
from enceladus.ir.builder import IRBuilder
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.exchange import AtomicKind
from enceladus.ir.ops import BinaryKind, CompareKind
from enceladus.ir.types import DType, PointerType, float32, pointer_type, tile_type
from enceladus.passes.affine import Analysis

#: What a backward kernel repeats as it is.
_REPEATED = (
    ops.Constant, ops.ProgramId, ops.NumPrograms, ops.MakeRange, ops.Splat, ops.ExpandDims, ops.Broadcast,
    ops.Unary, ops.Binary, ops.Compare, ops.Select, ops.Fma, ops.Cast, ops.Bitcast, ops.Hint,
    exchange.Reduce,
)  # fmt: skip


class NoBackward(EnceladusError):
    """There is no backward kernel; the text says why."""


def element(array: Value) -> DType:
    """The element type of an array argument."""
    assert isinstance(array.type.element, PointerType)
    return array.type.element.element


@dataclass(frozen=True, slots=True)
class Variant:
    """What of a launch decides the backward kernel's text.

    ``plain``: arrays whose gradient is stored, not added up. ``old``: outputs whose former contents have a
    gradient: where the kernel stored, it is 0. ``guarded``: arrays that the kernel might read outside of
    their bounds, which may be harmless, where writing is not.
    """

    plain: frozenset[str]
    old: frozenset[str]
    guarded: frozenset[str]


@dataclass(slots=True)
class Plan:
    """The differentiable skeleton of a kernel. Raises :class:`NoBackward` where there is none."""

    function: Function
    activity: Activity = field(init=False)
    analysis: Analysis = field(init=False)
    stores: dict[Value, list[ops.ArrayStore]] = field(init=False)  #: by array
    loads: dict[Value, list[ops.ArrayLoad]] = field(init=False)  #: active ones, by array
    updated: set[Value] = field(init=False)  #: by atomic additions
    #: ("cotangent" or "old", output), ("grad" or "size", input) → the argument of the backward kernel
    names: dict[tuple[str, str], str] = field(init=False)

    def __post_init__(self) -> None:
        self.activity = Activity(self.function)
        self.analysis = Analysis(self.function)
        self.stores, self.loads, self.updated = {}, {}, set()
        used = {v for op in self.function.walk() for v in op.operands}
        for op in self.function.walk():
            match op:
                case ops.ArrayLoad():
                    if element(op.array).is_floating():
                        self.loads.setdefault(op.array, []).append(op)
                case ops.ArrayStore():
                    self.stores.setdefault(op.array, []).append(op)
                case exchange.ArrayAtomic():
                    if op.kind is not AtomicKind.ADD or op.result in used:
                        raise NoBackward(f"it has an atomic {op.kind.value} that is more than an addition")
                    self.updated.add(op.array)
                case ops.For() | ops.Yield() | ops.Assume():
                    pass
                case _:
                    if not isinstance(op, _REPEATED):
                        raise NoBackward(f"it uses {op.mnemonic}")

        if self.updated & self.stores.keys():
            raise NoBackward("it stores to an array that it also updates atomically")
        self.names = {}
        taken = {value.name for value in self.function.arguments}
        for kind, arrays in (
            ("cotangent", self.outputs),
            ("grad", self.inputs),
            ("old", self.outputs),
            ("size", self.inputs),
        ):
            for array in arrays:
                name = f"{kind}_{array.name}"
                while name in taken:
                    name += "_"
                taken.add(name)
                self.names[kind, array.name] = name

    @property
    def inputs(self) -> list[Value]:
        """Arrays with a gradient."""
        return [v for v in self.function.arguments if v in self.loads]

    @property
    def outputs(self) -> list[Value]:
        """Written arrays of floats."""
        written = self.stores.keys() | self.updated
        return [v for v in self.function.arguments if v in written and element(v).is_floating()]

    def variant(
        self,
        grid: tuple[int, ...],
        numbers: Mapping[str, object],
        sizes: Mapping[str, int],
        old: frozenset[str],
    ) -> Variant:
        """The variant for one launch. Raises :class:`NoBackward` where programs may overwrite each other.

        ``sizes``: the number of elements of each array.
        """
        prover = Prover(self.function, self.analysis, grid, numbers)
        for array, stores in self.stores.items():
            if element(array).is_floating() and not prover.touches_once(*stores):
                raise NoBackward(f"an element of {array.name!r} may be written twice")
        plain = {array.name for array, loads in self.loads.items() if prover.touches_once(*loads)}
        guarded = {
            array.name
            for array, loads in self.loads.items()
            if not all(prover.stays_inside(load, sizes[array.name]) for load in loads)
        }
        return Variant(frozenset(plain), old, frozenset(guarded))

    def build(self, variant: Variant) -> Function:
        """The backward kernel, stage ``TILE``."""
        return _Builder(self, variant).build()


class _Builder:
    def __init__(self, plan: Plan, variant: Variant):
        self.plan = plan
        self.variant = variant
        function = plan.function
        self.body = Block()
        self.builder = IRBuilder(self.body, wide=function.wide, num_warps=function.num_warps)
        self.emit = Emit(self.builder)
        self.mapping: dict[Value, Value] = {}  #: forward value → the same in the backward kernel
        arguments = []
        for value in function.arguments:
            own = self.mapping[value] = Value(value.type, self.body, value.name)
            arguments.append(own)
        self.cotangents = {v: self.argument("cotangent", v, element(v)) for v in plan.outputs}
        self.gradients = {
            v: self.argument("grad", v, element(v) if v.name in variant.plain else float32)
            for v in plan.inputs
        }
        self.old = {v: self.argument("old", v, element(v)) for v in plan.outputs if v.name in variant.old}
        index = tile_type(self.builder.index_dtype)
        self.sizes = {
            v: Value(index, self.body, plan.names["size", v.name])
            for v in plan.inputs
            if v.name in variant.guarded
        }
        more = (
            *self.cotangents.values(), *self.gradients.values(), *self.old.values(), *self.sizes.values()
        )  # fmt: skip
        self.body.arguments = (*arguments, *more)
        #: forward value → its gradient so far, of the block in progress
        self.adjoints: dict[Value, Value] = {}

    def argument(self, kind: str, array: Value, dtype: DType) -> Value:
        return Value(tile_type(pointer_type(dtype)), self.body, self.plan.names[kind, array.name])

    def build(self) -> Function:
        function = self.plan.function
        self.repeat(function.body)
        self.reverse(function.body)
        hints = {self.mapping[v]: h for v, h in function.hints.items()}
        return Function(
            f"{function.name}_vjp", self.body, function.num_warps, function.wide, hints, function.source_lines
        )

    # -------------------------------------------------------------------------------- forward

    def repeat(self, block: Block) -> None:
        """Compute the values of a block again; what it writes is left out."""
        for op in block.ops:
            self.builder.location = op.loc
            match op:
                case ops.ArrayStore() | exchange.ArrayAtomic() | ops.Yield() | ops.Assume():
                    pass
                case ops.ArrayLoad():
                    array, offset, mask, other = (
                        None if v is None else self.mapping[v]
                        for v in (op.array, op.offset, op.mask, op.other)
                    )
                    assert array is not None and offset is not None
                    loaded = self.emit.load(array, offset, mask, other)
                    loaded.name = op.result.name
                    self.mapping[op.result] = loaded
                case ops.For():
                    self.repeat_loop(op)
                case _:
                    self.builder.block.ops.append(op.clone(self.mapping))

    def repeat_loop(self, op: ops.For) -> None:
        arguments = tuple(Value(v.type, None, v.name) for v in op.body.arguments)
        body = Block(arguments)
        self.mapping.update(zip(op.body.arguments, arguments, strict=True))
        with self.builder.inside(body):
            self.repeat(op.body)
            self.emit.op(ops.Yield(tuple(self.mapping[v] for v in op.body.terminator.operands)))
        lower, upper, step = (self.mapping[v] for v in (op.lower, op.upper, op.step))
        results = self.builder.emit(
            ops.For(lower, upper, step, tuple(self.mapping[v] for v in op.initial), body)
        )
        self.mapping.update(zip(op.results, results, strict=True))

    # ------------------------------------------------------------------------------- backward

    def give(self, value: Value, gradient: Value | None) -> None:
        """Add to the gradient of a forward value, if it depends on an array of floats."""
        if gradient is None or not self.plan.activity.is_active(value):
            return
        known = self.adjoints.get(value)
        self.adjoints[value] = gradient if known is None else self.emit.add(known, gradient)

    def reverse(self, block: Block) -> None:
        for op in reversed(block.ops):
            self.builder.location = op.loc
            match op:
                case ops.ArrayStore() | exchange.ArrayAtomic():
                    self.reverse_write(op)
                case ops.For():
                    self.reverse_loop(op)
                case ops.ArrayLoad():
                    gradient = self.adjoints.pop(op.result, None)
                    if gradient is not None:
                        self.reverse_load(op, gradient)
                case exchange.Reduce():
                    self.reverse_reduce(op)
                case ops.Yield() | ops.Assume():
                    pass
                case _:
                    gradient = self.adjoints.pop(op.result, None)
                    if gradient is not None:
                        self.reverse_pure(op, gradient)

    def reverse_write(self, op: ops.ArrayStore | exchange.ArrayAtomic) -> None:
        offset = self.mapping[op.offset]
        mask = None if op.mask is None else self.mapping[op.mask]
        if op.array in self.cotangents and self.plan.activity.is_active(op.value):
            self.give(op.value, self.emit.load(self.cotangents[op.array], offset, mask))
        if op.array in self.old and isinstance(op, ops.ArrayStore):
            zero = self.emit.full(0.0, element(op.array), op.offset.type.shape)
            self.emit.store(self.old[op.array], offset, zero, mask)

    def reverse_load(self, op: ops.ArrayLoad, gradient: Value) -> None:
        offset = self.mapping[op.offset]
        mask = None if op.mask is None else self.mapping[op.mask]
        if op.other is not None and mask is not None:
            zero = self.emit.like(0.0, gradient)
            self.give(op.other, self.emit.select(mask, zero, gradient))
        target = self.gradients.get(op.array)
        if target is None:
            return
        if op.array in self.sizes:
            mask = self.guard(self.sizes[op.array], offset, mask)
        if op.array.name in self.variant.plain:
            self.emit.store(target, offset, gradient, mask)
        else:
            self.emit.atomic_add(target, offset, self.emit.cast(gradient, float32), mask)

    def guard(self, size: Value, offset: Value, mask: Value | None) -> Value:
        """``mask`` and ``0 <= offset < size``."""
        shape = offset.type.shape
        zero = self.emit.like(0, offset)
        size = self.emit.cast(size, offset.type.dtype)
        bound = self.emit.op(ops.Splat(size, shape)) if shape else size
        inside = self.emit.binary(
            BinaryKind.AND,
            self.emit.compare(CompareKind.GE, offset, zero),
            self.emit.compare(CompareKind.LT, offset, bound),
        )
        return inside if mask is None else self.emit.binary(BinaryKind.AND, mask, inside)

    def reverse_pure(self, op: Op, gradient: Value) -> None:
        match op:
            case ops.Splat():
                self.give(op.value, self.emit.sum_all(gradient))
            case ops.ExpandDims():
                self.give(op.value, self.emit.sum(gradient, op.axis))
            case ops.Broadcast():
                for axis, size in enumerate(op.value.type.shape):
                    if size != op.shape[axis]:
                        gradient = self.emit.op(ops.ExpandDims(self.emit.sum(gradient, axis), axis))
                self.give(op.value, gradient)
            case _:
                found = gradients(
                    self.emit, op, [self.mapping[v] for v in op.operands], self.mapping[op.result], gradient
                )
                if found is None:
                    raise NoBackward(f"there is no rule for {op.mnemonic} {getattr(op, 'kind', '')}".rstrip())
                for operand, part in zip(op.operands, found, strict=True):
                    if part is None and isinstance(op, ops.Binary) and self.plan.activity.is_active(operand):
                        raise NoBackward(f"there is no rule for the second operand of {op.kind.value}")
                    self.give(operand, part)

    def reverse_reduce(self, op: exchange.Reduce) -> None:
        found = [self.adjoints.pop(result, None) for result in op.results]
        if all(gradient is None for gradient in found):
            return
        kind = _single_kind(op)
        (gradient,) = found if len(found) == 1 else (None,)
        if kind is None or gradient is None:
            raise NoBackward("it has a reduction other than a sum, a maximum or a minimum")
        value = self.mapping[op.inputs[0]]
        shape = value.type.shape
        if kind is BinaryKind.ADD:
            self.give(op.inputs[0], self.emit.unreduce(gradient, op.axis, shape))
            return
        # Equal extremes share the gradient.
        result = self.emit.unreduce(self.mapping[op.result], op.axis, shape)
        is_extreme = self.emit.compare(CompareKind.EQ, value, result)
        ones, zeros = self.emit.full(1.0, float32, shape), self.emit.full(0.0, float32, shape)
        count = self.emit.sum(self.emit.select(is_extreme, ones, zeros), op.axis)
        share = self.emit.cast(self.emit.div(self.emit.cast(gradient, float32), count), gradient.type.dtype)
        spread = self.emit.unreduce(share, op.axis, shape)
        self.give(op.inputs[0], self.emit.select(is_extreme, spread, self.emit.like(0.0, value)))

    # ---------------------------------------------------------------------------------- loops

    def reverse_loop(self, op: ops.For) -> None:
        """One more loop, in the same order: what an active carried value gets added has the result's gradient
        in every iteration. What comes from outside of the loop collects its gradient in carried sums."""
        active = self.plan.activity.is_active
        found = [self.adjoints.pop(result, None) for result in op.results]
        seeds: list[tuple[Value, Value]] = []
        finals = op.body.terminator.operands
        for i, (argument, final) in enumerate(zip(op.body.arguments[1:], finals, strict=True)):
            if not active(op.results[i]):
                continue
            _require_sum(op, argument, final)
            gradient = found[i]
            if gradient is not None:
                self.give(op.initial[i], gradient)
                seeds.append((final, gradient))
        writes = (ops.ArrayStore, exchange.ArrayAtomic)
        if not seeds and not any(isinstance(inner, writes) for inner in op.body.walk()):
            return
        outer, self.adjoints = self.adjoints, {}
        needed = _free_values(op, active)
        zeros = [self.emit.like(0.0, self.mapping[v]) for v in needed]
        repeated = [i for i in range(len(op.initial)) if not active(op.results[i])]
        own = [Value(op.body.arguments[0].type, None, op.body.arguments[0].name)]
        own += [Value(op.body.arguments[1 + i].type, None, op.body.arguments[1 + i].name) for i in repeated]
        sums = [Value(v.type, None, v.name and f"grad_{v.name}") for v in needed]
        body = Block((*own, *sums))
        before = dict(self.mapping)
        self.mapping[op.body.arguments[0]] = own[0]
        for place, i in enumerate(repeated):
            self.mapping[op.body.arguments[1 + i]] = own[1 + place]
        for argument, i in zip(op.body.arguments[1:], range(len(op.initial)), strict=True):
            if i not in repeated:  # only its sum needs it, and that has no use for it here
                self.mapping[argument] = self.mapping[op.initial[i]]
        with self.builder.inside(body):
            self.repeat(op.body)
            for final, gradient in seeds:
                self.give(final, gradient)
            self.reverse(op.body)
            for argument in op.body.arguments:
                self.adjoints.pop(argument, None)
            following = [self.mapping[finals[i]] for i in repeated]
            for value, total in zip(needed, sums, strict=True):
                part = self.adjoints.pop(value, None)
                following.append(total if part is None else self.emit.add(total, part))
            self.emit.op(ops.Yield(tuple(following)))
        self.mapping = before
        self.adjoints = outer
        lower, upper, step = (self.mapping[v] for v in (op.lower, op.upper, op.step))
        initial = (*(self.mapping[op.initial[i]] for i in repeated), *zeros)
        results = self.builder.emit(ops.For(lower, upper, step, initial, body))
        for value, total in zip(needed, results[len(repeated) :], strict=True):
            self.give(value, total)


def _require_sum(loop: ops.For, argument: Value, final: Value) -> None:
    """``final`` is ``argument`` plus something, and nothing else in the loop looks at ``argument``."""
    op = final.owner
    is_sum = final is argument
    if isinstance(op, ops.Binary) and op.kind is BinaryKind.ADD:
        is_sum = (op.lhs is argument) != (op.rhs is argument)
    elif isinstance(op, ops.Fma):
        is_sum = op.c is argument
    uses = [v for inner in loop.body.walk() for v in inner.operands]
    if not is_sum or uses.count(argument) != 1 or uses.count(final) != 1:
        name = argument.name or "a value"
        raise NoBackward(f"its loop carries {name!r} in another way than by adding to it")


def _free_values(loop: ops.For, active: Callable[[Value], bool]) -> list[Value]:
    """Active values from outside of the loop that its body uses, in order."""
    inside = set(loop.body.arguments)
    found: dict[Value, None] = {}
    for op in loop.body.walk():
        inside.update(op.results)
        for block in op.blocks:
            inside.update(block.arguments)
    for op in loop.body.walk():
        for value in op.operands:
            if value not in inside and not value.type.element.is_ptr() and active(value):
                found[value] = None
    return list(found)


def _single_kind(op: exchange.Reduce) -> BinaryKind | None:
    """ADD, MIN or MAX, if that is all that the combine block does."""
    if len(op.inputs) != 1 or len(op.combine.ops) != 2:
        return None
    made = op.combine.ops[0]
    a, b = op.combine.arguments
    if not isinstance(made, ops.Binary) or (made.lhs, made.rhs) not in ((a, b), (b, a)):
        return None
    if op.combine.terminator.operands != (made.result,):
        return None
    return made.kind if made.kind in _REDUCTIONS else None


_REDUCTIONS = frozenset(
    {BinaryKind.ADD, BinaryKind.MIN, BinaryKind.MAX, BinaryKind.MIN_NAN, BinaryKind.MAX_NAN}
)
