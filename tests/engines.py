"""One launch in every engine: the helper of the differential tests.

``interpreter`` and ``graph`` are the engines a user reaches on any machine. ``host`` is the Metal engine up
to and including the text that MLX generates; that text then runs in the host executor instead of on a GPU.
Everything around the kernel (binding, roles, packed scalars, coverage, merging) is the real launch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import linecache
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

import enceladus
import enceladus.language as tl
from enceladus.codegen.kernel import CompiledKernel
from enceladus.ir.types import DType, bfloat16, int1
from enceladus.mlx_bridge import engines as bridge_engines
from enceladus.mlx_bridge.targets import metal
from tests.host_executor import HostArray, HostKernel, capture, compile_source, to_dtype, to_mlx, to_numpy

ENGINES: tuple[str, ...] = ("interpreter", "graph")
if importlib.util.find_spec("ziglang") is not None:  # the host executor's compiler, a development dependency
    ENGINES += ("host",)
if mx.cuda.is_available():  # an NVIDIA GPU, and MLX's CUDA build
    ENGINES += ("cuda",)
#: For tests that run Metal's text without asking for every engine.
needs_host = pytest.mark.skipif("host" not in ENGINES, reason="runs Metal's text, which needs ziglang")
SCHEDULES: tuple[str | int, ...] = ("forward", "reverse", 1)
_CHOICE = {"interpreter": "interpret", "graph": "graph", "host": "metal", "cuda": "cuda"}

Arrays = list[np.ndarray]


def numpy_dtype(dtype: DType) -> np.dtype:
    """The NumPy dtype that arrays of ``dtype`` have."""
    return np.dtype(bool if dtype is int1 else ml_dtypes.bfloat16 if dtype is bfloat16 else dtype.name)


@functools.lru_cache(maxsize=1024)
def _host_kernel(source: str) -> HostKernel:
    if "host" not in ENGINES:
        pytest.skip("runs Metal's text, which needs ziglang")
    return compile_source(source)


class HostTarget:
    """Stands in for ``mlx_bridge.engines.register``: kernels run in the host executor.

    ``sources`` collects the text of every launch. ``input_offset`` moves inputs in device memory by so many
    elements from an aligned address, as a slice of a larger array would be.
    """

    def __init__(
        self,
        schedules: Sequence[str | int] = SCHEDULES,
        *,
        input_offset: int = 0,
        allow_unwritten: bool = False,
    ):
        self.schedules = tuple(schedules)
        self.input_offset = input_offset
        self.allow_unwritten = allow_unwritten
        self.sources: list[str] = []
        self.compiled: list[CompiledKernel] = []

    def register(self, engine: str, compiled: CompiledKernel) -> Callable[..., list[mx.array]]:
        assert engine == "metal"
        kernel = metal.register(compiled)
        self.compiled.append(compiled)

        def launch(
            *, inputs: list[mx.array], grid: Any, threadgroup: Any, init_value: Any = None, **rest: Any
        ) -> list[mx.array]:
            def traced(*arrays: mx.array) -> list[mx.array]:
                options = dict(grid=grid, threadgroup=threadgroup, init_value=init_value, **rest)
                return kernel(inputs=list(arrays), **options)

            (record,) = capture(traced, *inputs)
            self.sources.append(record.source)
            results = _host_kernel(record.source).run_schedules(
                [self._place(x) for x in inputs],
                [o.shape for o in record.outputs],
                [to_dtype(o.dtype) for o in record.outputs],
                record.grid,
                record.threadgroup,
                init_value,
                self.schedules,
                allow_unwritten=self.allow_unwritten,
            )
            return [to_mlx(result) for result in results]

        return launch

    def _place(self, x: mx.array) -> np.ndarray | HostArray:
        array = to_numpy(x)
        if not self.input_offset or array.size < 8:
            return array
        return HostArray(array, self.input_offset * array.dtype.itemsize)


@contextlib.contextmanager
def engine(name: str, host: HostTarget | None = None) -> Iterator[None]:
    """Launches inside run in this engine, without the disk cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENCELADUS_ENGINE", _CHOICE[name])
        patch.setenv("ENCELADUS_CACHE", "0")
        patch.delenv("ENCELADUS_INTERPRET", raising=False)
        if name == "host":
            patch.setattr(bridge_engines, "register", (host or HostTarget()).register)
        device = mx.default_device()
        if name == "graph":  # the CPU's engine, also on a machine with a GPU
            mx.set_default_device(mx.cpu)
        try:
            yield
        finally:
            mx.set_default_device(device)


