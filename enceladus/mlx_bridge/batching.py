"""The entry to batches: ``enceladus.vmap``, and which vmaps are in progress.

What a launch does inside one is in ``batched_launch.py``, which is loaded when that happens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from enceladus.mlx_bridge.arguments import is_numpy_array


@dataclass(eq=False, slots=True)
class Level:
    """One vmap in progress. ``is_tracing`` until its function has returned; then MLX rewrites the graph."""

    size: int
    token: mx.array | None = None
    is_tracing: bool = True


#: One entry for each vmap in progress, in all threads: all that a launcher looks at.
in_progress: list[Level] = []
_local = threading.local()


def levels() -> tuple[Level, ...]:
    """This thread's vmaps in progress, outermost first."""
    return getattr(_local, "levels", ())


@contextmanager
def inside(stack: tuple[Level, ...]) -> Iterator[None]:
    outer = levels()
    _local.levels = stack
    try:
        yield
    finally:
        _local.levels = outer


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

    Arrays that ``fn`` closes over are the same for all examples, and must not be launched into: they would be
    part of the traced graph afterwards, which MLX refuses to evaluate. A launch into an argument that is not
    batched gives every example its own copy; argument arrays of the caller stay as they are.

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
            with inside((*levels(), level)):
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
