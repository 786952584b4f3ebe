"""A launch through the graph engine: the same contract as ``launch.py`` with MLX operations inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from enceladus.codegen.kernel import Role
from enceladus.ir.core import Function
from enceladus.mlx_bridge import gradients
from enceladus.mlx_bridge.arguments import ArrayLeaf, BoundArguments, mlx_to_numpy
from enceladus.mlx_bridge.fresh import FreshArray
from enceladus.mlx_bridge.grid import Grid
from enceladus.mlx_bridge.launch import check_roles, distinct_pairs, require_distinct
from enceladus.passes.roles import hazards, roles


def roles_of(function: Function) -> dict[str, Role]:
    """Array parameter name → role."""
    return {value.name: role for value, role in roles(function).items()}


def launch_graph(
    function: Function,
    kernel_name: str,
    bound: BoundArguments,
    grid: Grid,
    derivative: gradients.Derivative,
    constants: Mapping[str, Any],
) -> Any:
    """Run ``function`` on ``grid``: the written array, a tuple of them, or ``None``. Nothing is evaluated."""
    found = roles_of(function)
    arrays = bound.arrays
    check_roles(kernel_name, arrays, found)
    pairs = [(stored.name, loaded.name) for stored, loaded in hazards(function)]
    values = [leaf.value for leaf in arrays]
    require_distinct(distinct_pairs(kernel_name, found, pairs, arrays), values)

    written = [leaf for leaf in arrays if found[leaf.name].is_written]
    results: dict[str, mx.array] = {}
    if 0 not in grid and any(leaf.size for leaf in written):
        call = gradients.Call(
            engine="graph",
            grid=grid,
            names=[leaf.name for leaf in arrays],
            arrays=values,
            inputs=[i for i, x in enumerate(values) if isinstance(x, mx.array)],
            outputs=[i for i, leaf in enumerate(arrays) if found[leaf.name].is_written],
            numbers={leaf.name: leaf.value for leaf in bound.scalars},
            constants=constants,
        )
        made = derivative.trace_in_graph(call)
        results = {leaf.name: new for leaf, new in zip(written, made, strict=True)}
    return finish(written, {leaf.name: results.get(leaf.name) for leaf in written})


def finish(written: list[ArrayLeaf], results: dict[str, Any]) -> Any:
    """Rebind or copy back each written array; ``results`` has ``None`` where nothing was launched."""
    returned = []
    for leaf in written:
        new, value = results[leaf.name], leaf.value
        if isinstance(value, FreshArray):
            returned.append(value.materialize() if new is None else new)
            continue
        if new is not None:
            if leaf.is_numpy:
                mlx_to_numpy(new, value)
            else:
                value[...] = new
        returned.append(value)
    if not returned:
        return None
    return returned[0] if len(returned) == 1 else tuple(returned)
