"""Assign layouts and fuse elementwise operations into per-element loops (``ir.laid_out``).

Before: stage ARRAY. After: every tile operation stands in a :class:`TileGroup`; a group's tiles all have
the group's layout, or are smaller tiles broadcast into it, which are recomputed per element where they are
needed. Scalars stand outside groups. Values used after their group are register tiles.

How: each straight-line stretch is cut into groups by the shape of its roots (stores, and tiles that outlive
the stretch). A group takes copies of everything that its roots need, down to scalars and register tiles.
Loads are pure (inputs are immutable), so copying one is correct; index arithmetic is always copied rather
than kept. A register tile needed in a group of another shape makes one trip through threadgroup memory.

Layout of a group: the fastest axis is the one most accesses are contiguous along; ``vector`` is the widest
access that ``full_blocks`` allowed, so edge blocks deal single elements to consecutive lanes. Groups that
share register tiles share their layout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import prod

from enceladus.errors import CompilationError, InternalError
from enceladus.ir import exchange, ops
from enceladus.ir.coordinates import VIEWS, Coordinates, identity, log2, operands_of_view
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.laid_out import (
    Blocked,
    ContinueIf,
    Convert,
    Layout,
    SharedGather,
    SharedStore,
    Sliced,
    TileGroup,
    Viewed,
)
from enceladus.ir.types import pointer_type
from enceladus.passes.affine import Analysis, uses_of
from enceladus.passes.full_blocks import fastest_axis, is_cheap
from enceladus.passes.layout_classes import LayoutClasses
from enceladus.passes.store_order import StoreOrder
from enceladus.passes.updates import ATOMICS, WRITES, Atomic

_ACCESS = (ops.ArrayLoad, ops.ArrayStore)
_SPLITS = (ops.Barrier, exchange.Reduce, exchange.Scan, exchange.Sort, exchange.Histogram)
_REMAPS = (exchange.Reshape, exchange.Transpose, exchange.Join, exchange.Pick)
_WRAPPERS = (ops.ExpandDims, ops.Broadcast, ops.Hint)


def run(function: Function) -> Function:
    """Rewrite ``function`` in place and return it."""
    former = _Former(function)
    former.block(function.body)
    former.assign_layouts()
    return function


class _Former:
    def __init__(self, function: Function):
        self.function = function
        self.threads = 32 * function.num_warps
        self.analysis = Analysis(function)
        self.order = StoreOrder(self.analysis)
        self.groups: list[TileGroup] = []
        #: a register tile that a group reads or makes in its own layout, if there is one
        self.touched: dict[TileGroup, Value | None] = {}
        self.classes = LayoutClasses()
        self.kept: set[Value] = set()
        self.loop_depth = 0
        self.slots = 0
        self.out: list[Op] = []
        #: conversions, with the group that reads the result and the coordinates it reads it under
        self.conversions: list[tuple[Convert, TileGroup, Coordinates]] = []
        #: accesses that a group makes under other coordinates than its own
        self.elsewhere: set[Op] = set()

    def emit(self, op: Op, like: Op) -> Op:
        op.loc = like.loc
        op.results = tuple(Value(t, op) for t in op.result_types())
        self.out.append(op)
        return op

    def barrier(self, like: Op) -> None:
        self.emit(ops.Barrier(), like)
        self.order.clear()

    # ------------------------------------------------------------------------------ blocks

    def block(self, block: Block) -> None:
        later = _later_uses(block, lambda op: self.splits(op) or self.wants_registers(op))
        outer, self.out = self.out, []
        stretch: list[Op] = []
        for position, op in enumerate(block.ops):
            if stretch and self.wants_registers(op):
                self.stretch(stretch, later[position])
                stretch = []
            if not (op.blocks or self.splits(op) or op.terminator):
                stretch.append(op)
                continue
            if stretch:
                self.stretch(stretch, later[position])
                stretch = []
            self.region(op)
        if stretch:
            self.stretch(stretch, _Uses(set(), set()))
        block.ops, self.out = self.out, outer

    def splits(self, op: Op) -> bool:
        """Whether ``op`` stands between groups."""
        return isinstance(op, _SPLITS) or _reads_registers(op) or self.is_used_update(op)

    def wants_registers(self, op: Op) -> bool:
        """Whether ``op`` reads other threads' elements, so that its operand is worth making only once."""
        match op:
            case exchange.Gather():
                return True
            case exchange.Transpose():
                return not is_cheap(op.value)
        return False

    def region(self, op: Op) -> None:
        match op:
            case ops.Barrier():
                self.order.clear()
            case exchange.Reduce():
                self.reduce(op)
            case exchange.Pick():
                self.pick_scalar(op)
            case exchange.Scan():
                self.scan(op)
            case exchange.Sort():
                self.join((op.value, op.results[0]))
                self.kept.add(op.results[0])
            case exchange.Histogram():
                if op.mask is not None and not self.classes.unite(op.value, op.mask):
                    raise CompilationError(
                        "the tile and the mask of tl.histogram are dealt to the threads in two ways",
                        "leave out the mask and count -1 instead: `tl.histogram(tl.where(mask, x, -1), ...)`",
                        op.loc,
                    )
                self.kept.add(op.results[0])
            case exchange.ArrayAtomic() | exchange.ArrayAtomicCas():
                self.used_update(op)
                return
            case ops.For():
                self.loop_depth += 1
                before = self.order.clone()
                self.block(op.body)
                self.separate_iterations(op)
                self.order.merge(before)  # the loop may not run
                self.loop_depth -= 1
                finals = op.body.terminator.operands
                for values in zip(op.body.arguments[1:], op.initial, finals, op.results, strict=True):
                    self.join(values)
            case ops.If():
                before = self.order.clone()
                self.block(op.then_block)
                after_then, self.order = self.order, before
                self.block(op.else_block)
                self.order.merge(after_then)
                arms = (arm.terminator.operands for arm in op.blocks)
                for values in zip(*arms, op.results, strict=True):
                    self.join(values)
        self.out.append(op)

    def pick_scalar(self, op: exchange.Pick) -> None:
        """Every thread gets all elements, and takes one of them."""
        whole = TileGroup(Blocked((1,), (0,), 1, self.threads), Block())
        whole.loc = op.loc
        bits = (0,) * log2(op.value.type.shape[0])
        op.value = self.convert(op.value, whole, (bits or None,))

    @cached_property
    def uses(self) -> dict[Value, int]:
        return uses_of(self.function.body)

    def is_used_update(self, op: Op) -> bool:
        """Whether ``op`` is an atomic update whose old value is used: a group of its own."""
        return isinstance(op, ATOMICS) and self.uses.get(op.results[0], 0) > 0

    def used_update(self, op: Atomic) -> None:
        if self.order.conflicts(op, set()):
            self.barrier(op)
        self.order.add(op)
        if op.offset.type.is_scalar:
            self.out.append(op)
        else:
            self.make_group(op.offset.type.shape, [op, op.results[0]])

    def separate_iterations(self, loop: ops.For) -> None:
        """A barrier at the end of the body where two iterations may store to one element."""
        stores = [op for op in loop.body.walk() if isinstance(op, WRITES) and op.array not in self.order.open]
        tiles = {op.array for op in stores if not op.offset.type.is_scalar}
        stores = [op for op in stores if op.array in tiles]  # the first thread does the others in order
        alone = all(a is b or a.array is not b.array or self.twins(a, b) for a in stores for b in stores)
        if stores and (not alone or any(self.order.repeats(s, loop) for s in stores)):
            outer, self.out = self.out, loop.body.ops
            end = self.out.pop()
            self.barrier(end)
            self.out.append(end)
            self.out = outer

    def twins(self, a: ops.ArrayStore | Atomic, b: ops.ArrayStore | Atomic) -> bool:
        """Whether two stores have the same offsets, like the fast and the exact version of one statement."""
        x, y = self.analysis.affine(a.offset), self.analysis.affine(b.offset)
        return x is not None and x == y and a.offset.type.shape == b.offset.type.shape

    def join(self, values: tuple[Value, ...]) -> None:
        for value in values[1:]:
            if not value.type.is_scalar and not self.classes.unite(values[0], value):
                raise CompilationError(
                    f"the tile {value.name or values[0].name or 'carried here'!r} would have to be dealt "
                    "to the threads in two ways at once",
                    "compute it again inside the loop or branch instead of carrying it",
                    value.owner.loc if isinstance(value.owner, Op) else None,
                )

    # ---------------------------------------------------------------------------- stretches

    def stretch(self, stretch: list[Op], later: _Uses) -> None:
        """Emit the scalars of ``stretch``, then its groups."""
        defined = {v for op in stretch for v in op.results if not v.type.is_scalar}
        keep = (later.exact & defined) | self.needed_later(later.tiles, defined)
        # No scalar depends on a tile here, so scalar arithmetic may stand first; stores keep their place.
        self.out.extend(
            op
            for op in stretch
            if (op.pure and op.results and op.results[0].type.is_scalar) or isinstance(op, ops.Assume)
        )
        roots: list[Op | Value] = []
        stores: set[ops.ArrayStore | Atomic] = set()
        for op in stretch:
            if isinstance(op, WRITES):
                if self.order.conflicts(op, stores):
                    self.make_groups(roots)
                    self.barrier(op)
                    roots, stores = [], set()
                self.order.add(op)
                if op.offset.type.is_scalar:
                    self.make_groups(roots)
                    self.out.append(op)
                    roots, stores = [], set()
                else:
                    roots.append(op)
                    stores.add(op)
            roots.extend(v for v in op.results if v in keep)
        self.make_groups(roots)

    def needed_later(self, tiles: set[Value], defined: set[Value]) -> set[Value]:
        """Tiles of this stretch worth keeping in registers for later groups."""
        keep: set[Value] = set()

        def trace(value: Value, wrapped: bool) -> None:
            if value not in defined or is_cheap(value):
                return
            if isinstance(value.owner, _WRAPPERS):
                trace(value.owner.value, wrapped or not isinstance(value.owner, ops.Hint))
            elif not wrapped or not self.can_copy(value):
                keep.add(value)

        for value in tiles:
            trace(value, False)
        return keep

    def can_copy(self, value: Value) -> bool:
        """Whether a tile can be recomputed from scalars and arrays alone."""
        op = value.owner
        if value.type.is_scalar:
            return True
        if value in self.kept or not isinstance(op, Op) or op.blocks or isinstance(op, exchange.Gather):
            return False
        return all(self.can_copy(v) for v in op.operands if not v.type.element.is_ptr())

    def make_groups(self, roots: list[Op | Value]) -> None:
        by_shape: dict[tuple[int, ...], list[Op | Value]] = {}
        for root in roots:
            shape = root.type.shape if isinstance(root, Value) else root.operands[1].type.shape
            by_shape.setdefault(shape, []).append(root)
        for shape, members in by_shape.items():
            self.make_group(shape, members)

    def make_group(self, shape: tuple[int, ...], roots: list[Op | Value]) -> None:
        group = TileGroup(Blocked(shape, tuple(range(len(shape))), 1, self.threads), Block())
        first = roots[0].owner if isinstance(roots[0], Value) else roots[0]
        assert isinstance(first, Op)
        group.loc = first.loc
        copier = _Copier(self, group, shape, roots)
        yielded: list[Value] = []
        own = identity(len(shape))
        for root in roots:
            if isinstance(root, Value):
                yielded.append(root)
                copier.value(root, own)
            else:
                copier.op(root, own)
        end = ops.Yield(tuple(copier.copies[own][v] for v in yielded))
        end.loc, end.results = first.loc, ()
        group.body.ops.append(end)
        group.results = tuple(yielded)  # the originals are gone: later operations now use the register tiles
        for value in yielded:
            value.owner = group
            self.kept.add(value)
        self.out.append(group)
        self.register(group, [*copier.inputs, *yielded])

    def reduce(self, op: exchange.Reduce) -> None:
        """Inputs share a layout; a result that is a tile is a slice of it."""
        first = self.together(op)
        kept = tuple(axis for axis in range(len(first.type.shape)) if axis != op.axis)
        for result in op.results:
            if not result.type.is_scalar:
                self.classes.make_slice(result, first, kept)
                self.kept.add(result)

    def scan(self, op: exchange.Scan) -> None:
        """Inputs and results share a layout."""
        first = self.together(op)
        for result in op.results:
            if not self.classes.unite(first, result):
                raise InternalError("the result of a scan in another layout than its input")
        self.kept.update(op.results)

    def together(self, op: exchange.Reduce | exchange.Scan) -> Value:
        """Give the inputs one layout; the first of them."""
        first = op.inputs[0]
        if not all(self.classes.unite(first, other) for other in op.inputs[1:]):
            raise CompilationError(
                f"the tiles of this {op.mnemonic} are what reductions of different tiles left, so that "
                "threads hold different elements of each",
                "make them in one kernel, and combine them in a second one that loads them",
                op.loc,
            )
        return first

    def register(self, group: TileGroup, tiles: list[Value]) -> None:
        self.groups.append(group)
        self.touched[group] = tiles[0] if tiles else None
        for tile in tiles[1:]:
            if not self.classes.unite(tiles[0], tile):
                raise InternalError("a group holds tiles of two layouts")

    def anchor(self, roots: list[Op | Value], shape: tuple[int, ...]) -> Value | None:
        """A register tile of ``shape`` that the group makes, or reads on the way to its roots."""
        seen: set[Value] = set()
        pending = [v for root in roots for v in ([root] if isinstance(root, Value) else root.operands)]
        for root in roots:
            if isinstance(root, Value):
                return root
        while pending:
            value = pending.pop()
            if value in seen or value.type.is_scalar or value.type.element.is_ptr():
                continue
            seen.add(value)
            op = value.owner
            if value in self.kept or not isinstance(op, Op) or op.blocks:
                if value.type.shape == shape:
                    return value
                continue
            pending.extend(op.operands)
        return None

    def shared_slot(self, tile: Value, like: Op) -> int:
        """Put a tile into threadgroup memory and return its slot."""
        slot = self.slots
        self.slots += 1
        if self.loop_depth:
            self.barrier(like)  # the previous iteration may still be reading
        shape = tile.type.shape
        group = TileGroup(Blocked(shape, identity(len(shape)), 1, self.threads), Block())  # type: ignore[arg-type]
        group.loc, group.results = like.loc, ()
        copier = _Copier(self, group, shape, [tile])
        for op in (SharedStore(copier.value(tile, copier.own), slot), ops.Yield()):
            op.loc, op.results = like.loc, ()
            group.body.ops.append(op)
        self.out.append(group)
        self.register(group, copier.inputs)
        self.barrier(like)
        return slot

    # ------------------------------------------------------------------------------ layouts

    def convert(self, value: Value, group: TileGroup, coordinates: Coordinates) -> Value:
        """A register tile as ``group`` reads it under ``coordinates``; no data moves where none has to."""
        op = Convert(value)
        op.loc = group.loc
        op.results = (Value(value.type, op, value.name),)
        self.out.append(op)
        self.conversions.append((op, group, coordinates))
        self.classes.find(value)
        return op.results[0]

    def assign_layouts(self) -> None:
        """One layout per class of register tiles; groups without any choose freely."""
        members: dict[object, list[TileGroup]] = {}
        sliced: list[tuple[TileGroup, Value, tuple[int, ...]]] = []
        for group in self.groups:
            tile = self.touched[group]
            relation = None if tile is None else self.classes.slice_of(tile)
            if relation is not None:
                sliced.append((group, *relation))
            else:
                members.setdefault(group if tile is None else self.classes.find(tile), []).append(group)
        layouts: dict[object, Blocked] = {}
        for key, groups in members.items():
            layouts[key] = self.choose([op for g in groups for op in g.body.ops], groups[0].layout.shape)
            for group in groups:
                self.finish(group, layouts[key])
        for group, parent, kept in sliced:
            self.finish(group, Sliced(layouts[parent], kept))
        self.label(self.function.body, layouts)
        for convert, group, coordinates in self.conversions:
            convert.results[0].layout = Viewed(convert.value.type.shape, group.layout, coordinates)

    def choose(self, inner: list[Op], shape: tuple[int, ...]) -> Blocked:
        """The blocked layout that suits the memory accesses of a class."""
        accesses = [
            op
            for op in inner
            if isinstance(op, _ACCESS) and op.offset.type.shape == shape and op not in self.elsewhere
        ]
        axis = fastest_axis(accesses, self.analysis) if accesses else len(shape) - 1
        order = (axis, *(k for k in reversed(range(len(shape))) if k != axis))
        vector = max((a.vector for a in accesses), default=1)
        vector = max(1, min(vector, shape[axis], prod(shape) // self.threads))
        return Blocked(shape, order, vector, self.threads)

    def finish(self, group: TileGroup, layout: Layout) -> None:
        group.layout = layout
        for op in group.body.ops:
            if isinstance(op, _ACCESS):
                op.vector = min(op.vector, layout.vector) if op.offset.type.shape == layout.shape else 1
        if layout.vector == 1:
            _guard(group)

    def label(self, block: Block, layouts: dict[object, Blocked]) -> None:
        """Write its layout on every register tile: what groups, reductions and control flow hand on."""
        for value in block.arguments:
            self.label_value(value, layouts)
        for op in block.ops:
            if not isinstance(op, Convert):
                for value in op.results:
                    self.label_value(value, layouts)
            if op.control_flow and not isinstance(op, TileGroup):
                for nested in op.blocks:
                    self.label(nested, layouts)

    def label_value(self, value: Value, layouts: dict[object, Blocked]) -> None:
        if not value.type.shape or value.type.element.is_ptr():
            return
        relation = self.classes.slice_of(value)
        if relation is not None:
            value.layout = Sliced(layouts[relation[0]], relation[1])
            return
        key = self.classes.find(value)
        if key not in layouts:  # only control flow hands it on
            layouts[key] = self.choose([], value.type.shape)
        value.layout = layouts[key]


class _Copier:
    """Copies into one group everything that its roots need.

    One copy for each set of coordinates that an operation's result is read under: they decide how the group
    reads the register tiles that it leads to.
    """

    def __init__(self, former: _Former, group: TileGroup, shape: tuple[int, ...], roots: list[Op | Value]):
        self.former = former
        self.group = group
        self.shape = shape
        self.own = identity(len(shape))
        self.copies: dict[Coordinates, dict[Value, Value]] = {self.own: {}}
        self.converted: dict[tuple[Value, Coordinates], Value] = {}
        self.inputs: list[Value] = []
        self.roots = roots

    def value(self, value: Value, coordinates: Coordinates) -> Value:
        if value.type.is_scalar or value.type.element.is_ptr():
            return value
        copies = self.copies.get(coordinates)
        if copies is None:
            copies = self.copies[coordinates] = {}
        copy = copies.get(value)
        if copy is not None:
            return copy
        op = value.owner
        if value in self.former.kept or not isinstance(op, Op) or op.blocks:
            copy = copies[value] = self.register_tile(value, coordinates)
        else:
            self.op(op, coordinates)
            copy = copies[value]
        return copy

    def op(self, op: Op, coordinates: Coordinates) -> None:
        """Append a copy of ``op``, behind copies of what it needs."""
        copies = self.copies[coordinates]
        if isinstance(op, VIEWS):
            seen = operands_of_view(op, coordinates, self.shape)
            copy = op.clone({operand: self.value(operand, there) for operand, there in seen})
        elif isinstance(op, exchange.Gather):
            copy = self.gather(op, coordinates)
        else:
            for operand in op.operands:
                self.value(operand, coordinates)
            copy = op.clone(copies)
            if coordinates != self.own and isinstance(copy, _ACCESS):
                copy.vector = 1
                self.former.elsewhere.add(copy)
        copies.update(zip(op.results, copy.results, strict=True))
        self.group.body.ops.append(copy)

    def gather(self, op: exchange.Gather, coordinates: Coordinates) -> SharedGather:
        """The source lies in threadgroup memory, where any thread finds any element."""
        slot = self.former.shared_slot(op.source, op)
        index = self.value(op.index, coordinates)
        element = pointer_type(op.source.type.dtype)
        copy = SharedGather(index, slot, element, op.source.type.shape, op.axis)
        copy.loc = op.loc
        copy.results = (Value(op.results[0].type, copy, op.results[0].name),)
        return copy

    def register_tile(self, value: Value, coordinates: Coordinates) -> Value:
        """How the group reads a tile that threads hold: as it is, as a slice of its own, or converted."""
        if coordinates == self.own and value.type.shape == self.shape and self.agrees(value):
            self.inputs.append(value)
            return value
        if coordinates != self.own and self.slice(value, coordinates):
            return value
        # Which constant a bit has does not matter: see Viewed.
        key = tuple(tuple(b or 0 for b in c) if isinstance(c, tuple) else c for c in coordinates)
        found = self.converted.get((value, key))
        if found is None:
            found = self.converted[value, key] = self.former.convert(value, self.group, key)
        return found

    def agrees(self, value: Value) -> bool:
        """Whether ``value`` can have the layout of the group's other register tiles."""
        return not self.inputs or self.former.classes.unite(self.inputs[0], value)

    def slice(self, value: Value, coordinates: Coordinates) -> bool:
        """Whether a register tile along some of the group's axes can stay where threads hold it."""
        kept = tuple(axis for axis in coordinates if isinstance(axis, int))
        if len(kept) != len(coordinates) or not len(set(kept)) == len(kept) < len(self.shape):
            return False
        if value.type.shape != tuple(self.shape[axis] for axis in kept):
            return False
        # A register tile of the group's own shape fixes what the slice is a slice of.
        anchor = self.former.anchor(self.roots, self.shape)
        return anchor is not None and self.former.classes.make_slice(value, anchor, kept)


def _guard(group: TileGroup) -> None:
    """Where every store has one mask and nothing outlives the group, the mask guards the whole element."""
    stores = [op for op in group.body.ops if isinstance(op, WRITES)]
    masks = {getattr(op, "mask", None) for op in stores}
    if (
        group.results
        or not stores
        or len(masks) != 1
        or any(isinstance(op, (SharedStore, *_REMAPS)) for op in group.body.ops)
    ):
        return
    (mask,) = masks
    if mask is None or mask.type.shape != group.layout.shape or isinstance(mask.owner, ops.ArrayLoad):
        return
    needed = {mask}
    first: list[Op] = []
    rest: list[Op] = []
    for op in reversed(group.body.ops):
        if any(v in needed for v in op.results):
            needed.update(op.operands)
            first.append(op)
        else:
            rest.append(op)
    guard = ContinueIf(mask)
    guard.loc, guard.results = mask.owner.loc if isinstance(mask.owner, Op) else None, ()
    for op in rest:
        if isinstance(op, (*_ACCESS, exchange.ArrayAtomic)) and op.mask is mask:
            op.mask = None
            if isinstance(op, ops.ArrayLoad):
                op.other = None
    group.body.ops = [*reversed(first), guard, *reversed(rest)]


class _Uses:
    """Tiles used later: ``exact`` ones as operands of control flow, sorts and histograms, ``tiles`` by
    operations of groups.
    """

    __slots__ = ("exact", "tiles")

    def __init__(self, exact: set[Value], tiles: set[Value]):
        self.exact = exact
        self.tiles = tiles


def _reads_registers(op: Op) -> bool:
    """Whether ``op`` stands between groups and takes register tiles as they are."""
    if isinstance(op, exchange.Sort | exchange.Histogram):
        return True
    return isinstance(op, exchange.Pick) and op.results[0].type.is_scalar


def _later_uses(block: Block, splits: Callable[[Op], bool]) -> dict[int, _Uses]:
    """For each position of ``block`` where a stretch may end: the tiles used from there on."""
    found: dict[int, _Uses] = {}
    exact: set[Value] = set()
    tiles: set[Value] = set()
    for position in range(len(block.ops) - 1, -1, -1):
        op = block.ops[position]
        for inner in (op, *[nested for arm in op.blocks for nested in arm.walk()]):
            into = exact if inner.blocks or inner.terminator or _reads_registers(inner) else tiles
            into.update([v for v in inner.operands if v.type.shape])
        if op.blocks or op.terminator or isinstance(op, _SPLITS) or splits(op):
            found[position] = _Uses(set(exact), set(tiles))
    return found
