"""Write the conversion of a register tile from the layout threads hold it in to the one a group reads it in.

``layout.plan_conversion`` computes what has to move from the two linear maps. Same thread: registers are
renamed. Same SIMD group: shuffles between selects. Otherwise one trip through threadgroup memory at swizzled
places, in rounds where the tile is larger than that memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from enceladus.codegen import mathlib
from enceladus.codegen.bits import linear_expression
from enceladus.errors import InternalError
from enceladus.ir.core import Value
from enceladus.ir.laid_out import Blocked, Convert, Sliced, Viewed
from enceladus.ir.types import DType
from enceladus.layout import LinearLayout, plan_conversion
from enceladus.layout.conversion import Nothing, RegisterRename
from enceladus.layout.shared import SharedAccess, SharedTrip
from enceladus.layout.shuffle import SelectStage, SimdShuffle

if TYPE_CHECKING:
    from enceladus.codegen.body import BodyWriter

_LANE_BITS = 5
_ROUND_BYTES = 16384  #: threadgroup memory for one conversion; larger tiles go in rounds


@lru_cache(maxsize=1024)
def linear_layout(layout: Blocked | Sliced | Viewed) -> LinearLayout:
    """The linear map from (register, lane, SIMD group) to the element held there."""
    rank = len(layout.shape)

    def base(place: tuple[int, int] | None) -> tuple[int, ...]:
        return tuple(1 << place[1] if place is not None and place[0] == k else 0 for k in range(rank))

    places = layout.places
    threads = [base(p) for p in places.threads]
    bases = {
        "register": [base(p) for p in places.registers],
        "lane": threads[:_LANE_BITS],
        "warp": threads[_LANE_BITS:],
    }
    return LinearLayout.from_bases(bases, {f"dim{k}": size for k, size in enumerate(layout.shape)})


def plan(source: Value, target: Value) -> Nothing | RegisterRename | SimdShuffle | SharedTrip:
    """What has to move between the layouts of two values."""
    size = source.type.dtype.itemsize
    # Elements travel one by one: the address of a vector in threadgroup memory is not known to be aligned.
    return plan_conversion(linear_layout(source.layout), linear_layout(target.layout), size, vectors=False)


class ConversionWriter:
    """Writes one :class:`~enceladus.ir.laid_out.Convert` into ``body.writer``."""

    def __init__(self, body: BodyWriter, op: Convert):
        self.body = body
        self.out = body.writer
        self.value = op.value
        self.result = op.results[0]
        self.dtype: DType = op.value.type.dtype
        self.loc = op.loc

    def write(self) -> None:
        name = self.body.tile_name(self.value)
        if name is None:
            raise InternalError(f"the tile {self.value!r} to convert was never made")
        found = plan(self.value, self.result)
        target = self.body.declare_tile(self.result)
        match found:
            case Nothing():
                self.rename(target, name, range(self.result.layout.registers))
            case RegisterRename():
                self.rename(target, name, found.sources)
            case SimdShuffle():
                self.shuffle(target, name, found)
            case SharedTrip():
                self.trip(target, name, found)

    def at(self, name: str, value: Value, index: int | str) -> str:
        return f"{name}[{index}]" if value.layout.registers > 1 else name

    def rename(self, target: str, name: str, sources: Sequence[int]) -> None:
        registers = len(sources)
        if registers == 1:
            self.out.line(f"{target} = {self.at(name, self.value, sources[0])};")
            return
        k = self.body.names.unique("k")
        columns = [sources[1 << bit] for bit in range(registers.bit_length() - 1)]
        index = linear_expression(k, columns)
        self.out.line("#pragma unroll")
        source = self.at(name, self.value, index)
        self.out.line(f"for (int {k} = 0; {k} < {registers}; ++{k}) {target}[{k}] = {source};")

    # ------------------------------------------------------------------------------ shuffles

    def shuffle(self, target: str, name: str, found: SimdShuffle) -> None:
        """Selects, one shuffle a step, selects; every register index is a constant."""
        type = mathlib.type_name(self.dtype)
        registers = 1 << len(found.src.columns_of("register"))
        held = [self.at(name, self.value, k) for k in range(registers)]
        held = self.select(held, found.select_in, type)
        thread = self.body.thread()
        lane = linear_expression(f"({thread} & 31)", found.lane_columns)
        warp = linear_expression(f"({thread} >> {_LANE_BITS})", found.warp_columns)
        slots = []
        for step in found.steps:
            value = held[step.register]
            if found.moves(step):
                if found.is_xor and not any(found.warp_columns):
                    value = self.call("simd_shuffle_xor", value, str(step.lane_xor))
                else:
                    parts = [p for p in (lane, warp, str(step.lane_xor)) if p != "0"]
                    source = " ^ ".join(f"({p})" if " " in p else p for p in parts) or "0"
                    value = self.call("simd_shuffle", value, source)
            slot = self.body.names.unique("moved")
            self.out.line(f"const {type} {slot} = {value};")
            slots.append(slot)
        slots = self.select(slots, found.select_out, type)
        for k, number in enumerate(found.rename):
            self.out.line(f"{self.at(target, self.result, k)} = {slots[number]};")

    def select(self, held: list[str], stages: Sequence[SelectStage], type: str) -> list[str]:
        for stage in stages:
            mask = stage.lane_mask | stage.warp_mask << _LANE_BITS
            odd = f"({self.body.thread()} & {mask}) != 0"
            if mask.bit_count() > 1:
                odd = f"(popcount({self.body.thread()} & {mask}) & 1) != 0"
            swap = self.body.names.unique("swap")
            self.out.line(f"const bool {swap} = {odd};")
            fresh = []
            for k, own in enumerate(held):
                name = self.body.names.unique("picked")
                other = held[k ^ stage.register_xor]
                self.out.line(f"const {type} {name} = {swap} ? {other} : {own};")
                fresh.append(name)
            held = fresh
        return held

    def call(self, function: str, value: str, argument: str) -> str:
        return shuffled(function, value, argument, self.dtype)

    # ------------------------------------------------------------------- threadgroup memory

    def trip(self, target: str, name: str, found: SharedTrip) -> None:
        size = self.dtype.itemsize
        rounds = max(1, found.elements * size // _ROUND_BYTES)
        count = found.elements // rounds
        region = self.body.exchange_region(self.dtype, count, self.loc)
        for number in range(rounds):
            if number:
                self.body.barrier()  # the round before has been read
            window = range(number * count, (number + 1) * count) if rounds > 1 else None
            self.access(region.name, found.store, self.value, name, window, is_store=True)
            self.body.barrier()
            self.access(region.name, found.load, self.result, target, window, is_store=False)
        region.release()

    def access(
        self,
        region: str,
        side: SharedAccess,
        value: Value,
        name: str,
        window: range | None,
        *,
        is_store: bool,
    ) -> None:
        """One side of the trip: a loop over the registers, each at its own place, or those inside a round."""
        out, thread = self.out, self.body.thread()
        guard = side.lane_guard | side.warp_guard << _LANE_BITS
        if guard and is_store:
            out.open(f"if (({thread} & {guard}) == 0)")
        offsets = side.offsets
        columns = (*offsets.columns_of("lane"), *offsets.columns_of("warp"))
        place = self.body.names.unique("place")
        out.line(f"const int {place} = {linear_expression(thread, columns)};")
        registers = value.layout.registers
        k = ""
        if registers > 1:
            k = self.body.names.unique("k")
            out.line("#pragma unroll")
            out.open(f"for (int {k} = 0; {k} < {registers}; ++{k})")
        moved = linear_expression(k, offsets.columns_of("register")) if k else "0"
        index = place
        if moved != "0":
            index = f"{place} ^ ({moved})" if " " in moved else f"{place} ^ {moved}"
        element = self.at(name, value, k)
        guarded = ""
        if window is not None:
            at = self.body.names.unique("at")
            out.line(f"const int {at} = ({index}) - {window.start};")
            guarded, index = f"if ({at} >= 0 && {at} < {len(window)}) ", at
        slot = f"{region}[{index}]"
        out.line(f"{guarded}{slot} = {element};" if is_store else f"{guarded}{element} = {slot};")
        if k:
            out.close()
        if guard and is_store:
            out.close()


def shuffled(function: str, value: str, argument: str, dtype: DType) -> str:
    """A call of a SIMD-group function that moves ``value`` between lanes, for every element type."""
    argument = f"ushort({argument})"
    if dtype.is_bool():
        return f"bool({function}(uint({value}), {argument}))"
    if dtype.bits == 64:
        return f"as_type<{mathlib.type_name(dtype)}>({function}(as_type<uint2>({value}), {argument}))"
    return f"{function}({value}, {argument})"
