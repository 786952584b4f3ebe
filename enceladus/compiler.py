"""Tile IR → compiled kernel: the pipeline, top to bottom.

``prepare`` stops where the graph engine starts; ``compile_function`` goes on to the Metal body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enceladus.codegen import mathlib
from enceladus.codegen.body import BodyWriter, grid_names
from enceladus.codegen.expressions import Expressions, offset_only_values
from enceladus.codegen.kernel import ArrayParameter, CompiledKernel, Role, ScalarParameter
from enceladus.codegen.names import Names
from enceladus.ir.core import Function, Value
from enceladus.ir.ops import ArrayLoad, For
from enceladus.ir.printer import print_function
from enceladus.ir.types import int64, uint64
from enceladus.passes import (
    batch,
    canonicalize,
    combine_updates,
    dce,
    form_groups,
    full_blocks,
    register_pressure,
    resolve_pointers,
    split_induction,
    updates,
)
from enceladus.passes.affine import Analysis
from enceladus.passes.coverage import coverage
from enceladus.passes.intervals import Intervals, largest_tile
from enceladus.passes.roles import hazards, roles

#: Called with a pass's name and the function after it; used for dumps, timing and verification.
Listener = Callable[[str, Function], None]


def prepare(
    function: Function, listener: Listener | None = None, levels: Sequence[Sequence[str]] = ()
) -> Function:
    """Run the passes that every engine shares, in place: afterwards stage ``ARRAY`` holds.

    ``levels``: the arrays that are batched, for each level of a batch (see ``passes/batch.py``).
    """
    steps = (
        ("resolve_pointers", resolve_pointers.run),
        # Starts of examples are found outside of loops only if they exist before the next two.
        ("batch", lambda f: batch.run(f, levels) if levels else f),
        # Offsets carried by loops become visible only after pointers are resolved.
        ("split_induction", split_induction.run),
        ("canonicalize", canonicalize.run),
        # Induction splitting leaves the old carried tiles behind.
        ("dce", dce.run),
    )
    for name, run in steps:
        run(function)
        if listener is not None:
            listener(name, function)
    return function


def compile_function(
    function: Function,
    *,
    math_mode: str = "relaxed",
    track_writes: Sequence[str] = (),
    grid_remap: bool = False,
    levels: Sequence[Sequence[str]] = (),
    grid_axes: int = batch.GRID_AXES,
    listener: Listener | None = None,
) -> CompiledKernel:
    """Compile the front end's IR to a Metal body. ``function`` is consumed.

    ``track_writes`` names array parameters whose written elements are marked in an extra uint8 output.
    ``grid_remap`` computes program ids from a linear number, for grids beyond MLX's limits: three more
    scalars ``grid.0``, ``grid.1``, ``grid.2`` (int32) carry the logical grid. ``levels``: the batched arrays
    of each level of a batch; each is a grid axis more, ``grid.3`` and so on, and the grid is always carried.
    ``grid_axes``: the axes that ``function`` already has, more than three if it was made from a batched one.
    """
    warnings = register_pressure.check(function)
    tile = largest_tile(function)
    prepare(function, listener, levels)
    ir_text = print_function(function)
    use = roles(function)
    hazard_pairs = hazards(function)
    covered = coverage(function, Analysis(function))
    manners = updates.manners(function)
    updates.run(function, manners)
    combine_updates.run(function, manners)
    has_loops = any(isinstance(op, For) for op in function.body.walk())
    tracked = set(track_writes)
    marked = {v for v in function.arguments if v.name in tracked and use[v].is_written}
    for name, run in (
        ("full_blocks", lambda f: full_blocks.run(f, marked)),
        # The tests that full_blocks adds to a loop may not change in it, or stand elsewhere too.
        ("canonicalize", canonicalize.run),
        ("dce", dce.run),
        ("form_groups", form_groups.run),
    ):
        if name == "canonicalize" and not has_loops:
            continue
        run(function)
        if listener is not None:
            listener(name, function)

    names = Names()
    axes = grid_axes + len(levels)
    is_carried = grid_remap or axes > batch.GRID_AXES
    if is_carried:
        for name in grid_names(axes):
            names.unique(name, outermost=True)
    arrays, inputs, outputs, marks = _name_arrays(function, use, covered, marked, manners, names)
    scalars, words, count = _pack_scalars(function)
    grid_words = None
    if is_carried:
        grid_words = count
        scalars += [ScalarParameter(f"grid.{axis}", "int32", count + axis) for axis in range(axes)]
    scalars_name = names.input("scalars")
    expressions = Expressions(
        Intervals(function), offset_only_values(list(function.walk())), fast=math_mode == "fast"
    )
    writer = BodyWriter(
        function, expressions, inputs, outputs, marks, words, scalars_name, names, grid_words, manners
    )
    writer.grid_axes, writer.is_linear = axes, grid_remap
    body = writer.text()
    writer.shared.check()
    needs = expressions.needs | writer.atomics.needs
    header = (
        mathlib.header(needs) + writer.memory.header() + writer.atomics.header() + writer.exchanges.header()
    )
    uses_scalars = f"{scalars_name}[" in body
    return CompiledKernel(
        name=function.name,
        body=body,
        header=header,
        arrays=arrays,
        scalars=scalars,
        scalars_name=scalars_name if uses_scalars else "",
        num_warps=function.num_warps,
        math_mode=math_mode,
        registers=register_pressure.estimate(function),
        threadgroup_bytes=writer.shared.size,
        ir=ir_text,
        hazards=sorted((a.name, b.name) for a, b in hazard_pairs),
        warnings=warnings,
        largest_tile=tile,
    )


def _name_arrays(
    function: Function,
    use: dict[Value, Role],
    covered: dict[Value, list | None],
    marked: set[Value],
    manners: dict[Value, updates.Manner],
    names: Names,
) -> tuple[list[ArrayParameter], dict[Value, str], dict[Value, str], dict[Value, str]]:
    """Names in the body for every array: a read-and-written one has an input and an output."""
    loaded = {op.array for op in function.walk() if isinstance(op, ArrayLoad)}
    arrays: list[ArrayParameter] = []
    inputs: dict[Value, str] = {}
    outputs: dict[Value, str] = {}
    marks: dict[Value, str] = {}
    for value, role in use.items():
        if role.is_read and (value not in manners or manners[value].needs_old or value in loaded):
            inputs[value] = names.input(value.name)
    for value, role in use.items():
        if role.is_written:
            outputs[value] = names.unique(f"{value.name}_out" if value in inputs else value.name)
        if value in marked:
            marks[value] = names.unique(f"{value.name}_written")
        arrays.append(
            ArrayParameter(
                name=value.name,
                dtype=str(value.type.element.element),  # type: ignore[union-attr]
                role=role,
                input_name=inputs.get(value, ""),
                output_name=outputs.get(value, ""),
                written_name=marks.get(value, ""),
                update=manners[value].name if value in manners else "",
                output_dtype=manners[value].word.name if value in manners else "",
                coverage=covered.get(value) if role.is_written else None,
            )
        )
    return arrays, inputs, outputs, marks


def _pack_scalars(function: Function) -> tuple[list[ScalarParameter], dict[Value, int], int]:
    """Deal 32-bit words to the scalar arguments that the kernel uses."""
    used = {v for op in function.walk() for v in op.operands}
    scalars: list[ScalarParameter] = []
    words: dict[Value, int] = {}
    count = 0
    for value in function.arguments:
        if value.type.element.is_ptr():
            continue
        dtype = value.type.dtype
        if value in used:
            words[value] = count
            scalars.append(ScalarParameter(value.name, dtype.name, count))
            count += 2 if dtype in (int64, uint64) else 1
        else:
            scalars.append(ScalarParameter(value.name, dtype.name, -1))
    return scalars, words, count
