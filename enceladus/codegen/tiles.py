"""Where register tiles live: which of them share one array.

A loop's initial value, carried value and result, and the final value where nothing reads the old one after it
is made, are one array; so are a branch's result and the values its arms yield. Everything else is copied.
"""

from __future__ import annotations

from enceladus.ir import ops
from enceladus.ir.core import Block, Function, Value
from enceladus.ir.laid_out import TileGroup


class RegisterTiles:
    """Union of the register tiles of a function into arrays."""

    def __init__(self, function: Function, uses: dict[Value, int]):
        self._uses = uses
        self._parent: dict[Value, Value] = {}
        self._names: dict[Value, str] = {}
        self._block(function.body)

    def _block(self, block: Block) -> None:
        makers = {v: op for op in block.ops for v in op.results if not v.type.is_scalar}
        for op in block.ops:
            for nested in op.blocks if not isinstance(op, TileGroup) else ():
                self._block(nested)
            if isinstance(op, ops.For):
                finals = op.body.terminator.operands
                for value, initial, final, result in zip(
                    op.body.arguments[1:], op.initial, finals, op.results, strict=True
                ):
                    if value.type.is_scalar:
                        continue
                    self._unite(value, result)
                    if self._uses.get(initial, 0) == 1 and initial in makers:
                        self._unite(value, initial)
                    if self._may_overwrite(op.body, value, final):
                        self._unite(value, final)
            elif isinstance(op, ops.If):
                for nested in op.blocks:
                    made = {v for o in nested.ops for v in o.results}
                    for result, value in zip(op.results, nested.terminator.operands, strict=True):
                        if not value.type.is_scalar and value in made and self._uses.get(value, 0) == 1:
                            self._unite(result, value)

    def _may_overwrite(self, block: Block, value: Value, final: Value) -> bool:
        """Whether ``final`` can be made in place of ``value``: nobody reads the old value afterwards.

        The group that makes ``final`` may read ``value``: it reads an element before it writes that element.
        """
        if final is value:
            return True
        if self._uses.get(final, 0) != 1:
            return False
        made = next((k for k, op in enumerate(block.ops) if final in op.results), None)
        if made is None:
            return False
        if any(value in inner.operands for op in block.ops[made + 1 :] for inner in op.walk()):
            return False
        maker = block.ops[made]
        if isinstance(maker, TileGroup):
            return True
        if not isinstance(maker, ops.If):
            return False  # an inner loop's initial value would be written where others still read
        index = maker.results.index(final)
        return all(self._may_overwrite(arm, value, arm.terminator.operands[index]) for arm in maker.blocks)

    def _unite(self, a: Value, b: Value) -> None:
        self._parent[self.root(a)] = self.root(b)

    def root(self, value: Value) -> Value:
        while (up := self._parent.get(value, value)) is not value:
            value = up
        return value

    def same(self, a: Value, b: Value) -> bool:
        """Whether two register tiles are one array."""
        return self.root(a) is self.root(b)

    def registers(self, value: Value) -> int:
        """Elements of ``value`` that each thread holds."""
        count: int = value.layout.registers
        return count

    def name(self, value: Value) -> str | None:
        """The array's name, or ``None`` before it is declared."""
        return self._names.get(self.root(value))

    def set_name(self, value: Value, name: str) -> None:
        self._names[self.root(value)] = name

    def wanted_name(self, value: Value) -> str:
        return value.name or next((v.name for v in self._parent if v.name and self.same(v, value)), "tile")
