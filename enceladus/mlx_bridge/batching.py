"""``enceladus.vmap``: a function of one example, applied to a batch with one launch for each launch in it.

MLX cannot vectorize a kernel by itself: ``mx.vmap`` refuses the primitive behind ``mx.fast.metal_kernel``.
So during :func:`vmap` a launch puts an ``mx.custom_function`` in the graph in place of the kernel. What it
returns is a dummy of the right shape; its ``vmap`` rule, which MLX calls when it rewrites the graph, launches
the kernel over the whole batch, with one more grid axis (``passes/batch.py``). The rule runs outside of the
vmap it serves, but perhaps inside an outer one: then the batched launch is such a node again.

Each level of vmap has a *token*, a batched number that every launch takes as an argument. So MLX calls the
rule also for a launch whose arrays are the same for all examples, and a dummy that some path would let
through cannot be evaluated.

The graph engine's launches are MLX operations and need none of this; ``mx.vmap`` does them as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from enceladus.ir.types import int32, int64
from enceladus.mlx_bridge.arguments import ArrayLeaf, BoundArguments, Leaf, ScalarLeaf, is_numpy_array
from enceladus.mlx_bridge.dtypes import TO_MLX
from enceladus.mlx_bridge.fresh import FreshArray
from enceladus.mlx_bridge.graph_launch import roles_of
from enceladus.mlx_bridge.launch import as_mlx, check_roles, distinct_pairs, require_distinct
from enceladus.passes.batch import step_name
from enceladus.passes.roles import hazards

if TYPE_CHECKING:
    from enceladus.mlx_bridge.jit import Call, JITFunction


@dataclass(eq=False, slots=True)
class Level:
    """One vmap in progress. ``is_tracing`` until its function has returned; then MLX rewrites the graph."""

    size: int
    token: mx.array | None = None
    is_tracing: bool = True


@dataclass(frozen=True, slots=True)
class Batch:
    """One level of a batched launch: how many examples, and which array leaves have an axis for them."""

    size: int
    arrays: frozenset[str]


#: One entry for each vmap in progress, in all threads: all that a launcher looks at.
in_progress: list[Level] = []
_local = threading.local()


def levels() -> tuple[Level, ...]:
    """This thread's vmaps in progress, outermost first."""
    return getattr(_local, "levels", ())


@contextmanager
def _inside(stack: tuple[Level, ...]) -> Iterator[None]:
    outer = levels()
    _local.levels = stack
    try:
        yield
    finally:
        _local.levels = outer


# ---------------------------------------------------------------------------------- the launch


def launch(kernel: JITFunction, call: Call, batches: tuple[Batch, ...] = ()) -> Any:
    """Launch inside whatever vmaps are in progress; ``call`` is of one example of these.

    ``batches``: the levels that ``call``'s arrays already have in front, outermost first.
    """
    function = kernel.ir(call.key)
    arrays = call.bound.arrays
    roles = roles_of(function)
    check_roles(kernel.__name__, arrays, roles)
    pairs = [(stored.name, loaded.name) for stored, loaded in hazards(function)]
    values = [leaf.value for leaf in arrays]
    require_distinct(distinct_pairs(kernel.__name__, roles, pairs, arrays), values)
    stack = levels()
    written = [leaf for leaf in arrays if roles[leaf.name].is_written]
    if not stack or 0 in call.grid or all(leaf.size == 0 for leaf in written):
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
        with _inside(stack if is_foreign else stack[:-1]):
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
            f"{kernel.__name__}() has no gradient inside enceladus.vmap on the {call.engine} engine; "
            "give it one with mx.custom_function around enceladus.vmap, or use the graph engine (CPU)"
        )

    node: Any = mx.custom_function(dummies)
    node.vmap(rewrite)
    node.vjp(refuse)
    node.jvp(refuse)
    made: list[mx.array] = node(*[as_mlx(leaf.value) for leaf in given], token)
    return list(made)


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


