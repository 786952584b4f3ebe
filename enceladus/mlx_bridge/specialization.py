"""The specialization key: a frozen record of everything that can change a kernel's text.

Print it to read it, ``difference`` two of them to see why a kernel was compiled again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from enceladus.frontend.signature import (
    Argument,
    ArrayArgument,
    ConstantArgument,
    ScalarArgument,
    TupleArgument,
)


def argument_text(argument: Argument) -> str:
    """One argument as a key shows it: ``*float32``, ``int32/16``, ``=int:1``, ``(*float32, int32)``."""
    match argument:
        case ArrayArgument(dtype):
            return f"*{dtype}"
        case ScalarArgument(dtype, divisible):
            return f"{dtype}/16" if divisible else str(dtype)
        case ConstantArgument():
            return f"={argument.text}"
        case TupleArgument(items, names):
            return f"{','.join(names)}({', '.join(argument_text(item) for item in items)})"


@dataclass(frozen=True, slots=True)
class SpecializationKey:
    """What a compiled kernel depends on. Two launches with equal keys share the compiled kernel."""

    kernel: str  #: module and qualified name
    source: str  #: digest of the source and of all that it reads at compile time
    arguments: tuple[tuple[str, Argument], ...]
    num_warps: int = 4
    math_mode: str = "relaxed"
    wide: bool = False  #: 64-bit index arithmetic
    debug: bool = False
    grid_remap: bool = False  #: program ids come from a linear number
    track_writes: tuple[str, ...] = ()  #: arrays whose written elements are marked
    batch: tuple[tuple[str, ...], ...] = ()  #: for each level of a batch, the arrays that it batches

    def lines(self) -> dict[str, str]:
        """Field or argument → text, in order; what is compared, printed and hashed."""
        found = {}
        for field in fields(self):
            if field.name == "arguments":
                found.update({f"argument {name}": argument_text(a) for name, a in self.arguments})
            else:
                found[field.name] = str(getattr(self, field.name))
        return found

    def __str__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self.lines().items())

    def difference(self, other: SpecializationKey) -> list[str]:
        """What differs, as ``"argument n: int32 → int32/16"``."""
        mine, theirs = self.lines(), other.lines()
        names = [*mine, *(name for name in theirs if name not in mine)]
        return [
            f"{name}: {mine.get(name, 'absent')} → {theirs.get(name, 'absent')}"
            for name in names
            if mine.get(name) != theirs.get(name)
        ]

    def with_track_writes(self, names: tuple[str, ...]) -> SpecializationKey:
        """The key of the merging variant."""
        return replace(self, track_writes=names)

    def digest(self) -> str:
        """Hex digest that also covers the compiler's own version: the name of the disk entry."""
        import hashlib

        text = f"{compiler_fingerprint()}\n{self}"
        return hashlib.sha256(text.encode()).hexdigest()[:40]


@lru_cache(maxsize=1)
def compiler_fingerprint() -> str:
    """Stands for the compiler itself: its version, and size and time of each of its source files.

    Reading times instead of contents keeps a disk-cache hit cheap; an edited file changes both.
    """
    import hashlib

    from enceladus import __version__

    root = os.path.dirname(os.path.dirname(__file__))
    parts = [__version__]
    for room in (".", "ir", "layout", "language", "frontend", "passes", "codegen"):
        try:
            entries = sorted(os.scandir(os.path.join(root, room)), key=lambda entry: entry.name)
        except OSError:  # for example inside a zip file: the version must do
            continue
        for entry in entries:
            if entry.name.endswith(".py"):
                info = entry.stat()
                parts.append(f"{room}/{entry.name} {info.st_size} {info.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
