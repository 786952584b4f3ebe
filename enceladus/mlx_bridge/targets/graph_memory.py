"""Loads and stores of the graph engine, on flat MLX arrays.

MLX neither checks nor forgives an index, so no index leaves this module unclipped. Offsets that NumPy
knows and that walk through the array in order (``pid * BLOCK + arange``, or whole rows of a matrix) become
slices and pads; all others become a gather, or a scatter with one spare element at the end that takes
whatever must not be stored.

Lanes are the elements of a tile in all programs of a chunk, in row-major order. Arrays of lanes have
the program axis first; each dimension is full or 1.
"""

from __future__ import annotations

from math import prod

import mlx.core as mx
import numpy as np

#: A tile in all programs of a chunk: known while the graph is built, or computed by it.
Data = np.ndarray | mx.array

_MAX_ELEMENTS = 2**31 - 1  # of one dimension in MLX, so of a flat array


def to_mlx(data: Data) -> mx.array:
    """``data`` as an MLX array of the same type."""
    # MLX takes no negative strides.
    return data if isinstance(data, mx.array) else mx.array(np.asarray(data, order="C"))


def flatten(array: mx.array, name: str) -> mx.array:
    """``array`` in row-major order. Raises ``ValueError`` where MLX cannot hold it in one dimension."""
    if array.size > _MAX_ELEMENTS:
        raise ValueError(
            f"{name!r} has {array.size} elements; the graph engine handles up to {_MAX_ELEMENTS} in one "
            "array: run the kernel on a GPU, or on parts of the array"
        )
    return array.reshape(-1)


# ------------------------------------------------------------------------------ shapes of lanes


class _Run:
    """Lanes that walk through the array in order: lane ``i`` of ``box`` is element ``start + i``."""

    __slots__ = ("box", "start")

    def __init__(self, start: int, box: tuple[int, ...]):
        self.start = start
        self.box = box


def _start_of_run(offsets: np.ndarray) -> int | None:
    """The first offset if lane ``i`` has the offset ``first + i``, else ``None``."""
    lanes = offsets.reshape(-1)
    first, last = int(lanes[0]), int(lanes[-1])
    if last - first != lanes.size - 1:
        return None
    return first if np.array_equal(lanes, np.arange(first, last + 1, dtype=lanes.dtype)) else None


def _box_of(mask: np.ndarray) -> tuple[int, ...] | None:
    """The lengths per axis if ``mask`` is true exactly in one corner box starting at lane 0."""
    if not mask[(0,) * mask.ndim]:
        return None
    box = []
    for axis in range(mask.ndim):
        others = tuple(i for i in range(mask.ndim) if i != axis)
        box.append(int(np.flatnonzero(mask.any(axis=others))[-1]) + 1)
    corner = mask[_corner(box)]
    return tuple(box) if corner.all() else None


def _corner(box: tuple[int, ...] | list[int]) -> tuple[slice, ...]:
    return tuple(slice(0, n) for n in box)


def _find_run(offsets: np.ndarray, mask: Data | None) -> _Run | None:
    """A run over all lanes, or over the corner box that ``mask`` selects."""
    start = _start_of_run(offsets)
    if start is not None:
        return _Run(start, offsets.shape)
    if isinstance(mask, np.ndarray) and mask.shape == offsets.shape:
        box = _box_of(mask)
        if box is not None and box != offsets.shape:
            start = _start_of_run(offsets[_corner(box)])
            if start is not None:
                return _Run(start, box)
    return None


def in_range(offsets: Data, size: int) -> Data:
    """Which int64 ``offsets`` are in ``[0, size)``."""
    if isinstance(offsets, np.ndarray):
        return (offsets >= 0) & (offsets < size)
    return (offsets >= mx.array(0, mx.int64)) & (offsets < mx.array(size, mx.int64))


def both(a: Data | None, b: Data) -> Data:
    """``a and b`` of int1; ``None`` is true everywhere."""
    if a is None:
        return b
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a & b
    return to_mlx(a) & to_mlx(b)