# ------------------------------------------------------------------------------------ the entry


def vmap(fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """``fn`` for a batch of examples: like ``mx.vmap``, and legal over launches in every engine.

    Each launch in ``fn`` becomes one launch over the whole batch, with one more axis of its grid; the kernel
    sees one example, and ``program_id`` and ``num_programs`` are as without vmap. MLX operations in ``fn``
    are batched by ``mx.vmap``. May be nested, and used inside ``mx.compile``.

    Args:
        fn: takes and returns arrays, or trees of them (tuples, lists, dictionaries). Arguments that are no
            arrays reach it as they are, and so do keyword arguments, which must not hold arrays.
        in_axes: which axis of each array argument counts the examples: an int for all, or a tuple with one
            entry for each positional argument, which may be a tree itself. ``None``: the same array for all
            examples.
        out_axes: where the axis goes in the results, an int or a tree in the same way; ``None`` for a result
            that is the same for all examples.

    Arrays that ``fn`` closes over are the same for all examples. A launch into an array that is not batched
    gives every example its own copy; argument arrays of the caller stay as they are.

    Raises ``ValueError`` for axes that do not exist or do not agree in length, ``TypeError`` for NumPy
    arrays, and for arrays in keyword arguments.
    """
    name = getattr(fn, "__name__", "fn")

    def batched_function(*args: Any, **kwargs: Any) -> Any:
        leaves: list[Any] = []
        args_tree = _flatten(args, leaves, f"{name}()")
        held: list[Any] = []
        _flatten(kwargs, held, f"{name}()")
        if any(isinstance(value, mx.array) for value in held):
            raise TypeError(
                f"enceladus.vmap: {name}() got an array in a keyword argument; pass it by position, with its "
                "axis in in_axes"
            )
        axes = _axes(args_tree, in_axes, "in_axes")
        places = [place for place, value in enumerate(leaves) if isinstance(value, mx.array)]
        array_axes = [_checked_axis(axes[place], leaves[place].ndim, "in_axes") for place in places]
        sizes = {
            leaves[place].shape[axis]
            for place, axis in zip(places, array_axes, strict=True)
            if axis is not None
        }
        if len(sizes) != 1:
            shapes = ", ".join(
                f"{leaves[place].shape} along {axis}" for place, axis in zip(places, array_axes, strict=True)
            )
            what = "no argument has a batched axis" if not sizes else "the batched axes differ in length"
            raise ValueError(f"enceladus.vmap: {what}: {name}() got arrays of shape {shapes or 'none'}")
        size = sizes.pop()
        given = [leaves[place] for place in places]
        if size == 0:  # some of MLX's operations cannot be rewritten for it; one example gives the shapes
            given = [
                x if axis is None else mx.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), dtype=x.dtype)
                for x, axis in zip(given, array_axes, strict=True)
            ]
        level = Level(size or 1)
        results: list[Any] = []
        shapes_of_one: list[tuple[int, ...]] = []
        trees: list[Any] = []

        def of_one_example(token: mx.array, *arrays: mx.array) -> list[mx.array]:
            level.token = token
            for place, array in zip(places, arrays, strict=True):
                leaves[place] = array
            trees.append(_flatten(fn(*_unflatten(args_tree, leaves), **kwargs), results, f"{name}()"))
            level.is_tracing = False
            made = [value for value in results if isinstance(value, mx.array)]
            shapes_of_one.extend(array.shape for array in made)
            return made or [token]  # MLX wants a result

        in_progress.append(level)
        try:
            with _inside((*levels(), level)):
                token = mx.zeros((level.size,), dtype=mx.float32)
                rewritten: Any = mx.vmap(of_one_example, in_axes=(0, *array_axes), out_axes=0)(token, *given)
        finally:
            in_progress.remove(level)
        if size == 0:
            rewritten = [
                x[:0] if x.ndim > len(shape) else x
                for x, shape in zip(rewritten, shapes_of_one, strict=False)
            ]
        _place_results(results, list(rewritten), shapes_of_one, size, _axes(trees[0], out_axes, "out_axes"))
        return _unflatten(trees[0], results)

    batched_function.__name__ = name
    batched_function.__doc__ = fn.__doc__
    batched_function.__wrapped__ = fn  # type: ignore[attr-defined]
    return batched_function


