"""Bring together what two paths of a run-time branch left in a variable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from enceladus.frontend.frame import Frame
from enceladus.frontend.values import (
    common_number_dtype,
    describe,
    is_number,
    is_tensor,
    item_name,
    number_fits,
    rebuild,
    same_constant,
    tensor,
    tile_hint,
)
from enceladus.ir.core import Block, Value
from enceladus.ir.ops import Select
from enceladus.ir.types import DType
from enceladus.language import semantic


class Mismatch(Exception):
    """Two paths leave values that cannot be one. ``reason`` completes "'x' …"."""

    def __init__(self, reason: str, hint: str):
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Result:
    """In a template: the place of the branch's result number ``index``."""

    index: int


class Join:
    """Collects the values that the two blocks of a branch hand over.

    For each variable, :meth:`add` returns a *template*: the value itself where both paths agree, a
    :class:`Result`, or a tuple of templates. After the operation exists, :meth:`finish` fills it in.

    ``sides`` says in errors what the two paths are called.
    """

    def __init__(self, frame: Frame, node: Any, then_block: Block, else_block: Block, sides: tuple[str, str]):
        self.frame = frame
        self.node = node
        self.blocks = (then_block, else_block)
        self.sides = sides
        self.then_values: list[Value] = []
        self.else_values: list[Value] = []
        self.names: list[str] = []

    def add(self, name: str, a: Any, b: Any) -> Any:
        """Merge ``a`` (first path) and ``b`` (second path) of the variable ``name``.

        Raises :class:`Mismatch` where the two cannot be one value; then nothing was collected.
        """
        count = len(self.names)
        try:
            return self._add(name, a, b)
        except Mismatch:
            del self.then_values[count:], self.else_values[count:], self.names[count:]
            raise

    def _add(self, name: str, a: Any, b: Any) -> Any:
        if same_constant(a, b):
            return a
        if isinstance(a, tuple) and isinstance(b, tuple) and type(a) is type(b) and len(a) == len(b):
            names = [item_name(name, index, a) for index in range(len(a))]
            return rebuild(a, [self._add(*each) for each in zip(names, a, b, strict=True)])
        if is_tensor(a) and is_tensor(b):
            if a.value.type != b.value.type:
                raise self._mismatch(name, a, b)
            if a.value is b.value:
                return a
            return self._result(name, a.value, b.value)
        if is_tensor(a) and is_number(b):
            return self._result(name, a.value, self._number(1, b, self._scalar_dtype(name, a, b, a, b)))
        if is_number(a) and is_tensor(b):
            return self._result(name, self._number(0, a, self._scalar_dtype(name, b, a, a, b)), b.value)
        if is_number(a) and is_number(b):
            dtype = common_number_dtype(a, b)
            if dtype is None:
                raise self._mismatch(name, a, b)
            return self._result(name, self._number(0, a, dtype), self._number(1, b, dtype))
        raise self._mismatch(name, a, b)

    def select(self, condition: Value) -> tuple[Value, ...]:
        """Choose between the collected scalars instead of branching."""
        emit = self.frame.emitter.emit
        pairs = zip(self.then_values, self.else_values, strict=True)
        return tuple([emit(Select(condition, a, b))[0] for a, b in pairs])

    def finish(self, template: Any, results: tuple[Value, ...]) -> Any:
        """The template with results in their places; they get the variables' names."""
        if type(template) is Result:
            value = results[template.index]
            value.name = value.name or self.names[template.index]
            return tensor(value)
        if isinstance(template, tuple):
            return rebuild(template, [self.finish(item, results) for item in template])
        return template

    def _result(self, name: str, a: Value, b: Value) -> Result:
        self.then_values.append(a)
        self.else_values.append(b)
        self.names.append(name)
        return Result(len(self.names) - 1)

    def _number(self, side: int, number: Any, dtype: DType) -> Value:
        with self.frame.emitter.inside(self.blocks[side]):
            return self.frame.apply(self.node, semantic.materialize, number, dtype)

    def _scalar_dtype(self, name: str, tile: tensor, number: Any, a: Any, b: Any) -> DType:
        """The type of ``tile`` if it is a scalar that ``number`` can be; ``a``, ``b`` are for the error."""
        type_ = tile.value.type
        if not type_.is_scalar or type_.element.is_ptr() or not number_fits(number, type_.dtype):
            raise self._mismatch(name, a, b)
        return type_.dtype

    def _mismatch(self, name: str, a: Any, b: Any) -> Mismatch:
        reason = f"is {describe(a)} {self.sides[0]} and {describe(b)} {self.sides[1]}"
        return Mismatch(reason, mismatch_hint(name or "x", a, b))


def mismatch_hint(name: str, a: Any, b: Any) -> str:
    """What to write when ``a`` and ``b`` meet in the variable ``name``."""
    tiles = [x for x in (a, b) if is_tensor(x)]
    if len(tiles) == 2:
        shapes = {t.value.type.shape for t in tiles}
        if len(shapes) == 1:
            return f"make the types equal, for example with .to(tl.{tiles[0].value.type.element})"
        largest = max((t.value.type for t in tiles), key=lambda t: t.numel)
        return "make the shapes equal: " + tile_hint(name, largest)
    if tiles and is_number(b if is_tensor(a) else a):
        return tile_hint(name, tiles[0].value.type)
    if tiles:
        return "use a number or a tile on both paths"
    return "only numbers and tiles can depend on a run-time condition; use a tl.constexpr condition instead"
