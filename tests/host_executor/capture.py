"""Record the kernels that a function launches, with the text that MLX generated for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx


@dataclass(frozen=True)
class TracedArray:
    """A value of the traced graph."""

    name: str
    shape: tuple[int, ...]
    dtype: mx.Dtype


@dataclass(frozen=True)
class CapturedKernel:
    """One launch. ``init_value`` is not recorded by MLX: take it from the call."""

    name: str
    source: str
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    shape_flags: tuple[tuple[bool, bool, bool], ...]
    ensure_row_contiguous: bool
    math_mode: int
    inputs: tuple[TracedArray, ...]
    outputs: tuple[TracedArray, ...]


@dataclass(frozen=True)
class CapturedOp:
    """An MLX primitive that is not a kernel."""

    name: str
    arguments: tuple[Any, ...]
    inputs: tuple[TracedArray, ...]
    outputs: tuple[TracedArray, ...]


@dataclass(frozen=True)
class Graph:
    """A traced function: nodes in execution order."""

    inputs: tuple[TracedArray, ...]
    outputs: tuple[TracedArray, ...]
    constants: dict[str, mx.array]
    nodes: tuple[CapturedKernel | CapturedOp, ...]


def _traced(values: Any) -> tuple[TracedArray, ...]:
    return tuple(TracedArray(name, tuple(shape), dtype) for name, shape, dtype in values)


def trace(fn: Callable[..., Any], *arrays: mx.array) -> Graph:
    """Trace ``fn`` on example arrays. Real MLX generates the kernel texts; nothing is evaluated."""
    events: list[dict[str, Any]] = []
    mx.export_function(events.append, fn, *arrays)
    inputs: tuple[TracedArray, ...] = ()
    outputs: tuple[TracedArray, ...] = ()
    constants: dict[str, mx.array] = {}
    nodes: list[CapturedKernel | CapturedOp] = []
    for event in events:
        match event["type"]:
            case "inputs":
                inputs = _traced(event["inputs"])
            case "outputs":
                outputs = _traced(event["outputs"])
            case "constants":
                constants = dict(event["constants"])
            case "primitive":
                nodes.append(_node(event))
    return Graph(inputs, outputs, constants, tuple(nodes))


def _node(event: dict[str, Any]) -> CapturedKernel | CapturedOp:
    inputs, outputs, arguments = _traced(event["inputs"]), _traced(event["outputs"]), event["arguments"]
    if event["name"] != "CustomKernel":
        return CapturedOp(event["name"], tuple(arguments), inputs, outputs)
    name, source, gx, gy, gz, tx, ty, tz, flags, contiguous, *rest = arguments
    return CapturedKernel(
        name=name, source=source, grid=(gx, gy, gz), threadgroup=(tx, ty, tz),
        shape_flags=tuple(tuple(f) for f in flags), ensure_row_contiguous=contiguous, math_mode=rest[-1],
        inputs=inputs, outputs=outputs,
    )  # fmt: skip


def capture(fn: Callable[..., Any], *arrays: mx.array) -> list[CapturedKernel]:
    """The kernels that ``fn`` launches, in order."""
    return [node for node in trace(fn, *arrays).nodes if isinstance(node, CapturedKernel)]
