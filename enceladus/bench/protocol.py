"""What a suite declares. Plain records; nothing here runs anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

#: (relative, absolute) tolerance against the MLX function computed in float32.
TOLERANCES: dict[mx.Dtype, tuple[float, float]] = {
    mx.float32: (1e-5, 2e-6),
    mx.float16: (2e-3, 1e-4),
    mx.bfloat16: (1.6e-2, 1e-3),
}

#: The implementations a benchmark or a chain can have, in the order of tables and legends.
KINDS = ("enceladus", "bare", "triton", "mlx.fast", "mlx.compile", "mlx", "torch")

Function = Callable[..., Any]


@dataclass(frozen=True)
class Benchmark:
    """A kernel call, the MLX function it replaces, and the sizes to compare them at.

    - ``make_inputs(size, dtype)``: a tuple of MLX arrays; called several times, so that timing can rotate.
    - ``enceladus``: label → function of those inputs that launches the kernel and returns its output, or a
      tuple of several, as all functions of the benchmark then do. One entry for each configuration (block
      size, ``num_warps``).
    - ``mlx``: what it replaces, as MLX operations; ``mlx_compiled=True`` times it under ``mx.compile`` too.
    - ``mlx_fast``: an ``mx.fast`` function that does the same, where there is one.
    - ``triton``: label → function of torch tensors, with the labels of ``enceladus`` where the tiles are
      the same. ``torch``: a function of torch tensors. Both are ``None`` where they are not installed.
    - ``bytes(size, itemsize)`` and ``flops(size)``: what one call has to move and compute.
    - ``view``: applied to every input just before use, in either library, e.g. ``lambda a: a[1:]`` for
      arrays at an odd offset; ``make_inputs`` must make the inputs larger by as much.
    - ``tolerance``: (relative, absolute) for all dtypes instead of ``protocol.TOLERANCES``.
    - ``reference``: what results are compared with, given the inputs in float32 (default: ``mlx``).
    """

    name: str
    sizes: Sequence[int]
    make_inputs: Callable[[int, mx.Dtype], tuple[mx.array, ...]]
    enceladus: Mapping[str, Function]
    mlx: Function
    bytes: Callable[[int, int], int] | None = None
    flops: Callable[[int], int] | None = None
    dtypes: Sequence[mx.Dtype] = (mx.float32,)
    mlx_compiled: bool = True
    mlx_fast: Function | None = None
    triton: Mapping[str, Function] | None = None
    torch: Function | None = None
    view: Callable[[Any], Any] | None = None
    tolerance: tuple[float, float] | None = None
    reference: Function | None = None

    def __post_init__(self) -> None:
        if not self.sizes or not self.enceladus or not self.dtypes:
            raise ValueError(f"benchmark {self.name!r} needs at least one size, dtype and Enceladus entry")

    def allowed(self, dtype: mx.Dtype) -> tuple[float, float]:
        """(relative, absolute) tolerance; exact where ``dtype`` is an integer type."""
        return self.tolerance or TOLERANCES.get(dtype, (0.0, 0.0))


@dataclass(frozen=True)
class Chain:
    """Dependent launches on small arrays, where the host's time is what counts.

    ``make_inputs(size)`` gives the start; ``enceladus(*inputs)`` does one step and returns the next first
    input; ``bare(*inputs)`` returns such a step function made from MLX's own kernel object, prepared
    beforehand, or ``None`` on a device that has no such kernels. ``mlx`` is the same step as MLX operations.
    """

    name: str
    launches: int
    size: int
    make_inputs: Callable[[int], tuple[mx.array, ...]]
    enceladus: Function
    mlx: Function
    bare: Callable[..., Function | None] = field(default=lambda *_: None)


@dataclass(frozen=True)
class Pick:
    """A result to look up: benchmark, size, dtype, kind, and a label (``""``: the fastest of that kind).

    The kind ``copy`` is the copy bandwidth measured in the same run.
    """

    benchmark: str
    size: int
    dtype: str
    kind: str
    label: str = ""


@dataclass(frozen=True)
class Target:
    """A ratio of speeds to reach: ``measured`` over ``against``, from one run.

    Speeds are bytes a second where both counts are known, else calls a second. With ``same_label`` the
    configuration of ``against`` is that of ``measured``. For a chain, both picks name kinds of the chain,
    and ``at_most`` bounds the ratio of times instead.
    """

    text: str
    measured: Pick
    against: Pick
    reach: float | None = None
    at_most: float | None = None
    same_label: bool = False
