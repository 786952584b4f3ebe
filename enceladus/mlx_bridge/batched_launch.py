"""A launch inside ``enceladus.vmap``: one launch for the whole batch.

MLX cannot vectorize a kernel by itself: ``mx.vmap`` refuses the primitive behind ``mx.fast.metal_kernel``.
So during a vmap a launch puts an ``mx.custom_function`` in the graph in place of the kernel. What it
returns is a dummy of the right shape; its ``vmap`` rule, which MLX calls when it rewrites the graph, launches
the kernel over the whole batch, with one more grid axis (``passes/batch.py``). The rule runs outside of the
vmap it serves, but perhaps inside an outer one: then the batched launch is such a node again.

Each level of vmap has a *token*, a batched number that every launch takes as an argument. So MLX calls the
rule also for a launch whose arrays are the same for all examples, and a dummy that some path would let
through cannot be evaluated.

The graph engine's launches are MLX operations and need none of this; ``mx.vmap`` does them as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from enceladus.ir.types import int32, int64
from enceladus.mlx_bridge import gradients
from enceladus.mlx_bridge.arguments import ArrayLeaf, BoundArguments, Leaf, ScalarLeaf
from enceladus.mlx_bridge.batching import inside, levels, vmap
from enceladus.mlx_bridge.dtypes import TO_MLX
from enceladus.mlx_bridge.fresh import FreshArray
from enceladus.mlx_bridge.graph_launch import roles_of
from enceladus.mlx_bridge.launch import as_mlx, check_roles, distinct_pairs, require_distinct
from enceladus.passes.batch import step_name
from enceladus.passes.roles import hazards

if TYPE_CHECKING:
    from enceladus.mlx_bridge.jit import Call, JITFunction


@dataclass(frozen=True, slots=True)
class Batch:
    """One level of a batched launch: how many examples, and which array leaves have an axis for them."""

    size: int
    arrays: frozenset[str]


# ---------------------------------------------------------------------------------- the launch


def launch(kernel: JITFunction, call: Call, batches: tuple[Batch, ...] = ()) -> Any:
    """Launch inside whatever vmaps are in progress; ``call`` is of one example of these.

    ``batches``: the levels that ``call``'s arrays already have in front, outermost first.
    """
    stack = levels()
    if not stack:
        return run(kernel, call, batches)
    function = kernel.ir(call.key)
    arrays = call.bound.arrays
    roles = roles_of(function)
    check_roles(kernel.__name__, arrays, roles)
    pairs = [(stored.name, loaded.name) for stored, loaded in hazards(function)]
    values = [leaf.value for leaf in arrays]
    require_distinct(distinct_pairs(kernel.__name__, roles, pairs, arrays), values)
    written = [leaf for leaf in arrays if roles[leaf.name].is_written]
    if 0 in call.grid or all(leaf.size == 0 for leaf in written):
        return run(kernel, call, batches)
    for leaf in written:
        if leaf.is_numpy:
            raise TypeError(
                f"{kernel.__name__}(): argument {leaf.parameter!r} is a NumPy array that the kernel writes, "
                "which enceladus.vmap cannot batch; pass an mx.array or enceladus.empty(...)"
            )
    results = _node(kernel, call, batches, written)
    for position, leaf in enumerate(written):
        if isinstance(leaf.value, mx.array):
            leaf.value[...] = results[position]
            results[position] = leaf.value
    return results[0] if len(results) == 1 else tuple(results)


def _node(
    kernel: JITFunction, call: Call, batches: tuple[Batch, ...], written: list[ArrayLeaf]
) -> list[mx.array]:
    """The written arrays of a launch inside a vmap, for MLX to rewrite."""
    stack = levels()
    level = stack[-1]
    token = level.token
    assert token is not None
    given = [leaf for leaf in call.bound.arrays if not leaf.is_fresh]
    names = {leaf.name for leaf in written}

    def dummies(*_: mx.array) -> list[mx.array]:
        return [mx.broadcast_to(token.astype(TO_MLX[leaf.dtype.name]), leaf.shape) for leaf in written]

    def rewrite(arrays: Any, axes: Any) -> tuple[list[mx.array], list[int | None]]:
        arrays, axes = (list(x) if isinstance(x, (list, tuple)) else [x] for x in (arrays, axes))
        # Called by another vmap than this level's own (mx.vmap inside of the function): the level goes on.
        is_foreign = axes[-1] is None and level.is_tracing
        with inside(stack if is_foreign else stack[:-1]):
            pairs = list(zip(arrays, axes, strict=True))[:-1]
            sizes = {array.shape[axis] for array, axis in pairs if axis is not None}
            if not sizes:
                new = {leaf.name: array for leaf, (array, _) in zip(given, pairs, strict=True)}
                shared = _as_list(launch(kernel, _with_arrays(call, new), batches))
                if is_foreign:
                    return shared, [None] * len(written)
                # MLX's operations do not expect an argument without an axis where they are rewritten.
                return [mx.broadcast_to(x, (level.size, *x.shape)) for x in shared], [0] * len(written)
            (size,) = sizes
            batch = Batch(
                size,
                frozenset(
                    {leaf.name for leaf, (_, axis) in zip(given, pairs, strict=True) if axis is not None}
                    | names
                ),
            )
            new = {}
            for leaf, (array, axis) in zip(given, pairs, strict=True):
                if axis is not None:
                    array = mx.moveaxis(array, axis, 0)
                elif leaf.name in names:
                    array = mx.broadcast_to(array, (size, *array.shape))
                new[leaf.name] = array
            for leaf in written:
                if leaf.is_fresh:
                    new[leaf.name] = replace(leaf.value, shape=(size, *leaf.shape))
            results = launch(kernel, _with_arrays(call, new), (batch, *batches))
            return _as_list(results), [0] * len(written)

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"{kernel.__name__}() has no such derivative on the {call.engine} engine; the graph engine (CPU) "
            "has one"
        )

    whole = batched(kernel, call, batches)
    derivative = kernel.derivative(whole.key)
    view = _as_differentiated(whole, names)
    has_rule = derivative.own() is not None or call.engine != "interpret"
    rule = derivative.rule(view) if kernel.options.gradients and has_rule else None

    def pull_back(primals: Any, cotangents: Any, outputs: Any) -> tuple[mx.array, ...]:
        if rule is None:
            refuse()
        assert rule is not None
        primals = list(primals) if isinstance(primals, (list, tuple)) else [primals]
        return (*rule(primals[:-1], cotangents, outputs), mx.zeros_like(primals[-1]))

    node: Any = mx.custom_function(dummies)
    node.vmap(rewrite)
    node.vjp(pull_back)
    node.jvp(refuse)
    inputs = derivative.guarded(view) if rule is not None else [view.arrays[place] for place in view.inputs]
    made: list[mx.array] = node(*inputs, token)
    return list(made)


def _as_differentiated(call: Call, written: set[str]) -> gradients.Call:
    """``call`` as its derivative sees it, by MLX operations, which MLX batches: no backward kernel."""
    leaves = call.bound.arrays
    return gradients.Call(
        engine="graph",
        grid=call.grid,
        names=[leaf.name for leaf in leaves],
        arrays=[leaf.value if leaf.is_fresh else as_mlx(leaf.value) for leaf in leaves],
        inputs=[place for place, leaf in enumerate(leaves) if not leaf.is_fresh],
        outputs=[place for place, leaf in enumerate(leaves) if leaf.name in written],
        numbers={leaf.name: leaf.value for leaf in call.bound.scalars},
        constants=call.values,
    )


def rule_of_batch(rule: Callable[..., Any], batch: tuple[tuple[str, ...], ...]) -> Callable[..., Any]:
    """A rule of ``@kernel.vjp`` for a batched launch: its arguments have an axis for each level in front."""

    def of_level(one: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
        def of_batch(primals: dict[str, Any], cotangents: Any, outputs: Any) -> dict[str, Any]:
            axes = {name: 0 if name in names else None for name in primals}
            found = vmap(one, in_axes=(axes, 0, 0))(primals, cotangents, outputs)
            return {
                name: gradient if gradient is None or name in names else gradient.sum(0)
                for name, gradient in found.items()
            }

        return of_batch

    for names in reversed(batch):
        rule = of_level(rule, names)
    return rule


def refuse_mlx_vmap(kernel: str, leaves: list[Any]) -> list[Any]:
    """``leaves``, but MLX's own vmap over those that are arrays raises an error that helps."""

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(
            f"mx.vmap cannot batch the launch of {kernel}() on a GPU; use enceladus.vmap, which can"
        )

    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, mx.array)]
    if not places:
        return leaves
    same: Any = mx.custom_function(lambda *arrays: list(arrays))
    same.vmap(refuse)
    leaves = list(leaves)
    for place, array in zip(places, same(*[leaves[place] for place in places]), strict=True):
        leaves[place] = array
    return leaves


