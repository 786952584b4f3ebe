"""One execution of a kernel: buffers, the call into the runtime, and what went wrong in it."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .buffers import DeviceBuffer
from .errors import ExecutorError
from .signature import Parameter, Role

if TYPE_CHECKING:
    from .kernel import HostKernel


@dataclass(frozen=True)
class Launch:
    """How many threads, and how many of them form a threadgroup."""

    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]


@dataclass(frozen=True)
class Variant:
    """What a correct kernel cannot see: the bytes of fresh memory and where buffers lie."""

    poison: int
    at_end: bool


@dataclass(frozen=True)
class Facts:
    """Counters of one execution. Barriers count per threadgroup, collectives per SIMD group."""

    barriers: int
    collectives: int
    threadgroup_bytes: int
    threads: int


_U3 = ctypes.c_uint32 * 3


class _Site(ctypes.Structure):
    _fields_ = (("line", ctypes.c_uint32), ("column", ctypes.c_uint32))


class _Report(ctypes.Structure):
    _fields_ = (
        ("outcome", ctypes.c_int32),
        ("site", _Site),
        ("other_site", _Site),
        ("group", _U3),
        ("thread", ctypes.c_uint32),
        ("other_thread", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("instruction", ctypes.c_uint64),
        ("is_write", ctypes.c_int32),
        ("detail", ctypes.c_uint32),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", _U3),
        ("threadgroup", _U3),
        ("order", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("poison", ctypes.c_uint8),
        ("at_end", ctypes.c_uint8),
    )


_COUNTERS = ("barriers", "collectives", "threadgroup_bytes", "threads")


class _Counters(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in _COUNTERS)


_OUTCOMES = (
    "finished", "divergent collective", "divergent barrier", "memory fault", "misaligned",
    "inactive lane", "threadgroup memory", "arithmetic fault",
)  # fmt: skip
_WIDE_VECTOR = re.compile(r"\bu?long[234]\b")
_VECTOR = re.compile(r"\b[a-z]+(?:16_t|32_t|8_t)?[234]\b|\bvec\s*<|simdgroup_")


class Execution:
    """Memory and arguments for one execution."""

    def __init__(
        self,
        kernel: HostKernel,
        functions: ctypes.CDLL,
        inputs: Sequence[tuple[Parameter, np.ndarray, int]],
        outputs: Sequence[tuple[Parameter, tuple[int, ...]]],
        variant: Variant,
    ) -> None:
        self._kernel = kernel
        self._functions = functions
        self._variant = variant
        self._outputs = outputs
        self._itemsizes: dict[str, int] = {}
        self._readable: dict[str, str] = {}
        text = kernel.signature.header + kernel.signature.body
        # A kernel without vector types may be placed flush against the guard to the byte; for the
        # others, and where offsets matter, the base keeps the alignment of a fresh MLX buffer.
        self._alignment: int | None = None
        if _WIDE_VECTOR.search(text):
            self._alignment = 32
        elif _VECTOR.search(text) or any(offset for _, _, offset in inputs):
            self._alignment = 16
        self._buffers: dict[str, DeviceBuffer] = {}
        arrays = {parameter.name: (array, offset) for parameter, array, offset in inputs}
        shapes = {parameter.name: shape for parameter, shape in outputs}
        for parameter in kernel.signature.parameters:
            if parameter.role is Role.INPUT:
                array, offset = arrays[parameter.name]
                self._add_input(parameter.name, array, offset)
            elif parameter.role is Role.OUTPUT:
                count = int(np.prod(shapes[parameter.name], dtype=np.int64))
                self._add(parameter.name, parameter.dtype.itemsize, count * parameter.dtype.itemsize, 0)
                self._readable[parameter.name] = "output"
            elif parameter.role is not Role.ATTRIBUTE:
                self._add_input(parameter.name, _shape_argument(parameter.role, arrays[parameter.of][0]), 0)

    def _add(self, name: str, itemsize: int, nbytes: int, offset: int) -> DeviceBuffer:
        buffer = DeviceBuffer(
            name, nbytes, alignment=self._alignment or max(itemsize, 4), offset=offset,
            at_end=self._variant.at_end, poison=self._variant.poison,
        )  # fmt: skip
        self._buffers[name] = buffer
        self._itemsizes[name] = itemsize
        return buffer

    def _add_input(self, name: str, array: np.ndarray, offset: int) -> None:
        buffer = self._add(name, array.dtype.itemsize, array.nbytes, offset)
        buffer.data[:] = np.frombuffer(array.tobytes(), np.uint8)
        buffer.protect()
        self._readable[name] = "input"

    def free(self) -> None:
        """Give all memory back."""
        for buffer in self._buffers.values():
            buffer.free()

    def run(
        self, entry: Any, launch: Launch, init_value: float | None, schedule: str | int
    ) -> tuple[list[np.ndarray], Facts]:
        """Run; return the bytes of each output and the counters, or raise what the runtime reports."""
        if init_value is not None:
            for parameter, shape in self._outputs:
                # MLX passes the value as a C float and converts it to each output's dtype.
                self._buffers[parameter.name].data[:] = np.frombuffer(
                    np.full(shape, np.float32(init_value)).astype(parameter.dtype).tobytes(), np.uint8
                )
        addresses = (ctypes.c_void_p * (len(self._buffers) + 1))(
            *[b.address for b in self._buffers.values()], None
        )
        match schedule:
            case "forward":
                order, seed = 0, 0
            case "reverse":
                order, seed = 1, 0
            case int():
                order, seed = 2, schedule
            case _:
                raise ExecutorError(
                    f"a schedule is 'forward', 'reverse' or an integer seed, not {schedule!r}"
                )
        sizes = _U3(*launch.grid), _U3(*launch.threadgroup)
        arguments = _Launch(*sizes, order, seed, self._variant.poison, self._variant.at_end)
        report, counters = _Report(), _Counters()
        outcome = self._functions.msl_run(
            entry,
            ctypes.byref(addresses),
            ctypes.byref(arguments),
            ctypes.byref(report),
            ctypes.byref(counters),
        )
        if outcome:
            raise ExecutorError(self._describe(_OUTCOMES[outcome], report, launch))
        for buffer in self._buffers.values():
            buffer.check_canary()
        results = [self._buffers[parameter.name].data.copy() for parameter, _ in self._outputs]
        return results, Facts(*(getattr(counters, name) for name in _COUNTERS))

    # ---- messages ----
    def _describe(self, outcome: str, report: _Report, launch: Launch) -> str:
        where = f"threadgroup {tuple(report.group)}"
        thread = f"thread {report.thread} of {where}"
        site = self._place(report.site)
        if outcome == "divergent collective":
            return (
                f"{self._call(report.site)} at {site} is reached by only some lanes of a SIMD group:"
                f" {thread} waits there, thread {report.other_thread} {self._elsewhere(report.other_site)}"
            )
        if outcome == "divergent barrier":
            return (
                f"the barrier at {site} is reached by only some threads:"
                f" {thread} waits there, thread {report.other_thread} {self._elsewhere(report.other_site)}"
            )
        if outcome == "misaligned":
            name, offset = self._locate(report.address)
            return (
                f"misaligned access to {name}{offset} at {site} ({thread}):"
                f" the address {report.address:#x} is not a multiple of {report.detail}"
            )
        if outcome == "inactive lane":
            return (
                f"{self._call(report.site)} at {site} reads lane {report.detail},"
                f" which does not exist or is inactive ({thread})"
            )
        if outcome == "threadgroup memory":
            return f"threadgroup variables take {report.detail} bytes, more than 32768"
        place = self._line_of(report.instruction)
        if outcome == "memory fault":
            name, offset = self._locate(report.address)
            if name.startswith("input") and report.is_write == 1 and self._inside(report.address):
                return f"write to {name}{offset}, which is read-only ({thread}){place}"
            kind = {0: "read", 1: "write"}.get(report.is_write, "access")
            return f"out-of-bounds {kind} of {name}{offset} ({thread}){place}"
        return f"arithmetic fault ({thread}){place}"

    def _place(self, site: _Site) -> str:
        return f"body line {site.line}, column {site.column}" if site.line else "the end of the kernel"

    def _call(self, site: _Site) -> str:
        """The name of the function called at a place, as the body spells it."""
        for text in (self._kernel.signature.body, self._kernel.signature.header):
            lines = text.split("\n")
            if not 0 < site.line <= len(lines):
                continue
            if match := re.match(r"[\w:]+", lines[site.line - 1][max(site.column - 1, 0) :]):
                return match[0]
        return "a collective"

    def _elsewhere(self, site: _Site) -> str:
        return f"is at {self._place(site)}" if site.line else "has ended"

    def _inside(self, address: int) -> bool:
        return any(0 <= address - b.address < b.nbytes for b in self._buffers.values())

    def _locate(self, address: int) -> tuple[str, str]:
        """Name the buffer an address belongs to, and the element."""
        offset, nbytes = ctypes.c_int64(), ctypes.c_uint64()
        found = self._functions.msl_locate(
            ctypes.c_uint64(address), ctypes.byref(offset), ctypes.byref(nbytes)
        )
        if found == 1:
            return "a thread's stack (too many local variables, or recursion)", ""
        if found >= 2:
            name = self._kernel.threadgroup_variables[found - 2]
            return f"threadgroup variable {name!r}", f", byte {offset.value} of {nbytes.value}"
        for name, buffer in self._buffers.items():
            if buffer.contains(address):
                size = self._itemsizes[name]
                element = (address - buffer.address) // size
                return f"{self._readable[name]} {name!r}", f", element {element} of {buffer.nbytes // size}"
        return f"unknown memory at {address:#x}", ""

    def _line_of(self, instruction: int) -> str:
        """Where an instruction comes from, when a symbolizer is installed; "" otherwise."""
        tool = _symbolizer()
        base = _load_address(self._kernel.library) if instruction else None
        if tool is None or base is None:
            return ""
        command = [tool, "-e", str(self._kernel.library), "-i", hex(instruction - base)]
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        match = re.search(r"\b(body|header):(\d+)", output)
        return f" at {match[1]} line {match[2]}" if match else ""


def _shape_argument(role: Role, array: np.ndarray) -> np.ndarray:
    if role is Role.SHAPE:
        return np.array(array.shape, np.int32)
    if role is Role.NDIM:
        return np.array(array.ndim, np.int32)
    return np.array(
        [stride // array.itemsize for stride in np.empty(array.shape, array.dtype).strides], np.int64
    )


@functools.cache
def _symbolizer() -> str | None:
    return shutil.which("addr2line") or shutil.which("llvm-addr2line")


def _load_address(library: Path) -> int | None:
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    for line in maps.splitlines():
        if line.endswith(str(library)):
            return int(line.split("-")[0], 16)
    return None
