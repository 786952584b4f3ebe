"""Threadgroup memory of one kernel: regions with live ranges, dealt out of one arena.

A region is taken, written, read behind a barrier, and released. Its memory can serve again once a barrier
stands behind its last read: then no thread can still be reading. Inside a loop nothing serves twice, because
the next time round comes back to the first region; a barrier inside a branch does not count behind it.

Small kernels share nothing and declare arrays, which reads better; else all regions are places in one arena.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from enceladus.codegen import mathlib
from enceladus.errors import CompilationError, Location
from enceladus.ir.types import DType

THREADGROUP_BYTES = 32768
_ALIGNMENT = 16
_SMALL = 4096  #: up to here nothing is gained by sharing


@dataclass(slots=True, eq=False)
class Region:
    """Part of the arena; ``offset`` and ``size`` in bytes."""

    name: str
    dtype: DType
    count: int
    loc: Location | None
    offset: int = 0
    barriers_left: int | None = None  #: until its memory may serve again; ``None``: it is still in use

    def release(self) -> None:
        """It has been read; other threads may still be reading."""
        self.barriers_left = 1

    @property
    def size(self) -> int:
        return -(-self.count * self.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


class _Scope:
    """A block of the program; ``busy``: regions whose memory may not serve again yet."""

    def __init__(self, is_loop: bool):
        self.is_loop = is_loop
        self.busy: list[Region] = []


class ThreadgroupMemory:
    """Deals out regions in the order of the program."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self._scopes = [_Scope(False)]

    def take(self, name: str, dtype: DType, count: int, loc: Location | None) -> Region:
        """A region of ``count`` elements at the lowest place that nobody may still be using."""
        region = Region(name, dtype, count, loc)
        region.offset = self.size
        if self.size + region.size > _SMALL:
            region.offset = self._lowest_free(region.size)
        self.regions.append(region)
        self._scopes[-1].busy.append(region)
        return region

    def _lowest_free(self, size: int) -> int:
        offset = 0
        for other in sorted((r for scope in self._scopes for r in scope.busy), key=lambda r: r.offset):
            if offset + size <= other.offset:
                break
            offset = max(offset, other.offset + other.size)
        return offset

    def barrier(self) -> None:
        """Every thread is past its reads of what was released in this block."""
        if any(scope.is_loop for scope in self._scopes):
            return
        scope = self._scopes[-1]
        for region in scope.busy:
            if region.barriers_left is not None:
                region.barriers_left -= 1
        scope.busy = [r for r in scope.busy if r.barriers_left != 0]

    def enter(self, is_loop: bool) -> None:
        self._scopes.append(_Scope(is_loop))

    def leave(self) -> None:
        """What the block used is free behind the next barrier."""
        inner = self._scopes.pop()
        for region in inner.busy:
            region.release()
        self._scopes[-1].busy += inner.busy

    @property
    def size(self) -> int:
        """Bytes of threadgroup memory."""
        return max((r.offset + r.size for r in self.regions), default=0)

    def check(self) -> None:
        """``CompilationError`` at the largest user if a threadgroup has less."""
        if self.size > THREADGROUP_BYTES:
            largest = max(self.regions, key=lambda r: r.size)
            raise CompilationError(
                f"the kernel needs {self.size} bytes of threadgroup memory, and a threadgroup has "
                f"{THREADGROUP_BYTES}; the largest part, {largest.size} bytes, is for this operation",
                "use smaller blocks, or fewer warps",
                largest.loc,
            )

    def declarations(self, arena: str) -> list[str]:
        """Declarations for the top of the body; ``arena`` is a free name."""
        if not self.is_shared:
            return [f"threadgroup {mathlib.type_name(r.dtype)} {r.name}[{r.count}];" for r in self.regions]
        lines = [f"threadgroup uint4 {arena}[{self.size // _ALIGNMENT}];"]
        for r in self.regions:
            place = arena if r.offset == 0 else f"{arena} + {r.offset // _ALIGNMENT}"
            lines.append(f"auto {r.name} = enceladus::as_array<{mathlib.type_name(r.dtype)}>({place});")
        return lines

    @property
    def is_shared(self) -> bool:
        """Whether two regions have memory in common."""
        ordered = sorted(self.regions, key=lambda r: r.offset)
        return any(a.offset + a.size > b.offset for a, b in pairwise(ordered))
