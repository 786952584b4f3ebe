"""The debugger's engine: the kernel's Python function on NumPy arrays, program by program.

Inputs are evaluated and copied, so a launch is neither lazy nor legal inside an MLX transformation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from enceladus.frontend.function import KernelFunction
from enceladus.interpreter.arrays import numpy_dtype
from enceladus.interpreter.run import run_kernel
from enceladus.ir.core import Function
from enceladus.ir.types import bfloat16
from enceladus.mlx_bridge.arguments import ArrayLeaf, BoundArguments, numpy_to_mlx, unwrap_numpy_scalar
from enceladus.mlx_bridge.gradients import Call, Derivative, are_wanted
from enceladus.mlx_bridge.graph_launch import finish, roles_of
from enceladus.mlx_bridge.grid import Grid
from enceladus.mlx_bridge.launch import check_roles, distinct_pairs, require_distinct
from enceladus.passes.roles import hazards


def launch_interpreted(
    kernel: KernelFunction,
    function: Function,
    values: dict[str, Any],
    bound: BoundArguments,
    grid: Grid,
    num_warps: int,
    wide: bool,
    derivative: Derivative,
) -> Any:
    """Run the kernel now: the written array, a tuple of them, or ``None``.

    ``function`` is the kernel's IR with resolved memory accesses; it only tells the roles.
    """
    arrays = bound.arrays
    roles = roles_of(function)
    check_roles(kernel.name, arrays, roles)
    pairs = [(stored.name, loaded.name) for stored, loaded in hazards(function)]
    require_distinct(distinct_pairs(kernel.name, roles, pairs, arrays), [leaf.value for leaf in arrays])
    written = [leaf for leaf in arrays if roles[leaf.name].is_written]
    x, y, z = grid
    if 0 in grid:
        return finish(written, {leaf.name: None for leaf in written})
    try:
        copies = {leaf.name: to_numpy(leaf) for leaf in arrays}
    except ValueError as error:
        if "function transformations" not in str(error):
            raise
        raise ValueError(
            f"{kernel.name}() runs in the interpreter, which needs the arrays' contents, so it cannot be "
            "inside mx.compile, mx.vmap or mx.export_function; call it outside of them to debug it"
        ) from error
    leaves = iter(arrays)
    run_kernel(
        kernel,
        (x, y, z),
        dict(bound.records),
        {name: _substitute(value, copies, leaves) for name, value in _runtime(kernel, values)},
        num_warps=num_warps,
        wide=wide,
    )
    results = [numpy_to_mlx(copies[leaf.name]) for leaf in written]
    if derivative.own() is None or not are_wanted():
        inputs = [leaf.value for leaf in arrays if isinstance(leaf.value, mx.array)]
        results = _not_differentiable(kernel.name, inputs, results)
    elif results:
        call = Call(
            engine="interpret",
            grid=grid,
            names=[leaf.name for leaf in arrays],
            arrays=[leaf.value for leaf in arrays],
            inputs=[i for i, leaf in enumerate(arrays) if isinstance(leaf.value, mx.array)],
            outputs=[i for i, leaf in enumerate(arrays) if roles[leaf.name].is_written],
            numbers={leaf.name: leaf.value for leaf in bound.scalars},
            constants=values,
        )
        made = results
        results = derivative.tie(call, lambda _: made)
    return finish(written, {leaf.name: result for leaf, result in zip(written, results, strict=True)})


def _not_differentiable(kernel: str, inputs: list[mx.array], results: list[mx.array]) -> list[mx.array]:
    """``results`` as a function of ``inputs``: as mere constants they would have a gradient of 0."""
    if not inputs or not results:
        return results

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(
            f"{kernel}() ran in the interpreter, which has no gradient; on MLX's CPU device, the graph "
            "engine has one"
        )

    tied: Any = mx.custom_function(lambda *_: results)
    tied.vjp(refuse)
    tied.jvp(refuse)
    made: list[mx.array] = tied(*inputs)
    return made


def to_numpy(leaf: ArrayLeaf) -> np.ndarray:
    """A C-contiguous copy of an array leaf that the kernel may write to."""
    value = leaf.value
    dtype = numpy_dtype(leaf.dtype)
    if leaf.is_numpy:
        return np.array(value, order="C")
    if leaf.is_fresh:
        return np.full(value.shape, 0 if value.fill is None else value.fill, dtype)
    if leaf.dtype is bfloat16:
        return (
            np.array(value.view(mx.uint16) if value.ndim else value.reshape(1).view(mx.uint16))
            .view(dtype)
            .reshape(value.shape)
        )
    return np.array(value, order="C")


def _runtime(kernel: KernelFunction, values: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(p.name, values[p.name]) for p in kernel.parameters if not p.constexpr]


def _substitute(value: Any, copies: dict[str, np.ndarray], leaves: Iterator[ArrayLeaf]) -> Any:
    """``value`` with every array replaced by its copy; ``leaves`` follows along, in the same order."""
    value = unwrap_numpy_scalar(value)
    if isinstance(value, tuple):
        items = [_substitute(item, copies, leaves) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, (bool, int, float)) or value is None or not hasattr(value, "shape"):
        return value
    leaf = next(leaves)
    return copies[leaf.name]
