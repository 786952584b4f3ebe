"""The grid of a launch, and how it maps onto MLX's grid of threads.

One program is one threadgroup of ``32 * num_warps`` threads. MLX counts threads in C ints; a grid that
does not fit is *remapped*: the kernel is compiled to take a linear program number from a two-dimensional
grid and the logical sizes as scalars. A batch adds axes (``passes/batch.py``), which share MLX's last axis
with the kernel's own third.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

Grid = tuple[int, ...]  #: three axes, and those of a batch

_INT_LIMIT = 2**31 - 1
#: CUDA's limit on blocks along y and z.
_CUDA_LIMIT = 65_535


def resolve(grid: Any, values: Mapping[str, Any]) -> tuple[int, ...]:
    """A grid as the user gave it → 1 to 3 non-negative ints. A function gets ``values``, all arguments."""
    if callable(grid):
        grid = grid(dict(values))
    if hasattr(grid, "__index__") and not isinstance(grid, bool):
        grid = (grid,)
    if not isinstance(grid, (tuple, list)):
        raise TypeError(f"grid is {grid!r} ({type(grid).__name__}); it must be a tuple of 1 to 3 ints")
    if not 1 <= len(grid) <= 3:
        raise ValueError(f"grid {tuple(grid)!r} has {len(grid)} dimensions; it must have 1 to 3")
    sizes = []
    for axis, size in enumerate(grid):
        # An array also has __index__ (it would be evaluated) but is more likely a mistake.
        if type(size).__name__ in ("bool", "bool_", "array", "ndarray") or not hasattr(size, "__index__"):
            hint = "; use enceladus.cdiv or // for a whole number" if isinstance(size, float) else ""
            raise TypeError(
                f"grid[{axis}] is {size!r} ({type(size).__name__}); it must be a non-negative int{hint}"
            )
        count = size.__index__()
        if count < 0:
            raise ValueError(f"grid[{axis}] is {count}; it must be a non-negative int")
        if count > _INT_LIMIT:
            raise ValueError(f"grid[{axis}] is {count}; an axis can have {_INT_LIMIT} programs at most")
        sizes.append(count)
    return tuple(sizes)


def padded(grid: tuple[int, ...]) -> Grid:
    """The grid with three axes."""
    x, y, z = (*grid, 1, 1)[:3]
    return x, y, z


def needs_remap(grid: Grid, num_warps: int, engine: str) -> bool:
    """Whether the engine cannot take the grid axis by axis."""
    limit = _CUDA_LIMIT if engine == "cuda" else _INT_LIMIT
    return grid[0] * 32 * num_warps > _INT_LIMIT or grid[1] > limit or prod(grid[2:]) > limit


def thread_grid(grid: Grid, num_warps: int, engine: str, remap: bool) -> Grid:
    """MLX's grid in threads. ``ValueError`` when there are more programs than any grid can hold."""
    threads = 32 * num_warps
    if not remap:
        return grid[0] * threads, grid[1], prod(grid[2:])
    total = prod(grid)
    width = min(total, _INT_LIMIT // threads)
    height = -(-total // width)
    if height > (_CUDA_LIMIT if engine == "cuda" else _INT_LIMIT):
        raise ValueError(f"grid {grid} has {total} programs, more than the GPU can number")
    return width * threads, height, 1


GridLike = tuple[int, ...] | list[int] | Callable[[dict[str, Any]], Any]