def as_index(offsets: Data) -> Data:
    """Offsets in int64, where a comparison cannot wrap; those past 2^63 turn negative, so out of range."""
    if isinstance(offsets, np.ndarray):
        return offsets.astype(np.int64, copy=False)
    return offsets.astype(mx.int64)


def target_index(offsets: Data, mask: Data | None, size: int) -> Data:
    """Where to write in an array of ``size`` and one spare element, int32.

    The spare element takes what is masked off or out of range.
    """
    offsets = as_index(offsets)
    valid = both(mask, in_range(offsets, size))
    if isinstance(valid, np.ndarray) and isinstance(offsets, np.ndarray):
        return np.where(valid, offsets, size).astype(np.int32)
    return mx.where(to_mlx(valid), to_mlx(offsets), mx.array(size, mx.int64)).astype(mx.int32)


# --------------------------------------------------------------------------------------- loads


def load(flat: mx.array, offsets: Data, mask: Data | None, other: Data | None) -> mx.array:
    """``flat[offsets]`` where ``mask`` holds, else ``other`` or 0; out of range, anything finite to read.

    ``flat`` has shape (n,); the others broadcast against each other, and the result has their common shape.
    """
    if isinstance(mask, np.ndarray) and mask.all():
        mask = None
    if flat.size == 0:
        shape = np.broadcast_shapes(*(x.shape for x in (offsets, mask, other) if x is not None))
        zeros = mx.zeros(shape, flat.dtype)
        return zeros if mask is None or other is None else mx.where(to_mlx(mask), zeros, to_mlx(other))
    if isinstance(offsets, np.ndarray):
        if isinstance(mask, np.ndarray) and np.broadcast_shapes(mask.shape, offsets.shape) == offsets.shape:
            mask = np.broadcast_to(mask, offsets.shape)
        run = _find_run(offsets, mask)
        if run is not None:
            loaded, mask = _load_run(flat, run, offsets.shape, mask, other)
            return _choose(mask, loaded, other)
    return _choose(mask, _gather(flat, offsets, mask), other)


def _choose(mask: Data | None, loaded: mx.array, other: Data | None) -> mx.array:
    if mask is None:
        return loaded
    fill = mx.array(0, loaded.dtype) if other is None else to_mlx(other)
    return mx.where(to_mlx(mask), loaded, fill)


def _load_run(
    flat: mx.array, run: _Run, shape: tuple[int, ...], mask: Data | None, other: Data | None
) -> tuple[mx.array, Data | None]:
    """The lanes of a run, 0 where the array has no element, and the mask that remains to be applied."""
    count, size = prod(run.box), flat.size
    low, high = min(max(run.start, 0), size), max(min(run.start + count, size), 0)
    if low >= high:  # nothing of the array is touched
        return mx.zeros(shape, flat.dtype), (mask if other is not None else None)
    before, after = low - run.start, run.start + count - high
    lanes = flat if high - low == size else flat[low:high]
    if before or after:
        lanes = mx.pad(lanes, (before, after))
    if lanes.shape != run.box:
        lanes = lanes.reshape(run.box)
    if run.box != shape:
        lanes = mx.pad(lanes, [(0, full - part) for part, full in zip(run.box, shape, strict=True)])
        return lanes, (mask if other is not None else None)  # the mask is the box
    if other is None and isinstance(mask, np.ndarray) and mask.shape == shape:
        hides_elements = not mask.reshape(-1)[before : count - after].all()
        mask = mask if hides_elements else None
    return lanes, mask


def _gather(flat: mx.array, offsets: Data, mask: Data | None) -> mx.array:
    offsets = as_index(offsets)
    if isinstance(offsets, np.ndarray) and not isinstance(mask, mx.array):
        if mask is not None:
            offsets = np.where(mask, offsets, 0)
        index = mx.array(np.clip(offsets, 0, flat.size - 1).astype(np.int32))
    else:
        index = to_mlx(offsets)
        if mask is not None:
            index = mx.where(to_mlx(mask), index, mx.array(0, mx.int64))
        index = mx.clip(index, mx.array(0, mx.int64), mx.array(flat.size - 1, mx.int64)).astype(mx.int32)
    return mx.take_along_axis(flat, index.reshape(-1), axis=0).reshape(index.shape)