def _place_results(
    results: list[Any],
    rewritten: Sequence[mx.array],
    shapes: Sequence[tuple[int, ...]],
    size: int,
    axes: list[Any],
) -> None:
    """Put batched arrays with their axis in place among ``results``; numbers stay."""
    arrays = iter(zip(rewritten, shapes, strict=False))
    for place, value in enumerate(results):
        if not isinstance(value, mx.array):
            continue
        array, shape = next(arrays)
        is_shared = array.ndim == len(shape)
        axis = _checked_axis(axes[place], len(shape) + 1, "out_axes")
        if axis is None:
            if not is_shared:
                raise ValueError(
                    "enceladus.vmap: out_axes is None for a result that differs from example to example"
                )
        else:
            if is_shared:
                array = mx.broadcast_to(array, (size, *shape))
            array = mx.moveaxis(array, 0, axis)
        results[place] = array


# ---------------------------------------------------------------------------------------- trees


@dataclass(frozen=True, slots=True)
class _Leaf:
    """The place of a leaf in the list of them all."""

    index: int


def _flatten(tree: Any, leaves: list[Any], where: str) -> Any:
    """The structure of ``tree``; whatever is no tuple, list or dictionary goes to ``leaves``."""
    if isinstance(tree, (tuple, list)):
        items = [_flatten(item, leaves, where) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, dict):
        return {key: _flatten(item, leaves, where) for key, item in tree.items()}
    if is_numpy_array(tree):
        raise TypeError(f"enceladus.vmap: {where} got a NumPy array; convert it with mx.array(...)")
    leaves.append(tree)
    return _Leaf(len(leaves) - 1)


def _unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    if isinstance(structure, _Leaf):
        return leaves[structure.index]
    if isinstance(structure, dict):
        return {key: _unflatten(item, leaves) for key, item in structure.items()}
    items = [_unflatten(item, leaves) for item in structure]
    return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)


def _axes(structure: Any, axes: Any, name: str) -> list[Any]:
    """One axis for each leaf of ``structure``, from a prefix of the same tree."""
    if isinstance(structure, _Leaf) or axes is None or isinstance(axes, int):
        if not (axes is None or (isinstance(axes, int) and not isinstance(axes, bool))):
            raise ValueError(f"enceladus.vmap: {name} has {axes!r} for an array; it takes an int or None")
        return [axes] * _count(structure)
    if isinstance(structure, dict):
        if not isinstance(axes, dict) or axes.keys() != structure.keys():
            raise ValueError(
                f"enceladus.vmap: {name} {axes!r} does not match a dictionary of {set(structure)}"
            )
        parts = [_axes(structure[key], axes[key], name) for key in structure]
    else:
        if not isinstance(axes, (tuple, list)) or len(axes) != len(structure):
            raise ValueError(
                f"enceladus.vmap: {name} {axes!r} does not match {len(structure)} values; it takes an int, "
                "None, or one entry for each"
            )
        parts = [_axes(item, axis, name) for item, axis in zip(structure, axes, strict=True)]
    return [axis for part in parts for axis in part]


def _count(structure: Any) -> int:
    if isinstance(structure, _Leaf):
        return 1
    return sum(map(_count, structure.values() if isinstance(structure, dict) else structure))


def _checked_axis(axis: int | None, ndim: int, name: str) -> int | None:
    if axis is None:
        return None
    if not -ndim <= axis < ndim:
        raise ValueError(f"enceladus.vmap: {name} has axis {axis} for an array of {ndim} dimensions")
    return axis % ndim
