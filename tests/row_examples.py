"""What the tests of the row examples share: loading them, inputs of each dtype, comparison with float64."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

import enceladus
from tests.host_executor import to_mlx, to_numpy

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
#: dtype → what rounding a result to it may amount to (of float32: the functions that lead to it).
RTOL = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
#: What float32 arithmetic on numbers of about 1 may amount to.
ATOL = 2e-6
DTYPES = tuple(RTOL)
SIZES = (1, 2, 3, 17, 100, 1000, 1023, 4096)


def example(name: str) -> ModuleType:
    """The module ``examples/<name>.py``, anew with those it imports.

    Its kernels thus know no other engine, and are not compiled so often that they warn.
    """
    stems = {path.stem for path in EXAMPLES.glob("*.py")}
    with pytest.MonkeyPatch.context() as patch, fresh_kernels():
        patch.syspath_prepend(str(EXAMPLES))
        for stem in stems & sys.modules.keys():
            patch.delitem(sys.modules, stem)
        module = importlib.import_module(name)
        for stem in stems & sys.modules.keys():
            del sys.modules[stem]
    return module


@contextlib.contextmanager
def fresh_kernels() -> Iterator[None]:
    """What is imported inside gets ``enceladus.ops`` and its kernels anew, for itself alone."""

    def loaded() -> set[str]:
        return {name for name in sys.modules if f"{name}.".startswith("enceladus.ops.")}

    kept = {name: sys.modules.pop(name) for name in loaded()}
    package = vars(enceladus).pop("ops", None)
    try:
        yield
    finally:
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(kept)
        if package is not None:
            enceladus.ops = package
        else:
            vars(enceladus).pop("ops", None)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normal numbers of this dtype."""
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return rng.standard_normal(shape).astype(np.float32).astype(numpy_dtype)


def array(values: np.ndarray) -> mx.array:
    return to_mlx(values)


def assert_near(got: mx.array, expected: np.ndarray, dtype: str, *, scale: float = 1.0) -> None:
    """``got`` has this dtype and is ``expected`` but for rounding, of numbers of about ``scale``."""
    assert got.dtype == getattr(mx, dtype)
    assert got.shape == expected.shape
    wide = to_numpy(got).astype(np.float64)
    np.testing.assert_allclose(wide, expected, rtol=RTOL[dtype], atol=ATOL * scale)
