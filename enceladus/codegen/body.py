"""Write the body of a kernel from laid-out tile IR.

A walk that takes no decisions: layouts, vector widths, barriers and groups are in the IR. Scalars are the
same for all threads; a scalar with a Python name, or used twice, becomes a constant, others are written where
they are used. Register tiles are small arrays that each thread keeps; those that flow into one another
(a loop's initial, carried and final value, a branch's results) share one array where that is safe.
"""

from __future__ import annotations

import re
from contextlib import nullcontext

from enceladus.codegen import atomics, mathlib
from enceladus.codegen.atomic_helpers import AtomicHelpers
from enceladus.codegen.conversion import ConversionWriter
from enceladus.codegen.exchange_helpers import ExchangeHelpers
from enceladus.codegen.expressions import Expressions
from enceladus.codegen.group import GroupWriter
from enceladus.codegen.histogram import HistogramWriter
from enceladus.codegen.mathlib import Expression, Precedence
from enceladus.codegen.memory_helpers import MemoryHelpers
from enceladus.codegen.names import Names
from enceladus.codegen.reduction import ReductionWriter
from enceladus.codegen.scan import ScanWriter
from enceladus.codegen.sorting import SortWriter
from enceladus.codegen.threadgroup_memory import Region, ThreadgroupMemory
from enceladus.codegen.tiles import RegisterTiles
from enceladus.codegen.writer import Writer
from enceladus.errors import InternalError, Location
from enceladus.ir import exchange, ops
from enceladus.ir.core import Block, Function, Op, Value
from enceladus.ir.laid_out import Convert, TileGroup
from enceladus.ir.types import DType, TileType, float32, int64, uint32, uint64
from enceladus.passes.affine import uses_of
from enceladus.passes.updates import Manner

_AXES = "xyz"


def _axis(axis: int) -> str:
    """The last part of the name of a grid axis's variable; those of a batch follow the kernel's own three."""
    return _AXES[axis] if axis < len(_AXES) else f"batch{axis - len(_AXES)}"


def grid_names(axes: int) -> list[str]:
    """What a body that computes its program ids declares; to be taken before any other name."""
    return ["group", "program", *(f"program_{_axis(axis)}" for axis in range(axes))]


