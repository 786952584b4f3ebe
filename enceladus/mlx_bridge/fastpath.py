"""The hot path: one generated Python function per kernel, and one per kind of launch.

A launch that repeats an earlier one (same shapes, dtypes, numbers, grid and options) should cost little
more than MLX's own call. Generic Python (loops over parameters, ``isinstance`` chains) costs several times
that, so this module writes the straight-line code that one would write by hand. For

    def add(x, out, n, BLOCK: tl.constexpr): ...

``make_launcher`` generates, slightly shortened,

    def add(_e_grid, x=_e_MISSING, out=_e_MISSING, n=_e_MISSING, BLOCK=_e_MISSING, *_e_extra,
            num_warps=4, num_stages=None, …, **_e_options):
        if _e_extra or _e_options:
            return _e_slow(None, …)                    # a wrong call, explained there
        if type(_e_grid) is not tuple:
            …                                          # a function of the arguments, a list, an int
        try:
            _e_key = (_e_grid, type(sum(_e_grid)), num_warps, <engine>,
                      x.shape if (t := type(x)) is _e_array else t,
                      hash(x.dtype) if t is _e_array else None if t is float else x,
                      …, (t := type(BLOCK)),
                      repr(BLOCK) if t is float else BLOCK.….source_hash if t is _e_jit else BLOCK)
            _e_run = _e_plans.get(_e_key)
        except TypeError:                              # something that cannot be hashed
            _e_key = _e_run = None
        if _e_run is not None and not _e_vmaps:
            return _e_run(x, out, n)
        return _e_slow(_e_key, …)

Python itself binds the arguments. ``_e_vmaps`` is empty unless some thread is in ``enceladus.vmap``.
A float argument is in the key by type only: it is packed anew for each
launch. A float constexpr is there by its text, because ``0.0 == -0.0``; a kernel by all that it reads, which
may change. ``_e_slow`` is the readable path
(``jit.JITFunction``); it stores a plan under the key when the key says everything the plan depends on.
``make_run`` generates the plan:

    def run(x, out, n):
        r0, = _e_kernel(inputs=[x, _e_scalars], output_shapes=…, …)
        out[...] = r0
        return out
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

import mlx.core as mx

from enceladus import knobs
from enceladus.frontend.function import MISSING, KernelFunction
from enceladus.ir.types import DType
from enceladus.mlx_bridge.batching import in_progress
from enceladus.mlx_bridge.fresh import FreshArray
from enceladus.mlx_bridge.gradients import confirm, hits, inputs_of, probe, run_traced
from enceladus.mlx_bridge.grid import resolve
from enceladus.mlx_bridge.launch import Launch

#: Triton's launch options that mean nothing here; accepted so that its kernels' call sites work.
IGNORED_OPTIONS = (
    "num_stages",
    "num_ctas",
    "maxnreg",
    "waves_per_eu",
    "matrix_instr_nonkdim",
    "kpack",
    "enable_fp_fusion",
    "launch_cooperative_grid",
    "launch_pdl",
)

PLAN_LIMIT = 2048

#: Types whose equal values, type by type, mean the same launch. Others take the slow path.
_HASHABLE = (int, bool, float, type(None), str, FreshArray, DType, mx.Dtype)


def make_launcher(
    kernel: KernelFunction,
    plans: dict[Any, Callable[..., Any]],
    slow: Callable[..., Any],
    forget: Callable[[], None],
    kernel_type: type,
) -> Callable[..., Any]:
    """The function behind ``kernel[grid]``; see the module's docstring.

    ``forget`` drops all plans; called when a global or a helper that the kernel reads has changed.
    ``kernel_type``: the type of kernels, which may be constexpr arguments.
    """
    outside = kernel.dependency_values()
    names = [p.name for p in kernel.parameters]
    taken = [name for name in names if name.startswith("_e_")]
    if taken:  # the generated function's own names
        raise TypeError(f"{kernel.name}(): parameter {taken[0]!r}: names that begin with _e_ are reserved")
    namespace: dict[str, Any] = {
        "_e_MISSING": MISSING,
        "_e_array": mx.array,
        "_e_plans": plans,
        "_e_vmaps": in_progress,
        "_e_slow": slow,
        "_e_env": knobs.raw,
        "_e_engine": knobs.RAW_ENGINE,
        "_e_interpret": knobs.RAW_INTERPRET,
        "_e_debug": knobs.RAW_DEBUG,
        "_e_device": mx.default_device,
        "_e_resolve": resolve,
        "_e_seen": outside,
        "_e_forget": forget,
        "_e_values": kernel.dependency_values,
        "_e_type": type,
        "_e_float": float,
        "_e_jit": kernel_type,
        "_e_repr": repr,
        "_e_hash": hash,
        "_e_sum": sum,
        "_e_callable": callable,
        "_e_tuple": tuple,
        "_e_TypeError": TypeError,
    }
    positional: list[str] = []
    keyword_only: list[str] = []
    for parameter in kernel.parameters:
        default = "_e_MISSING"
        if parameter.default is not MISSING:
            default = f"_e_default_{parameter.name}"
            namespace[default] = parameter.default
        (keyword_only if parameter.keyword_only else positional).append(f"{parameter.name}={default}")
    options = [] if "num_warps" in names else ["num_warps=4"]
    options += [f"{option}=None" for option in IGNORED_OPTIONS if option not in names]
    signature = ", ".join(["_e_grid", *positional, "*_e_extra", *keyword_only, *options, "**_e_options"])
    given = "{" + ", ".join(f"{name!r}: {name}" for name in names) + "}"
    missing = " or ".join(f"{p.name} is _e_MISSING" for p in kernel.parameters if p.default is MISSING)
    parts = []
    for parameter in kernel.parameters:
        name = parameter.name
        if parameter.constexpr:
            parts.append(
                f"(_e_is := _e_type({name})), _e_repr({name}) if _e_is is _e_float else "
                f"{name}.kernel_function.source_hash if _e_is is _e_jit else {name}"
            )
        else:
            parts.append(
                f"{name}.shape if (_e_is := _e_type({name})) is _e_array else _e_is, "
                f"_e_hash({name}.dtype) if _e_is is _e_array else None if _e_is is _e_float else {name}"
            )
    runtime = ", ".join(p.name for p in kernel.parameters if not p.constexpr)
    lines = [
        f"def {kernel.name}({signature}):",
        "    if _e_extra or _e_options:",
        f"        return _e_slow(None, _e_grid, {given}, num_warps, _e_extra, _e_options)",
        "    if _e_type(_e_grid) is not _e_tuple:",
        f"        if {missing or 'False'}:",
        f"            return _e_slow(None, _e_grid, {given}, num_warps)",
        "        if _e_callable(_e_grid):",
        f"            _e_grid = _e_grid({given})",
        "        if _e_type(_e_grid) is not _e_tuple:",
        "            _e_grid = _e_resolve(_e_grid, {})",
    ]
    if outside:
        lines[1:1] = ["    global _e_seen"]
        lines += [
            "    if (_e_now := _e_values()) is not _e_seen:",
            "        _e_forget()",
            "        _e_seen = _e_now",
        ]
    lines += [
        "    try:",
        "        _e_key = (_e_grid, _e_type(_e_sum(_e_grid)), num_warps,",
        "                  _e_env(_e_engine) or _e_device().type, _e_env(_e_interpret), _e_env(_e_debug),",
        *(f"                  {part}," for part in parts),
        "                  )",
        "        _e_run = _e_plans.get(_e_key)",
        "    except _e_TypeError:",
        "        _e_key = _e_run = None",
        "    if _e_run is not None and not _e_vmaps:",
        f"        return _e_run({runtime})",
        f"    return _e_slow(_e_key, _e_grid, {given}, num_warps)",
    ]
    exec(_code("\n".join(lines), f"<launch of {kernel.name}>"), namespace)
    launcher: Callable[..., Any] = namespace[kernel.name]
    return launcher


@lru_cache(maxsize=1024)
def _code(source: str, filename: str) -> CodeType:
    return compile(source, filename, "exec")


def can_plan(kernel: KernelFunction, values: dict[str, Any], kernel_type: type) -> bool:
    """Whether the launcher's key says all that a plan depends on.

    Not so for tuples and NumPy arrays.
    """
    for parameter in kernel.parameters:
        kind = type(values[parameter.name])
        if kind is not mx.array and kind is not kernel_type and kind not in _HASHABLE:
            return False
    return True


def make_run(
    kernel: KernelFunction, launch: Launch, leaf_names: list[str], numbers: dict[str, Any]
) -> Callable[..., Any]:
    """A function of the run-time parameters that performs ``launch``.

    ``leaf_names``: the array leaves' names, each of which is a parameter (no tuples). ``numbers``: the values
    of the integers in ``launch``; floats may differ from call to call.
    """
    runtime = [p.name for p in kernel.parameters if not p.constexpr]
    namespace: dict[str, Any] = {}
    if launch.is_direct:
        lines = _direct_lines(launch, leaf_names, numbers, namespace)
    else:
        namespace["_e_launch"] = launch.run
        arrays = "".join(f"{name}, " for name in leaf_names)
        scalars = _scalars_expression(launch, numbers, namespace)
        lines = [f"    return _e_launch(({arrays}), {scalars})"]
    lines[:0] = _traced_lines(kernel, launch, leaf_names, numbers, namespace)
    source = "\n".join([f"def run({', '.join(runtime)}):", *lines])
    exec(_code(source, f"<plan of {kernel.name}>"), namespace)
    run: Callable[..., Any] = namespace["run"]
    return run


def _traced_lines(
    kernel: KernelFunction,
    launch: Launch,
    leaf_names: list[str],
    numbers: dict[str, Any],
    namespace: dict[str, Any],
) -> list[str]:
    """Where a gradient may be asked for, the launch is one with a derivative; see ``gradients``."""
    inputs = ", ".join(leaf_names[place] for place in inputs_of(launch))
    if not inputs or launch.derivative is None:
        return []
    floats = [
        p.name for p in kernel.parameters if not p.constexpr and isinstance(numbers[p.name], float)
    ]
    # Not the arrays that the launch was prepared with: they would be kept alive.
    constants = {name: value for name, value in numbers.items() if not isinstance(value, mx.array)}
    namespace.update(
        _e_probe=probe,
        _e_hits=hits,
        _e_confirm=confirm,
        _e_traced=run_traced,
        _e_prepared=launch,
        _e_constants=constants,
    )
    arrays = "".join(f"{name}, " for name in leaf_names)
    values = ", ".join(["**_e_constants", *(f"{name!r}: {name}" for name in floats)])
    return [
        f"    _e_probe({inputs})",
        f"    if _e_hits and _e_confirm({inputs}):",
        f"        _e_values = {{{values}}}",
        f"        _e_packed = {_scalars_expression(launch, numbers, namespace)}",
        f"        return _e_traced(_e_prepared, ({arrays}), _e_packed, _e_values, _e_values)",
    ]


def _scalars_expression(launch: Launch, numbers: dict[str, Any], namespace: dict[str, Any]) -> str:
    """Python text for the packed scalars: a constant, unless there are floats among them."""
    packer = launch.packer
    namespace["_e_scalars"] = launch.scalars
    if packer is None or not any(packer.is_float):
        return "_e_scalars"
    namespace["_e_pack"] = packer
    terms = []
    for place, (name, is_float) in enumerate(zip(packer.names, packer.is_float, strict=True)):
        if not is_float:
            namespace[f"_e_number{place}"] = numbers[name]
        terms.append(name if is_float else f"_e_number{place}")
    return f"_e_pack({', '.join(terms)})"


def _direct_lines(
    launch: Launch, leaf_names: list[str], numbers: dict[str, Any], namespace: dict[str, Any]
) -> list[str]:
    """The body of a plan whose inputs and outputs need no conversion."""
    namespace.update(
        _e_kernel=launch.kernel,
        _e_shapes=launch.output_shapes,
        _e_dtypes=launch.output_dtypes,
        _e_grid=launch.grid,
        _e_threadgroup=launch.threadgroup,
    )
    lines = []
    for number, (first, second, message) in enumerate(launch.distinct):
        namespace[f"_e_message{number}"] = message
        namespace["_e_ValueError"] = ValueError
        both_exist = f"{leaf_names[first]} is {leaf_names[second]}"
        if not any(output.fresh and output.leaf in (first, second) for output in launch.outputs):
            lines += [f"    if {both_exist}:", f"        raise _e_ValueError(_e_message{number})"]
    inputs = [leaf_names[leaf] for leaf, _ in launch.inputs]
    if launch.scalars is not None:
        inputs.append(_scalars_expression(launch, numbers, namespace))
    fill = ""
    if launch.init_value is not None:
        namespace["_e_fill"] = launch.init_value
        fill = ", init_value=_e_fill"
    results = "".join(f"_e_r{index}, " for index in range(len(launch.output_shapes)))
    lines += [
        f"    {results}= _e_kernel(inputs=[{', '.join(inputs)}], output_shapes=_e_shapes,",
        f"        output_dtypes=_e_dtypes, grid=_e_grid, threadgroup=_e_threadgroup{fill})",
    ]
    returned = []
    for output in launch.outputs:
        result = f"_e_r{output.index}"
        if output.finish is not None:
            namespace[f"_e_finish{output.index}"] = output.finish
            result = f"_e_finish{output.index}({result}, {leaf_names[output.leaf]})"
        if not output.fresh:
            name = leaf_names[output.leaf]
            lines.append(f"    {name}[...] = {result}")
            result = name
        returned.append(result)
    lines.append(f"    return {', '.join(returned)}")
    return lines


def kinds(kernel: KernelFunction, values: dict[str, Any]) -> tuple[Any, ...]:
    """What of the arguments decides the compiled kernel and the launch, except values of numbers.

    Launches of one ``kinds`` differ only in scalars and grid (see ``Launch.with_numbers``).
    """
    found: list[Any] = []
    for parameter in kernel.parameters:
        value = values[parameter.name]
        kind = type(value)
        if kind is mx.array:
            found += (value.shape, value.dtype)
        elif parameter.constexpr:
            held = getattr(value, "kernel_function", None)
            text = repr(value) if kind is float else None if held is None else held.source_hash
            found += (kind, value if text is None else text)
        elif kind is int:
            # Specialized by value: 1, divisible by 16, and the type that holds it.
            found += (kind, value == 1, value % 16 == 0, _width(value))
        else:
            found += (kind, None if kind is float or kind is bool else value)
    return tuple(found)


def _width(value: int) -> int:
    """Which integer type holds ``value``: 32, 64 (int64), 65 (uint64), 0 (none)."""
    if -(2**31) <= value < 2**31:
        return 32
    if -(2**63) <= value < 2**63:
        return 64
    return 65 if 0 <= value < 2**64 else 0
