"""The examples run as scripts, and their functions work on the dtypes and shapes they promise."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import pytest

from enceladus.testing import assert_close
from tests.row_examples import fresh_kernels

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
#: Shorter runs than by default.
ARGUMENTS = {"transformer": ["--steps", "2"]}
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
TOLERANCES = {mx.float32: 1e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with fresh_kernels():
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_script_runs(name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if name == "data_parallel" and not mx.distributed.is_available("ring"):
        pytest.skip("needs the ring back end of mx.distributed")
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *ARGUMENTS.get(name, [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def test_demo_shows_engine_and_metal() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ENCELADUS_INTERPRET": "1"}
    command = [sys.executable, str(EXAMPLES / "demo.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "engine 'interpret'" in done.stdout
    assert done.stdout.count("  ok  ") == 3
    assert "[[kernel]] void" in done.stdout


def test_demo_fails_on_a_mismatch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    demo = load("demo")
    monkeypatch.setattr(demo, "mlx_gelu", lambda x: x)
    assert demo.main() == 1
    assert capsys.readouterr().out.count("FAIL") == 2


def widen(*arrays: mx.array) -> list[mx.array]:
    return [a.astype(mx.float32) for a in arrays]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(1,), (7,), (5, 200), (1000,), (3, 2, 1024)])
def test_functions(shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    mx.random.seed(1)
    x, y = mx.random.normal(shape).astype(dtype), mx.random.normal(shape).astype(dtype)
    bias = mx.random.normal(shape[-1:]).astype(dtype)
    tolerance = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
    gelu, bias_gelu, swiglu = load("gelu"), load("bias_gelu"), load("swiglu")
    assert mx.array_equal(load("vector_add").vector_add(x, y), x + y)
    assert_close(gelu.fused_gelu(x), gelu.mlx_gelu(*widen(x)), **tolerance)
    assert_close(bias_gelu.bias_gelu(x, bias), bias_gelu.mlx_bias_gelu(*widen(x, bias)), **tolerance)
    assert_close(swiglu.swiglu(x, y), swiglu.mlx_swiglu(*widen(x, y)), **tolerance)


def test_bias_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bias has shape \(3,\); x has 4 columns"):
        load("bias_gelu").bias_gelu(mx.zeros((2, 4)), mx.zeros((3,)))
