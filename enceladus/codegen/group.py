"""Write a tile group: the loop over a thread's elements.

Three parts per vector of elements: ``before`` (addresses, vector loads, what does not change along the
vector), ``each`` (the elements one by one), ``after`` (vector stores). With ``vector == 1`` everything is in
``each`` and there is no inner loop. Expressions are built on demand: a value with a Python name, or used
twice, becomes a constant of that name; the others are written where they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from enceladus.codegen import atomics, mathlib
from enceladus.codegen.bits import assemble_bits, spread_bits
from enceladus.codegen.mathlib import Expression, Precedence
from enceladus.codegen.writer import Writer
from enceladus.errors import InternalError
from enceladus.ir import exchange, ops
from enceladus.ir.coordinates import (
    VIEWS,
    Bit,
    Coordinate,
    Coordinates,
    bits_of,
    identity,
    log2,
    operands_of_view,
)
from enceladus.ir.core import Op, Value
from enceladus.ir.laid_out import (
    ContinueIf,
    Convert,
    SharedGather,
    SharedLoad,
    SharedStore,
    Sliced,
    TileGroup,
)
from enceladus.ir.types import tile_type
from enceladus.passes.affine import uses_of

if TYPE_CHECKING:
    from enceladus.codegen.body import BodyWriter

_VECTOR, _ELEMENT = 1, 2


class GroupWriter:
    """Writes one :class:`TileGroup` into ``body.writer``."""

    def __init__(self, body: BodyWriter, group: TileGroup, destinations: list[str]):
        self.body = body
        self.destinations = destinations
        self.group = group
        self.layout = group.layout
        self.physical = (
            group.layout.blocked
        )  #: how registers and threads are dealt; the layout, or its parent
        self.rank = len(group.layout.shape)
        self.identity = identity(self.rank)
        self.uses = uses_of(group.body)
        self.elementwise = self.needed_per_element()
        self.own = self.read_in_place()  #: values that are read under the group's own coordinates
        self.memo: dict[tuple[Value, int, Coordinates], Expression] = {}
        self.vectors: dict[Value, str] = {}  #: result of a vector load → name of its array
        self.coordinates: dict[int, str] = {}  #: axis → name, once used
        self.index = ""  #: name of the linear index, once used
        out = body.writer
        self.before, self.each, self.after = out.nested(), out.nested(), out.nested()
        self.vector = self.layout.vector
        self.counter = body.names.unique("r") if self.layout.chunks > 1 else ""
        self.element = body.names.unique("j") if self.vector > 1 else ""

    # ------------------------------------------------------------------------------- frame

    @staticmethod
    def opens_block(group: TileGroup) -> bool:
        """Whether braces enclose everything the group declares."""
        return group.layout.chunks > 1 or GroupWriter.is_guarded(group)

    @staticmethod
    def is_guarded(group: TileGroup) -> bool:
        """Whether only the threads that have elements enter the group."""
        return group.layout.has_copies and not group.results

    def write(self) -> None:
        out, layout = self.body.writer, self.layout
        guarded = self.is_guarded(self.group)
        self.copies = self.first_of_copies()
        depth = out.depth + bool(self.counter) + guarded
        self.before.depth = self.after.depth = depth
        self.each.depth = depth + bool(self.element)
        self.guard_stores = layout.has_copies and not guarded
        opened = self.operations()
        for _ in range(opened):
            self.each.close()
        if guarded:
            out.open(f"if ({self.copies})")
        if self.counter:
            if self.body.holds_register_tiles(self.group) and layout.chunks > 1:
                out.line("#pragma unroll")
            out.open(f"for (int {self.counter} = 0; {self.counter} < {layout.chunks}; ++{self.counter})")
        small = self.physical.busy_threads < self.physical.threads
        self.write_index(out, masked=small and not (guarded and self.layout is self.physical))
        out.extend(self.before)
        if self.each.lines and self.element:
            out.line("#pragma unroll")
            out.open(f"for (int {self.element} = 0; {self.element} < {self.vector}; ++{self.element})")
            out.extend(self.each)
            out.close()
        else:
            out.extend(self.each)
        out.extend(self.after)
        if self.counter:
            out.close()
        if guarded:
            out.close()

    def write_index(self, out: Writer, masked: bool) -> None:
        """Declare the linear index of the first element, and the coordinates that are used."""
        if not self.index:
            return
        layout = self.physical
        thread = self.body.thread()
        if masked:
            thread = f"({thread} & {layout.busy_threads - 1})"
        text = f"{self.chunk()} * {layout.threads} + {thread}" if self.counter else thread
        if layout.vector > 1:
            text = f"({text}) * {layout.vector}" if self.counter else f"{text} * {layout.vector}"
        elif thread.startswith("(") and not self.counter:
            text = thread[1:-1]
        out.line(f"const int {self.index} = {text};")
        if len(layout.shape) == 1:
            return
        shift = 0
        for position, axis in enumerate(layout.order):
            size = layout.shape[axis]
            name = self.coordinates.get(axis)
            if name is not None:
                shifted = f"{self.index} >> {shift}" if shift else self.index
                last = position == len(layout.shape) - 1
                if size == 1:
                    text = "0"
                elif last:
                    text = shifted
                else:
                    text = f"({shifted}) & {size - 1}" if shift else f"{shifted} & {size - 1}"
                out.line(f"const int {name} = {text};")
            shift += size.bit_length() - 1

    def coordinate(self, axis: int, level: int) -> Expression:
        """The index along ``axis``; within a vector the fastest one moves."""
        if self.layout.shape[axis] == 1:
            return Expression("0")
        if not self.index:
            self.index = self.body.names.unique("i")
        rank = len(self.physical.shape)
        if rank == 1:
            name = self.index
        else:
            along = self.layout.kept[axis]
            name = self.coordinates.get(along, "")
            if not name:
                hints = ("row", "col") if rank == 2 else tuple(f"i{k}" for k in range(rank))
                name = self.coordinates[along] = self.body.names.unique(hints[along])
        if axis == self.layout.order[0] and self.vector > 1 and level == _ELEMENT:
            return Expression(f"{name} + {self.element}", Precedence.ADD)
        return Expression(name)

    def linear_index(self, shape: Sequence[int], level: int) -> Expression:
        """Row-major index in ``shape``, which is the group's shape or broadcasts to it."""
        terms: list[Expression] = []
        stride = 1
        for axis in reversed(range(len(shape))):
            if shape[axis] > 1:
                position = self.coordinate(axis, level)
                if stride == 1:
                    terms.append(position)
                else:
                    terms.append(Expression(f"{position.inside(Precedence.MUL)} * {stride}", Precedence.MUL))
            stride *= shape[axis]
        if not terms:
            return Expression("0")
        terms.reverse()
        text = " + ".join(t.inside(Precedence.ADD) for t in terms)
        return terms[0] if len(terms) == 1 else Expression(text, Precedence.ADD)

    # -------------------------------------------------------------------------- operations

    def operations(self) -> int:
        """Write every operation with an effect; returns how many blocks were opened around elements."""
        opened = 0
        for op in self.group.body.ops:
            match op:
                case ops.ArrayLoad() if op.vector > 1:
                    self.vector_load(op)
                case ops.ArrayStore() if op.vector > 1:
                    self.vector_store(op)
                case ops.ArrayStore():
                    self.store(op)
                case exchange.ArrayAtomic() | exchange.ArrayAtomicCas():
                    atomics.update_element(self, op)
                case ContinueIf():
                    condition = self.value(op.condition, declare=self.uses[op.condition] > 1)
                    self.each.statement(op.loc)
                    self.each.open(f"if ({condition.text})")
                    opened += 1
                case SharedStore():
                    slot = self.body.shared_slot(op.slot, op.value.type)
                    index = self.linear_index(self.layout.shape, _ELEMENT)
                    self.each.line(f"{slot}[{index.text}] = {self.value(op.value).text};")
                case ops.Yield():
                    self.results(op)
                case _:
                    self.named(op)
        return opened

    def named(self, op: Op) -> None:
        """Operations the user gave a name are written where they stand, in the order of the source."""
        value = op.results[0]
        if not value.name or value not in self.elementwise or isinstance(op, ops.MakeRange | ops.Splat):
            return
        if value.type.shape == self.layout.shape and value in self.own and not self.only_a_guard(value):
            self.value(value)

    def only_a_guard(self, value: Value) -> bool:
        return all(isinstance(op, ContinueIf) for op in self.group.body.ops if value in op.operands)

    def needed_per_element(self) -> set[Value]:
        """Values that some element needs for itself, not just a vector's address."""
        needed: set[Value] = set()
        for op in reversed(self.group.body.ops):
            if isinstance(op, ops.ArrayStore) and op.vector > 1:
                needed.add(op.value)
            elif isinstance(op, ops.ArrayLoad) and op.vector > 1:
                continue
            elif not op.results or not op.pure or op.results[0] in needed:
                needed.update(op.operands)
        return needed

    def read_in_place(self) -> set[Value]:
        found: set[Value] = set()
        for op in reversed(self.group.body.ops):
            in_place = not op.results or not op.pure or op.results[0] in found
            if in_place and not isinstance(op, VIEWS):
                found.update(op.operands)
        return found

    def results(self, end: ops.Yield) -> None:
        values = [self.value(v, declare=self.uses[v] > 1) for v in end.values]
        if len(values) > 1:  # an element of a carried tile may be read by another's new value
            for k, (value, expression) in enumerate(zip(end.values, values, strict=True)):
                if not expression.text.isidentifier():
                    name = self.body.names.unique(value.name or "value")
                    self.each.line(f"const {mathlib.type_name(value.type.dtype)} {name} = {expression.text};")
                    values[k] = Expression(name)
        for destination, expression in zip(self.destinations, values, strict=True):
            target = self.register(destination)
            if target != expression.text:
                self.each.line(f"{target} = {expression.text};")

    def register(self, name: str, level: int = _ELEMENT) -> str:
        """This element of the register tile ``name``, or the first one of this vector."""
        if self.layout.registers == 1:
            return name
        if self.vector == 1:
            return f"{name}[{self.counter}]"
        element = self.element if level == _ELEMENT else "0"
        if not self.counter:
            return f"{name}[{element}]"
        start = f"{self.counter} * {self.vector}"
        return f"{name}[{start}]" if level == _VECTOR else f"{name}[{start} + {element}]"

    def tile_register(self, name: str, value: Value, coordinates: Coordinates, level: int) -> str:
        """This element of a register tile that the group sees under ``coordinates``, in its own layout."""
        places, own = value.layout.places, self.layout.places
        seen = [bits_of(c, n) for c, n in zip(coordinates, value.type.shape, strict=True)]
        for place, held in zip(own.threads, places.threads, strict=True):
            if held is not None and seen[held[0]][held[1]] != place:
                raise InternalError(f"the group cannot read {value!r} where threads hold it")
        sources: list[tuple[str, int, int] | int] = []
        for dimension, k in places.registers:
            bit = seen[dimension][k]
            if isinstance(bit, int):
                sources.append(bit)
            elif bit in own.elements:
                at = own.elements.index(bit)
                sources.append((self.element, at, len(own.elements)) if level == _ELEMENT else 0)
            elif bit in own.chunks:
                sources.append((self.counter, own.chunks.index(bit), len(own.chunks)))
            else:
                raise InternalError(f"the group cannot read {value!r} where threads hold it")
        return f"{name}[{assemble_bits(sources)}]" if sources else name

    def chunk(self) -> str:
        """The physical chunk that the counter stands for."""
        axes = self.physical.bits()[2]
        kept = [k for k, axis in enumerate(axes) if axis in self.layout.kept]
        return self.counter if len(kept) == len(axes) else spread_bits(self.counter, kept)

    def first_of_copies(self) -> str:
        """A condition that holds for one of the threads with the same elements; ``""`` without copies."""
        if not self.layout.has_copies:
            return ""
        if isinstance(self.layout, Sliced):
            return f"({self.body.thread()} & {self.layout.copy_bits}) == 0"
        return f"{self.body.thread()} < {self.layout.busy_threads}"

    # ------------------------------------------------------------------------------ memory

    def vector_load(self, op: ops.ArrayLoad) -> None:
        value = op.results[0]
        if not self.uses.get(value):
            return
        address = self.address(op, _VECTOR)
        self.before.statement(op.loc)
        name = self.vectors[value] = self.body.names.unique(value.name or f"{op.array.name}_values")
        load = self.body.memory.load(op.vector, value.type.dtype.itemsize)
        self.before.line(f"{mathlib.type_name(value.type.dtype)} {name}[{self.vector}];")
        self.before.line(f"{load}({name}, {address});")

    def vector_store(self, op: ops.ArrayStore) -> None:
        store = self.body.memory.store(op.vector, op.value.type.dtype.itemsize)
        whole = self.vectors.get(op.value)
        address = self.address(op, _VECTOR)
        if whole is None:
            wanted = op.value.name or f"{op.array.name}_values"
            whole = self.body.names.unique(wanted if not self.uses.get(op.value, 0) > 1 else f"{wanted}_out")
            self.before.line(f"{mathlib.type_name(op.value.type.dtype)} {whole}[{self.vector}];")
            value = self.value(op.value, declare=False)
            self.each.statement(op.loc)
            self.each.line(f"{whole}[{self.element}] = {value.text};")
        text = f"{store}({address}, {whole});"
        if self.guard_stores:
            text = f"if ({self.copies}) {text}"
        self.after.line(text)

    def address(self, op: ops.ArrayLoad | ops.ArrayStore, level: int) -> str:
        array = (
            self.body.output_name(op.array)
            if isinstance(op, ops.ArrayStore)
            else self.body.input_name(op.array)
        )
        offset = self.value(op.offset, level)
        return array if offset.text == "0" else f"{array} + {offset.inside(Precedence.ADD)}"

    def store(self, op: ops.ArrayStore) -> None:
        conditions = []
        if self.guard_stores:
            conditions.append(self.copies)
        if op.mask is not None:
            conditions.append(self.value(op.mask).inside(Precedence.AND if conditions else Precedence.ANY))
        offset, value = self.value(op.offset), self.value(op.value)
        self.each.statement(op.loc)
        for marks in self.body.written_names(op.array):
            self.mark_written(marks, offset, conditions)
        text = f"{self.body.output_name(op.array)}[{offset.text}] = {value.text};"
        if conditions:
            text = f"if ({' && '.join(conditions)}) {text}"
        self.each.line(text)

    def mark_written(self, marks: str, offset: Expression, conditions: list[str]) -> None:
        text = f"{marks}[{offset.text}] = 1;"
        self.each.line(f"if ({' && '.join(conditions)}) {text}" if conditions else text)

    # ------------------------------------------------------------------------- expressions

    def value(
        self, value: Value, level: int = _ELEMENT, axes: Coordinates | None = None, declare: bool = True
    ) -> Expression:
        """``value`` for the present element, or for the first of the present vector."""
        if value.type.is_scalar:
            return self.body.scalar(value)
        axes = self.identity if axes is None else axes
        if level == _ELEMENT and self.vector > 1 and not self.varies(value, axes):
            level = _VECTOR
        if self.vector == 1:
            level = _ELEMENT
        key = (value, level, axes)
        known = self.memo.get(key)
        if known is None:
            known = self.memo[key] = self.find(value, level, axes, declare)
        return known

    def remember(self, value: Value, expression: Expression) -> None:
        """``value`` of the present element is ``expression``: what an update has left behind."""
        self.memo[value, _ELEMENT, self.identity] = expression

    def varies(self, value: Value, axes: Coordinates) -> bool:
        """Whether ``value`` changes along a vector."""
        if not any(self.moves(c) for c in axes):
            return False
        op = value.owner
        match op:
            case ops.Splat():
                return False
            case exchange.Join() if self.moves(axes[-1]):
                return True
            case Op() if isinstance(op, VIEWS):
                return any(self.varies(v, c) for v, c in operands_of_view(op, axes, self.layout.shape))
            case TileGroup() | SharedLoad() | SharedGather() | Convert():
                return True
            case exchange.ArrayAtomic() | exchange.ArrayAtomicCas():
                return True
            case Op() if not op.blocks and not isinstance(op, ops.MakeRange):
                tiles = [v for v in op.operands if not v.type.is_scalar and not v.type.element.is_ptr()]
                return any(self.varies(v, axes) for v in tiles)
        return True

    def moves(self, coordinate: Coordinate) -> bool:
        """Whether an index changes along a vector."""
        if not isinstance(coordinate, tuple):
            return coordinate == self.layout.order[0]
        lowest = log2(self.vector)
        return any(
            not isinstance(b, int) and b[0] == self.layout.order[0] and b[1] < lowest for b in coordinate
        )

    def find(self, value: Value, level: int, axes: Coordinates, declare: bool) -> Expression:
        op = value.owner
        storage = self.body.tile_name(value)
        if storage is not None:
            if axes == self.identity and value.layout == self.layout:
                return Expression(self.register(storage, level), Precedence.CALL)
            return Expression(self.tile_register(storage, value, axes, level), Precedence.CALL)
        assert isinstance(op, Op)
        match op:
            case ops.MakeRange():
                return self.offset_coordinate(op, level, axes)
            case ops.Splat():
                return self.body.scalar(op.value)
            case exchange.Join():
                expression = self.joined(op, level, axes)
            case Op() if isinstance(op, VIEWS):
                ((operand, there),) = operands_of_view(op, axes, self.layout.shape)
                return self.value(operand, level, there)
            case ops.Hint():
                return self.value(op.value, level, axes)
            case SharedLoad():
                index = self.linear_index_of(op.shape, level, axes)
                return Expression(
                    f"{self.body.shared_slot(op.slot, value.type)}[{index.text}]", Precedence.CALL
                )
            case SharedGather():
                expression = self.gathered(op, level, axes)
            case ops.ArrayLoad() if value in self.vectors:
                return Expression(
                    f"{self.vectors[value]}[{self.element if level == _ELEMENT else 0}]", Precedence.CALL
                )
            case ops.ArrayLoad():
                expression = self.load(op, level, axes)
            case _:
                operands = [self.value(v, level, axes) for v in op.operands]
                expression = self.body.expressions.spell(op, operands)
        if declare and (value.name or self.uses.get(value, 0) > 1) and not expression.text.isidentifier():
            return self.declare(value, expression, level)
        return expression

    def joined(self, op: exchange.Join, level: int, axes: Coordinates) -> Expression:
        first, second = (self.value(v, level, c) for v, c in operands_of_view(op, axes, self.layout.shape))
        which = axes[-1]
        if which is None:
            return first
        if which == (1,):
            return second
        test = Expression(f"{self.position(which, level).inside(Precedence.ADD)} == 0", Precedence.EQUALITY)
        return mathlib.select(op.first.type.dtype)(test, first, second)

    def gathered(self, op: SharedGather, level: int, axes: Coordinates) -> Expression:
        index = self.value(op.index, level, axes)
        along = Expression(f"{index.inside(Precedence.AND)} & {op.shape[op.axis] - 1}", Precedence.BIT_AND)
        slot = self.body.shared_slot(op.slot, tile_type(op.element.element, op.shape))
        place = self.linear_index_of(op.shape, level, axes, {op.axis: along})
        return Expression(f"{slot}[{place.text}]", Precedence.CALL)

    def linear_index_of(
        self,
        shape: Sequence[int],
        level: int,
        axes: Coordinates,
        other: dict[int, Expression] | None = None,
    ) -> Expression:
        """Row-major index in ``shape`` of the element at ``axes``; ``other``: some dimensions' indices."""
        terms, stride = [], 1
        for dimension in reversed(range(len(shape))):
            if shape[dimension] > 1:
                position = (other or {}).get(dimension) or self.position(axes[dimension], level)
                if position.text != "0":
                    scaled = f"{position.inside(Precedence.MUL)} * {stride}"
                    terms.append(position.inside(Precedence.ADD) if stride == 1 else scaled)
            stride *= shape[dimension]
        return Expression(" + ".join(reversed(terms)) or "0", Precedence.ADD)

    def position(self, coordinate: Coordinate, level: int) -> Expression:
        """The index that a coordinate stands for."""
        if coordinate is None:
            return Expression("0")
        if isinstance(coordinate, int):
            return self.coordinate(coordinate, level)

        def source(bit: Bit) -> tuple[str, int, int] | int:
            if isinstance(bit, int):
                return bit
            axis, k = bit
            return (self.coordinate(axis, level).inside(Precedence.ATOM), k, log2(self.layout.shape[axis]))

        return Expression(assemble_bits([source(b) for b in coordinate]), Precedence.ANY)

    def offset_coordinate(self, op: ops.MakeRange, level: int, axes: Coordinates) -> Expression:
        position = self.position(axes[0], level)
        if op.start:
            position = Expression(f"{position.inside(Precedence.ADD)} + {op.start}", Precedence.ADD)
        if op.dtype.bits == 64:
            return Expression(f"{mathlib.type_name(op.dtype)}({position.text})", Precedence.CALL)
        return position

    def load(self, op: ops.ArrayLoad, level: int, axes: Coordinates) -> Expression:
        offset = self.value(op.offset, level, axes)
        element = Expression(f"{self.body.input_name(op.array)}[{offset.text}]", Precedence.CALL)
        if op.mask is None:
            return element
        mask = self.value(op.mask, level, axes)
        dtype = op.results[0].type.dtype
        if op.other is None:
            other = mathlib.literal(0.0 if dtype.is_floating() else 0, dtype)
        else:
            other = self.value(op.other, level, axes)
        return mathlib.select(dtype)(mask, element, other)

    def declare(self, value: Value, expression: Expression, level: int) -> Expression:
        writer = self.each if level == _ELEMENT else self.before
        if isinstance(value.owner, Op):
            writer.statement(value.owner.loc)
        name = self.body.names.unique(value.name or "t")
        writer.line(f"const {mathlib.type_name(value.type.dtype)} {name} = {expression.text};")
        return Expression(name)