def _to_launch(value: Any) -> Any:
    """``value`` with NumPy arrays as new MLX arrays, also inside tuples."""
    if isinstance(value, np.ndarray):
        return to_mlx(value) if value.ndim else to_mlx(value.reshape(1)).reshape(())
    if isinstance(value, tuple):
        items = [_to_launch(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


def _as_list(result: Any) -> Arrays:
    if result is None:
        return []
    return [to_numpy(x) for x in (result if isinstance(result, tuple) else (result,))]


def run_everywhere(
    kernel: enceladus.JITFunction,
    grid: Any,
    arguments: Mapping[str, Any],
    *,
    num_warps: int = 4,
    engines: Sequence[str] = ENGINES,
    host_schedules: Sequence[str | int] = SCHEDULES,
    host_offset: int = 0,
    allow_unwritten: bool = False,
) -> dict[str, Arrays]:
    """Engine → the written arrays, in the order of the signature, as NumPy arrays.

    ``arguments``: parameter → value, compile-time ones included; NumPy arrays go in as MLX arrays that no
    other engine sees. ``host_offset``: see ``HostTarget.input_offset``. ``allow_unwritten``: elements of
    ``enceladus.empty`` that the kernel does not write are no error in the host executor.
    """
    results = {}
    for name in engines:
        # A kernel of its own: no engine finds another's plans, and specializations do not add up.
        target = HostTarget(host_schedules, input_offset=host_offset, allow_unwritten=allow_unwritten)
        own = enceladus.JITFunction(kernel.fn, kernel.options)
        with engine(name, target):
            values = {key: _to_launch(value) for key, value in arguments.items()}
            results[name] = _as_list(own[grid](**values, num_warps=num_warps))
    return results


def assert_everywhere(
    kernel: enceladus.JITFunction,
    grid: Any,
    arguments: Mapping[str, Any],
    *expected: np.ndarray,
    **options: Any,
) -> None:
    """All engines give exactly ``expected``, bit for bit (any NaN equals any other)."""
    for name, outputs in run_everywhere(kernel, grid, arguments, **options).items():
        assert len(outputs) == len(expected), f"{name}: {len(outputs)} outputs"
        for index, (got, want) in enumerate(zip(outputs, expected, strict=True)):
            assert_same(got, want, f"{name}, output {index}")


def assert_same(got: np.ndarray, want: np.ndarray, what: str = "") -> None:
    """Equal dtype, shape and bits, where every NaN equals every other."""
    want = np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    if got.dtype.kind not in "biu":
        with np.errstate(invalid="ignore"):
            wide, other = got.astype(np.float64), want.astype(np.float64)
        same = (np.isnan(wide) & np.isnan(other)) | (
            (wide == other) & (np.signbit(wide) == np.signbit(other))
        )
    else:
        same = got == want
    if not same.all():
        bad = np.flatnonzero(~same.reshape(-1))
        index = int(bad[0])
        raise AssertionError(
            f"{what}: element {index} is {got.reshape(-1)[index]!r}, expected {want.reshape(-1)[index]!r} "
            f"({bad.size} of {got.size} differ)"
        )


@functools.lru_cache(maxsize=4096)
def kernel_from_source(source: str, name: str = "kernel") -> enceladus.JITFunction:
    """A kernel from Python text that sees ``tl`` and ``enceladus``; the text is known to ``linecache``."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    filename = f"<kernel {digest}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"tl": tl, "enceladus": enceladus, "__name__": f"kernel_{digest}"}
    exec(compile(source, filename, "exec", dont_inherit=True), namespace)
    found: enceladus.JITFunction = namespace[name]
    return found


def environment(**more: str) -> dict[str, str]:
    """The environment of a subprocess that imports this checkout."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "PYTHONPATH": path, "ENCELADUS_CACHE": "0", **more}
