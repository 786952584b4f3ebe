"""What works with what: MLX's transformations × kinds of launches, each cell tried and compared.

``python -m tests.composition`` prints the tables of ``docs/composition.md``; ``--write`` puts them into it.
The first table runs in the engine of MLX's default device, a GPU's too. The second, where ziglang is
installed, runs the Metal engine's text in the host executor, except where MLX only traces. Values are
compared with MLX operations. The exit status is 1 if one is wrong: a cell works, or is refused with an error.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["ENCELADUS_CACHE"] = "0"

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.codegen.kernel import CompiledKernel
from enceladus.mlx_bridge import engines
from enceladus.mlx_bridge.targets import metal
from tests.engines import ENGINES, HostTarget

PAGE = Path(__file__).resolve().parent.parent / "docs" / "composition.md"
BEGIN, END = "<!-- made by python -m tests.composition -->", "<!-- end -->"

Function = Callable[[mx.array], mx.array]
N, BATCH, BLOCK = 20, 3, 16

# ---------------------------------------------------------------------------------- launches


@enceladus.jit
def square(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * x, mask=mask)


@enceladus.jit
def square_in_place(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(x_ptr + offsets, x * x, mask=mask)


@enceladus.jit
def add_up(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.atomic_add(out_ptr + offsets % 4, x * x, mask=mask)


@enceladus.jit
def square_and_double(x_ptr, square_ptr, double_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(square_ptr + offsets, x * x, mask=mask)
    tl.store(double_ptr + offsets, x + x, mask=mask)


def grid(n: int) -> tuple[int]:
    return (enceladus.cdiv(n, BLOCK),)


def pure(x: mx.array) -> mx.array:
    return square[grid(x.size)](x, enceladus.empty_like(x), x.size, BLOCK=BLOCK)


def in_place(x: mx.array) -> mx.array:
    y = x + 1
    square_in_place[grid(y.size)](y, y.size, BLOCK=BLOCK)
    return y


def partial(x: mx.array) -> mx.array:
    y = 3 * x
    square[(1,)](x, y, 7, BLOCK=BLOCK)
    return y


def partial_reference(x: mx.array) -> mx.array:
    return mx.concatenate([x[:7] * x[:7], 3 * x[7:]])


def accumulate(x: mx.array) -> mx.array:
    return add_up[grid(x.size)](x, mx.ones(4), x.size, BLOCK=BLOCK)


def accumulate_reference(x: mx.array) -> mx.array:
    return 1 + (x * x).reshape(-1, 4).sum(0)


def two_outputs(x: mx.array) -> mx.array:
    first, second = square_and_double[grid(x.size)](
        x, enceladus.empty_like(x), enceladus.empty_like(x), x.size, BLOCK=BLOCK
    )
    return first + mx.sin(second)


def view(x: mx.array) -> mx.array:
    return pure(x.reshape(4, -1).T[1:])


@dataclass(frozen=True)
class Launch:
    """A function of one vector that launches a kernel, and the same in MLX operations."""

    name: str
    function: Function
    reference: Function
    size: int = N
    dtype: mx.Dtype = mx.float32


LAUNCHES = [
    Launch("pure output", pure, lambda x: x * x),
    Launch("in place", in_place, lambda x: (x + 1) * (x + 1)),
    Launch("partial write", partial, partial_reference),
    Launch("atomic accumulate", accumulate, accumulate_reference),
    Launch("two outputs", two_outputs, lambda x: x * x + mx.sin(2 * x)),
    Launch("16-bit", pure, lambda x: x * x, dtype=mx.float16),
    Launch("tiny array", pure, lambda x: x * x, size=3),
    Launch("view", view, lambda x: x.reshape(4, -1).T[1:] ** 2),
]

# --------------------------------------------------------------------------- transformations

Vmap = Callable[..., Any]


def weighted(y: mx.array) -> mx.array:
    """A number from a result, to differentiate."""
    y = y.astype(mx.float32)
    return (y * mx.arange(y.size).reshape(y.shape)).sum()


def loss(function: Function) -> Function:
    return lambda x: weighted(function(x))


def exported(function: Function, x: mx.array) -> mx.array:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "function.mlxfn")
        mx.export_function(path, function, x)
        return mx.import_function(path)(x)[0]


@dataclass(frozen=True)
class Transformation:
    """``apply(function, x, batch, vmap)``: one or more arrays."""

    name: str
    apply: Callable[[Function, mx.array, mx.array, Vmap], Any]


TRANSFORMATIONS = [
    Transformation("eager", lambda f, x, batch, vmap: f(x)),
    Transformation("`mx.compile`", lambda f, x, batch, vmap: mx.compile(f)(x)),
    Transformation("`mx.grad`", lambda f, x, batch, vmap: mx.grad(loss(f))(x)),
    Transformation("`mx.value_and_grad`", lambda f, x, batch, vmap: mx.value_and_grad(loss(f))(x)),
    Transformation("`enceladus.vmap`", lambda f, x, batch, vmap: vmap(f)(batch)),
    Transformation("`mx.vmap`", lambda f, x, batch, vmap: mx.vmap(f)(batch)),
    Transformation("grad of vmap", lambda f, x, batch, vmap: mx.grad(loss(vmap(f)))(batch)),
    Transformation("vmap of grad", lambda f, x, batch, vmap: vmap(mx.grad(loss(f)))(batch)),
    Transformation("grad of `mx.checkpoint`", lambda f, x, batch, vmap: mx.grad(loss(mx.checkpoint(f)))(x)),
    Transformation("`mx.export_function`", lambda f, x, batch, vmap: exported(f, x)),
]


def one_by_one(function: Function) -> Function:
    """vmap by its definition."""
    return lambda batch: mx.stack([function(example) for example in batch])


# -------------------------------------------------------------------------------------- cells


@dataclass(frozen=True)
class Cell:
    """``text`` is what the table shows for a cell that works; ``error`` why it is refused."""

    text: str = ""
    error: str = ""
    is_wrong: bool = False


def inputs(launch: Launch) -> tuple[mx.array, mx.array]:
    batch = mx.sin(mx.arange(BATCH * launch.size)).reshape(BATCH, launch.size).astype(launch.dtype)
    return batch[0], batch


def arrays(result: Any) -> list[mx.array]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def message(error: BaseException) -> str:
    """The first line of an error, without places in files."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    text = re.sub(r"^\S+\.py:\d+:\d+: ", "", text)
    return f"{type(error).__name__}: {text}"


