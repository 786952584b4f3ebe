"""Device memory for one execution: each buffer between two inaccessible stretches."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from .errors import ExecutorError
from .toolchain import runtime

# As far as a wrapped 32-bit index of 4-byte elements reaches. Inaccessible memory costs nothing but
# addresses; where those are limited, smaller guards do.
_GUARDS = (1 << 34, 1 << 26, 1 << 20)
_PAGE = 16384  # a multiple of every page size in use


@dataclass(frozen=True)
class HostArray:
    """An input whose data starts ``offset_bytes`` past an aligned address, as a sliced MLX array's does."""

    array: np.ndarray
    offset_bytes: int = 0


class DeviceBuffer:
    """Memory of a kernel argument.

    ``at_end`` puts the last byte next to the guard behind (as near as ``alignment`` allows), else
    the first byte next to the guard in front. Bytes between data and guards hold a canary.
    """

    def __init__(
        self, name: str, nbytes: int, *, alignment: int, offset: int, at_end: bool, poison: int
    ) -> None:
        self.name = name
        self.nbytes = nbytes
        self._poison = poison
        slack = nbytes + 2 * alignment
        self._capacity = (slack + _PAGE - 1) // _PAGE * _PAGE
        functions = runtime()
        functions.msl_map.restype = ctypes.c_void_p
        for self._guard in _GUARDS:
            region = functions.msl_map(ctypes.c_uint64(self._capacity), ctypes.c_uint64(self._guard))
            if region:
                break
        else:
            raise MemoryError(f"no memory for buffer {name!r}")
        self._region: int = region
        self._start = region + self._guard
        offset %= alignment
        if at_end:
            place = self._capacity - nbytes
            place -= (place - offset) % alignment
        else:
            place = offset
        self.address = self._start + place
        self._place = place
        memory = (ctypes.c_uint8 * self._capacity).from_address(self._start)
        self._bytes = np.frombuffer(memoryview(memory), np.uint8)
        self._bytes[:place] = poison
        self._bytes[place:] = poison

    @property
    def data(self) -> np.ndarray:
        """The bytes of the array itself."""
        return self._bytes[self._place : self._place + self.nbytes]

    def protect(self) -> None:
        """Make the buffer read-only, as inputs are."""
        runtime().msl_make_read_only(
            ctypes.c_void_p(self._region), ctypes.c_uint64(self._capacity), ctypes.c_uint64(self._guard)
        )

    def contains(self, address: int) -> bool:
        """Whether the address lies in this buffer or its guards."""
        return self._region <= address < self._start + self._capacity + self._guard

    def check_canary(self) -> None:
        """Raise when bytes just outside the data changed."""
        before, after = self._bytes[: self._place], self._bytes[self._place + self.nbytes :]
        for outside, base in ((before, -self._place), (after, self.nbytes)):
            changed = np.flatnonzero(outside != self._poison)
            if changed.size:
                raise ExecutorError(
                    f"out-of-bounds write near {self.name!r}:"
                    f" byte {base + int(changed[0])} of {self.nbytes} bytes changed"
                )

    def free(self) -> None:
        """Give the memory back."""
        del self._bytes
        runtime().msl_unmap(
            ctypes.c_void_p(self._region), ctypes.c_uint64(self._capacity), ctypes.c_uint64(self._guard)
        )
