"""The emitter that computes: a builtin called inside a kernel returns values that carry their data."""

from __future__ import annotations

from enceladus.errors import Location
from enceladus.interpreter.arrays import Data
from enceladus.interpreter.program import Program, execute
from enceladus.ir.core import Op, Value
from enceladus.ir.types import TileType, int32, int64


class Evaluated(Value):
    """A value with its ``data``: an array of ``type.shape``, or :class:`~.arrays.Pointers`."""

    __slots__ = ("data",)

    def __init__(self, type: TileType, data: Data, name: str = ""):
        super().__init__(type, None, name)
        self.data = data


def _data_of(value: Value) -> Data:
    assert isinstance(value, Evaluated)
    return value.data


class NumpyEmitter:
    """Performs each operation at once for one program at a time: set ``program.index`` between them."""

    __slots__ = ("index_dtype", "location", "num_warps", "program")

    def __init__(self, program: Program, wide: bool = False, num_warps: int = 4):
        self.program = program
        self.location: Location | None = None
        self.index_dtype = int64 if wide else int32
        self.num_warps = num_warps

    def emit(self, op: Op) -> tuple[Value, ...]:
        results = execute(op, _data_of, self.program)
        op.loc = self.location
        op.results = tuple(Evaluated(t, x) for t, x in zip(op.result_types(), results, strict=True))
        return op.results