def run(transformation: Transformation, launch: Launch) -> Cell:
    """The cell in the engine of the device, compared with MLX operations."""
    x, batch = inputs(launch)
    want = arrays(transformation.apply(launch.reference, x, batch, one_by_one))
    try:
        got = arrays(transformation.apply(launch.function, x, batch, enceladus.vmap))
        mx.eval(got)
    except Exception as error:  # whatever it is, the table shows it
        return Cell(error=message(error))
    close = 2e-3 if launch.dtype == mx.float16 else 1e-5
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype or not mx.allclose(a, b, rtol=close, atol=close):
            return Cell(text="**wrong**", is_wrong=True)
    return Cell(text="yes")


def trace(transformation: Transformation, launch: Launch) -> Cell:
    """The cell on the Metal engine as far as MLX's graph: how many kernels it has."""
    sources: list[str] = []

    def note(event: dict[str, Any]) -> None:
        if event.get("type") == "primitive" and event.get("name") == "CustomKernel":
            sources.append(event["arguments"][1])

    def function() -> list[mx.array]:
        return arrays(transformation.apply(launch.function, *inputs(launch), enceladus.vmap))

    try:
        if transformation.name == "`mx.export_function`":
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "function.mlxfn")
                with enceladus.no_gradients():  # MLX exports no custom functions
                    mx.export_function(path, launch.function, inputs(launch)[0])
                return Cell(text="exported")
        if transformation.name == "`mx.vmap`":
            mx.export_function(note, function)
        else:
            with enceladus.no_gradients():
                mx.export_function(note, function)
    except Exception as error:
        if "Unable to get state for primitive Compiled" in str(error):  # fused, so traced
            return Cell(text="traced")
        return Cell(error=message(error))
    if not sources or not all("[[kernel]] void custom_kernel_" in source for source in sources):
        return Cell(text="**no kernel**", is_wrong=True)
    return Cell(text="traced")


