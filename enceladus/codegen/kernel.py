"""The compiled kernel: pure data, so that the disk cache is JSON and safe to share.

Nothing here knows MLX. ``mlx_bridge`` turns it into calls of ``mx.fast.metal_kernel``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Role(Enum):
    """How the kernel uses an array parameter; derived, never declared."""

    UNUSED = "unused"
    READ = "read"
    WRITTEN = "written"
    READ_WRITTEN = "read-written"
    ATOMIC = "atomic"

    @property
    def is_read(self) -> bool:
        return self in (Role.READ, Role.READ_WRITTEN, Role.ATOMIC)

    @property
    def is_written(self) -> bool:
        return self in (Role.WRITTEN, Role.READ_WRITTEN, Role.ATOMIC)


@dataclass(frozen=True, slots=True)
class ArrayParameter:
    """A run-time array parameter, in the order of the (flattened) signature.

    ``input_name`` and ``output_name`` are the names in the body, empty where the kernel does not read
    or write the array. ``coverage`` is the proof obligation for "every element is written": a list of
    conditions over launch values (see ``passes.coverage``), or ``None`` where nothing could be proven.
    ``written_name`` names the extra uint8 output that marks written elements in the merging variant.
    ``update`` says how the output of an atomically updated array is to be understood (``passes.updates``):
    the kind of the collected updates, or ``"difference"``; its elements are of type ``output_dtype``.
    """

    name: str
    dtype: str
    role: Role
    input_name: str = ""
    output_name: str = ""
    written_name: str = ""
    update: str = ""
    output_dtype: str = ""
    coverage: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class ScalarParameter:
    """A run-time number, packed little-endian into the ``scalars`` input (32-bit words).

    64-bit types take two words, low word first; floats keep their bits; others are sign- or
    zero-extended to one word. ``word`` is the index of the first word, or -1 where it is unused.
    """

    name: str
    dtype: str
    word: int


@dataclass(slots=True)
class CompiledKernel:
    """A kernel, ready to be registered with MLX."""

    name: str
    body: str
    header: str
    arrays: list[ArrayParameter]
    scalars: list[ScalarParameter]
    #: Name of the packed int32 input, or ``""`` when no scalar is used. It is the last input.
    scalars_name: str
    num_warps: int
    math_mode: str
    registers: int
    threadgroup_bytes: int
    ir: str
    key: str = ""
    #: elements of the largest tile; programs times this must stay below 2^31 (else: the wide variant)
    largest_tile: int = 1
    #: (stored, loaded) array parameter names where a load follows a store in program order: passing
    #: one array for both is refused at the launch.
    hazards: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def roles(self) -> dict[str, str]:
        """Array parameter name → its role's name, such as ``"read"`` or ``"written"``."""
        return {a.name: a.role.value for a in self.arrays}

    @property
    def input_names(self) -> list[str]:
        """Names of the arrays as inputs of ``metal_kernel``, in order; the packed scalars come last."""
        names = [a.input_name for a in self.arrays if a.input_name]
        return [*names, self.scalars_name] if self.scalars_name else names

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs of ``metal_kernel``: written arrays, then written-marks."""
        names = [a.output_name for a in self.arrays if a.output_name]
        return names + [a.written_name for a in self.arrays if a.written_name]

    def to_json(self) -> dict[str, Any]:
        """A JSON-serializable dictionary."""
        data = asdict(self)
        for array in data["arrays"]:
            array["role"] = array["role"].value
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CompiledKernel:
        """The inverse of :meth:`to_json`; ``KeyError``, ``TypeError`` or ``ValueError`` on bad data."""
        data = dict(data)
        data["arrays"] = [ArrayParameter(**{**a, "role": Role(a["role"])}) for a in data["arrays"]]
        data["scalars"] = [ScalarParameter(**s) for s in data["scalars"]]
        data["hazards"] = [(a, b) for a, b in data["hazards"]]
        return cls(**data)