def _as_list(results: Any) -> list[mx.array]:
    return list(results) if isinstance(results, tuple) else [results]


def _with_arrays(call: Call, values: dict[str, Any]) -> Call:
    """``call`` with other values for the array leaves of these names."""
    leaves: list[Leaf] = [
        replace(leaf, value=values.get(leaf.name, leaf.value)) if isinstance(leaf, ArrayLeaf) else leaf
        for leaf in call.bound.leaves
    ]
    return replace(call, bound=BoundArguments(call.bound.records, tuple(leaves)))


# -------------------------------------------------------------------------- the batched launch


def run(kernel: JITFunction, call: Call, batches: tuple[Batch, ...]) -> Any:
    """Launch over all examples now (lazily, except in the interpreter)."""
    if batches and call.engine == "interpret":
        return _one_by_one(kernel, call, batches)
    return kernel.run(batched(kernel, call, batches) if batches else call)


def batched(kernel: JITFunction, call: Call, batches: tuple[Batch, ...]) -> Call:
    """The call of the kernel that handles all examples: more grid axes, more scalars, another key."""
    arrays = {leaf.name: leaf for leaf in call.bound.arrays}
    names = [leaf.name for leaf in call.bound.arrays]
    key = tuple(tuple(name for name in names if name in batch.arrays) for batch in batches)
    grid = (*call.grid, *(batch.size for batch in batches))

    def with_batch(plain: Call) -> Call:
        leaves: list[Leaf] = [
            arrays[leaf.name] if isinstance(leaf, ArrayLeaf) else leaf for leaf in plain.bound.leaves
        ]
        for name in names:
            position = 0
            for level, batch in enumerate(batches):
                if name in batch.arrays:
                    position += 1
                    step = prod(arrays[name].shape[position:])
                    leaves.append(
                        ScalarLeaf(step_name(name, level), step, int64 if plain.key.wide else int32)
                    )
        bound = BoundArguments(plain.bound.records, tuple(leaves))
        return kernel.on_grid(replace(plain, key=replace(plain.key, batch=key), bound=bound), grid)

    made = with_batch(call)
    if not call.key.wide and kernel.needs_wide(made):
        made = with_batch(kernel.widened(call))
    return made


def _one_by_one(kernel: JITFunction, call: Call, batches: tuple[Batch, ...]) -> Any:
    """The interpreter's way: one example after the other."""
    results: list[list[mx.array]] = []
    for index in product(*(range(batch.size) for batch in batches)):
        values: dict[str, Any] = {}
        for leaf in call.bound.arrays:
            place = tuple(i for i, batch in zip(index, batches, strict=True) if leaf.name in batch.arrays)
            if isinstance(leaf.value, FreshArray):
                values[leaf.name] = replace(leaf.value, shape=leaf.shape[len(place) :])
            elif place:
                values[leaf.name] = leaf.value[place]
        results.append(_as_list(kernel.run(_with_arrays(call, values))))
    sizes = tuple(batch.size for batch in batches)
    columns = [list(column) for column in zip(*results, strict=True)]
    return tuple(mx.stack(column).reshape(*sizes, *column[0].shape) for column in columns)