# -------------------------------------------------------------------------------------- stores


class ArrayContents:
    """The contents of one written array while a chunk after the other is stored. Nothing is mutated in MLX.

    Runs of elements are collected and joined with the old contents in one concatenation at the end.
    """

    __slots__ = ("flat", "pieces")

    def __init__(self, flat: mx.array):
        self.flat = flat
        #: (first element, end, new values), in order and disjoint; newer than ``flat``
        self.pieces: list[tuple[int, int, mx.array]] = []

    def store(self, offsets: Data, value: Data, mask: Data | None) -> None:
        """Set the elements at ``offsets`` where ``mask`` holds; those out of range are dropped.

        The operands broadcast against each other. Where lanes of one store share an element the last
        lane wins; between programs that is a race in the kernel, whose outcome is not defined.
        """
        if self.flat.size == 0 or (isinstance(mask, np.ndarray) and not mask.any()):
            return
        shape = np.broadcast_shapes(*(x.shape for x in (offsets, value, mask) if x is not None))
        if isinstance(offsets, np.ndarray):
            offsets = np.broadcast_to(offsets, shape)
            if isinstance(mask, np.ndarray):
                mask = None if mask.all() else np.broadcast_to(mask, shape)
            run = _find_run(offsets, mask)
            if run is not None:
                self._store_run(run, shape, to_mlx(value), mask)
                return
        self._scatter(offsets, to_mlx(value), mask, shape)

    def finish(self) -> mx.array:
        """The flat array with everything stored."""
        if self.pieces:
            parts, position = [], 0
            for first, end, value in self.pieces:
                if first > position:
                    parts.append(self.flat[position:first])
                parts.append(value)
                position = end
            if position < self.flat.size:
                parts.append(self.flat[position:])
            self.flat = parts[0] if len(parts) == 1 else mx.concatenate(parts)
            self.pieces = []
        return self.flat

    def _store_run(self, run: _Run, shape: tuple[int, ...], value: mx.array, mask: Data | None) -> None:
        if value.shape != shape:
            value = mx.broadcast_to(value, shape)
        if run.box != shape:
            value, mask = value[_corner(run.box)], None  # the mask is the box
        count = prod(run.box)
        low, high = max(run.start, 0), min(run.start + count, self.flat.size)
        if isinstance(mask, np.ndarray) and low < high:
            lanes = mask.reshape(-1)[low - run.start : high - run.start]
            if lanes.all():
                mask = None
            else:
                chosen = np.flatnonzero(lanes)
                first, end = (int(chosen[0]), int(chosen[-1]) + 1) if chosen.size else (0, 0)
                low, high = low + first, low + end
                mask = None if chosen.size == end - first else lanes[first:end]
        elif isinstance(mask, mx.array):
            mask = mx.broadcast_to(mask, shape).reshape(-1)[low - run.start : high - run.start]
        if low >= high:
            return
        value = value.reshape(-1)
        if high - low != count:
            value = value[low - run.start : high - run.start]
        if mask is not None:
            value = mx.where(to_mlx(mask), value, self._read(low, high))
        self._write(low, high, value)

    def _read(self, low: int, high: int) -> mx.array:
        if any(first < high and low < end for first, end, _ in self.pieces):
            self.finish()
        return self.flat[low:high]

    def _write(self, low: int, high: int, value: mx.array) -> None:
        if self.pieces and low < self.pieces[-1][1]:
            self.finish()
        self.pieces.append((low, high, value))

    def _scatter(self, offsets: Data, value: mx.array, mask: Data | None, shape: tuple[int, ...]) -> None:
        flat = self.finish()
        size = flat.size
        index = to_mlx(target_index(offsets, mask, size))
        index, value = (mx.broadcast_to(x, shape).reshape(-1) for x in (index, value))
        spare = mx.concatenate([flat, mx.zeros((1,), flat.dtype)])
        self.flat = mx.put_along_axis(spare, index, value, axis=0)[:size]