class BodyWriter:
    """State of one body: names, scalars seen so far, register tiles, and the writer."""

    def __init__(
        self,
        function: Function,
        expressions: Expressions,
        inputs: dict[Value, str],
        outputs: dict[Value, str],
        marks: dict[Value, str],
        words: dict[Value, int],
        scalars_name: str,
        names: Names,
        grid_words: int | None = None,
        updates: dict[Value, Manner] | None = None,
    ):
        self.function = function
        self.expressions = expressions
        self.inputs, self.outputs, self.marks = inputs, outputs, marks
        self.words, self.scalars_name, self.grid_words = words, scalars_name, grid_words
        self.grid_axes = len(_AXES)
        self.is_linear = True  #: programs are numbered in one sequence (if ``grid_words`` is given)
        self.names = names
        self.writer = Writer(names.is_harmless)
        self.writer.depth = 1
        self.uses = uses_of(function.body)
        self.tiles = RegisterTiles(function, self.uses)
        self.scalars: dict[Value, Expression] = {}
        self.slots: dict[int, str] = {}
        self.memory = MemoryHelpers()
        self.atomics = AtomicHelpers()
        self.exchanges = ExchangeHelpers()
        self.updates = updates or {}  #: how arrays are updated atomically
        self._own_slots = 0
        self._thread = ""
        self.preamble: list[str] = []
        self.loop_depth = 0
        self.shared = ThreadgroupMemory()
        self.loc: Location | None = None  #: of the operation that is being written

    # -------------------------------------------------------------------- what groups ask for

    def thread(self) -> str:
        """The name of this thread's index in its threadgroup."""
        if not self._thread:
            self._thread = self.names.unique("tid", outermost=True)
        return self._thread

    def input_name(self, array: Value) -> str:
        return self.inputs[array]

    def output_name(self, array: Value) -> str:
        return self.outputs[array]

    def written_names(self, array: Value) -> list[str]:
        """The array that marks written elements, where the launch merges with old contents."""
        return [self.marks[array]] if array in self.marks else []

    def shared_slot(self, slot: int, type: TileType) -> str:
        """The name of a threadgroup array for tiles of ``type``."""
        if slot not in self.slots:
            self.slots[slot] = self.names.unique("shared", outermost=True)
            self.shared.take(self.slots[slot], type.dtype, type.numel, self.loc)
        return self.slots[slot]

    def exchange_region(self, dtype: DType, count: int, loc: Location | None) -> Region:
        """Threadgroup memory that no thread still reads: to write, read behind a barrier, and release."""
        if self.loop_depth:  # the previous iteration may still be reading
            self.barrier()
        return self.shared.take(self.names.unique("exchange", outermost=True), dtype, count, loc)

    def barrier(self) -> None:
        """Every thread sees what the others wrote to threadgroup memory."""
        self.writer.line("threadgroup_barrier(mem_flags::mem_threadgroup);")
        self.shared.barrier()

    def new_slot(self) -> int:
        """A slot for ``shared_slot`` that nobody else uses."""
        self._own_slots += 1
        return -self._own_slots

    def partials(self, dtype: DType, count: int) -> tuple[str, str]:
        """A threadgroup array for a reduction, and the name of the offset to add to its indices.

        In a loop the array is doubled and the two halves take turns, so that one barrier a trip suffices; the
        offset is ``""`` elsewhere.
        """
        name = self.names.unique("partials", outermost=True)
        turn = self.names.unique("turn", outermost=True) if self.loop_depth else ""
        region = self.shared.take(name, dtype, 2 * count if turn else count, self.loc)
        region.barriers_left = 2  # read once, behind the first
        if turn:
            self.preamble.append(f"int {turn} = 0;")
        return name, turn

    def tile_name(self, value: Value) -> str | None:
        return self.tiles.name(value)

    def declare_tile(self, value: Value) -> str:
        """Declare the register tile ``value`` lives in, unless that is done, and return its name."""
        name = self.tiles.name(value)
        if name is None:
            name = self.names.unique(self.tiles.wanted_name(value))
            self.tiles.set_name(value, name)
            count = self.tiles.registers(value)
            size = f"[{count}]" if count > 1 else ""
            self.writer.line(f"{mathlib.type_name(value.type.dtype)} {name}{size};")
        return name

    def holds_register_tiles(self, group: TileGroup) -> bool:
        """Whether the group indexes register tiles, so that its loop must be unrolled."""
        inner = {v for op in group.body.ops for v in op.results}
        return bool(group.results) or any(
            not v.type.is_scalar and not v.type.element.is_ptr() and v not in inner
            for op in group.body.ops
            for v in op.operands
        )

    def scalar(self, value: Value) -> Expression:
        """The expression of a scalar."""
        known = self.scalars.get(value)
        if known is None:
            if value in self.words:
                known = self.argument(value)
            else:
                raise InternalError(f"scalar {value!r} is used before it is written")
            self.scalars[value] = known
        return known

    # ------------------------------------------------------------------------------ scalars

    def argument(self, value: Value) -> Expression:
        """Unpack a scalar argument at the top of the body."""
        name = self.names.unique(value.name, outermost=True)
        dtype = value.type.dtype
        text = _unpack(self.scalars_name, self.words[value], dtype)
        self.preamble.append(f"const {mathlib.type_name(dtype)} {name} = {text};")
        return Expression(name)

    def scalar_op(self, op: Op) -> None:
        value = op.results[0]
        expression = self.scalar_expression(op)
        used = self.uses.get(value, 0)
        trivial = isinstance(op, ops.Constant) or expression.precedence is Precedence.ATOM
        if trivial or (used <= 1 and not value.name):
            self.scalars[value] = expression
            return
        self.writer.statement(op.loc)
        name = self.names.unique(value.name or self.hint(value))
        self.writer.line(f"const {mathlib.type_name(value.type.dtype)} {name} = {expression.text};")
        self.scalars[value] = Expression(name)

    def hint(self, value: Value) -> str:
        """A name for an unnamed scalar: after what it is."""
        match value.owner:
            case ops.ProgramId():
                return "pid"
            case ops.NumPrograms():
                return "programs"
            case ops.Binary() if value.type.dtype.is_int():
                return "start"
        return "t"

    def scalar_expression(self, op: Op) -> Expression:
        match op:
            case ops.Constant():
                return mathlib.literal(op.value, op.dtype)
            case ops.ProgramId():
                return self.program_id(op.axis, op.dtype)
            case ops.NumPrograms():
                return self.num_programs(op.axis, op.dtype)
            case ops.Hint():
                return self.scalar(op.value)
            case ops.IsAligned():
                self.memory.alignment = True
                pointer = self.inputs.get(op.array) or self.outputs[op.array]
                offset = self.scalar(op.offset)
                address = pointer if offset.text == "0" else f"{pointer} + {offset.inside(Precedence.ADD)}"
                return Expression(f"enceladus::is_aligned<{op.bytes}>({address})", Precedence.CALL)
            case ops.ArrayLoad():
                return self.scalar_load(op)
        return self.expressions.spell(op, [self.scalar(v) for v in op.operands])

    def program_id(self, axis: int, dtype: DType) -> Expression:
        if self.grid_words is not None:
            return Expression(f"{mathlib.type_name(dtype)}(program_{_axis(axis)})", Precedence.CALL)
        text = f"{mathlib.type_name(dtype)}(threadgroup_position_in_grid.{_AXES[axis]})"
        return Expression(text, Precedence.CALL)

    def num_programs(self, axis: int, dtype: DType) -> Expression:
        if self.grid_words is not None:
            word = f"{self.scalars_name}[{self.grid_words + axis}]"
            return Expression(f"{mathlib.type_name(dtype)}({word})", Precedence.CALL)
        text = f"{mathlib.type_name(dtype)}(threadgroups_per_grid.{_AXES[axis]})"
        return Expression(text, Precedence.CALL)

    def scalar_load(self, op: ops.ArrayLoad) -> Expression:
        element = Expression(f"{self.inputs[op.array]}[{self.scalar(op.offset).text}]", Precedence.CALL)
        if op.mask is None:
            return element
        dtype = op.results[0].type.dtype
        zero = mathlib.literal(0.0 if dtype.is_floating() else 0, dtype)
        other = zero if op.other is None else self.scalar(op.other)
        return mathlib.select(dtype)(self.scalar(op.mask), element, other)

    # ------------------------------------------------------------------------------ blocks

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.loc = op.loc
            match op:
                case TileGroup():
                    self.group(op)
                case exchange.ArrayAtomic() | exchange.ArrayAtomicCas():
                    atomics.update_scalar(self, op)
                case exchange.Reduce():
                    ReductionWriter(self, op).write()
                case Convert():
                    ConversionWriter(self, op).write()
                case exchange.Pick():
                    self.pick(op)
                case exchange.Scan():
                    ScanWriter(self, op).write()
                case exchange.Sort():
                    SortWriter(self, op).write()
                case exchange.Histogram():
                    HistogramWriter(self, op).write()
                case ops.For():
                    self.loop(op)
                case ops.If():
                    self.branch(op)
                case ops.ArrayStore():
                    self.scalar_store(op)
                case ops.Barrier():
                    self.writer.line(
                        "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);"
                    )
                    self.shared.barrier()
                case ops.Yield() | ops.Assume():
                    pass
                case _:
                    self.scalar_op(op)

    def group(self, op: TileGroup) -> None:
        destinations = [self.declare_tile(v) for v in op.results]
        # Without braces of its own, the group's names stay taken in the block around it.
        scope = self.names.scope() if GroupWriter.opens_block(op) else nullcontext()
        with scope:
            GroupWriter(self, op, destinations).write()
        atomics.hand_to_copies(self, op)

    def pick(self, op: exchange.Pick) -> None:
        """A scalar out of a tile that every thread holds whole."""
        name = self.declare_tile(op.value)
        element = f"{name}[{op.index}]" if op.value.layout.registers > 1 else name
        self.scalars[op.results[0]] = Expression(element, Precedence.CALL)

    def scalar_store(self, op: ops.ArrayStore) -> None:
        self.writer.statement(op.loc)
        conditions = [f"{self.thread()} == 0"]
        if op.mask is not None:
            conditions.append(self.scalar(op.mask).inside(Precedence.AND))
        offset = self.scalar(op.offset).text
        targets = [f"{name}[{offset}] = 1;" for name in self.written_names(op.array)]
        targets.append(f"{self.outputs[op.array]}[{offset}] = {self.scalar(op.value).text};")
        condition = " && ".join(conditions)
        if len(targets) == 1:
            self.writer.line(f"if ({condition}) {targets[0]}")
            return
        self.writer.open(f"if ({condition})")
        for target in targets:
            self.writer.line(target)
        self.writer.close()

    def loop(self, op: ops.For) -> None:
        out = self.writer
        induction, *carried = op.body.arguments
        for value, initial, result in zip(carried, op.initial, op.results, strict=True):
            if value.type.is_scalar:
                name = self.names.unique(value.name or "carried")
                out.line(f"{mathlib.type_name(value.type.dtype)} {name} = {self.scalar(initial).text};")
                self.scalars[value] = self.scalars[result] = Expression(name)
            elif not self.tiles.same(value, initial):
                self.copy_tile(self.declare_tile(value), initial)
        out.statement(op.loc)
        lower, upper, step = self.scalar(op.lower), self.scalar(op.upper), self.scalar(op.step)
        dtype = induction.type.dtype
        name = self.names.unique(induction.name or "k")
        self.scalars[induction] = Expression(name)
        counter = name
        steps_safely = self.may_step_past(op)
        if dtype.bits < 64 and not steps_safely:
            # Stepping past the upper bound could leave 32 bits, so the loop counts in 64.
            counter = self.names.unique(f"{name}_count")
            dtype = int64
            steps_safely = True
        least, most = self.expressions.intervals.of(op.step)
        limit = upper.inside(Precedence.ADD)
        if least <= 0 <= most and least != most:
            by = step.inside(Precedence.ADD)
            test = f"{by} > 0 ? {counter} < {limit} : {by} < 0 && {counter} > {limit}"
        else:
            test = f"{counter} {'<' if least > 0 else '>'} {limit}"
        advance = f"++{counter}" if least == most == 1 else f"{counter} += {step.text}"
        start = f"{mathlib.type_name(dtype)} {counter} = {lower.text}"
        out.open(f"for ({start}; {test}; {advance})" if steps_safely else f"for ({start}; {test};)")
        with self.names.scope():
            if counter != name:
                exact = mathlib.type_name(induction.type.dtype)
                out.line(f"const {exact} {name} = {exact}({counter});")
            self.loop_depth += 1
            self.shared.enter(is_loop=True)
            self.block(op.body)
            self.shared.leave()
            self.loop_depth -= 1
            self.next_iteration(carried, op.body.terminator.operands)
            if not steps_safely:
                # Nothing is wider than 64 bits: stop when the bound is no more than a step away.
                up = f"uint64_t({upper.text}) - uint64_t({counter}) <= uint64_t({step.text})"
                down = f"uint64_t({counter}) - uint64_t({upper.text}) <= -uint64_t({step.text})"
                either = f"{step.inside(Precedence.ADD)} > 0 ? {up} : {down}"
                last = up if least > 0 else down if most < 0 else either
                out.line(f"if ({last}) break;")
                out.line(f"{advance};")
        out.close()

    def may_step_past(self, op: ops.For) -> bool:
        """Whether the induction variable may go one step past the bound without overflow."""
        intervals = self.expressions.intervals
        (low, high), (least, most) = intervals.of(op.upper), intervals.of(op.step)
        unit = least == most and abs(least) == 1  # stops at the bound itself
        dtype = op.upper.type.dtype
        return unit or (high + max(most, 0) <= dtype.maximum and low + min(least, 0) >= dtype.minimum)

    def next_iteration(self, carried: list[Value], finals: tuple[Value, ...]) -> None:
        """Assign the next carried values, all from the present ones."""
        scalars, tiles = [], []
        for value, final in zip(carried, finals, strict=True):
            if value.type.is_scalar:
                target, text = self.scalars[value].text, self.scalar(final).text
                if target != text:
                    scalars.append((target, text, value.type.dtype))
            elif not self.tiles.same(value, final):
                tiles.append((value, final))
        self.parallel_assign(scalars)
        sources = {self.tiles.root(final) for _, final in tiles}
        pending = []
        for value, final in tiles:
            name = self.tiles.name(value)
            assert name is not None
            if self.tiles.root(value) in sources:  # another value still needs the old contents
                spare = self.names.unique(f"{name}_next")
                count = self.tiles.registers(value)
                size = f"[{count}]" if count > 1 else ""
                self.writer.line(f"{mathlib.type_name(value.type.dtype)} {spare}{size};")
                self.copy_tile(spare, final)
                pending.append((name, spare, count))
            else:
                self.copy_tile(name, final)
        for name, spare, count in pending:
            self.copy_registers(name, spare, count)

    def parallel_assign(self, assignments: list[tuple[str, str, DType]]) -> None:
        targets = [target for target, _, _ in assignments]
        clash = any(
            re.search(rf"\b{re.escape(target)}\b", text)
            for k, target in enumerate(targets)
            for _, text, _ in assignments[k + 1 :]
        )
        if clash:
            fresh = []
            for target, text, dtype in assignments:
                name = self.names.unique(f"next_{target}")
                self.writer.line(f"const {mathlib.type_name(dtype)} {name} = {text};")
                fresh.append((target, name, dtype))
            assignments = fresh
        for target, text, _ in assignments:
            self.writer.line(f"{target} = {text};")

    def copy_tile(self, name: str, source: Value) -> None:
        other = self.tiles.name(source)
        if other is None:
            raise InternalError(f"register tile {source!r} was never made")
        self.copy_registers(name, other, self.tiles.registers(source))

    def copy_registers(self, name: str, other: str, count: int) -> None:
        if count == 1:
            self.writer.line(f"{name} = {other};")
            return
        index = self.names.unique("k")
        self.writer.line("#pragma unroll")
        self.writer.line(
            f"for (int {index} = 0; {index} < {count}; ++{index}) {name}[{index}] = {other}[{index}];"
        )

    def branch(self, op: ops.If) -> None:
        out = self.writer
        for result in op.results:
            if result.type.is_scalar:
                name = self.names.unique(result.name or "chosen")
                out.line(f"{mathlib.type_name(result.type.dtype)} {name};")
                self.scalars[result] = Expression(name)
            else:
                self.declare_tile(result)
        if not any(isinstance(o, TileGroup) for o in op.then_block.ops) or not op.else_block.ops:
            out.statement(op.loc)
        out.open(f"if ({self.scalar(op.condition).text})")
        self.arm(op, op.then_block)
        if len(op.else_block.ops) > 1 or op.results:
            out.otherwise()
            self.arm(op, op.else_block)
        out.close()

    def arm(self, op: ops.If, block: Block) -> None:
        with self.names.scope():
            self.shared.enter(is_loop=False)
            self.block(block)
            self.shared.leave()
            self.hand_over(op, block)

    def hand_over(self, op: ops.If, block: Block) -> None:
        """Assign what an arm of a branch yields to the branch's results."""
        for result, value in zip(op.results, block.terminator.operands, strict=True):
            if result.type.is_scalar:
                self.writer.line(f"{self.scalars[result].text} = {self.scalar(value).text};")
            elif not self.tiles.same(result, value):
                self.copy_tile(self.declare_tile(result), value)

    # -------------------------------------------------------------------------- whole body

    def text(self) -> str:
        """The finished body."""
        self.block(self.function.body)
        head = Writer(self.names.is_harmless)
        head.depth = 1
        self.memory.arena = self.shared.is_shared
        for line in self.shared.declarations(self.names.unique("arena", outermost=True)):
            head.line(line)
        if self._thread:
            head.line(f"const int {self._thread} = int(thread_index_in_threadgroup);")
        if self.grid_words is not None:
            self.write_grid(head)
        for line in self.preamble:
            head.line(line)
        return head.text() + self.writer.text()

    def write_grid(self, head: Writer) -> None:
        """Program ids from the scalars that carry the grid.

        Either all axes are numbered in one sequence, for grids larger than MLX's limits; or the axes of a
        batch are folded into the last of MLX's axes, in 32 bits.
        """
        assert self.grid_words is not None
        sizes = [f"uint({self.scalars_name}[{self.grid_words + axis}])" for axis in range(self.grid_axes)]
        head.line("const uint3 group = threadgroup_position_in_grid;")
        first, rest = 0, "program"
        if self.is_linear:
            head.line("const ulong program = group.x + ulong(group.y) * threadgroups_per_grid.x;")
            head.line(f"if (program >= ulong({sizes[0]}) * {' * '.join(sizes[1:])}) return;")
        else:
            first, rest = 2, "group.z"
            head.line("const uint program_x = group.x, program_y = group.y;")
        passed: list[str] = []
        for axis in range(first, self.grid_axes):
            index = rest
            if len(passed) == 1:
                index += f" / {passed[0]}"
            elif passed:
                index += f" / ({' * '.join(passed)})"
            if axis < self.grid_axes - 1:
                index += f" % {sizes[axis]}"
            head.line(f"const uint program_{_axis(axis)} = uint({index});")
            # The product of several sizes may need 64 bits where programs are numbered in one sequence.
            passed.append(f"ulong({sizes[axis]})" if self.is_linear and not passed else sizes[axis])


def _unpack(scalars: str, word: int, dtype: DType) -> str:
    """A number from the packed 32-bit words."""
    low = f"{scalars}[{word}]"
    if dtype in (int64, uint64):
        both = f"ulong(uint({scalars}[{word + 1}])) << 32 | uint({low})"
        return both if dtype is uint64 else f"int64_t({both})"
    if dtype is float32:
        return f"as_type<float>({low})"
    if dtype.is_bool():
        return f"{low} != 0"
    return f"uint({low})" if dtype is uint32 else low
