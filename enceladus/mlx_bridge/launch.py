"""A launch of a compiled kernel through MLX: inputs, outputs, merging, rebinding.

:func:`prepare` does everything that follows from the *kinds* of the arguments (roles, shapes, coverage,
packed scalars) and returns a :class:`Launch`; :meth:`Launch.run` then only adds one node to MLX's graph.
Launches with equal shapes, dtypes and numbers share one ``Launch``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from enceladus.codegen.kernel import ArrayParameter, CompiledKernel, Role
from enceladus.errors import InternalError
from enceladus.mlx_bridge import coverage, updates
from enceladus.mlx_bridge.arguments import (
    ArrayLeaf,
    BoundArguments,
    is_numpy_array,
    mlx_to_numpy,
    numpy_to_mlx,
    share_memory,
)
from enceladus.mlx_bridge.dtypes import TO_MLX
from enceladus.mlx_bridge.fresh import FreshArray
from enceladus.mlx_bridge.grid import Grid, thread_grid
from enceladus.mlx_bridge.scalars import Packer
from enceladus.mlx_bridge.updates import Finish

if TYPE_CHECKING:
    from enceladus.mlx_bridge.gradients import Derivative

#: MLX binds smaller inputs in constant address space, whose offsets must be multiples of 4 bytes.
_SMALL = 8
#: Integers up to here survive ``init_value``, which MLX keeps as a C float.
_EXACT_FILL = 1 << 24


@dataclass(slots=True)
class Output:
    """What becomes of one written array.

    ``index`` is its place among the kernel's outputs, ``leaf`` that of the argument among the array
    leaves. ``mark`` is the output of written-marks in a merging launch, else -1; ``cost`` and ``reason``
    are for ``explain``.
    """

    name: str
    leaf: int
    index: int
    shape: tuple[int, ...]
    dtype: mx.Dtype
    fresh: bool
    numpy: bool
    mark: int = -1
    cost: str = "free"
    reason: str = ""
    conditions: list[Any] | None = None  #: what ``covered`` depends on; ``None``: nothing in the launch
    covered: bool = False
    finish: Finish | None = None  #: makes the new contents from the output, and the argument


@dataclass(slots=True)
class Launch:
    """One prepared launch; everything but the arrays themselves.

    ``inputs``: (index of the array leaf, how to prepare it; ``None``: as it is). ``distinct``: pairs of
    leaves that must not be one array, with their names.
    """

    engine: str
    compiled: CompiledKernel
    kernel: Callable[..., list[mx.array]]
    inputs: list[tuple[int, Callable[[Any], mx.array] | None]]
    scalars: mx.array | None
    leaf_names: list[str]
    leaves: list[tuple[tuple[int, ...], mx.Dtype]]  #: shape and dtype of each array leaf
    outputs: list[Output]
    output_shapes: list[tuple[int, ...]]
    output_dtypes: list[mx.Dtype]
    grid: Grid
    threadgroup: Grid
    init_value: int | float | None = None
    packer: Packer | None = None  #: makes ``scalars`` from other numbers
    distinct: list[tuple[int, int, str]] = field(default_factory=list)
    foreign: frozenset[int] = frozenset()  #: places of leaves that are no MLX arrays
    runs: bool = True  #: ``False``: nothing to do on the GPU (an empty grid, or only empty outputs)
    programs: Grid = (0, 0, 0)  #: the grid in programs
    derivative: Derivative | None = None

    def run(self, arrays: Sequence[Any], scalars: mx.array | None = None) -> Any:
        """Launch with these array leaves (in order); the written array, a tuple of them, or ``None``.

        ``scalars`` takes the place of the prepared ones.
        """
        require_distinct(self.distinct, arrays)
        return self.finish(arrays, self.compute(arrays, scalars))

    def compute(self, arrays: Sequence[Any], scalars: mx.array | None = None) -> list[mx.array | None]:
        """The new contents of each written array, ``None`` where nothing is written; changes no array."""
        made = self._launch(arrays, scalars) if self.runs else []
        contents: list[mx.array | None] = []
        for output in self.outputs:
            if not self.runs or 0 in output.shape:
                contents.append(None)
                continue
            value = arrays[output.leaf]
            new = made[output.index]
            if output.finish is not None:
                new = output.finish(new, value)
            if output.mark >= 0:
                old = as_mlx(value)
                new = mx.where(made[output.mark], new, old)
            contents.append(new)
        return contents

    def finish(self, arrays: Sequence[Any], contents: Sequence[mx.array | None]) -> Any:
        """Hand over what :meth:`compute` made: rebind or fill existing arrays, return the results."""
        results = []
        for output, new in zip(self.outputs, contents, strict=True):
            value = arrays[output.leaf]
            if new is None:
                results.append(value.materialize() if output.fresh else value)
            elif output.fresh:
                results.append(new)
            elif output.numpy:
                mlx_to_numpy(new, value)
                results.append(value)
            else:
                value[...] = new
                results.append(value)
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def call_with_zeros(self, kernel: Callable[..., list[mx.array]]) -> list[mx.array]:
        """Call another kernel object with zeros instead of the arrays (to capture MLX's source)."""
        zeros = [mx.zeros(shape, dtype=dtype) for shape, dtype in self.leaves]
        return replace(self, kernel=kernel)._launch(zeros)

    def _launch(self, arrays: Sequence[Any], scalars: mx.array | None = None) -> list[mx.array]:
        inputs = [
            arrays[leaf] if convert is None else convert(arrays[leaf]) for leaf, convert in self.inputs
        ]
        if self.scalars is not None:
            inputs.append(self.scalars if scalars is None else scalars)
        return self.kernel(
            inputs=inputs,
            output_shapes=self.output_shapes,
            output_dtypes=self.output_dtypes,
            grid=self.grid,
            threadgroup=self.threadgroup,
            init_value=self.init_value,
        )

    def with_numbers(self, grid: Grid, remap: bool, values: dict[str, bool | int | float]) -> Launch | None:
        """The same launch on another grid or with other scalars of the same types.

        ``None`` where the answer to "is every element written?" would change, or nothing would run.
        """
        if 0 in grid or not self.runs:
            return None
        values = {**values, "grid.0": grid[0], "grid.1": grid[1], "grid.2": grid[2]}
        for output in self.outputs:
            if output.conditions is not None:
                size = prod(output.shape)
                if coverage.holds(output.conditions, grid, size, values) != output.covered:
                    return None
        other = copy(self)
        other.programs = grid
        other.grid = thread_grid(grid, self.compiled.num_warps, self.engine, remap)
        if self.packer is not None:
            other.scalars = self.packer(*[values[name] for name in self.packer.names])
        return other

    @property
    def is_direct(self) -> bool:
        """Whether inputs go in as they are and outputs come out as they are."""
        return (
            self.runs
            and all(convert is None for _, convert in self.inputs)
            and all(o.mark < 0 and not o.numpy and 0 not in o.shape for o in self.outputs)
        )


# ------------------------------------------------------------------------------------ inputs


def as_mlx(value: Any) -> mx.array:
    """An array leaf's value as an MLX array: itself, a copy of a NumPy array, or a new array."""
    if isinstance(value, mx.array):
        return value
    return value.materialize() if isinstance(value, FreshArray) else numpy_to_mlx(value)


def _input_converter(leaf: ArrayLeaf) -> Callable[[Any], mx.array] | None:
    """How the array becomes an input that the kernel can bind, or ``None`` for "as it is"."""
    if leaf.size == 0:
        # An empty input has no buffer that could be bound; no program may read it anyway.
        dtype = TO_MLX[leaf.dtype.name]
        return lambda value: mx.zeros((_SMALL,), dtype=dtype)
    if leaf.size < _SMALL and leaf.dtype.itemsize < 4:
        return _pad_small
    if not leaf.shape:
        return lambda value: as_mlx(value).reshape(1)
    if leaf.is_numpy or leaf.is_fresh:
        return as_mlx
    return None


def _pad_small(value: Any) -> mx.array:
    """At least 8 elements, so that a view at an odd offset is copied and bound in device space."""
    flat = as_mlx(value).reshape(-1)
    return mx.concatenate([flat, mx.zeros((_SMALL - flat.size,), dtype=flat.dtype)])


# ----------------------------------------------------------------------------------- prepare


@dataclass(frozen=True, slots=True)
class Request:
    """What :func:`prepare` needs to know about a launch."""

    kernel_name: str
    bound: BoundArguments
    grid: Grid
    num_warps: int
    engine: str
    remap: bool
    #: Compile the variant that marks the writes to these arrays (none: the plain kernel).
    compile: Callable[[tuple[str, ...]], CompiledKernel]
    #: Make MLX's kernel object from a compiled kernel.
    register: Callable[[CompiledKernel], Callable[..., list[mx.array]]]
    derivative: Derivative | None = None


def prepare(request: Request) -> Launch:
    """Plan a launch. ``TypeError``/``ValueError`` for arguments that the kernel's roles do not allow."""
    compiled = request.compile(())
    leaves = request.bound.arrays
    index = {leaf.name: position for position, leaf in enumerate(leaves)}
    parameters = {parameter.name: parameter for parameter in compiled.arrays}
    roles = {parameter.name: parameter.role for parameter in compiled.arrays}
    check_roles(request.kernel_name, leaves, roles)
    values: dict[str, bool | int | float] = {leaf.name: leaf.value for leaf in request.bound.scalars}
    values |= {f"grid.{axis}": size for axis, size in enumerate(request.grid)}

    outputs = []
    for leaf in leaves:
        parameter = parameters[leaf.name]
        if parameter.role.is_written:
            dtype = TO_MLX[leaf.dtype.name]
            outputs.append(
                Output(leaf.name, index[leaf.name], -1, leaf.shape, dtype, leaf.is_fresh, leaf.is_numpy)
            )
    launch = Launch(
        engine=request.engine,
        compiled=compiled,
        kernel=_never,
        inputs=[],
        scalars=None,
        leaf_names=[leaf.name for leaf in leaves],
        leaves=[(leaf.shape, TO_MLX[leaf.dtype.name]) for leaf in leaves],
        outputs=outputs,
        output_shapes=[],
        output_dtypes=[],
        foreign=frozenset(k for k, leaf in enumerate(leaves) if leaf.is_numpy or leaf.is_fresh),
        grid=(0, 0, 0),
        threadgroup=(32 * request.num_warps, 1, 1),
        distinct=distinct_pairs(request.kernel_name, roles, compiled.hazards, leaves),
        programs=request.grid,
        derivative=request.derivative,
    )
    if 0 in request.grid or all(0 in output.shape for output in outputs):
        launch.runs = False
        for output in outputs:
            output.reason = "nothing is launched"
        return launch

    track = _plan_unwritten(launch, leaves, parameters, request.grid, values)
    if track:
        launch.compiled = compiled = request.compile(track)
        parameters = {parameter.name: parameter for parameter in compiled.arrays}
    launch.kernel = request.register(compiled)
    launch.grid = thread_grid(request.grid, request.num_warps, request.engine, request.remap)
    launch.inputs = [
        (index[p.name], _input_converter(leaves[index[p.name]])) for p in compiled.arrays if p.input_name
    ]
    if compiled.scalars_name:
        by_value = False
        if request.engine == "cuda":
            from enceladus.codegen.cuda_header import scalars_by_value  # reads files; other engines need not

            by_value = scalars_by_value(compiled)
        launch.packer = Packer(compiled.scalars, as_strides=by_value)
        launch.scalars = launch.packer(*[values[name] for name in launch.packer.names])
    _place_outputs(launch, leaves, parameters)
    return launch


def _never(**_: Any) -> list[mx.array]:
    raise InternalError("an empty launch reached MLX")


def check_roles(kernel: str, leaves: list[ArrayLeaf], roles: dict[str, Role]) -> None:
    """Check each array against what the kernel does with it."""
    for leaf in leaves:
        role = roles.get(leaf.name)
        if role is None:
            raise InternalError(f"compiled kernel {kernel} does not know its array {leaf.name!r}")
        if leaf.is_fresh and role is Role.READ:
            raise TypeError(
                f"{kernel}(): argument {leaf.parameter!r} is only read by the kernel, so it must be an "
                f"existing array, not the description of an output ({leaf.value!r})"
            )
        if leaf.is_numpy and role.is_written and not leaf.value.flags.writeable:
            raise ValueError(
                f"{kernel}(): argument {leaf.parameter!r} is written by the kernel but the NumPy array is "
                "read-only; pass a copy"
            )


Distinct = list[tuple[int, int, str]]


def distinct_pairs(
    kernel: str, roles: dict[str, Role], hazards: Sequence[tuple[str, str]], leaves: list[ArrayLeaf]
) -> Distinct:
    """Pairs of leaves (by index) that must be different arrays, each with the error's text."""
    index = {leaf.name: position for position, leaf in enumerate(leaves)}
    pairs = []
    written = [leaf.name for leaf in leaves if roles[leaf.name].is_written]
    for position, first in enumerate(written):
        for second in written[position + 1 :]:
            pairs.append((first, second, "both are written and one result would be lost"))
    for stored, loaded in sorted(hazards):
        if stored != loaded:
            why = f"the kernel loads from {loaded!r} after it stored to {stored!r} and would see old contents"
            pairs.append((stored, loaded, why))
    return [
        (
            index[first],
            index[second],
            f"{kernel}(): arguments {leaves[index[first]].parameter!r} and "
            f"{leaves[index[second]].parameter!r} are the same array, but {why}; pass a copy for one of them",
        )
        for first, second, why in pairs
    ]


def require_distinct(pairs: Distinct, arrays: Sequence[Any]) -> None:
    """``ValueError`` if two arrays that must differ are one object, or share memory as NumPy arrays can."""
    for first, second, message in pairs:
        one, other = arrays[first], arrays[second]
        if one is other and not isinstance(one, FreshArray):
            raise ValueError(message)
        if is_numpy_array(one) and is_numpy_array(other) and share_memory(one, other):
            raise ValueError(message.replace("are the same array", "share memory"))


def _plan_unwritten(
    launch: Launch,
    leaves: list[ArrayLeaf],
    parameters: dict[str, ArrayParameter],
    grid: Grid,
    values: dict[str, bool | int | float],
) -> tuple[str, ...]:
    """Decide what elements that no program writes shall hold.

    Sets ``cost`` and ``reason`` of each output and ``launch.init_value``; returns the arrays whose writes
    must be marked. MLX has one ``init_value`` for all outputs, and marks need it to be 0.
    """
    fills: dict[str, list[Output]] = {}
    merged: list[Output] = []
    updated: list[Output] = []
    for output in launch.outputs:
        leaf = leaves[output.leaf]
        if 0 in output.shape:
            output.reason = "the array is empty"
            continue
        if parameters[leaf.name].update:
            updated.append(output)
            continue
        if leaf.is_fresh and leaf.value.fill is None:
            output.reason = "enceladus.empty promises nothing about unwritten elements"
            continue
        output.conditions = parameters[leaf.name].coverage
        if output.conditions is not None:
            output.covered = coverage.holds(output.conditions, grid, leaf.size, values)
        if output.covered:
            output.reason = "every element is written"
            continue
        why = "it is not known that every element is written"
        if leaf.is_fresh and _is_exact(leaf.value.fill, leaf.value.dtype):
            output.cost = "fill"
            output.reason = f"{why}, so MLX fills the output with {leaf.value.fill!r} first"
            fills.setdefault(repr(float(leaf.value.fill)), []).append(output)
        else:
            merged.append(output)
            output.reason = f"{why}, so unwritten elements are taken from the old contents"
    if merged or updated or len(fills) > 1:
        for text, group in fills.items():
            if text != "0.0":
                merged.extend(group)
    for output in merged:
        output.cost = "merge"
        output.reason = output.reason.replace(
            "so MLX fills the output", "and outputs need different fills, so they are merged"
        )
    if updated:
        launch.init_value = _plan_updates(updated, leaves, parameters, alone="0.0" not in fills)
    elif merged:
        launch.init_value = 0
    elif fills:
        (group,) = fills.values()
        launch.init_value = leaves[group[0].leaf].value.fill
    names = {leaves[output.leaf].name for output in merged}
    return tuple(leaf.name for leaf in leaves if leaf.name in names)


def _plan_updates(
    updated: list[Output], leaves: list[ArrayLeaf], parameters: dict[str, ArrayParameter], alone: bool
) -> float:
    """Decide how outputs of atomic updates become arrays; returns the value that the outputs start from.

    That is 0, or -0.0, the neutral element of floating-point addition, where no output is filled with 0.
    """
    sums = [o for o in updated if parameters[o.name].output_dtype == "float32"]
    negative_zero = alone and bool(sums) and not any(o.fresh for o in sums)
    for output in updated:
        parameter = parameters[output.name]
        output.finish = updates.finish(parameter, as_mlx, negative_zero)
        value = leaves[output.leaf].value
        if output.fresh and updates.starts_from_zero(parameter.update, value):
            output.cost = "fill"
            output.reason = "atomic updates start from 0, which MLX fills the output with first"
        else:
            output.cost = "merge"
            output.reason = "what the atomic updates did is combined with the old contents afterwards"
    return -0.0 if negative_zero else 0


def _is_exact(fill: bool | int | float, dtype: mx.Dtype) -> bool:
    """Whether MLX's ``init_value``, a C float, gives exactly ``fill`` in ``dtype``."""
    if isinstance(fill, (bool, int)):
        return abs(fill) <= _EXACT_FILL
    return dtype in (mx.float32, mx.float16, mx.bfloat16) or (fill == int(fill) and abs(fill) <= _EXACT_FILL)


def _place_outputs(launch: Launch, leaves: list[ArrayLeaf], parameters: dict[str, ArrayParameter]) -> None:
    """Fill in MLX's output shapes and dtypes, and where each output and its marks are."""
    by_name = {leaves[output.leaf].name: output for output in launch.outputs}
    for parameter in launch.compiled.arrays:
        if not parameter.output_name:
            continue
        output = by_name[parameter.name]
        output.index = len(launch.output_shapes)
        # An empty output has no buffer to bind; no program may write it anyway.
        launch.output_shapes.append((_SMALL,) if 0 in output.shape else output.shape)
        launch.output_dtypes.append(
            TO_MLX[parameter.output_dtype] if parameter.output_dtype else output.dtype
        )
    for parameter in launch.compiled.arrays:
        if parameter.written_name:
            output = by_name[parameter.name]
            output.mark = len(launch.output_shapes)
            launch.output_shapes.append(output.shape)
            launch.output_dtypes.append(mx.uint8)