def _no_gradient(*_: Any) -> Any:
    raise ValueError("[Primitive::vjp] Not implemented for CustomKernel.")


class OnTheHost:
    """The Metal engine without a GPU: kernels run in the host executor, or only in MLX's graph."""

    def __init__(self) -> None:
        self.is_tracing = False

    def register(self, engine: str, compiled: CompiledKernel) -> Callable[..., list[mx.array]]:
        traced = metal.register(compiled)
        run = HostTarget(("forward",)).register(engine, compiled)

        def launch(*, inputs: list[mx.array], **rest: Any) -> list[mx.array]:
            if self.is_tracing:
                return traced(inputs=inputs, **rest)
            results = run(inputs=inputs, **rest)
            # Values do not depend on the inputs, so they would have a gradient of 0; MLX's kernels have none.
            node: Any = mx.custom_function(lambda *_: results)
            node.vjp(_no_gradient)
            return list(node(*inputs))

        return launch

    def cell(self, transformation: Transformation, launch: Launch) -> Cell:
        """The host executor needs values, which these transformations do not have while they trace."""
        self.is_tracing = transformation.name in ("`mx.compile`", "`mx.vmap`", "`mx.export_function`")
        return (trace if self.is_tracing else run)(transformation, launch)


@contextmanager
def metal_on_the_host() -> Iterator[OnTheHost]:
    """Launches go to the Metal engine, which runs on this machine."""
    host, usual = OnTheHost(), engines.register
    engines.register = host.register
    os.environ["ENCELADUS_ENGINE"] = "metal"
    try:
        yield host
    finally:
        del os.environ["ENCELADUS_ENGINE"]
        engines.register = usual


def table(cell: Callable[[Transformation, Launch], Cell]) -> tuple[list[str], bool]:
    """Markdown lines: the table, and the errors that its refusals refer to; and whether all is right."""
    lines = [
        "| | " + " | ".join(launch.name for launch in LAUNCHES) + " |",
        "|---|" + "---|" * len(LAUNCHES),
    ]
    errors: list[str] = []
    is_right = True
    for transformation in TRANSFORMATIONS:
        texts = []
        for launch in LAUNCHES:
            found = cell(transformation, launch)
            is_right = is_right and not found.is_wrong
            if found.error and found.error not in errors:
                errors.append(found.error)
            number = errors.index(found.error) + 1 if found.error else 0
            texts.append(f"refused ({number})" if number else found.text)
        lines.append(f"| {transformation.name} | " + " | ".join(texts) + " |")
    if errors:
        lines += ["", *(f"{number}. `{error}`" for number, error in enumerate(errors, 1))]
    return lines, is_right


def report() -> tuple[str, bool]:
    """Both tables as Markdown, and whether no value is wrong."""
    lines = [f"### The `{engines.choose()}` engine", ""]
    values, is_right = table(run)
    lines += values
    if "host" in ENGINES:
        with metal_on_the_host() as host:
            values, is_right_there = table(host.cell)
        is_right = is_right and is_right_there
        lines += ["", "### The Metal engine, its text run on a CPU", "", *values]
    return "\n".join(lines), is_right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    options = parser.parse_args()
    text, is_right = report()
    print(text)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
